"""Anchors: the directory in which a file system looks up names. Blocking, for any thread.

Every call looks up its path again. If the process changes its working directory, or a directory is moved, the
next call may reach another log. An anchored file system looks up names in a directory that it holds open,
even after that directory is moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from walstore.core.runtime.owned import NotCopied
from walstore.core.runtime.resource import abandon_in_children
from walstore.core.runtime.threads import Lane
from walstore.errors import WalClosedError

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Anchor(Protocol):
    """Finds the files of a file system."""

    def at(self, path: Path) -> AbstractContextManager[tuple[int | None, str]]:
        """Return the descriptor of a directory, valid in the block, and the name of ``path`` in it.

        An OSError of the block about that name is made one about ``path``.
        """

    def below(self, path: Path) -> Anchor:
        """Return the anchor of a directory that ``path`` leads to now."""

    def close(self) -> None:
        """Release the descriptor once no call uses it; twice is allowed."""


async def absolute(path: Path, lane: Lane) -> Path:
    """Return a path as it is from the root; the system is asked on a thread, and only if need be."""
    return path if path.is_absolute() else await lane.run(path.absolute)


class NoAnchor:
    """Every path as it is given, relative ones in the working directory."""

    def at(self, path: Path) -> AbstractContextManager[tuple[int | None, str]]:
        """Return the path itself."""
        return contextlib.nullcontext((None, str(path)))

    def below(self, path: Path) -> Anchor:
        """Open the directory and hold it."""
        return _OpenDirectory(path, os.open(path, _DIRECTORY))

    def close(self) -> None:
        """Hold nothing."""


class _OpenDirectory(NotCopied):
    """A directory that is held open: it is followed wherever it is moved."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._prefix = _prefix_of(path)
        # Guards all below. A call that began before close() must not find another file's descriptor.
        self._guard = threading.Lock()
        self._descriptor: int | None = descriptor
        self._users = 0
        self._is_closed = False
        abandon_in_children(self)

    def at(self, path: Path) -> AbstractContextManager[tuple[int | None, str]]:
        """Return the descriptor; EBADF after :meth:`close`."""
        return _Use(self, path)

    def begin(self, path: Path) -> tuple[int | None, str]:
        """Keep the descriptor open until :meth:`end`."""
        name = _name_below(self._prefix, path)
        with self._guard:
            if self._is_closed:
                raise OSError(errno.EBADF, "the directory is closed", str(path))
            self._users += 1
            return self._descriptor, name

    def end(self, _: int | None) -> None:
        """A call that began is over."""
        with self._guard:
            self._users -= 1
            if self._is_closed:
                self._release()

    def below(self, path: Path) -> Anchor:
        """Remember which directory it is, and hold nothing more."""
        return _DirectoryBelow(self, path)

    def close(self) -> None:
        """Release the descriptor; calls under way do so when they end."""
        with self._guard:
            self._is_closed = True
            self._release()

    def abandon(self, error: WalClosedError) -> None:
        """Release the child's copy."""
        self._guard = threading.Lock()
        self._users = 0
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # else what is called here may be gone
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        if self._is_closed and not self._users and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Use:
    """A call within a directory. Opening a log makes some thirty."""

    __slots__ = ("_directory", "_found", "_path")

    def __init__(self, directory: _OpenDirectory | _DirectoryBelow, path: Path) -> None:
        self._directory = directory
        self._path = path

    def __enter__(self) -> tuple[int | None, str]:
        found = self._found = self._directory.begin(self._path)
        return found

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        descriptor, name = self._found
        self._directory.end(descriptor)
        if error is not None and isinstance(error, OSError):
            _name_whole(error, name, self._path)


class _DirectoryBelow:
    """A directory below an anchored one: opened for each call, and refused if it is another one.

    Thousands of these need no descriptor of their own.
    """

    def __init__(self, parent: Anchor, path: Path) -> None:
        self._parent = parent
        self._path = path
        self._prefix = _prefix_of(path)
        descriptor = self._open()
        try:
            self._identity = _identify(descriptor)
        finally:
            os.close(descriptor)

    def at(self, path: Path) -> AbstractContextManager[tuple[int | None, str]]:
        """Return a descriptor of the directory; ESTALE if it is not there any more."""
        return _Use(self, path)

    def begin(self, path: Path) -> tuple[int | None, str]:
        """Open the directory until :meth:`end`."""
        name = _name_below(self._prefix, path)
        try:
            descriptor = self._open()
        except (FileNotFoundError, NotADirectoryError):
            raise self._moved() from None
        try:
            if _identify(descriptor) != self._identity:
                raise self._moved()
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, name

    def end(self, descriptor: int | None) -> None:
        """Close what :meth:`begin` opened."""
        assert descriptor is not None
        os.close(descriptor)

    def below(self, path: Path) -> Anchor:
        """Remember which directory it is."""
        return _DirectoryBelow(self, path)

    def close(self) -> None:
        """Hold nothing; the parent is closed by its owner."""

    def _open(self) -> int:
        with self._parent.at(self._path) as (parent, name):
            return os.open(name, _DIRECTORY, dir_fd=parent)

    def _moved(self) -> OSError:
        return OSError(
            errno.ESTALE, "the directory was moved, removed or replaced", str(self._path)
        )


def _prefix_of(directory: Path) -> str:
    """Return how the paths of a directory's files begin; those in ``.`` are their names."""
    return "" if directory == Path() else str(directory).rstrip("/") + "/"


def _name_below(prefix: str, path: Path) -> str:
    """Return the name of ``path`` in the directory of that prefix; paths are compared as they are written."""
    whole = str(path)
    if whole.startswith(prefix) and (prefix or not path.is_absolute()):
        return whole[len(prefix) :] or "."
    if whole + "/" == prefix:
        return "."
    directory = prefix[:-1] or prefix or "."
    raise ValueError(f"{path} is not below {directory}, to which the file system is anchored")


def _name_whole(error: OSError, name: str, path: Path) -> None:
    """Let an error about a name below an anchor be about the path that was given."""
    if error.filename == name:
        error.filename = str(path)


def _identify(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
