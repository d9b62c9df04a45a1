"""Runs checks one after the other and tells how each of them ended: the command line of every check program here."""

import argparse
import asyncio
import contextlib
import signal
import sys

import aiohttp


class Skipped(Exception):
    """This check does not apply to what it was pointed at."""


class Stage:
    """What the checks of a program are given."""

    label = ""  # before the name of each check

    async def start(self):
        """Before the first check."""

    def tidy(self):
        """After each check, however it ended."""


async def run_check(function, bed, seconds):
    """Runs one check and prints its line; gives "ok", "FAIL" or "skip"."""
    try:
        async with asyncio.timeout(seconds):
            verdict, what = "ok", await function(bed)
    except Skipped as reason:
        verdict, what = "skip", str(reason)
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        verdict, what = "FAIL", str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
    print(f"{verdict} {bed.label}{function.__name__}: {what}", flush=True)
    return verdict


async def run_checks(parser, checks, bed, complaint, seconds):
    parser.add_argument("--only", type=lambda names: names.split(","))
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    known = {function.__name__: function for function in checks}
    if args.list:
        print("\n".join(known))
        return 0
    if unknown := set(args.only or ()) - known.keys():
        parser.error(f"no such check: {', '.join(sorted(unknown))}; --list prints them")
    if wrong := complaint(args):
        parser.error(wrong)

    # Cancelled, not killed: a check that started a process ends it on the way out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    verdicts = []
    limits = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:
        stage = bed(args, session)
        await stage.start()
        for name in args.only or known:
            verdicts.append(await run_check(known[name], stage, seconds))
            stage.tidy()
    print(f"{verdicts.count('ok')} passed, {verdicts.count('FAIL')} failed")
    return 1 if "FAIL" in verdicts or "ok" not in verdicts else 0


def main(doc, arguments, checks, bed, complaint=lambda args: None, seconds=300):
    """The whole program. `arguments` adds its own to a parser, `complaint` tells what is wrong with their values, `bed` makes
    what the checks are given from them and a client session; no check takes longer than `seconds`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(asyncio.run(run_checks(parser, checks, bed, complaint, seconds)))
    sys.exit(f"{parser.prog}: stopped by a signal")
