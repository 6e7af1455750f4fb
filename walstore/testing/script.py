"""Rules for calls to fail, hold or hook, and a trace of the calls that were made.

It knows nothing of files; ``faults.py`` applies it to a file system. All of it may be used from any
thread: calls come from executor threads, tests run on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar

_T = TypeVar("_T")
_HOLD_SECONDS: Final = 30.0


class Call(NamedTuple):
    """One call on a file system, file or cell."""

    kind: str
    """Name of the method, for example ``pwrite``, ``datasync``, ``open``, ``store``."""
    path: Path
    """The file or directory; of ``replace`` the target."""
    position: int | None = None
    """Byte position of a ``pwrite`` or ``pread``."""
    size_bytes: int | None = None
    """Bytes to be written, read, reserved or kept."""

    def matches(self, kind: str, name: str) -> bool:
        """Return whether kind and last part of the path match these shell patterns."""
        return fnmatch.fnmatchcase(self.kind, kind) and fnmatch.fnmatchcase(self.path.name, name)


class Hold:
    """Calls that are held before they do anything, until :meth:`release`. Also a context manager."""

    def __init__(self, kind: str, name: str) -> None:
        self._pattern = (kind, name)
        self._entered = threading.Event()
        self._released = threading.Event()

    async def wait_entered(self) -> None:
        """Return when a call has come and is held; TimeoutError after 30 s."""
        if not await asyncio.to_thread(self._entered.wait, _HOLD_SECONDS):
            raise TimeoutError(f"no call like {self._pattern} came")

    def release(self) -> None:
        """Let the held calls, and all later ones, continue; twice is allowed."""
        self._released.set()

    def pause(self, call: Call) -> None:
        """Wait here if the call matches; TimeoutError after 30 s."""
        if call.matches(*self._pattern) and not self._released.is_set():
            self._entered.set()
            if not self._released.wait(_HOLD_SECONDS):
                raise TimeoutError(f"{call} was held and never released")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class Fault:
    """A rule: which of the matching calls fail, and how. See :meth:`FaultScript.fail`."""

    kind: str
    name: str
    error: int
    skip: int
    left: int | None
    written_bytes: int | None
    happened: bool

    def takes(self, call: Call) -> bool:
        """Count a call; return whether it fails."""
        if not call.matches(self.kind, self.name) or self.left == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.left is not None:
            self.left -= 1
        return True


class FaultScript:
    """The rules of a test for calls, and the calls made."""

    def __init__(self) -> None:
        # Guards all below. Never held while a call runs, is held or is hooked.
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._holds: list[Hold] = []
        self._hook: Callable[[Call], None] | None = None
        self._calls: list[Call] = []

    def fail(
        self,
        kind: str,
        error: int = errno.EIO,
        *,
        name: str = "*",
        nth: int = 1,
        times: int | None = 1,
        written_bytes: int | None = None,
        happened: bool = False,
    ) -> None:
        """Make matching calls raise OSError.

        Args:
            kind: Shell pattern for the method's name; ``"*"`` fails everything, as a dead disk does.
            error: The errno that the system reports.
            name: Shell pattern for the last part of the path, for example ``"*.wal"``.
            nth: The first matching call, counted from now, that fails. 1 or more.
            times: How many fail from there on; None for all.
            written_bytes: Of a ``pwrite``, so many bytes reach the file before the error.
            happened: Do all of the call, then report the error.
        """
        fault = Fault(kind, name, error, nth - 1, times, written_bytes, happened)
        with self._lock:
            self._faults.append(fault)

    def hold(self, kind: str, *, name: str = "*") -> Hold:
        """Stop matching calls before they do anything, until the returned Hold is released."""
        hold = Hold(kind, name)
        with self._lock:
            self._holds.append(hold)
        return hold

    def before_each(self, hook: Callable[[Call], None] | None) -> None:
        """Call ``hook`` before each call, on the call's thread; the call raises the hook's errors."""
        with self._lock:
            self._hook = hook

    def heal(self) -> None:
        """Remove all faults and the hook, and release held calls."""
        with self._lock:
            holds, self._holds = self._holds, []
            self._faults.clear()
            self._hook = None
        for hold in holds:
            hold.release()

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in the order in which they began, failed ones included."""
        with self._lock:
            return tuple(self._calls)

    def count(self, kind: str, *, name: str = "*") -> int:
        """Return how many calls so far match the patterns."""
        return sum(call.matches(kind, name) for call in self.calls)

    def begin(self, call: Call) -> Fault | None:
        """Record a call, hold it, run the hook; return its fault, if any."""
        with self._lock:
            self._calls.append(call)
            holds, hook = tuple(self._holds), self._hook
        for hold in holds:
            hold.pause(call)
        if hook is not None:
            hook(call)
        with self._lock:
            # Every rule counts every call, also one that an earlier rule makes fail.
            taken = [fault for fault in self._faults if fault.takes(call)]
        return taken[0] if taken else None

    def run(
        self, call: Call, act: Callable[[], _T], discard: Callable[[_T], None] | None = None
    ) -> _T:
        """Do a call, or fail it; ``discard`` releases a result that is not returned."""
        fault = self.begin(call)
        if fault is None:
            return act()
        if fault.happened:
            result = act()
            if discard is not None:
                discard(result)
        raise failure(fault.error, call.path)


def failure(error: int, path: Path) -> OSError:
    """Return the OSError (of the right subclass) that the system would raise."""
    return OSError(error, os.strerror(error), str(path))
