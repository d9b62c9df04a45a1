#!/usr/bin/env python3
"""Checks a router in front of real vLLM workers, from the client's side. run.sh starts all of it and calls this.

    check.py --url URL --workers URL URL [--baseline-url URL] [--admin-url URL] [--only NAME,NAME] [--list]

--url           the router under test, or a worker itself (then the checks of what only a router does are skipped)
--workers       the workers behind it; they are asked directly for what the router's answers are compared with
--baseline-url  a second router over the same workers with policy round_robin, for the prefix cache comparison
--admin-url     the router's admin port, for /metrics
--only          names of checks to run; --list prints them all

Prints a line `ok NAME: ...`, `FAIL NAME: ...` or `skip NAME: ...` for each check, then `N passed, M failed`; exit
status 1 if any failed. Needs aiohttp and openai, which the vLLM venv has.
"""

import asyncio
import dataclasses
import json
import os
import pathlib
import random
import sys
import tempfile
import time

import openai
from verdicts import Skipped, Stage, main

MODEL = "tiny"
VLLM = str(pathlib.Path(sys.executable).parent / "vllm")  # the venv's, beside its python
TOKENIZER = os.environ.get("TOKENIZER", str(pathlib.Path(sys.prefix).parent / "tiny-llama"))
SETTLE_SECONDS = 30  # for a gauge on a worker to follow what happened

GREEDY_PROMPTS = 40
GREEDY_TOKENS = 24

# 32 prefixes of about 3200 tokens are 100,000 tokens: too many for the KV cache of one worker (65,536), while each
# worker's share of them fits when every prefix keeps to one worker.
PREFIXES = int(os.environ.get("PREFIXES", "32"))
PREFIX_WORDS = int(os.environ.get("PREFIX_WORDS", "1250"))
PREFIX_REPEATS = int(os.environ.get("PREFIX_REPEATS", "6"))
PREFIX_CONCURRENCY = 8

BENCH_PROMPTS = int(os.environ.get("BENCH_PROMPTS", "128"))

WORDS = (
    "river gate turbine water level spill basin canal pressure intake head flow dam lock sluice weir "
    "penstock crest gauge valve spring meadow winter engine shaft rotor current season storm bridge"
).split()

CHECKS = []


def check(function):
    """Registers a check; its name is the function's name."""
    CHECKS.append(function)
    return function


def expect(condition, message):
    """Fails the running check with `message` unless `condition` holds."""
    if not condition:
        raise AssertionError(message)


@dataclasses.dataclass
class Answer:
    """One HTTP answer, read to its end."""

    status: int
    headers: dict
    body: bytes
    arrivals: list  # (seconds since the request was sent, bytes) for each HTTP chunk

    def json(self):
        """The body as JSON."""
        return json.loads(self.body)

    def events(self):
        """The `data:` payloads of an SSE body, in order."""
        lines = self.body.decode().split("\n")
        return [line[len("data: ") :] for line in lines if line.startswith("data: ")]

    def chunks(self):
        """The JSON payloads of an SSE body; fails unless it ends with [DONE]."""
        events = self.events()
        expect(events and events[-1] == "[DONE]", f"no [DONE] at the end, got {self.body[-200:]!r}")
        return [json.loads(event) for event in events[:-1]]


