"""What the official OpenAI and Anthropic clients get through forebay, in front of simulated or real workers.

    check.py BASE_URL [MODEL]

Needs `pip install openai anthropic`. What the workers do not serve (404, or 501) is told and does not count. Prints a line
per check, then `N passed, M failed`; exit status 1 if one failed.
"""

import io
import sys

import anthropic
import openai

BASE = sys.argv[1].rstrip("/")
MODEL = sys.argv[2] if len(sys.argv) > 2 else "tiny"
HELLO = [{"role": "user", "content": "Say hello to the river."}]
AUDIO = ("a.wav", io.BytesIO(b"RIFF" + bytes(200_000)), "audio/wav")

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
claude = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
bearer = anthropic.Anthropic(base_url=BASE, api_key=None, auth_token="none", max_retries=0)


def models():
    return [model.id for model in client.models.list()]


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
    assert answer.choices[0].message.role == "assistant" and answer.usage.completion_tokens > 0
    return answer.usage.completion_tokens


def chat_stream():
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=8, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 0
    return len(chunks)


def completions():
    return client.completions.create(model=MODEL, prompt="Once", max_tokens=8).usage.completion_tokens


def completions_stream():
    return len(list(client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=True)))


def responses():
    answer = client.responses.create(model=MODEL, input="Once", max_output_tokens=8)
    assert answer.id and answer.output_text is not None
    return answer.status


def responses_stream():
    kinds = [e.type for e in client.responses.create(model=MODEL, input="Once", max_output_tokens=8, stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    return len(kinds)


def responses_stored():
    first = client.responses.create(model=MODEL, input="Once", max_output_tokens=8, store=True)
    again = client.responses.retrieve(first.id)
    assert again.id == first.id
    client.responses.create(
        model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=8, store=True
    )
    return again.id


def embeddings():
    return len(client.embeddings.create(model=MODEL, input=["a", "b"]).data)


def transcription():
    return client.audio.transcriptions.create(model=MODEL, file=AUDIO).text


def transcription_stream():
    return len(list(client.audio.transcriptions.create(model=MODEL, file=AUDIO, stream=True)))


def unknown_model():
    try:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    except openai.NotFoundError as error:
        return error.body["message"]
    raise AssertionError("no error")


def messages():
    answer = claude.messages.create(model=MODEL, messages=HELLO, max_tokens=8)
    assert answer.type == "message" and answer.usage.output_tokens > 0
    return answer.usage.output_tokens


def messages_stream():
    with claude.messages.stream(model=MODEL, messages=HELLO, max_tokens=8) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and final.usage.output_tokens > 0
    return len(kinds)


def messages_beta():
    answer = claude.beta.messages.create(
        model=MODEL, messages=HELLO, max_tokens=8, betas=["prompt-caching-2024-07-31"]
    )
    return answer.type


def messages_bearer():
    return bearer.messages.create(model=MODEL, messages=HELLO, max_tokens=8).type


def count_tokens():
    return claude.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens


def messages_unknown_model():
    try:
        claude.messages.create(model="no-such-model", messages=HELLO, max_tokens=8)
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body
        return error.body["error"]["message"]
    raise AssertionError("no error")


CHECKS = [
    models, chat, chat_stream, completions, completions_stream, responses, responses_stream, responses_stored,
    embeddings, transcription, transcription_stream, unknown_model, messages, messages_stream, messages_beta,
    messages_bearer, count_tokens, messages_unknown_model,
]


def main():
    passed = failed = 0
    for check in CHECKS:
        try:
            print(f"ok {check.__name__}: {check()}")
            passed += 1
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            if error.status_code in (404, 501):
                print(f"not served {check.__name__}: {error.status_code} {error.response.text[:120]}")
                continue
            failed += 1
            print(f"FAILED {check.__name__}: {error}")
        except Exception as error:  # whatever it is, the next check is worth its line
            failed += 1
            print(f"FAILED {check.__name__}: {error!r}")
    print(f"{passed} passed, {failed} failed (openai {openai.__version__}, anthropic {anthropic.__version__})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
