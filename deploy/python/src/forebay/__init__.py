"""Starts the forebay router for a trial harness, resets it between trials and reads its reports.

Begin with `RouterConfig` and `Router`; `failure_from_answer` says what went wrong with a request.
"""

from .binary import find_binary
from .config import PDWorkers, RouterConfig
from .errors import (
    AdminRefused,
    ForebayError,
    PDConnectorTimeout,
    RouterConfigInvalid,
    RouterEnded,
    RouterFailure,
    RouterPolicyInvariant,
    RouterPoolExhausted,
    RouterStartupFailed,
    failure_from_answer,
    raise_for_failure,
)
from .report import facts
from .router import Router
from .sim import SimWorkers

__all__ = [
    "AdminRefused",
    "ForebayError",
    "PDConnectorTimeout",
    "PDWorkers",
    "Router",
    "RouterConfig",
    "RouterConfigInvalid",
    "RouterEnded",
    "RouterFailure",
    "RouterPolicyInvariant",
    "RouterPoolExhausted",
    "RouterStartupFailed",
    "SimWorkers",
    "facts",
    "failure_from_answer",
    "find_binary",
    "raise_for_failure",
]
