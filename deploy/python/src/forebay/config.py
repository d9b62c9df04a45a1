"""How a router is to be: typed fields, checked before anything starts, and the command line that they stand for."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .errors import RouterConfigInvalid

_INT, _NUMBER, _BOOL, _TEXT, _TEXTS = "a whole number", "a number", "True or False", "a text", "a list of texts"


def _flag(kind: str, default: Any = None) -> Any:
    """A field that is a flag of the binary, of the same name. `None` leaves the choice to the binary."""
    return dataclasses.field(default=default, metadata={"kind": kind, "flag": True})


def _own(kind: str, default: Any = None, **more: Any) -> Any:
    """A field that is handed over in another way, or is for the launcher alone."""
    return dataclasses.field(default=default, metadata={"kind": kind, "flag": False}, **more)


@dataclass(frozen=True)
class RouterConfig:
    """How a router is to be. `forebay --help` says what the flags of the same names mean; `None` is its default.

    What has no field here is given in `extra_args`, as on a command line.
    """

    #: cache_aware, power_of_two, consistent_hash, round_robin, random
    policy: str = _flag(_TEXT, "round_robin")
    #: Engine ranks behind each URL, 1 to 8; must be what the workers report.
    intra_node_data_parallel_size: int = _flag(_INT, 1)
    cb_failure_threshold: int = _flag(_INT, 5)
    cb_timeout_duration_secs: float = _flag(_NUMBER, 30)
    #: Attempts in all.
    retry_max_retries: int = _flag(_INT, 3)

    #: Prefill and decode on different workers. The next three are given exactly when it is true.
    pd_disagg: bool = _own(_BOOL, False)
    #: How KV blocks are handed over: nixl, nixl_push, …
    connector: Optional[str] = _own(_TEXT)
    prefill_policy: Optional[str] = _own(_TEXT)
    decode_policy: Optional[str] = _own(_TEXT)

    seed: Optional[int] = _flag(_INT)
    cache_threshold: Optional[float] = _flag(_NUMBER)
    balance_abs_threshold: Optional[int] = _flag(_INT)
    balance_rel_threshold: Optional[float] = _flag(_NUMBER)
    max_tree_size: Optional[int] = _flag(_INT)
    eviction_interval_secs: Optional[int] = _flag(_INT)
    worker_cache_tokens: Optional[int] = _flag(_INT)
    hash_key: Optional[Sequence[str]] = _flag(_TEXTS)
    expose_routing_headers: Optional[bool] = _flag(_BOOL)

    max_concurrent_requests: Optional[int] = _flag(_INT)
    queue_size: Optional[int] = _flag(_INT)
    queue_timeout_secs: Optional[float] = _flag(_NUMBER)
    no_worker_wait_secs: Optional[float] = _flag(_NUMBER)

    disable_retries: Optional[bool] = _flag(_BOOL)
    disable_circuit_breaker: Optional[bool] = _flag(_BOOL)
    cb_success_threshold: Optional[int] = _flag(_INT)
    cb_window_duration_secs: Optional[float] = _flag(_NUMBER)

    connect_timeout_secs: Optional[float] = _flag(_NUMBER)
    worker_ca_file: Optional[str] = _flag(_TEXT)
    response_header_timeout_secs: Optional[float] = _flag(_NUMBER)
    stream_idle_timeout_secs: Optional[float] = _flag(_NUMBER)
    request_timeout_secs: Optional[float] = _flag(_NUMBER)
    drain_timeout_secs: Optional[float] = _flag(_NUMBER)

    health_check_interval_secs: Optional[float] = _flag(_NUMBER)
    health_check_timeout_secs: Optional[float] = _flag(_NUMBER)
    health_failure_threshold: Optional[int] = _flag(_INT)
    health_success_threshold: Optional[int] = _flag(_INT)
    #: How long the first ready worker is waited for.
    worker_startup_timeout_secs: float = _flag(_NUMBER, 600)

    host: str = _flag(_TEXT, "127.0.0.1")
    #: 0 takes a free one, without a race: the router binds it and says which.
    port: int = _flag(_INT, 0)
    admin_host: str = _flag(_TEXT, "127.0.0.1")
    admin_port: int = _flag(_INT, 0)
    threads: Optional[int] = _flag(_INT)
    log_level: Optional[str] = _flag(_TEXT)
    log_format: Optional[str] = _flag(_TEXT)
    #: Shown to workers. Both keys go through the environment: a command line is visible to other users.
    api_key: Optional[str] = _own(_TEXT, repr=False)
    #: Asked of whoever uses the admin API from elsewhere.
    admin_api_key: Optional[str] = _own(_TEXT, repr=False)

    #: More flags, for everything that has no field.
    extra_args: Sequence[str] = _own(_TEXTS, ())
    #: The binary; otherwise $FOREBAY_BINARY, the one of this package, or the one in $PATH.
    binary: Optional[Union[str, "os.PathLike[str]"]] = None
    #: How long the router may take to end after SIGTERM; then comes SIGKILL.
    stop_timeout_secs: float = _own(_NUMBER, 10)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            kind, value = field.metadata.get("kind"), getattr(self, field.name)
            if kind is None or (value is None and field.default is None):
                continue
            if not _fits(kind, value):
                raise RouterConfigInvalid(f"{field.name}: {value!r} is not {kind}")
        if not 1 <= self.intra_node_data_parallel_size <= 8:
            given = self.intra_node_data_parallel_size
            raise RouterConfigInvalid(f"intra_node_data_parallel_size: {given} is not from 1 to 8")
        for name in ("worker_startup_timeout_secs", "stop_timeout_secs"):
            if getattr(self, name) < 0:
                raise RouterConfigInvalid(f"{name}: {getattr(self, name)} is negative")
        self._check_pair_fields()
        self._check_extra_args()

    def _check_pair_fields(self) -> None:
        for name in ("connector", "prefill_policy", "decode_policy"):
            given = getattr(self, name) is not None
            if self.pd_disagg and not given:
                raise RouterConfigInvalid(f"{name}: it is needed with pd_disagg=True")
            if given and not self.pd_disagg:
                raise RouterConfigInvalid(f"{name}: it is for pd_disagg=True, which is not given")

    def _check_extra_args(self) -> None:
        taken = {_flag_name(field.name): field.name for field in dataclasses.fields(self) if field.metadata.get("flag")}
        taken.update(_OTHER_WAYS)
        for argument in self.extra_args:
            name = argument.split("=", 1)[0]
            if name in taken:
                raise RouterConfigInvalid(f"extra_args: {name} is given as {taken[name]}")

    def arguments(self, workers: "Workers") -> List[str]:
        """The command line behind the binary's name."""
        arguments: List[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("flag") and value is not None:
                arguments += _written(_flag_name(field.name), value)
        if self.pd_disagg:
            arguments += ["--vllm-pd-disaggregation", "--kv-connector", str(self.connector)]
            arguments += ["--prefill-policy", str(self.prefill_policy), "--decode-policy", str(self.decode_policy)]
        return arguments + self._worker_arguments(workers) + list(self.extra_args)

    def _worker_arguments(self, workers: "Workers") -> List[str]:
        if isinstance(workers, PDWorkers) != self.pd_disagg:
            wanted = "PDWorkers" if self.pd_disagg else "a list of URLs"
            raise RouterConfigInvalid(f"workers: with pd_disagg={self.pd_disagg} they are {wanted}")
        if isinstance(workers, PDWorkers):
            return workers.arguments()
        if isinstance(workers, str) or not all(isinstance(url, str) for url in workers):
            raise RouterConfigInvalid(f"workers: {workers!r} is not a list of URLs")
        if not workers and not self.extra_args:
            raise RouterConfigInvalid("workers: none is given, so the router would never be ready")
        return ["--worker-urls", *workers] if workers else []

    def environment(self) -> Dict[str, str]:
        """The environment of the process."""
        keys = {"FOREBAY_API_KEY": self.api_key, "FOREBAY_ADMIN_API_KEY": self.admin_api_key}
        return {**os.environ, **{name: key for name, key in keys.items() if key is not None}}


@dataclass(frozen=True)
class PDWorkers:
    """Workers by role. A prefill worker is a URL, or a URL and its bootstrap port (`None` if it has none)."""

    prefill: Sequence[Union[str, Tuple[str, Optional[int]]]]
    decode: Sequence[str]

    def __post_init__(self) -> None:
        for role in ("prefill", "decode"):
            if isinstance(getattr(self, role), str) or not getattr(self, role):
                raise RouterConfigInvalid(f"workers: {role} is not a list of at least one URL")

    def arguments(self) -> List[str]:
        """The flags that name them."""
        arguments: List[str] = []
        for worker in self.prefill:
            if isinstance(worker, str):
                arguments += ["--prefill", worker]
            else:
                url, port = worker
                arguments += ["--prefill", url, "none" if port is None else str(port)]
        for url in self.decode:
            arguments += ["--decode", url]
        return arguments


Workers = Union[Sequence[str], PDWorkers]

#: Flags that another field or argument stands for.
_OTHER_WAYS = {
    "--vllm-pd-disaggregation": "pd_disagg",
    "--pd-disaggregation": "pd_disagg",
    "--kv-connector": "connector",
    "--disagg-connector-type": "connector",
    "--prefill-policy": "prefill_policy",
    "--decode-policy": "decode_policy",
    "--api-key": "api_key",
    "--admin-api-key": "admin_api_key",
    "--end-with-stdin": "what the launcher does by itself",
    "--worker-urls": "workers",
    "--prefill": "workers",
    "--decode": "workers",
}


def _flag_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def _written(flag: str, value: Any) -> List[str]:
    if isinstance(value, bool):
        return [f"{flag}={str(value).lower()}"]
    if isinstance(value, (int, float, str)):
        return [flag, str(value)]
    return [flag, ",".join(value)]


def _fits(kind: str, value: Any) -> bool:
    if kind in (_INT, _NUMBER):
        number = isinstance(value, int) or (kind == _NUMBER and isinstance(value, float) and math.isfinite(value))
        return number and not isinstance(value, bool)
    if kind == _TEXTS:
        return not isinstance(value, str) and all(isinstance(text, str) for text in value)
    return isinstance(value, bool if kind == _BOOL else str)
