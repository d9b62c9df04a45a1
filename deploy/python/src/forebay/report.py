"""What of a trial's report can be compared with another one's. Asks nobody."""

from __future__ import annotations

from typing import Any, Dict, Mapping

#: Differ between equal trials: which one it was, when it was, how long things took.
_OWN = ("epoch", "trial", "final", "began_by", "began_unix", "ended_unix", "times", "load")
_PEAK = "peak_in_flight"


def facts(report: Mapping[str, Any]) -> Dict[str, Any]:
    """A report without what differs between equal trials: counts, decisions, configuration and workers remain.

    Two trials of one router are equal if these are.
    """
    kept = {name: value for name, value in report.items() if name not in _OWN}
    # Whether two requests overlapped, and how often loads were looked at, depends on how long things took.
    workers = report["workers"]
    kept["workers"] = [{name: value for name, value in worker.items() if name != _PEAK} for worker in workers]
    # Trials that requests named: their names were the client's choice.
    own = [name for name in _OWN if name != "trial"]
    kept["trials"] = [{name: value for name, value in trial.items() if name not in own} for trial in report["trials"]]
    kept["invariants"] = {"broken": report["invariants"]["broken"]}
    return kept
