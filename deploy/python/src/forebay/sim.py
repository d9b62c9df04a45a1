"""Simulated vLLM workers, for demos and for tests of harnesses. They are in the binary, too."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import List, Optional, Type, Union

from .binary import find_binary
from .process import Process


class SimWorkers:
    """Simulated workers on free ports of the loopback interface, as a context manager that gives their URLs."""

    def __init__(
        self, count: int, model: str = "demo", binary: Optional[Union[str, "os.PathLike[str]"]] = None
    ) -> None:
        self._count = count
        self._model = model
        self._binary = binary
        self._process: Optional[Process] = None

    def __enter__(self) -> List[str]:
        arguments = ["sim", "--port", "0", "--workers", str(self._count), "--model", self._model]
        self._process = Process([find_binary(self._binary), *arguments])
        deadline = time.monotonic() + 30
        try:
            return [self._process.event("listening", deadline)["url"] for _ in range(self._count)]
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends them; may be called again."""
        if self._process is not None:
            self._process.stop(5.0)
