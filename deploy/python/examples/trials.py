"""A harness: trials that alternate two policies over the same prompts, one client in fixed order, a reset before each.

It shows that equal trials are equal because of the reset, and that the policies differ in their TTFT. Run it with
`python examples/trials.py` where the package is installed; it exits with 1 if one of these does not hold.
"""

import argparse
import json
import statistics
import sys
from typing import Any, Dict, List, NamedTuple, Tuple

from forebay import Router, RouterConfig, SimWorkers, facts
from forebay.demo import Reply, conversations, run_trial

POLICIES = ("cache_aware", "round_robin")
SEED = 7
#: By how much the median of round_robin's TTFT is to be above that of cache_aware.
TTFT_FACTOR = 1.3


class Trial(NamedTuple):
    """What a trial showed."""

    policy: str
    #: Of each request in order: the worker, why it was chosen, and the tokens that it had in its cache.
    choices: List[Tuple[str, str, int]]
    #: The router's report, but for what differs between equal trials.
    facts: str
    #: Whether the router finds nothing that makes the trial unfit for comparison.
    comparable: bool
    #: By the router's report.
    ttft_p50_ms: float


def run(routers: Dict[str, Router], count: int, reset: bool) -> List[Trial]:
    """Runs `count` trials, alternating."""
    trials = []
    for number in range(count):
        policy = POLICIES[number % len(POLICIES)]
        router = routers[policy]
        if reset:
            router.reset(f"{policy}-{number}", seed=SEED, wait_idle_secs=10, reset_workers_prefix_cache=True)
        trial = measured(policy, run_trial(router.url, conversations(SEED)), router.end_trial())
        print(f"  {number:3} {policy:12} TTFT p50 {trial.ttft_p50_ms:7.2f} ms, {cached(trial):6} tokens from caches")
        trials.append(trial)
    return trials


def measured(policy: str, replies: List[Reply], report: Dict[str, Any]) -> Trial:
    """What a trial's answers and its report show."""
    choices = [(reply.worker, reply.decision, reply.cached_tokens) for reply in replies]
    told = json.dumps(facts(report), sort_keys=True)
    return Trial(policy, choices, told, report["comparable"], report["times"]["first_token_ms"]["p50"])


def cached(trial: Trial) -> int:
    """Prompt tokens that workers did not have to compute."""
    return sum(tokens for _, _, tokens in trial.choices)


def kinds(trials: List[Trial]) -> Dict[str, int]:
    """How many different trials there are of each policy; 1 says that they are all equal."""
    return {policy: len({(tuple(t.choices), t.facts) for t in trials if t.policy == policy}) for policy in POLICIES}


def ranges_apart(trials: List[Trial]) -> bool:
    """Prints the ranges of the medians; whether they are far enough apart, and disjoint."""
    medians = {policy: [trial.ttft_p50_ms for trial in trials if trial.policy == policy] for policy in POLICIES}
    for policy, values in medians.items():
        print(f"{policy:12} TTFT p50 of {len(values)} trials: {min(values):.2f} to {max(values):.2f} ms")
    fast, slow = (medians[policy] for policy in POLICIES)
    factor = statistics.median(slow) / statistics.median(fast)
    print(f"factor of the medians {factor:.2f} (at least {TTFT_FACTOR}), ranges disjoint: {max(fast) < min(slow)}")
    return factor >= TTFT_FACTOR and max(fast) < min(slow)


def main() -> int:
    """Runs the harness; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="trials with a reset before each [default: 20]")
    parser.add_argument("--control", type=int, default=6, help="trials without any, to compare [default: 6]")
    asked = parser.parse_args()
    caching, cycling = (RouterConfig(policy=policy, seed=SEED, expose_routing_headers=True) for policy in POLICIES)
    with SimWorkers(4) as workers, Router(caching, workers) as first, Router(cycling, workers) as second:
        routers = dict(zip(POLICIES, (first, second)))
        print("with a reset before each trial:")
        trials = run(routers, asked.trials, reset=True)
        print("without:")
        control = run(routers, asked.control, reset=False)
    print(f"comparable, by the router's word: {sum(t.comparable for t in trials)} of {len(trials)}")
    print(f"different trials with a reset: {kinds(trials)}, without: {kinds(control)}")
    equal = all(count == 1 for count in kinds(trials).values())
    reset_matters = all(count > 1 for count in kinds(control).values())
    return 0 if ranges_apart(trials) and equal and reset_matters else 1


if __name__ == "__main__":
    sys.exit(main())
