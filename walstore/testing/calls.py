"""Calls on a file system, as tests see them, and the file system that passes them on.

Everything here may be used on any thread: calls come from executor threads, tests run on the event loop.
"""

from __future__ import annotations

import fnmatch
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar

from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import CellView, File, FileSystem, Lock

_T = TypeVar("_T")


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


def failure(error: int, path: Path) -> OSError:
    """Return the OSError (of the right subclass) that the system would raise."""
    return OSError(error, os.strerror(error), str(path))


class WrappedFileSystem(ABC):
    """Passes the calls on to another file system, each through :meth:`run`."""

    __slots__ = ("__dict__", "_inner")

    def __init__(self, inner: FileSystem | None = None) -> None:
        self._inner: FileSystem = PosixFileSystem() if inner is None else inner

    @abstractmethod
    def run(
        self, call: Call, act: Callable[[], _T], discard: Callable[[_T], None] | None = None
    ) -> _T:
        """Do a call, or fail it; ``discard`` releases a result that is not returned."""

    def anchor(self, directory: Path) -> Self:
        """Bind to a directory of the same disk, under the same rules, including later ones."""
        call = Call("anchor", directory)
        inner = self.run(call, lambda: self._inner.anchor(directory), lambda made: made.close())
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__
        twin._inner = inner
        return twin

    def close(self) -> None:
        """Let go of the directory, whatever the rules."""
        self._inner.close()

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory."""
        return self.run(Call("list", directory), lambda: self._inner.list(directory))

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        call = Call("list_directories", directory)
        return self.run(call, lambda: self._inner.list_directories(directory))

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents durably."""
        return self.run(Call("make_directory", path), lambda: self._inner.make_directory(path))

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        return self.run(Call("read", path), lambda: self._inner.read(path))

    def lock(self, path: Path, owner: str) -> Lock:
        """Take an exclusive lock."""
        call = Call("lock", path)
        return self.run(call, lambda: self._inner.lock(path, owner), lambda made: made.release())

    def lock_shared(self, path: Path) -> Lock | None:
        """Take a shared lock if the file exists."""
        call = Call("lock_shared", path)
        return self.run(call, lambda: self._inner.lock_shared(path), _release_found)

    def view_cell(self, path: Path, size: int) -> CellView:
        """Map a cell for reading; reads from it never fail."""
        call = Call("view_cell", path, size_bytes=size)
        return self.run(call, lambda: self._inner.view_cell(path, size), lambda made: made.close())

    def free_bytes(self, path: Path) -> int:
        """Return the free space."""
        return self.run(Call("free_bytes", path), lambda: self._inner.free_bytes(path))


class WrappedFile:
    """An open file of a wrapped file system: the calls that change nothing."""

    def __init__(self, system: WrappedFileSystem, inner: File, path: Path) -> None:
        self._inner: Final = inner
        self._path: Final = path
        self._run: Final = system.run

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes."""
        call = Call("pread", self._path, position, size)
        return self._run(call, lambda: self._inner.pread(size, position))

    def size(self) -> int:
        """Return the length in bytes."""
        return self._run(Call("size", self._path), self._inner.size)

    def is_alone(self, *, names: int = 1) -> bool:
        """Return whether nobody else has the file."""
        return self._run(Call("is_alone", self._path), lambda: self._inner.is_alone(names=names))


def _release_found(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()
