"""A file system in memory: a log in it needs no disk, and is gone with it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from walstore.errors import WalLockedError
from walstore.testing.calls import failure
from walstore.testing.memory_files import (
    MemoryCell,
    MemoryCellView,
    MemoryContent,
    MemoryDirectory,
    MemoryFile,
    MemoryLock,
)

_FREE_BYTES: Final = 1 << 40


class MemoryFileSystem:
    """A :class:`walstore.core.ports.FileSystem` without a disk. Syncs do nothing: a crash keeps nothing.

    Logs that are opened with the same object find each other's files. Every call may be made on any thread.
    All that is written stays in memory until it is removed.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # Where the parts of paths begin; Path() for the root.
        self._origin, self._root = Path(), MemoryDirectory(None)
        # Anchored a second time: to which directory, and where it was.
        self._below: tuple[Path, MemoryDirectory] | None = None
        self._is_anchored = self._is_closed = False

    def anchor(self, directory: Path) -> Self:
        """Bind to the directory that is there now, even if it is moved later."""
        with self._mutex:
            found = self._directory(directory)
            twin = object.__new__(type(self))
            twin._mutex, twin._is_anchored, twin._is_closed = self._mutex, True, False
            if self._is_anchored:
                twin._origin, twin._root = self._origin, self._root
                twin._below = directory, found
            else:
                twin._origin, twin._root, twin._below = directory, found, None
            return twin

    def close(self) -> None:
        """Let go of the directory."""
        self._is_closed = self._is_anchored

    def open(self, path: Path, mode: str) -> MemoryFile:
        """Open a file; see :class:`walstore.core.ports.FileSystem`."""
        with self._mutex:
            if mode == "x":
                return MemoryFile(self._mutex, self._create(path))
            return MemoryFile(self._mutex, self._file(path))

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory."""
        with self._mutex:
            return list(self._directory(directory).entries)

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        with self._mutex:
            entries = self._directory(directory).entries
            return [name for name, found in entries.items() if isinstance(found, MemoryDirectory)]

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents."""
        with self._mutex:
            self._check()
            found, is_new = self._root, False
            for name in self._parts(path):
                if found.at(name) is None:
                    found.entries[name], is_new = MemoryDirectory(found), True
                below = found.at(name)
                if not isinstance(below, MemoryDirectory):
                    raise failure(errno.EEXIST, path)
                found = below
            return is_new

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and its contents."""
        with self._mutex:
            try:
                parent, name = self._parent(path)
                found = self._directory(path)
            except FileNotFoundError:
                return
            del parent.entries[name]
            found.drop()

    def read(self, path: Path) -> bytes:
        """Return the whole content of a file."""
        with self._mutex:
            return bytes(self._file(path).data)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target; a directory, with all in it."""
        with self._mutex:
            old, name = self._parent(source)
            new, new_name = self._parent(target)
            found, there = old.entries.get(name), new.entries.get(new_name)
            if found is None:
                raise failure(errno.ENOENT, source)
            if there is found:
                return
            if isinstance(there, MemoryDirectory):
                if not isinstance(found, MemoryDirectory):
                    raise failure(errno.EISDIR, target)
                if there.entries:
                    raise failure(errno.ENOTEMPTY, target)
            elif there is not None and isinstance(found, MemoryDirectory):
                raise failure(errno.ENOTDIR, target)
            if there is not None:
                there.drop()
            del old.entries[name]
            new.entries[new_name] = found
            if isinstance(found, MemoryDirectory):
                found.parent = new

    def remove(self, path: Path) -> None:
        """Delete a file."""
        with self._mutex:
            found = self._file(path)
            parent, name = self._parent(path)
            del parent.entries[name]
            found.drop()

    def sync_directory(self, path: Path) -> None:
        """Do nothing, if the directory is there."""
        with self._mutex:
            self._directory(path)

    def lock(self, path: Path, owner: str) -> MemoryLock:
        """Take an exclusive lock."""
        with self._mutex:
            try:
                content = self._file(path)
            except FileNotFoundError:
                content = self._create(path)
            lock = self._take(content, path, is_exclusive=True)
        lock.describe(owner)
        return lock

    def lock_shared(self, path: Path) -> MemoryLock | None:
        """Take a shared lock if the file exists."""
        with self._mutex:
            try:
                content = self._file(path)
            except FileNotFoundError:
                return None
            return self._take(content, path, is_exclusive=False)

    def cell(self, path: Path, size: int) -> MemoryCell:
        """Open a cell, creating it if needed."""
        with self._mutex:
            try:
                content = self._file(path)
            except FileNotFoundError:
                content = self._create(path)
            content.data.extend(bytes(max(0, size - len(content.data))))
            return MemoryCell(self._mutex, content)

    def view_cell(self, path: Path, size: int) -> MemoryCellView:
        """Open a cell for reading."""
        with self._mutex:
            content = self._file(path)
            if len(content.data) < size:
                raise failure(errno.ENOENT, path)
        return MemoryCellView(content, lambda: self._is_at(path, content))

    def free_bytes(self, path: Path) -> int:
        """Return a tebibyte."""
        with self._mutex:
            self._directory(path)
        return _FREE_BYTES

    def _is_at(self, path: Path, content: MemoryContent) -> bool:
        with self._mutex:
            try:
                return self._file(path) is content
            except OSError:
                return False

    # -- inside: the lock is held --------------------------------------------------------------

    def _check(self) -> None:
        if self._is_closed:
            raise failure(errno.EBADF, self._origin)
        if self._below is not None:
            directory, found = self._below
            try:
                is_there = self._walk(directory) is found
            except OSError:
                is_there = False
            if not is_there:
                raise failure(errno.ESTALE, directory)

    def _parts(self, path: Path) -> Sequence[str]:
        if not self._is_anchored:
            path = Path(os.path.abspath(path))  # noqa: PTH100 - no link is followed
            return path.parts[1:]
        return path.relative_to(self._origin).parts

    def _walk(self, path: Path) -> MemoryDirectory | MemoryContent:
        found: MemoryDirectory | MemoryContent = self._root
        for name in self._parts(path):
            if not isinstance(found, MemoryDirectory):
                raise failure(errno.ENOTDIR, path)
            below = found.at(name)
            if below is None:
                raise failure(errno.ENOENT, path)
            found = below
        return found

    def _directory(self, path: Path) -> MemoryDirectory:
        self._check()
        found = self._walk(path)
        if not isinstance(found, MemoryDirectory):
            raise failure(errno.ENOTDIR, path)
        if found.is_removed:
            raise failure(errno.ENOENT, path)
        return found

    def _file(self, path: Path) -> MemoryContent:
        self._check()
        found = self._walk(path)
        if isinstance(found, MemoryDirectory):
            raise failure(errno.EISDIR, path)
        return found

    def _parent(self, path: Path) -> tuple[MemoryDirectory, str]:
        return self._directory(path.parent), path.name

    def _create(self, path: Path) -> MemoryContent:
        parent, name = self._parent(path)
        if name in parent.entries:
            raise failure(errno.EEXIST, path)
        made = parent.entries[name] = MemoryContent()
        return made

    def _take(self, content: MemoryContent, path: Path, *, is_exclusive: bool) -> MemoryLock:
        if content.holders and (is_exclusive or content.is_exclusive):
            holder = bytes(content.data).decode(errors="replace").strip() or "unknown owner"
            raise WalLockedError(
                f"the log is open for writing elsewhere ({holder}): {path.parent}; close it there",
                path=str(path.parent),
                owner=holder,
            )
        lock = MemoryLock(self._mutex, content)
        content.holders.append(lock)
        content.is_exclusive = is_exclusive
        return lock
