#!/usr/bin/env python3
"""Checks that a router tells the data-parallel ranks of a real vLLM worker apart. ranks.sh starts all of it and calls this.

    check_ranks.py --ranked URL --decode URL --url URL --cached-url URL --pairs-url URL --pairs-admin-url URL
                   --forebay FILE [--only NAME,NAME] [--list]

--ranked      a worker with two ranks, which can also prefill for --decode
--url         a router in front of --ranked that gives each rank a turn
--cached-url  another one, which is cache aware
--pairs-url   another one, which pairs --ranked with --decode
--forebay     the binary

What a rank did is told by the `engine` label of the worker's own metrics. Prints as check.py does.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import time

from check import SETTLE_SECONDS, Bed, chat, completion, expect, text_of, words
from verdicts import main

RANKS = 2
PROMPTS = int(os.environ.get("PROMPTS", "20"))  # for each way of asking a pair
PAIRS_AT_ONCE = 4
# A worker with two ranks is nine processes, which share two cores with all others.
SECONDS = 900

CHECKS = []


def check(function):
    """Registers a check; its name is the function's name."""
    CHECKS.append(function)
    return function


class RankBed(Bed):
    """A worker with ranks, and routers in front of it."""

    def __init__(self, args, session):
        args.workers, args.baseline_url, args.admin_url = [args.ranked], None, args.pairs_admin_url
        super().__init__(args, session)
        self.args = args

    async def by_engine(self, name, url=None):
        """Sums of a metric of a worker by its `engine` label."""
        sums = dict.fromkeys(map(str, range(RANKS)), 0)
        for line in (await self.ask_ok("/metrics", url=url or self.args.ranked)).body.decode().splitlines():
            if line.startswith(name + "{"):
                engine = re.search(r'[{,]engine="(\d+)"', line)
                sums[engine[1]] = sums.get(engine[1], 0) + float(line.rsplit(" ", 1)[1])
        return sums

    async def ended(self):
        """Requests that each rank has ended, ever."""
        return await self.by_engine("vllm:request_success_total")

    async def sum_of(self, name, url, label=""):
        """Sum of a metric over the series of one process that have this label."""
        lines = (await self.ask_ok("/metrics", url=url)).body.decode().splitlines()
        return sum(float(li.rsplit(" ", 1)[1]) for li in lines if re.match(name + "[{ ]", li) and label in li)


def rank_told(answer):
    """The rank that the router says it chose."""
    name = answer.headers.get("x-forebay-worker", "")
    expect("@" in name, f"x-forebay-worker is {name!r}")
    return name.rsplit("@", 1)[1]


async def lands_where_told(bed, path, body, headers=None):
    """One request: the rank that the router names is the one whose engine ends it, and no other ends any."""
    before = await bed.ended()
    answer = await bed.ask_ok(path, body, headers=headers)
    rank, began = rank_told(answer), time.perf_counter()
    while (after := await bed.ended()) == before:
        expect(time.perf_counter() - began < SETTLE_SECONDS, f"no engine ended anything, {before}")
        await asyncio.sleep(0.02)
    grown = {engine: count - before[engine] for engine, count in after.items() if count != before[engine]}
    expect(grown == {rank: 1}, f"told rank {rank}, ended by {grown}")
    return rank


async def pinned(bed, path, body_of):
    """Whole and streamed requests, those with a rank of the client's too, land on the rank that the router names."""
    ranks = []
    for turn in range(4 * RANKS):
        more = {"stream": True} if turn // RANKS % 2 else {}
        forged = {"X-data-parallel-rank": str(7 - turn)} if turn >= 2 * RANKS else None
        ranks.append(await lands_where_told(bed, path, {**body_of(f"request {turn}"), **more}, forged))
    expect(sorted(ranks) == sorted(["0", "1"] * (2 * RANKS)), f"not in turn: {ranks}")
    return f"{len(ranks)} requests on ranks {' '.join(ranks)}"


@check
async def pinned_chat(bed):
    return await pinned(bed, "/v1/chat/completions", lambda text: chat(text, 4))


@check
async def pinned_completions(bed):
    return await pinned(bed, "/v1/completions", lambda text: completion(text, 4))


@check
async def pinned_generate(bed):
    def body(text):
        ids = [50 + byte for byte in text.encode()]
        return {"model": "tiny", "token_ids": ids, "sampling_params": {"max_tokens": 4, "temperature": 0}}

    return await pinned(bed, "/inference/v1/generate", body)


@check
async def pinned_responses(bed):
    def body(text):
        return {"model": "tiny", "input": text, "max_output_tokens": 4, "temperature": 0}

    return await pinned(bed, "/v1/responses", body)


@check
async def pinned_messages(bed):
    return await pinned(bed, "/v1/messages", lambda text: chat(text, 4))


@check
async def refusal_of_a_rank(bed):
    """What the worker says of a rank that it does not have is what the router reads."""
    answer = await bed.ask("/v1/completions", completion("a"), url=bed.args.ranked, headers={"X-data-parallel-rank": "9"})
    expect(answer.status == 400, f"status {answer.status}")
    message = answer.json()["error"]["message"]
    expect("data_parallel_rank 9 is out of range [0, 2)" in message, message)
    return repr(message)


