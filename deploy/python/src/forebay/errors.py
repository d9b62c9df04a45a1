"""What can go wrong, as exceptions. Makes them from machine names; starts and asks nothing."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

FAILURE_HEADER = "x-forebay-failure"

#: Headers as the clients of this world give them.
Headers = Union[Mapping[str, str], Message, Iterable[Tuple[str, str]]]


class ForebayError(Exception):
    """Base of every exception of this package. All of them can be pickled, for harnesses of many processes."""


class RouterConfigInvalid(ForebayError, ValueError):
    """A field of the configuration cannot be used. Nothing was started."""


class RouterStartupFailed(ForebayError):
    """The router did not become ready.

    `reason` is a machine name. Of the router: `flag_invalid`, `config_invalid`, `port_in_use`, `no_worker_ready`,
    `internal` and whatever else `forebay --help` lists. Of this package: `binary_missing`, `binary_unusable` (the
    operating system does not run it), `start_timeout`, `killed` (by a signal), `ended` (without a word).
    """

    def __init__(self, reason: str, message: str = "", exit_code: Optional[int] = None, log: str = "") -> None:
        super().__init__(reason, message, exit_code, log)
        self.reason = reason
        self.message = message
        self.exit_code = exit_code
        self.log = log

    def __str__(self) -> str:
        return _told(f"{self.reason}: {self.message}" if self.message else self.reason, self.log)


class RouterEnded(ForebayError):
    """The router was ready and ended without having been asked to. A negative `exit_code` is a signal's number."""

    def __init__(self, exit_code: int, log: str = "") -> None:
        super().__init__(exit_code, log)
        self.exit_code = exit_code
        self.log = log

    def __str__(self) -> str:
        return _told(f"the router ended by itself, exit code {self.exit_code}", self.log)


class AdminRefused(ForebayError):
    """The admin API did not do what it was asked; `answer` is all that it said.

    `in_flight` has the requests that were under way, if a reset was refused because of them.
    """

    def __init__(self, status: int, message: str, answer: Any = None) -> None:
        super().__init__(status, message, answer)
        self.status = status
        self.message = message
        self.answer = answer
        self.in_flight: List[Dict[str, Any]] = answer.get("in_flight", []) if isinstance(answer, dict) else []

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class RouterFailure(ForebayError):
    """A request failed, and the router says so by a machine name. Subclasses are the names with typed fields."""

    def __init__(
        self, failure: str, status: int = 0, message: str = "", fields: Optional[Mapping[str, Any]] = None
    ) -> None:
        super().__init__(failure, status, message, dict(fields or {}))
        self._note(failure, status, message, fields)

    def _note(self, failure: str, status: int, message: str, fields: Optional[Mapping[str, Any]]) -> None:
        self.failure = failure
        #: HTTP status; 200 if the failure was told inside an answer that had begun; 0 if it is not known.
        self.status = status
        self.message = message
        self.fields: Dict[str, Any] = dict(fields or {})

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        named = f"{self.failure} ({fields})" if fields else self.failure
        return f"{named}: {self.message}" if self.message else named


class RouterPoolExhausted(RouterFailure):
    """No worker could be chosen or reached."""

    def __init__(
        self, retries: int, pool_size: int, open_circuits: int, unhealthy: int = 0, status: int = 503, message: str = ""
    ) -> None:
        Exception.__init__(self, retries, pool_size, open_circuits, unhealthy, status, message)
        self.retries = retries
        self.pool_size = pool_size
        self.open_circuits = open_circuits
        self.unhealthy = unhealthy
        fields = {
            "retries": retries, "pool_size": pool_size, "open_circuits": open_circuits, "unhealthy": unhealthy
        }  # fmt: skip
        self._note("router_pool_exhausted", status, message, fields)


class PDConnectorTimeout(RouterFailure):
    """A leg of a prefill/decode pair took too long. `leg` is `prefill` or `decode`."""

    def __init__(
        self, leg: str, timeout_secs: float, bootstrap_room: Optional[int], status: int = 504, message: str = ""
    ) -> None:
        Exception.__init__(self, leg, timeout_secs, bootstrap_room, status, message)
        self.leg = leg
        self.timeout_secs = timeout_secs
        self.bootstrap_room = bootstrap_room
        fields = {"leg": leg, "timeout_secs": timeout_secs, "bootstrap_room": bootstrap_room}
        self._note("pd_connector_timeout", status, message, fields)


class RouterPolicyInvariant(RouterFailure):
    """A counter that policies rely on is wrong: the router has a bug, and the trial proves nothing."""

    def __init__(self, counter: str, status: int = 0, message: str = "") -> None:
        Exception.__init__(self, counter, status, message)
        self.counter = counter
        self._note("router_policy_invariant", status, message, {"counter": counter})


def failure_from_answer(
    status: int, headers: Headers = (), body: Union[bytes, str, Any] = b""
) -> Optional[RouterFailure]:
    """The failure that an HTTP answer tells of, or `None` if it is no failure of the router's own.

    `body` is the whole body, or parsed JSON. A stream that broke off tells it in its last record. An answer of a
    worker, an error included, is none: it arrives as the worker sent it.
    """
    told = _told_in(body)
    pairs = headers.items() if isinstance(headers, (Mapping, Message)) else headers
    in_header = next((value for name, value in pairs if name.lower() == FAILURE_HEADER), None)
    if told is None and in_header is None:
        return None
    fields = dict((told or {}).get("forebay") or {})
    name = str(fields.pop("failure", None) or in_header)
    return _made(name, status, _message(told or {}), fields)


def raise_for_failure(status: int, headers: Headers = (), body: Union[bytes, str, Any] = b"") -> None:
    """Raises what `failure_from_answer` gives, if it gives anything."""
    failure = failure_from_answer(status, headers, body)
    if failure is not None:
        raise failure


def _made(name: str, status: int, message: str, fields: Dict[str, Any]) -> RouterFailure:
    # A field that is missing is one that an older or newer router does not tell: better a plain failure than none.
    try:
        if name == "router_pool_exhausted":
            counts = (fields["retries"], fields["pool_size"], fields["open_circuits"])
            return RouterPoolExhausted(*counts, fields.get("unhealthy", 0), status, message)
        if name == "pd_connector_timeout":
            leg, limit, room = fields["leg"], fields["timeout_secs"], fields.get("bootstrap_room")
            return PDConnectorTimeout(leg, limit, room, status, message)
        if name == "router_policy_invariant":
            return RouterPolicyInvariant(fields["counter"], status, message)
    except KeyError:
        pass
    return RouterFailure(name, status, message, fields)


def _told_in(body: Union[bytes, str, Any]) -> Optional[Dict[str, Any]]:
    """The error object with a `forebay` member in a body: the body itself, or the last record of a stream."""
    if not isinstance(body, (bytes, bytearray, str)):
        return _if_told(body)
    text = body if isinstance(body, str) else bytes(body).decode("utf-8", "replace")
    if '"forebay"' not in text:
        return None
    whole = _if_told(_parsed(text))
    if whole is not None:
        return whole
    records = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return _if_told(_parsed(records[-1])) if records else None


def _if_told(value: Any) -> Optional[Dict[str, Any]]:
    told = isinstance(value, dict) and isinstance(value.get("forebay"), dict)
    return value if told and "failure" in value["forebay"] else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _message(told: Mapping[str, Any]) -> str:
    error = told.get("error")
    message = error.get("message") if isinstance(error, dict) else told.get("message")
    return message if isinstance(message, str) else ""


def _told(text: str, log: str) -> str:
    return f"{text}\nThe end of its log:\n{log.rstrip()}" if log.strip() else text