class Bed(Stage):
    """The router under test, the workers behind it, and how to ask them."""

    def __init__(self, args, session):
        self.url, self.workers = args.url, args.workers
        self.baseline_url, self.admin_url = args.baseline_url, args.admin_url
        self.session = session

    @property
    def is_direct(self):
        """Whether the URL under test is a worker, without a router."""
        return self.url in self.workers

    async def ask(self, path, body=None, url=None, headers=None):
        """POSTs `body` (bytes, or an object sent as JSON), GETs without one; to the router unless `url` is given."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **(headers or {})}
        method = "GET" if body is None else "POST"
        began = time.perf_counter()
        arrivals, parts = [], []
        async with self.session.request(method, (url or self.url) + path, data=data, headers=headers) as response:
            async for part, ends_chunk in response.content.iter_chunks():
                parts.append(part)
                if ends_chunk:
                    arrivals.append((time.perf_counter() - began, len(part)))
            return Answer(response.status, response.headers, b"".join(parts), arrivals)

    async def ask_ok(self, path, body=None, **kwargs):
        """Like `ask`, but fails unless the status is 200."""
        answer = await self.ask(path, body, **kwargs)
        expect(answer.status == 200, f"{path} answered {answer.status}: {answer.body[:300]!r}")
        return answer

    async def ask_both(self, path, body=None):
        """The same request through the router and to the first worker: (answer, direct answer)."""
        return await self.ask(path, body), await self.ask(path, body, url=self.workers[0])

    async def metric(self, name):
        """Sum of a metric over all workers and all its series."""
        total = 0.0
        for worker in self.workers:
            text = (await self.ask_ok("/metrics", url=worker)).body.decode()
            for line in text.splitlines():
                if line.startswith(name + "{"):
                    total += float(line.rsplit(" ", 1)[1])
        return total

    async def metric_becomes(self, name, value):
        """Polls until `metric` is `value`; gives the seconds it took, or fails after SETTLE_SECONDS."""
        began = time.perf_counter()
        while (seen := await self.metric(name)) != value:
            if time.perf_counter() - began > SETTLE_SECONDS:
                raise AssertionError(f"{name} is {seen} after {SETTLE_SECONDS} s, expected {value}")
            await asyncio.sleep(0.05)
        return time.perf_counter() - began

    async def reset_prefix_caches(self):
        """Empties the prefix cache of every worker."""
        for worker in self.workers:
            await self.ask_ok("/reset_prefix_cache", b"", url=worker)


def completion(prompt, tokens=8, **more):
    """A greedy completions request."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}


