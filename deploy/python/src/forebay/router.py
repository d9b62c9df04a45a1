"""A router for as long as it is needed: started, reset between trials, asked for reports, ended."""

from __future__ import annotations

import http.client
import time
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type
from urllib.parse import urlsplit

from .binary import find_binary
from .client import Answer, ask
from .config import RouterConfig, Workers
from .errors import AdminRefused, RouterEnded, RouterPolicyInvariant
from .process import Process

#: Beyond what it was told to wait for ready workers, in seconds.
_START_GRACE_SECS = 30.0
#: How long the admin API may take, beyond what it was told to wait, in seconds.
_ADMIN_SECS = 60.0
_VIOLATIONS = "forebay_policy_invariant_violations_total"


class Router:
    """A router in front of `workers`, as a context manager; it is ready inside.

    Leaving raises `RouterEnded` if the router ended by itself meanwhile: what was measured then counts for nothing.
    """

    def __init__(self, config: RouterConfig, workers: Workers) -> None:
        self.config = config
        self._arguments = config.arguments(workers)
        self._process: Optional[Process] = None
        self._url = ""
        self._admin_url = ""

    def __enter__(self) -> "Router":
        return self.start()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        code = self.stop()
        if kind is None and code is not None and self._process and self._process.ended_by_itself():
            raise RouterEnded(code, self.log())

    def start(self) -> "Router":
        """Starts it and waits until a request can be served. Raises `RouterStartupFailed`."""
        if self._process is not None:
            raise RuntimeError("the router was started already; make another one")
        deadline = time.monotonic() + self.config.worker_startup_timeout_secs + _START_GRACE_SECS
        binary = find_binary(self.config.binary)
        self._process = Process([binary, *self._arguments], self.config.environment())
        try:
            listening = self._process.event("listening", deadline)
            self._url = _reachable(listening["url"])
            self._admin_url = _reachable(listening["admin_url"])
            self._process.event("ready", deadline)
        except BaseException:
            self._process.stop(0)
            raise
        return self

    def stop(self) -> Optional[int]:
        """Ends it: SIGTERM, and SIGKILL after `stop_timeout_secs`. Gives the exit code. May be called again."""
        return self._process.stop(self.config.stop_timeout_secs) if self._process else None

    @property
    def url(self) -> str:
        """Where clients connect, such as `http://127.0.0.1:41234`."""
        return self._url

    @property
    def admin_url(self) -> str:
        """Where the admin API and the metrics are."""
        return self._admin_url

    @property
    def pid(self) -> Optional[int]:
        """Id of the process."""
        return self._process.pid if self._process else None

    def log(self) -> str:
        """The end of the router's log."""
        return self._process.log() if self._process else ""

    def reset(
        self,
        trial: Optional[str] = None,
        *,
        seed: Optional[int] = None,
        only: Optional[Sequence[str]] = None,
        wait_idle_secs: Optional[float] = None,
        require_idle: Optional[bool] = None,
        reset_workers_prefix_cache: Optional[bool] = None,
    ) -> Dict[str, Any]:
        """Puts it back to a known state and begins a trial. Gives the answer, with the report of the trial before.

        What is `None` is the router's own default. Raises `AdminRefused`: 409 with the requests in flight if it was
        to be idle and is not, 409 if another reset is under way, 400 for a value that cannot be used.
        """
        if isinstance(only, str):
            raise TypeError(f"only: {only!r} is not a list of texts")
        asked = {
            "trial": trial,
            "seed": seed,
            "only": None if only is None else list(only),
            "wait_idle_secs": wait_idle_secs,
            "require_idle": require_idle,
            "reset_workers_prefix_cache": reset_workers_prefix_cache,
        }
        body = {name: value for name, value in asked.items() if value is not None}
        # It waits for requests first, and then as long for the workers' caches.
        waits = 2 if reset_workers_prefix_cache else 1
        limit = waits * (wait_idle_secs or 0) + _ADMIN_SECS
        answer: Dict[str, Any] = self._admin("POST", "/admin/reset", body, limit).json()
        return answer

    def report(self, epoch: Optional[int] = None) -> Dict[str, Any]:
        """The report of the current trial, or of an earlier one by its epoch."""
        path = "/admin/trial" if epoch is None else f"/admin/trials/{int(epoch)}"
        report: Dict[str, Any] = self._admin("GET", path).json()
        return report

    def end_trial(self, wait_idle_secs: float = 30) -> Dict[str, Any]:
        """Waits for the trial's last request and gives its final report. Policies stay as they are."""
        report: Dict[str, Any] = self.reset(only=["counters"], wait_idle_secs=wait_idle_secs)["previous"]
        return report

    def workers(self) -> List[Dict[str, Any]]:
        """What is known of each worker."""
        workers: List[Dict[str, Any]] = self._admin("GET", "/workers").json()["workers"]
        return workers

    def metrics(self) -> str:
        """All series, in Prometheus' text format."""
        return self._admin("GET", "/metrics").body.decode()

    def check_invariants(self) -> None:
        """Raises `RouterPolicyInvariant` if a load was ever found wrong since the start."""
        for line in self.metrics().splitlines():
            name, _, count = line.rpartition(" ")
            if name.startswith(_VIOLATIONS + "{") and float(count) > 0:
                counter = name.split('counter="', 1)[-1].split('"', 1)[0]
                raise RouterPolicyInvariant(counter, message=f"{_VIOLATIONS} is {count}")

    def _admin(self, method: str, path: str, body: Any = None, timeout_secs: float = _ADMIN_SECS) -> Answer:
        if self._process is None:
            raise RuntimeError("the router was not started")
        key = self.config.admin_api_key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        try:
            answer = ask(method, self._admin_url, path, body, headers, timeout_secs)
        except (OSError, http.client.HTTPException):
            # Its sockets close a little before it has ended.
            code = self._process.exit_code(patience_secs=1)
            if code is None:
                raise
            raise RouterEnded(code, self.log()) from None
        if answer.status != 200:
            raise AdminRefused(answer.status, _message(answer), answer.json())
        return answer


def _message(answer: Answer) -> str:
    value = answer.json()
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else answer.body.decode("utf-8", "replace")[:1000]


def _reachable(url: str) -> str:
    """A router that listens on all interfaces is asked on the loopback one."""
    parts = urlsplit(url)
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    host = wildcards.get(parts.hostname or "")
    return url if host is None else parts._replace(netloc=f"{host}:{parts.port}").geturl()
