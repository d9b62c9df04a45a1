#!/usr/bin/env python3
"""Checks prefill/decode pairs over real vLLM workers, from the client's side. pd.sh starts the workers and calls this.

    pd_check.py --forebay BINARY --connector nixl|nixl_push --plain PORT --prefill PORT... --decode PORT...
                [--only NAME,NAME] [--list]

--plain    a worker without a connector, whose greedy outputs are the right ones
--prefill, --decode   two of each at least; those that a check kills stay dead, so those checks come last

Starts forebay itself, with one of each or with all. Decode workers are reached through gates that can hold a leg back,
so that what happens to a worker between the legs is no matter of luck. Prints lines as check.py does; exit status 1 if
a check failed.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

from check import SETTLE_SECONDS, Answer, chat, completion, expect, gather_bounded, text_of, words
from verdicts import Stage, main

HOST = "127.0.0.1"
LOGS = pathlib.Path(os.environ.get("REAL_VLLM", pathlib.Path.home() / ".cache/real-vllm")) / "logs"
PROMPTS = int(os.environ.get("PD_PROMPTS", "200"))
TOKENS = 16
CLIENTS = 8
FIRST_BYTE_SECONDS = 60  # limit of a decode leg's first byte
READY_SECONDS = 60
ROUTES = {"/v1/completions": completion, "/v1/chat/completions": chat}

CHECKS = []


def check(function):
    """Registers a check; its name is the function's name."""
    CHECKS.append(function)
    return function


# --- what is under test ---------------------------------------------------------------------------------------------


class Gate:
    """A port in front of a decode worker that passes everything on, and can hold back legs that fetch blocks."""

    def __init__(self, port):
        self.port, self.url = port, None
        self.open = asyncio.Event()
        self.open.set()
        self.held = 0
        self.seen = []  # first chunk of each leg

    async def start(self):
        """Listens on a free port."""
        self.server = await asyncio.start_server(self.serve, HOST, 0)
        self.url = f"http://{HOST}:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader, writer):
        """One connection of the router."""
        try:
            upstream = await asyncio.open_connection(HOST, self.port)
        except OSError:
            # As near to "refused" as an accepted connection can come.
            writer.transport.abort()
            return
        there = asyncio.create_task(self.pump(reader, upstream[1], self.hold))
        back = asyncio.create_task(self.pump(upstream[0], writer, None))
        await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, upstream[1]):
            end.transport.abort()
        for task in (there, back):
            task.cancel()

    async def pump(self, reader, writer, before):
        """Passes bytes on until one side ends."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if before:
                    await before(data)
                    if reader.at_eof() or reader.exception():
                        return  # the leg was cancelled while it was held
                writer.write(data)
                await writer.drain()

    async def hold(self, data):
        """Keeps a leg that names a peer until the gate opens."""
        if b'"do_remote_prefill":true' in data:
            self.seen.append(data)
            self.held += 1
            await self.open.wait()
            self.held -= 1

    def close(self):
        """From now on legs wait here."""
        self.open.clear()


class Router:
    """forebay in front of some of the workers."""

    def __init__(self, bed, prefills, decodes):
        self.bed, self.prefills, self.decodes = bed, prefills, decodes

    async def __aenter__(self):
        args = [self.bed.args.forebay, "--vllm-pd-disaggregation", "--kv-connector", self.bed.args.connector]
        for port in self.prefills:
            args += ["--prefill", f"http://{HOST}:{port}"]
        for port in self.decodes:
            args += ["--decode", self.bed.gates[port].url]
        args += ["--host", HOST, "--port", "0", "--admin-port", "0", "--policy", "round_robin"]
        args += ["--pd-decode-first-byte-timeout-secs", str(FIRST_BYTE_SECONDS)]
        # A decode worker that waits for a dead peer's push waits until probes have found that out.
        args += ["--health-check-interval-secs", "2"]
        self.log = tempfile.TemporaryFile()
        self.process = await asyncio.create_subprocess_exec(*args, stdout=asyncio.subprocess.PIPE, stderr=self.log)
        async with asyncio.timeout(READY_SECONDS):
            while (line := json.loads(await self.process.stdout.readline()))["event"] != "ready":
                if line["event"] == "listening":
                    self.url, self.admin_url = line["url"], line["admin_url"]
            # Ready is a first worker; pairs need them all.
            while {worker["health"] for worker in await self.workers()} != {"healthy"}:
                await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, kind, error, trace):
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()
        if error is not None:
            self.log.seek(0)
            sys.stderr.write(self.log.read().decode()[-4000:])
        self.log.close()

    async def workers(self):
        """The router's own list."""
        return (await self.bed.ask("/workers", url=self.admin_url)).json()["workers"]

    async def metric(self, name, *labels):
        """Sum of the router's series of this name that have these labels."""
        text = (await self.bed.ask("/metrics", url=self.admin_url)).body.decode()
        return total(text, name, labels)

    async def ask(self, path, body):
        """A request of a client."""
        return await self.bed.ask(path, body, url=self.url)