def chat(content, tokens=8, **more):
    """A greedy chat request."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, **more}


def generate(tokens=8, **more):
    """A greedy token-in, token-out request."""
    sampling = {"max_tokens": tokens, "temperature": 0}
    return {"model": MODEL, "token_ids": [42, 71, 3969, 14, 1268], "sampling_params": sampling, **more}


def words(rng, count):
    """`count` seeded words as one text."""
    return " ".join(rng.choices(WORDS, k=count))


def text_of(chunks):
    """What a list of completions or chat chunks (or one whole answer) says, and why it ended."""
    text, reason = "", None
    for chunk in chunks:
        for choice in chunk["choices"]:
            said = choice.get("delta") or choice.get("message")
            text += (said.get("content") or "") if said is not None else choice.get("text", "")
            reason = choice["finish_reason"] or reason
    return text, reason


def typed_text(answer, last, text):
    """The text in a stream of typed events (Responses, Messages), of which the last must be of type `last`."""
    events = [json.loads(event) for event in answer.events()]
    expect(events[-1]["type"] == last, f"the last event is {events[-1]}")
    return "".join(text(e) for e in events if e["type"] in ("response.output_text.delta", "content_block_delta"))


# --- every route answers as the worker does -------------------------------------------------------------------------


@check
async def models(bed):
    """/v1/models keeps the fields that clients of vLLM rely on."""
    answer, direct = await bed.ask_both("/v1/models")
    expect(answer.status == 200, f"status {answer.status}")
    ours, theirs = answer.json()["data"], direct.json()["data"]
    expect(len(ours) == len(theirs) == 1, f"{len(ours)} models, the worker has {len(theirs)}")
    for field in ("id", "root", "max_model_len"):
        expect(ours[0].get(field) == theirs[0][field], f"{field}: {ours[0].get(field)!r}, not {theirs[0][field]!r}")
    return f"id {ours[0]['id']}, max_model_len {ours[0]['max_model_len']}"


async def same_answer(bed, path, body, pick):
    """Fails unless `pick` finds the same thing in the router's and in a worker's answer to `body`; gives that thing."""
    answer, direct = await bed.ask_both(path, body)
    expect(answer.status == direct.status == 200, f"status {answer.status}, the worker says {direct.status}")
    ours, theirs = pick(answer.json()), pick(direct.json())
    expect(ours == theirs, f"{ours!r}, the worker says {theirs!r}")
    return ours


@check
async def completions(bed):
    said = await same_answer(bed, "/v1/completions", completion("Hello, world"), lambda a: text_of([a]))
    return repr(said[0])


@check
async def chat_completions(bed):
    said = await same_answer(bed, "/v1/chat/completions", chat("Hello, world"), lambda a: text_of([a]))
    return repr(said[0])


@check
async def inference_generate(bed):
    ids = await same_answer(bed, "/inference/v1/generate", generate(), lambda a: a["choices"][0]["token_ids"])
    return str(ids)


@check
async def responses(bed):
    body = {"model": MODEL, "input": "hi there", "max_output_tokens": 8, "temperature": 0}
    return repr(await same_answer(bed, "/v1/responses", body, lambda a: a["output"][0]["content"][0]["text"]))


@check
async def messages(bed):
    return repr(await same_answer(bed, "/v1/messages", chat("hi there"), lambda a: a["content"][0]["text"]))


@check
async def tokenize(bed):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    return str(await same_answer(bed, "/tokenize", body, lambda a: a))


@check
async def detokenize(bed):
    return str(await same_answer(bed, "/detokenize", {"model": MODEL, "tokens": [42, 71, 3969, 14]}, lambda a: a))


# --- streams --------------------------------------------------------------------------------------------------------


async def streams(bed, path, body, pick):
    """One stream: its tokens come as they are made, and `pick` finds the same in it as in a worker's own."""
    answer, direct = await bed.ask_both(path, {**body, "stream": True})
    expect(answer.status == 200, f"status {answer.status}: {answer.body[:300]!r}")
    kind = answer.headers.get("content-type", "")
    expect(kind.startswith("text/event-stream"), f"content-type {kind!r}")
    expect(answer.body.endswith(b"\n\n"), f"the last event is cut: {answer.body[-100:]!r}")
    first, last = answer.arrivals[0][0], answer.arrivals[-1][0]
    expect(first < last / 2, f"first chunk after {first:.3f} s, last after {last:.3f} s: the stream was held back")
    # vLLM itself puts tokens that are ready together into one event, so counts differ a little from run to run; a
    # relay that waits for more shows as far fewer chunks.
    count, wanted = len(answer.arrivals), len(direct.arrivals)
    expect(count > wanted / 2, f"{count} chunks, a worker sends {wanted}")
    ours, theirs = pick(answer), pick(direct)
    expect(ours == theirs, f"{ours!r}, the worker says {theirs!r}")
    return f"{len(answer.events())} events in {count} chunks, first {1e3 * first:.0f} ms, last {1e3 * last:.0f} ms"


@check
async def completions_stream(bed):
    body = completion("Hello, world", 128)
    return await streams(bed, "/v1/completions", body, lambda a: text_of(a.chunks()))


@check
async def chat_completions_stream(bed):
    body = chat("Hello, world", 128, stream_options={"include_usage": True})

    def said(answer):
        return text_of(answer.chunks()), answer.chunks()[-1]["usage"]["completion_tokens"]

    return await streams(bed, "/v1/chat/completions", body, said)


@check
async def inference_generate_stream(bed):
    def ids(answer):
        return [token for chunk in answer.chunks() for token in chunk["choices"][0]["token_ids"]]

    return await streams(bed, "/inference/v1/generate", generate(128), ids)


@check
async def responses_stream(bed):
    body = {"model": MODEL, "input": "hi there", "max_output_tokens": 128, "temperature": 0}

    def said(answer):
        return typed_text(answer, "response.completed", lambda event: event["delta"])

    return await streams(bed, "/v1/responses", body, said)