@check
async def wrong_number_of_ranks(bed):
    """A start with another number of ranks than there are ends with an error that names both."""
    flags = ["--worker-urls", bed.args.ranked, "--intra-node-data-parallel-size", "4", "--port", "0", "--admin-port", "0"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(bed.args.forebay, *flags, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(30):
            _, log = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    last = json.loads(log.decode().splitlines()[-1])
    expect(process.returncode == 2, f"exit code {process.returncode}: {last}")
    expect("4 was given" in last["message"] and "has 2" in last["message"], last["message"])
    return repr(last["message"])


@check
async def caches_are_found_again(bed):
    """What a rank has cached is asked for there: all of a prompt but its last block comes from the cache."""
    await bed.reset_prefix_caches()
    rng, seen, cached, asked = random.Random(5), {}, 0, 0
    prompts = [words(rng, 150) for _ in range(8)]
    for round_ in range(4):
        for at in rng.sample(range(len(prompts)), len(prompts)):
            answer = await bed.ask_ok("/v1/completions", completion(prompts[at], 2), url=bed.args.cached_url)
            rank = seen.setdefault(at, rank_told(answer))
            expect(rank_told(answer) == rank, f"prompt {at} went to rank {rank_told(answer)}, is cached by {rank}")
            usage = answer.json()["usage"]
            if round_:
                asked += usage["prompt_tokens"]
                cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    expect(set(seen.values()) == {"0", "1"}, f"all on one rank: {seen}")
    expect(cached > 0.85 * asked, f"{cached} of {asked} tokens cached")
    return f"{cached} of {asked} tokens cached ({cached / asked:.0%}), prompts by rank: {sorted(seen.values())}"


def ids_of(chunks):
    """Token ids of a whole or streamed answer of the generate route."""
    return [token for chunk in chunks for token in chunk["choices"][0]["token_ids"] or []]


def generated(text, **more):
    """A greedy token-in, token-out request."""
    rng = random.Random(text)
    ids = [rng.randrange(50, 3950) for _ in range(rng.randrange(20, 300))]
    return {"model": "tiny", "token_ids": ids, "sampling_params": {"max_tokens": 16, "temperature": 0}, **more}


WAYS = [
    ("/v1/completions", lambda text: completion(text, 16), text_of),
    ("/v1/chat/completions", lambda text: chat(text, 16), text_of),
    ("/inference/v1/generate", generated, ids_of),
]


@check
async def pairs(bed):
    """What is prefilled by either rank and answered by the decode worker is what the decode worker says by itself."""
    rng, plain, paired = random.Random(11), [], []
    prompts = [words(rng, rng.randrange(10, 250)) for _ in range(PROMPTS)]
    asks = [(way, text, stream) for way in WAYS for text in prompts for stream in (False, True)]

    async def said(url, way, text, stream):
        path, body_of, read = way
        answer = await bed.ask_ok(path, {**body_of(text), "stream": stream}, url=url)
        return read(answer.chunks() if stream else [answer.json()])

    async def all_of(url, whose):
        began = time.perf_counter()
        gate = asyncio.Semaphore(PAIRS_AT_ONCE)

        async def one(ask):
            async with gate:
                return await said(url, *ask)

        answers = await asyncio.gather(*(one(ask) for ask in asks))
        print(f"# {len(asks)} answers of {whose} in {time.perf_counter() - began:.1f} s", flush=True)
        return answers

    async def empty():
        for url in (bed.args.ranked, bed.args.decode):
            await bed.ask_ok("/reset_prefix_cache", b"", url=url)

    fetched = ("vllm:prompt_tokens_by_source_total", bed.args.decode, 'source="external_kv_transfer"')
    failed = ("vllm:nixl_num_failed_transfers_total", bed.args.decode)
    await empty()
    plain = await all_of(bed.args.decode, "the decode worker alone")
    await empty()
    before = await bed.ended(), await bed.sum_of(*fetched)
    paired = await all_of(bed.args.pairs_url, "pairs")
    wrong = [(ask[0][0], ask[2], one, other) for ask, one, other in zip(asks, paired, plain) if one != other]
    expect(not wrong, f"{len(wrong)} of {len(asks)} differ, first {wrong[0] if wrong else ''}")
    by_rank = {engine: count - before[0][engine] for engine, count in (await bed.ended()).items()}
    expect(min(by_rank.values()) >= 0.4 * len(asks), f"prefilled by rank: {by_rank}")
    tokens = await bed.sum_of(*fetched) - before[1]
    expect(tokens > 0, "no token came over NIXL")
    expect(await bed.sum_of(*failed) == 0, "transfers failed")
    handed = await bed.sum_of("forebay_pd_pairs_total", bed.admin_url, 'outcome="handed_over"')
    expect(handed == len(asks), f"{handed} of {len(asks)} handed over")
    return f"{len(asks)} answers equal, prefilled by rank {by_rank}, {tokens:.0f} tokens came over NIXL"


def arguments(parser):
    for name in ("ranked", "decode", "url", "cached-url", "pairs-url", "pairs-admin-url", "forebay"):
        parser.add_argument(f"--{name}")


if __name__ == "__main__":
    main(__doc__, arguments, CHECKS, RankBed, seconds=SECONDS)