def total(text, name, labels=()):
    """Sum of the series of this name in an exposition."""
    lines = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in labels))


class Bed(Stage):
    """The workers, and how to ask them."""

    def __init__(self, args, session):
        self.args, self.session = args, session
        self.label = f"{args.connector} "
        self.gates = {port: Gate(port) for port in args.decode}
        self.dead = set()
        self.wanted = {}

    async def start(self):
        for gate in self.gates.values():
            await gate.start()

    def tidy(self):
        """Legs go on."""
        for gate in self.gates.values():
            gate.open.set()

    @property
    def alive(self):
        """Ports of workers with a role that no check has killed."""
        return [port for port in self.args.prefill + self.args.decode if port not in self.dead]

    async def ask(self, path, body=None, url=None):
        """POSTs `body` as JSON, GETs without one."""
        method = "GET" if body is None else "POST"
        data = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        async with self.session.request(method, url + path, data=data, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read(), [])

    async def ask_worker(self, port, path, body=None):
        """The same of one worker; fails unless it is answered."""
        answer = await self.ask(path, body, url=f"http://{HOST}:{port}")
        expect(answer.status == 200, f"worker {port}, {path}: {answer.status} {answer.body[:300]!r}")
        return answer

    async def metric(self, name, *labels, ports=None):
        """Sum of a metric over the workers that live."""
        texts = [await self.ask_worker(port, "/metrics") for port in ports or self.alive]
        return sum(total(text.body.decode(), name, labels) for text in texts)

    async def reset_prefix_caches(self):
        """Every prompt has to be computed and handed over anew."""
        for port in self.alive:
            await self.ask_worker(port, "/reset_prefix_cache", {})

    async def right(self, path, prompt):
        """What the plain worker says, asked once for each prompt."""
        if (path, prompt) not in self.wanted:
            answer = await self.ask_worker(self.args.plain, path, ROUTES[path](prompt, TOKENS))
            self.wanted[path, prompt] = text_of([answer.json()])
        return self.wanted[path, prompt]

    def kill(self, port):
        """A worker and all its processes die at once, as they do when a machine is lost."""
        def tree(pid):
            yield pid
            with contextlib.suppress(OSError):
                for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                    for child in (task / "children").read_text().split():
                        yield from tree(int(child))

        for pid in list(tree(int((LOGS / f"{port}.pid").read_text()))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.dead.add(port)


async def until(what, holds):
    """Polls until `holds` is true."""
    began = time.perf_counter()
    while not await holds():
        expect(time.perf_counter() - began < SETTLE_SECONDS, f"{what}: not within {SETTLE_SECONDS} s")
        await asyncio.sleep(0.05)


def prompts(count, seed):
    """Short and long prompts, with and without bytes beyond ASCII, with and without JSON escapes."""
    rng = random.Random(seed)
    marks = ["", "naïve 你好 🙂", 'a "quoted" \\ back\\slash', "tab\tand\nnewline", "<|im_end|>"]
    return [f"{seed} {i} {marks[i % len(marks)]} {words(rng, rng.choice([1, 10, 40, 150, 600]))}" for i in range(count)]


# --- outputs --------------------------------------------------------------------------------------------------------

FAILURES = ("failed_transfers", "failed_notifications", "kv_expired_reqs", "notifications_after_expiry")


async def nixl_failures(bed):
    """What the workers count as gone wrong, by name."""
    return {name: await bed.metric(f"vllm:nixl_num_{name}_total") for name in FAILURES}


async def same_outputs(bed, router, count, seed):
    """Greedy outputs of `count` prompts, on both routes, whole and streamed, are those of the plain worker."""

    async def say(path, prompt, stream):
        answer = await router.ask(path, ROUTES[path](prompt, TOKENS, stream=stream))
        expect(answer.status == 200, f"{path} answered {answer.status}: {answer.body[:300]!r}")
        expect(b"kv_transfer_params" not in answer.body.replace(b'"kv_transfer_params":null', b""), "internals leaked")
        return text_of(answer.chunks() if stream else [answer.json()])

    asked = prompts(count, seed)
    for path in ROUTES:
        wanted = await gather_bounded(CLIENTS, [bed.right(path, prompt) for prompt in asked])
        expect(len(set(wanted)) > 0.95 * count, "prompts have equal outputs: the comparison proves nothing")
        for stream in (False, True):
            await bed.reset_prefix_caches()
            got = await gather_bounded(CLIENTS, [say(path, prompt, stream) for prompt in asked])
            wrong = [i for i, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]]
            expect(not wrong, f"{path}, stream={stream}: {len(wrong)} of {count} differ: {wrong[:8]}")
    return 2 * len(ROUTES) * count


