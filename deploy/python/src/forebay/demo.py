"""`python -m forebay.demo`: two trials on simulated workers, equal because of the reset between them, and a report."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import Any, Dict, List, NamedTuple

from .client import connect, send
from .config import RouterConfig
from .errors import ForebayError, failure_from_answer
from .report import facts
from .router import Router
from .sim import SimWorkers

MODEL = "demo"
#: With four workers, round_robin sends the turns of one conversation to different ones.
CONVERSATIONS = 7
TURNS = 3
_PREFIX_WORDS = 1200

Message = Dict[str, str]


class Reply(NamedTuple):
    """What a client saw of one answer."""

    #: From the request to the first byte of the answer's body, in seconds.
    ttft_secs: float
    #: Tokens of the prompt, and those of them that the worker did not have to compute.
    prompt_tokens: int
    cached_tokens: int
    #: Which worker it was and why; empty without `expose_routing_headers`.
    worker: str
    decision: str


def conversations(seed: int) -> List[List[Message]]:
    """The prompts of a trial, in order: all first turns, all second turns, … The same seed gives the same ones."""
    draw = random.Random(seed)
    histories: List[List[Message]] = []
    for _ in range(CONVERSATIONS):
        words = (format(draw.getrandbits(24), "06x") for _ in range(_PREFIX_WORDS))
        histories.append([{"role": "system", "content": " ".join(words)}])
    prompts = []
    for turn in range(TURNS):
        for history in histories:
            history.append({"role": "user", "content": f"Question {turn}: {draw.getrandbits(32)}?"})
            prompts.append(list(history))
            history.append({"role": "assistant", "content": f"Answer {turn}."})
    return prompts


def run_trial(url: str, prompts: List[List[Message]]) -> List[Reply]:
    """One client that sends one prompt after the other. Raises `RouterFailure`, or `ForebayError` with the answer."""
    connection = connect(url, 60)
    try:
        return [_ask(connection, prompt) for prompt in prompts]
    finally:
        connection.close()


def _ask(connection: Any, messages: List[Message]) -> Reply:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun = time.perf_counter()
    answer = send(connection, "POST", "/v1/chat/completions", body)
    first = answer.read(1)
    ttft_secs = time.perf_counter() - begun
    text = first + answer.read()
    failure = failure_from_answer(answer.status, answer.headers, text)
    if failure is not None:
        raise failure
    if answer.status != 200:
        raise ForebayError(f"a worker answered {answer.status}: {text[:1000]!r}")
    usage = _usage(text)
    details = usage.get("prompt_tokens_details") or {}
    worker, decision = (answer.headers.get(f"x-forebay-{name}", "") for name in ("worker", "decision"))
    return Reply(ttft_secs, usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0, worker, decision)


def _usage(stream: bytes) -> Dict[str, Any]:
    """The last usage record of a stream."""
    for line in reversed(stream.splitlines()):
        if line.startswith(b"data:") and b'"usage":{' in line:
            usage: Dict[str, Any] = json.loads(line[5:])["usage"]
            return usage
    return {}


def main() -> int:
    """Runs the demo; gives the exit code."""
    try:
        with SimWorkers(4, MODEL) as workers, Router(RouterConfig(policy="cache_aware", seed=7), workers) as router:
            print(f"forebay at {router.url} in front of {len(workers)} simulated workers")
            reports = []
            for trial in ("demo-1", "demo-2"):
                router.reset(trial, seed=7, wait_idle_secs=10, reset_workers_prefix_cache=True)
                replies = run_trial(router.url, conversations(seed=7))
                print(f"{trial}: {_summary(replies)}")
                reports.append(router.end_trial())
            print(json.dumps(reports[-1], indent=2))
            print(f"equal but for times: {facts(reports[0]) == facts(reports[1])}")
    except ForebayError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _summary(replies: List[Reply]) -> str:
    ttft_ms = statistics.median(reply.ttft_secs for reply in replies) * 1000
    prompt, cached = sum(r.prompt_tokens for r in replies), sum(r.cached_tokens for r in replies)
    return f"{len(replies)} answers, {cached} of {prompt} prompt tokens cached, TTFT p50 {ttft_ms:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
