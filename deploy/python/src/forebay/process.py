"""One process of the binary: its event lines, the end of its log, and its end. Knows but one flag."""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import threading
import time
from typing import IO, Any, Dict, List, Mapping, Optional

from .errors import RouterStartupFailed

#: How much of the log is kept, in bytes.
LOG_BYTES = 64 * 1024
#: How long the last words of a process that has ended may take, in seconds.
_LAST_WORDS_SECS = 10.0


class Process:
    """A running process. It ends at the latest when this interpreter does, however that is."""

    def __init__(self, arguments: List[str], environment: Optional[Mapping[str, str]] = None) -> None:
        try:
            # A session of its own: Ctrl-C in a terminal is for the harness, which still wants its report.
            self._child = subprocess.Popen(
                # The pipe ends with this process, even if it is killed and can send no signal.
                [*arguments, "--end-with-stdin"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise RouterStartupFailed("binary_missing", str(error)) from error
        except OSError as error:
            raise RouterStartupFailed("binary_unusable", str(error)) from error
        self._owner = os.getpid()
        self._asked_to_end = False
        self._killed = False
        self._log = _Tail(LOG_BYTES)
        self._events: "queue.Queue[Optional[Dict[str, Any]]]" = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._child.stdout,), daemon=True),
            threading.Thread(target=self._read_log, args=(self._child.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        atexit.register(self._at_exit)

    @property
    def pid(self) -> int:
        return self._child.pid

    def log(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.text()

    def exit_code(self, patience_secs: float = 0) -> Optional[int]:
        """`None` if it still runs after `patience_secs`; a negative number is a signal's."""
        try:
            return self._child.wait(patience_secs)
        except subprocess.TimeoutExpired:
            return None

    def event(self, name: str, deadline: float) -> Dict[str, Any]:
        """The next event line of this name, waited for until `deadline` (`time.monotonic()`, in seconds).

        Raises `RouterStartupFailed` if it does not come; the process has ended then.
        """
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.stop(0)
                raise RouterStartupFailed("start_timeout", f"no line {name!r} in time", None, self.log()) from None
            if event is None:
                raise self._startup_failure()
            if event.get("event") == name:
                return event

    def stop(self, timeout_secs: float) -> int:
        """SIGTERM, and SIGKILL if it has not ended in time. Gives the exit code; may be called again."""
        # Signals are sent to nobody once the exit code was read, so the id is never that of another process.
        if self._child.poll() is None:
            self._asked_to_end = True
            self._child.terminate()
        code = self.exit_code(timeout_secs)
        if code is None:
            self._killed = True
            self._child.kill()
            code = self._child.wait()
        self._settle()
        return code

    def ended_by_itself(self) -> bool:
        """Whether it ended, and not because it was asked to."""
        code = self.exit_code()
        # What was asked just when it died has the exit code of the death.
        return code is not None and (not self._asked_to_end or (code != 0 and not self._killed))

    def _settle(self) -> None:
        """After the end: lets what it wrote last be read, and gives back the pipes."""
        for reader in self._readers:
            reader.join(_LAST_WORDS_SECS)
        for pipe, reader in zip((self._child.stdout, self._child.stderr), self._readers):
            if pipe is not None and not reader.is_alive():
                pipe.close()
        if self._child.stdin is not None:
            self._child.stdin.close()
        atexit.unregister(self._at_exit)

    def _startup_failure(self) -> RouterStartupFailed:
        """Why it ended before it was ready: the router's own word, otherwise what its exit code says."""
        # Its stdout is at its end, so it is about to end itself; a signal now could hide its exit code.
        self.exit_code(_LAST_WORDS_SECS)
        code = self.stop(0)
        log = self.log()
        *before, last = log.splitlines() or [""]
        told = _object(last)
        if told.get("event") == "startup_failed":
            reason, message = told.get("reason", "internal"), told.get("message", "")
            return RouterStartupFailed(reason, message, code, "\n".join(before))
        if code < 0:
            return RouterStartupFailed("killed", f"by {_signal_name(-code)}", code, log)
        return RouterStartupFailed("ended", f"exit code {code}, without a reason", code, log)

    def _read_events(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            event = _object(line)
            # An access log may come this way, too: nobody takes its lines out again.
            if "event" in event:
                self._events.put(event)
        self._events.put(None)

    def _read_log(self, pipe: IO[bytes]) -> None:
        while True:
            piece = os.read(pipe.fileno(), 16 * 1024)
            if not piece:
                return
            self._log.add(piece)

    def _at_exit(self) -> None:
        # A fork of the harness has this handler as well, but not the process.
        if os.getpid() == self._owner:
            self.stop(1.0)


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._bytes = bytearray()
        self._cut = False

    def add(self, piece: bytes) -> None:
        with self._lock:
            self._bytes += piece
            if len(self._bytes) > self._limit:
                del self._bytes[: -self._limit]
                self._cut = True

    def text(self) -> str:
        with self._lock:
            kept, cut = bytes(self._bytes), self._cut
        if cut and b"\n" in kept:
            kept = kept.split(b"\n", 1)[1]
        return kept.decode("utf-8", "replace")


def _object(line: "str | bytes") -> Dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