async def outputs(bed, prefills, decodes, seed):
    """Equal outputs, and every request's blocks went over: none was computed by a decode worker, nothing failed."""
    names = ("vllm:nixl_xfer_time_seconds_count", "vllm:nixl_bytes_transferred_sum")
    fetched = ("vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"')
    before = [await bed.metric(name) for name in names]
    fetched_before = await bed.metric(*fetched, ports=decodes)
    failed_before = await nixl_failures(bed)
    async with Router(bed, prefills, decodes) as router:
        began = time.perf_counter()
        count = await same_outputs(bed, router, PROMPTS, seed)
        seconds = time.perf_counter() - began
        handed_over = await router.metric("forebay_pd_pairs_total", 'outcome="handed_over"')
        expect(handed_over == count, f"{handed_over:.0f} of {count} pairs were handed over")
        retries = await router.metric("forebay_pd_retries_total")
        expect(retries == 0, f"{retries:.0f} legs were tried again")
        expect(await router.metric("forebay_in_flight") == 0, "load is left")
    for port in decodes:  # statistics come with the next step of an engine
        await bed.ask_worker(port, "/v1/completions", completion("a step", 1))
    transfers, moved = [await bed.metric(name) - old for name, old in zip(names, before)]
    fetched = await bed.metric(*fetched, ports=decodes) - fetched_before
    failed = {name: n - failed_before[name] for name, n in (await nixl_failures(bed)).items()}
    what = f"{transfers:.0f} transfers of {moved / 1e6:.0f} MB, {fetched:.0f} tokens fetched"
    expect(not any(failed.values()), f"{what}, but {failed}")
    expect(transfers >= 0.9 * count and moved > 0 and fetched > 0, f"only {what} for {count} requests")
    pinned = await bed.metric("vllm:num_requests_running") + await bed.metric("vllm:num_requests_waiting")
    expect(pinned == 0, f"{pinned:.0f} requests are left on the workers")
    shape = f"{len(prefills)}P{len(decodes)}D"
    return f"{shape}, {count} of {count} equal in {seconds:.0f} s, {what}, none failed"


@check
async def outputs_1p1d(bed):
    return await outputs(bed, bed.args.prefill[:1], bed.args.decode[:1], 1)


@check
async def outputs_2p2d(bed):
    return await outputs(bed, bed.args.prefill, bed.args.decode, 2)


# --- workers that die -----------------------------------------------------------------------------------------------


async def survivors_are_well(bed, router, seed):
    """Every worker that was not killed answers, holds nothing, and still makes right answers behind the router."""
    for port in bed.alive:
        await bed.ask_worker(port, "/health")
    await same_outputs(bed, router, 10, seed)

    async def idle():
        return not await bed.metric("vllm:num_requests_running") and not await router.metric("forebay_in_flight")

    await until("the survivors are idle", idle)


@dataclasses.dataclass
class Held:
    """A request whose decode leg waits at a gate."""

    path: str
    prompt: str
    stream: bool
    answer: asyncio.Task


async def hold(bed, router, seed):
    """One request on each route, whole and streamed; each decode leg waits at its gate, its prefill leg is over."""
    for gate in bed.gates.values():
        gate.close()
    started = []
    asked = iter(prompts(4, seed))
    for path, make in ROUTES.items():
        for stream in (False, True):
            prompt = next(asked)
            await bed.right(path, prompt)
            answer = asyncio.create_task(router.ask(path, make(prompt, TOKENS, stream=stream)))
            started.append(Held(path, prompt, stream, answer))

    async def all_held():
        return sum(gate.held for gate in bed.gates.values()) == len(started)

    async def all_prefilled():
        return await bed.metric("vllm:num_requests_running", ports=[p for p in bed.args.prefill if p in bed.alive]) == 0

    await until("decode legs reach their gates", all_held)
    await until("prefill legs end", all_prefilled)
    return started


async def judge(bed, held):
    """Each held request is answered rightly after all."""
    for one in held:
        answer = await one.answer
        expect(answer.status == 200, f"{one.path}, stream={one.stream}: {answer.status} {answer.body[:300]!r}")
        got = text_of(answer.chunks() if one.stream else [answer.json()])
        expect(got == await bed.right(one.path, one.prompt), f"{one.path}, stream={one.stream}: {got!r}")


async def prefill_dies_between_the_legs(bed, prefills, outcome, seed):
    """The first of `prefills` dies when its blocks have been named and not yet been fetched."""
    async with Router(bed, prefills, bed.args.decode[-1:]) as router:
        await same_outputs(bed, router, 4, seed)  # so that the workers know each other
        held = await hold(bed, router, seed + 1)
        bed.kill(prefills[0])
        began = time.perf_counter()
        bed.tidy()
        await judge(bed, held)
        seconds = time.perf_counter() - began
        counts = {
            name: await router.metric("forebay_pd_pairs_total", f'outcome="{name}"')
            for name in ("handed_over", "recomputed", "timed_out", "failed")
        }
        retries = await router.metric("forebay_pd_retries_total")
        expect(counts["timed_out"] == counts["failed"] == 0, f"{counts}")
        expect(outcome != "recomputed" or counts["recomputed"] > 0, f"{counts}")
        await survivors_are_well(bed, router, seed + 2)
    return f"{len(held)} requests right after {seconds:.1f} s, {retries:.0f} legs again, pairs: {counts}"


@check
async def prefill_dies_and_another_takes_over(bed):
    """Both legs again, with the other prefill worker."""
    return await prefill_dies_between_the_legs(bed, bed.args.prefill, "handed_over", 10)


@check
async def decode_dies_mid_stream(bed):
    """Who has got tokens gets an error record; who has not is answered by the other decode worker."""
    prefills = [port for port in bed.args.prefill if port in bed.alive][-1:]
    decodes = bed.args.decode
    async with Router(bed, prefills, decodes) as router:
        # One stream on each decode worker by turns, and one whole answer on each.
        long = [chat(f"{i} {words(random.Random(i), 30)}", 3000, ignore_eos=True, stream=True) for i in range(2)]
        streams = []
        for body in long:
            response = await bed.session.post(router.url + "/v1/chat/completions", json=body)
            expect(response.status == 200, f"status {response.status}")
            for _ in range(5):
                await response.content.readline()
            streams.append(response)
        wholes = [completion(f"{i} {words(random.Random(i), 30)}", 600, ignore_eos=True) for i in range(2)]
        wanted = [(await bed.ask_worker(bed.args.plain, "/v1/completions", body)).json() for body in wholes]
        waiting = [asyncio.create_task(router.ask("/v1/completions", body)) for body in wholes]

        async def both_run():
            return min([await bed.metric("vllm:num_requests_running", ports=[port]) for port in decodes]) == 2

        await until("each decode worker has two", both_run)
        bed.kill(decodes[0])
        ends = [(await response.read()).decode() for response in streams]
        broken = [end for end in ends if '"error"' in end]
        expect(len(broken) == 1, f"{len(broken)} of 2 streams broke off: {[end[-200:] for end in ends]}")
        expect("[DONE]" not in broken[0], f"a broken stream ends as if it were whole: {broken[0][-300:]!r}")
        expect(f"{HOST}:" not in broken[0].rsplit("data:", 1)[1], f"an address in {broken[0][-300:]!r}")
        whole = next(end for end in ends if end not in broken)
        expect(whole.rstrip().endswith("[DONE]"), f"the other stream is cut: {whole[-200:]!r}")
        for task, right in zip(waiting, wanted):
            answer = await task
            expect(answer.status == 200, f"{answer.status} {answer.body[:300]!r}")
            expect(text_of([answer.json()]) == text_of([right]), "another answer than the plain worker's")
        await survivors_are_well(bed, router, 30)
    error = broken[0].rsplit("data:", 1)[1].strip()
    return f"1 stream ended with {error[:160]}, 1 went on, 2 whole answers right"


@check
async def the_last_prefill_worker_dies(bed):
    """Decode workers compute the prompts themselves."""
    prefills = [port for port in bed.args.prefill if port in bed.alive][-1:]
    return await prefill_dies_between_the_legs(bed, prefills, "recomputed", 20)


# --------------------------------------------------------------------------------------------------------------------


def arguments(parser):
    parser.add_argument("--forebay")
    parser.add_argument("--connector", choices=["nixl", "nixl_push"], default="nixl")
    parser.add_argument("--plain", type=int)
    parser.add_argument("--prefill", type=int, nargs="+", default=[])
    parser.add_argument("--decode", type=int, nargs="+", default=[])


def complaint(args):
    enough = args.forebay and args.plain and min(len(args.prefill), len(args.decode)) >= 2
    return None if enough else "--forebay, --plain, and two each of --prefill and --decode are needed"


if __name__ == "__main__":
    main(__doc__, arguments, CHECKS, Bed, complaint)