@check
async def messages_stream(bed):
    def said(answer):
        return typed_text(answer, "message_stop", lambda event: event["delta"]["text"])

    return await streams(bed, "/v1/messages", chat("hi there", 128), said)


@check
async def openai_client(bed):
    """The official client works, whole and streamed."""
    async with openai.AsyncOpenAI(base_url=bed.url + "/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(**chat("hi there", 16))
        stream = await client.chat.completions.create(**chat("hi there", 16), stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    said = whole.choices[0].message.content
    expect(said and "".join(parts) == said, f"streamed {''.join(parts)!r}, whole {said!r}")
    return f"openai {openai.__version__}"


# --- refusals -------------------------------------------------------------------------------------------------------


@check
async def embeddings_refused(bed):
    """What the worker refuses comes back as the worker said it."""
    answer, direct = await bed.ask_both("/v1/embeddings", {"model": MODEL, "input": "Hello"})
    expect(direct.status >= 400, f"the worker does not refuse: {direct.status}")
    expect(
        (answer.status, answer.body) == (direct.status, direct.body),
        f"{answer.status} {answer.body[:200]!r}, the worker says {direct.status} {direct.body!r}",
    )
    return f"{answer.status} {answer.body.decode()}"


@check
async def bad_parameter_refused(bed):
    body = completion("Hello", temperature=-1)
    answer, direct = await bed.ask_both("/v1/completions", body)
    expect(direct.status == 400, f"the worker says {direct.status}")
    expect((answer.status, answer.body) == (direct.status, direct.body), f"{answer.status} {answer.body[:200]!r}")
    return "400, body as from the worker"


async def refused(bed, body, status):
    """Both completions routes answer `body` with `status` and an error in OpenAI's shape; gives the message."""
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer, direct = await bed.ask_both(path, body)
        expect(direct.status == status, f"{path}: the worker says {direct.status}")
        expect(answer.status == status, f"{path}: {answer.status} {answer.body[:200]!r}")
        error = answer.json().get("error")
        expect(isinstance(error, dict), f"{path}: no error object: {answer.body[:200]!r}")
        expect(error.get("message") and error.get("code") == status, f"{path}: {error}")
    return f"{status} {error['message'][:80]!r}"


@check
async def unknown_model_is_404(bed):
    return await refused(bed, {**completion("Hello"), **chat("Hello"), "model": "no-such-model"}, 404)


@check
async def broken_json_is_400(bed):
    return await refused(bed, b'{"model":"tiny","prompt":"Hello","messages":[', 400)


# --- request ids ----------------------------------------------------------------------------------------------------


@check
async def request_id_of_the_client(bed):
    """The client's X-Request-Id reaches the worker and comes back."""
    routes = [("/v1/completions", completion("a"), "cmpl-"), ("/v1/chat/completions", chat("a"), "chatcmpl-")]
    for path, body, prefix in routes:
        answer = await bed.ask_ok(path, body, headers={"X-Request-Id": "trial-7-request-1"})
        expect(answer.json()["id"] == prefix + "trial-7-request-1", f"id is {answer.json()['id']}")
        header = answer.headers.get("x-request-id")
        expect(bed.is_direct or header == "trial-7-request-1", f"x-request-id is {header!r}")
    return "kept"


@check
async def request_id_of_the_router(bed):
    """Without one from the client, the router's x-request-id is the worker's id."""
    if bed.is_direct:
        raise Skipped("no router")
    seen = set()
    for stream in (False, True):
        answer = await bed.ask_ok("/v1/completions", completion("a", stream=stream))
        ours, theirs = answer.headers.get("x-request-id"), (answer.chunks()[0] if stream else answer.json())["id"]
        expect(ours and theirs == f"cmpl-{ours}", f"x-request-id is {ours!r}, id is {theirs!r}")
        seen.add(ours)
    expect(len(seen) == 2, f"the same id twice: {seen}")
    return f"for example {ours}"


# --- clients that leave ---------------------------------------------------------------------------------------------


async def leaves(bed, stream):
    """A client leaves a long request: the worker must abort it, not run it to its end."""
    await bed.metric_becomes("vllm:num_requests_running", 0)
    made = await bed.metric("vllm:generation_tokens_total")
    body = chat("Hello, world", 6000, ignore_eos=True, stream=stream)
    request = asyncio.create_task(bed.session.post(bed.url + "/v1/chat/completions", json=body))
    response = None
    try:
        if stream:
            response = await request
            for _ in range(5):
                await response.content.readany()
        await bed.metric_becomes("vllm:num_requests_running", 1)
    finally:
        request.cancel()  # closes the connection while the head is still awaited
        if response is not None:
            response.close()
    seconds = await bed.metric_becomes("vllm:num_requests_running", 0)
    made = await bed.metric("vllm:generation_tokens_total") - made
    expect(made < 6000, "the worker ran the request to its end")
    return f"aborted on the worker after {1e3 * seconds:.0f} ms and {made:.0f} of 6000 tokens"


@check
async def disconnect_mid_stream(bed):
    return await leaves(bed, stream=True)


@check
async def disconnect_before_the_answer(bed):
    return await leaves(bed, stream=False)


# --- outputs --------------------------------------------------------------------------------------------------------


def greedy_prompts():
    """Short and long prompts, with and without bytes beyond ASCII, with and without JSON escapes."""
    rng = random.Random(7)
    marks = ["", "naïve 你好 🙂", 'a "quoted" \\ back\\slash', "tab\tand\nnewline", "<|im_end|>"]
    sizes = [rng.choice([1, 20, 200, 1000]) for _ in range(GREEDY_PROMPTS)]
    return [f"{index} {marks[index % len(marks)]} {words(rng, size)}" for index, size in enumerate(sizes)]


async def gather_bounded(limit, jobs):
    """Awaits `jobs` with at most `limit` at a time; results in their order."""
    slots = asyncio.Semaphore(limit)

    async def run(job):
        async with slots:
            return await job

    return await asyncio.gather(*(run(job) for job in jobs))


async def same_outputs(bed, path, make):
    """Greedy output of every prompt, whole and streamed, equals what a worker says when asked directly."""

    async def say(prompt, url, stream):
        answer = await bed.ask_ok(path, make(prompt, GREEDY_TOKENS, stream=stream), url=url)
        return text_of(answer.chunks() if stream else [answer.json()])

    prompts = greedy_prompts()
    wanted = await gather_bounded(8, [say(prompt, bed.workers[0], False) for prompt in prompts])
    expect(len(set(wanted)) == len(wanted), "two prompts have the same output: the comparison proves nothing")
    for stream in (False, True):
        got = await gather_bounded(8, [say(prompt, None, stream) for prompt in prompts])
        wrong = [index for index, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]]
        expect(not wrong, f"stream={stream}: {len(wrong)} of {len(prompts)} differ, first is prompt {wrong[:1]}")
    return f"{len(prompts)} prompts, whole and streamed"


@check
async def greedy_completions(bed):
    return await same_outputs(bed, "/v1/completions", completion)


@check
async def greedy_chat(bed):
    return await same_outputs(bed, "/v1/chat/completions", chat)


# --- metrics and load -----------------------------------------------------------------------------------------------


@check
async def router_metrics(bed):
    if bed.admin_url is None:
        raise Skipped("no --admin-url")
    text = (await bed.ask_ok("/metrics", url=bed.admin_url)).body.decode()
    series = [line for line in text.splitlines() if line.startswith("forebay_")]
    expect(series, f"no forebay_ series in {text[:200]!r}")
    return f"{len(series)} series"


async def bench(bed, backend, extra):
    """`vllm bench serve` through the router: every request succeeds. Its numbers are printed, not judged."""
    with tempfile.TemporaryDirectory() as folder:
        command = [VLLM, "bench", "serve", "--backend", backend, "--base-url", bed.url, "--model", MODEL]
        command += ["--tokenizer", TOKENIZER, "--num-prompts", str(BENCH_PROMPTS), "--max-concurrency", "16"]
        command += ["--seed", "7", "--ignore-eos", "--disable-tqdm"]
        command += ["--save-result", "--result-dir", folder, "--result-filename", "r.json"]
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        process = await asyncio.create_subprocess_exec(
            *command, *extra, env=quiet, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        expect(process.returncode == 0, f"exit status {process.returncode}: {output.decode()[-500:]}")
        result = json.loads((pathlib.Path(folder) / "r.json").read_text())
    expect(result["completed"] == BENCH_PROMPTS, f"{result['completed']} of {BENCH_PROMPTS} completed")
    return (
        f"{result['completed']} of {BENCH_PROMPTS}, {result['request_throughput']:.1f} req/s, "
        f"{result['output_throughput']:.0f} output tok/s, TTFT p50 {result['median_ttft_ms']:.0f} ms "
        f"p99 {result['p99_ttft_ms']:.0f} ms, ITL p50 {result['median_itl_ms']:.1f} ms"
    )


@check
async def bench_openai(bed):
    extra = ["--dataset-name", "random", "--random-input-len", "256", "--random-output-len", "64"]
    return await bench(bed, "openai", extra)


@check
async def bench_openai_chat(bed):
    extra = ["--endpoint", "/v1/chat/completions", "--dataset-name", "prefix_repetition"]
    extra += ["--prefix-repetition-prefix-len", "1024", "--prefix-repetition-suffix-len", "64"]
    extra += ["--prefix-repetition-num-prefixes", "8", "--prefix-repetition-output-len", "32"]
    return await bench(bed, "openai-chat", extra)


# --- the prefix cache -----------------------------------------------------------------------------------------------


async def prefix_hits(bed, url):
    """Sends the seeded prompts to `url`, caches cold: (hit tokens, queried tokens, seconds)."""
    rng = random.Random(11)
    prefixes = [f"Document {index}: {words(rng, PREFIX_WORDS)}" for index in range(PREFIXES)]
    order = [index for index in range(PREFIXES) for _ in range(PREFIX_REPEATS)]
    rng.shuffle(order)
    prompts = [f"{prefixes[index]} Question {turn}: {words(rng, 20)}?" for turn, index in enumerate(order)]

    def ask(prompt):
        return bed.ask_ok("/v1/completions", completion(prompt, 4), url=url)

    await bed.reset_prefix_caches()
    names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    before = [await bed.metric(name) for name in names]
    began = time.perf_counter()
    await gather_bounded(PREFIX_CONCURRENCY, [ask(prompt) for prompt in prompts])
    seconds = time.perf_counter() - began
    hits, queries = [await bed.metric(name) - old for name, old in zip(names, before)]
    return hits, queries, seconds


@check
async def prefix_cache_beats_round_robin(bed):
    """The same prompts find clearly more of their tokens in the workers' caches than under round_robin."""
    if bed.baseline_url is None:
        raise Skipped("no --baseline-url")
    base_hits, base_queries, base_seconds = await prefix_hits(bed, bed.baseline_url)
    hits, queries, seconds = await prefix_hits(bed, bed.url)
    what = (
        f"hit {hits:.0f} of {queries:.0f} tokens ({hits / queries:.0%}) in {seconds:.1f} s, round_robin "
        f"{base_hits:.0f} of {base_queries:.0f} ({base_hits / base_queries:.0%}) in {base_seconds:.1f} s"
    )
    expect(queries == base_queries, f"not the same prompts: {what}")
    expect(hits > 1.1 * base_hits, what)
    return what


# --------------------------------------------------------------------------------------------------------------------


def arguments(parser):
    parser.add_argument("--url")
    parser.add_argument("--workers", nargs="+", default=[])
    parser.add_argument("--baseline-url")
    parser.add_argument("--admin-url")


def complaint(args):
    return None if args.url and args.workers else "--url and --workers are needed"


if __name__ == "__main__":
    main(__doc__, arguments, CHECKS, Bed, complaint)
