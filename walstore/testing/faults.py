"""A file system that fails on request.

:class:`FaultyFileSystem` wraps another :class:`walstore.core.ports.FileSystem`. A test can make any call
fail, before, during or after its work, limit the space on the disk, hold calls to inspect the state,
and read the calls that were made. It never fails without a rule.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from walstore.core.ports import Buffer, Cell, File, FileSystem
from walstore.testing.calls import Call, WrappedFile, WrappedFileSystem, failure

_T = TypeVar("_T")
_HOLD_SECONDS: Final = 30.0


class Hold:
    """Calls that are held before they do anything, until :meth:`release`. Also a context manager."""

    def __init__(self, kind: str, name: str, times: int | None = None) -> None:
        self._pattern = (kind, name)
        self._turns = itertools.count() if times is None else iter(range(times))
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
        if not call.matches(*self._pattern) or self._released.is_set():
            return
        if (
            next(self._turns, None) is not None
        ):  # taken in one step: calls come from several threads
            self._entered.set()
            if not self._released.wait(_HOLD_SECONDS):
                raise TimeoutError(f"{call} was held and never released")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class Fault:
    """A rule: which of the matching calls fail, and how. See :meth:`FaultyFileSystem.fail`."""

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


class Length:
    """Length of a file, shared by all its open handles and kept across renames."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class FaultyFileSystem(WrappedFileSystem):
    """Passes every call on to ``inner``, by default the machine's file system, unless a rule says
    otherwise. Calls are recorded with the paths they are given."""

    __slots__ = ()

    def __init__(self, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        # Guards all below. Never held while a call runs, is held or is hooked.
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._holds: list[Hold] = []
        self._hook: Callable[[Call], None] | None = None
        self._calls: list[Call] = []
        self._space_bytes: int | None = None
        self._lengths: dict[Path, Length] = {}

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
            name: Shell pattern for the last part of the path; of a file, that with which it was opened.
                The active segment of a log is opened as ``"next.tmp"`` before it is named, or as
                ``"*.wal"`` if it was found when the log was opened. Sealed ones are read as ``"*.wal"``.
            nth: The first matching call, counted from now, that fails. 1 or more.
            times: How many fail from there on; None for all.
            written_bytes: Of a ``pwrite``, so many bytes reach the file before the error.
            happened: Do all of the call, then report the error.
        """
        fault = Fault(kind, name, error, nth - 1, times, written_bytes, happened)
        with self._lock:
            self._faults.append(fault)

    def hold(self, kind: str, *, name: str = "*", times: int | None = None) -> Hold:
        """Stop matching calls before they do anything, until the returned Hold is released.

        Args:
            kind: As in :meth:`fail`.
            name: As in :meth:`fail`.
            times: How many are stopped, from the first one on; None for all.
        """
        hold = Hold(kind, name, times)
        with self._lock:
            self._holds.append(hold)
        return hold

    def before_each(self, hook: Callable[[Call], None] | None) -> None:
        """Call ``hook`` before each call, on the call's thread; the call raises the hook's errors."""
        with self._lock:
            self._hook = hook

    def limit_space(self, size_bytes: int | None) -> None:
        """Limit the total length of the files opened through this object; None: no limit.

        Reserved space counts as used. A write without enough room is written as far as it fits and then
        fails with ENOSPC, as on a full disk. Truncating and removing files makes room.
        """
        with self._lock:
            self._space_bytes = size_bytes

    def heal(self) -> None:
        """Remove all faults, the hook and the limit, and release held calls."""
        with self._lock:
            holds, self._holds = self._holds, []
            self._faults.clear()
            self._hook = None
            self._space_bytes = None
        for hold in holds:
            hold.release()

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in the order in which they began, failed ones included."""
        with self._lock:
            return tuple(self._calls)

    def count(self, kind: str, *, name: str = "*") -> int:
        """Return how many calls so far match the patterns."""
        if kind == name == "*":  # asked before each call by tests that stop at one of them
            with self._lock:
                return len(self._calls)
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

    def open(self, path: Path, mode: str) -> File:
        """Open a file; see :class:`walstore.core.ports.FileSystem`."""
        call = Call("open", path)
        file = self.run(call, lambda: self._inner.open(path, mode), lambda made: made.close())
        size_bytes = file.size()
        with self._lock:
            length = self._lengths.setdefault(path, Length(size_bytes))
        return _FaultyFile(self, file, path, length)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target."""

        def act() -> None:
            self._inner.replace(source, target)
            with self._lock:
                self._lengths.pop(target, None)
                if source in self._lengths:
                    self._lengths[target] = self._lengths.pop(source)

        self.run(Call("replace", target), act)

    def remove(self, path: Path) -> None:
        """Delete a file."""

        def act() -> None:
            self._inner.remove(path)
            with self._lock:
                self._lengths.pop(path, None)

        self.run(Call("remove", path), act)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it."""

        def act() -> None:
            self._inner.remove_tree(path)
            with self._lock:
                for known in [known for known in self._lengths if path in known.parents]:
                    del self._lengths[known]

        self.run(Call("remove_tree", path), act)

    def sync_directory(self, path: Path) -> None:
        """Make the directory's entries durable."""
        self.run(Call("sync_directory", path), lambda: self._inner.sync_directory(path))

    def cell(self, path: Path, size: int) -> Cell:
        """Map a small file. It does not count against the limit."""
        call = Call("cell", path, size_bytes=size)
        cell = self.run(call, lambda: self._inner.cell(path, size), lambda made: made.close())
        return _FaultyCell(self, cell, path)

    def free_bytes(self, path: Path) -> int:
        """Return the free space, within the limit if there is one."""
        free_bytes = super().free_bytes(path)
        with self._lock:
            return free_bytes if self._space_bytes is None else min(self._room_bytes(), free_bytes)

    def grow(self, length: Length, limit_bytes: int) -> int:
        """Let a file become ``limit_bytes`` long, as far as there is room; return its new length."""
        with self._lock:
            missing_bytes = max(0, limit_bytes - length.size_bytes)
            if self._space_bytes is not None:
                missing_bytes = min(missing_bytes, self._room_bytes())
            length.size_bytes += missing_bytes
            return length.size_bytes

    def set_length(self, length: Length, size_bytes: int) -> None:
        """Record the length to which a file was truncated or extended."""
        with self._lock:
            length.size_bytes = size_bytes

    def _room_bytes(self) -> int:
        if self._space_bytes is None:
            raise ValueError("there is no limit")
        used_bytes = sum(length.size_bytes for length in self._lengths.values())
        return max(0, self._space_bytes - used_bytes)


class _FaultyFile(WrappedFile):
    """An open file of a FaultyFileSystem."""

    def __init__(self, system: FaultyFileSystem, inner: File, path: Path, length: Length) -> None:
        super().__init__(system, inner, path)
        self._system = system
        self._length = length

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces, or some bytes and then fail."""
        size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
        call = Call("pwrite", self._path, position, size_bytes)
        fault = self._system.begin(call)
        error = None
        wanted_bytes = size_bytes
        if fault is not None:
            error = fault.error
            if not fault.happened:
                wanted_bytes = min(size_bytes, fault.written_bytes or 0)
        if wanted_bytes:
            room_limit = self._system.grow(self._length, position + wanted_bytes)
            if room_limit < position + wanted_bytes:
                wanted_bytes = max(0, room_limit - position)
                error = error or errno.ENOSPC
        if wanted_bytes == size_bytes:
            self._inner.pwrite(pieces, position)
        elif wanted_bytes:
            self._inner.pwrite([b"".join(pieces)[:wanted_bytes]], position)
        if error is not None:
            raise failure(error, self._path)

    def datasync(self) -> None:
        """Make the content durable."""
        self._system.run(Call("datasync", self._path), self._inner.datasync)

    def allocate(self, size: int) -> None:
        """Reserve space; without room nothing is reserved."""

        def act() -> None:
            before_bytes = self._length.size_bytes
            if self._system.grow(self._length, size) < size:
                self._system.set_length(self._length, before_bytes)
                raise failure(errno.ENOSPC, self._path)
            self._inner.allocate(size)

        self._system.run(Call("allocate", self._path, size_bytes=size), act)

    def truncate(self, size: int) -> None:
        """Cut or extend the file; never fails for lack of space."""

        def act() -> None:
            self._inner.truncate(size)
            self._system.set_length(self._length, size)

        self._system.run(Call("truncate", self._path, size_bytes=size), act)

    def close(self) -> None:
        """Release the descriptor, also when the call fails, as Linux does."""
        fault = self._system.begin(Call("close", self._path))
        self._inner.close()
        if fault is not None:
            raise failure(fault.error, self._path)


class _FaultyCell:
    """A cell of a FaultyFileSystem."""

    def __init__(self, system: FaultyFileSystem, inner: Cell, path: Path) -> None:
        self._system = system
        self._inner = inner
        self._path = path

    def store(self, data: bytes) -> None:
        """Replace the content."""
        call = Call("store", self._path, size_bytes=len(data))
        self._system.run(call, lambda: self._inner.store(data))

    def close(self) -> None:
        """Unmap."""
        self._inner.close()
