"""A file system that can lose power.

:class:`PowerLossFileSystem` lets a log work on real files and remembers what was made durable.
:meth:`~PowerLossFileSystem.crash` then writes a directory as the disk might contain it after a power
failure: everything that was synced, and any part of the rest.

Possible outcomes for changes that no sync covered:
  * Each 512-byte sector of a write is kept or lost on its own; a sector is never half written.
  * Changes of a file's length are kept in order up to some point, the rest is lost. A length that
    was kept without its data shows zeroes.
  * Each creation, removal and rename is kept or lost on its own, also out of order; a rename is never
    half done. Syncing a file does not make its name durable, syncing its directory does.
  * A cell shows any of its last 64 stores, whether or not the data it describes was kept.
  * A directory that is renamed keeps its files, whichever of the two names it has.
  * Directories are durable once made, as :class:`walstore.core.ports.FileSystem` promises; but for those of
    :meth:`~PowerLossFileSystem.make_unsynced_directory`.

Contents are kept in memory, so this is for logs of megabytes. Everything may be called on any thread.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random  # noqa: TID251 - only ever used with a seed
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from walstore.core.ports import Buffer, Cell, File, FileSystem
from walstore.testing.calls import Call, WrappedFile, WrappedFileSystem, failure

_T = TypeVar("_T")
LOSE_ALL: Final = 0
"""The seed of a crash that keeps only what was synced."""
KEEP_ALL: Final = 1
"""The seed of a crash that loses nothing."""
SECTOR_BYTES: Final = 512
_CELL_STORES: Final = 64

Keep = Callable[[], bool]
"""Called once for each change that may be kept or lost."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written at a position."""

    position: int
    data: bytes

    @property
    def limit(self) -> int:
        """Position after the last byte."""
        return self.position + len(self.data)

    def sectors(self) -> list[Write]:
        """Split at the sector boundaries of the file."""
        first = self.position - self.position % SECTOR_BYTES
        cuts = [self.position, *range(first + SECTOR_BYTES, self.limit, SECTOR_BYTES), self.limit]
        return [
            Write(low, self.data[low - self.position : high - self.position])
            for low, high in pairwise(cuts)
        ]


@dataclass(frozen=True, slots=True)
class Resize:
    """A new length of the file."""

    size_bytes: int


class FileContent:
    """A file's bytes: what is durable, and the changes since, in order."""

    def __init__(self, durable: bytes, *, most_pending: int | None = None) -> None:
        """Begin with durable bytes; above ``most_pending`` changes the oldest are dropped."""
        self._durable = bytearray(durable)
        self._pending: deque[Write | Resize] = deque(maxlen=most_pending)
        self._size_bytes = len(durable)

    @property
    def pending(self) -> int:
        """How many changes no sync has covered."""
        return len(self._pending)

    def write(self, position: int, data: bytes) -> None:
        """Record a write; one beyond the end also changes the length."""
        if not data:
            return
        write = Write(position, data)
        if write.limit > self._size_bytes:
            self.resize(write.limit)
        self._pending.append(write)

    def resize(self, size_bytes: int) -> None:
        """Record that the file was truncated or extended."""
        self._size_bytes = size_bytes
        self._pending.append(Resize(size_bytes))

    def reserve(self, size_bytes: int) -> None:
        """Record that space was reserved, which extends a shorter file."""
        if size_bytes > self._size_bytes:
            self.resize(size_bytes)

    def sync(self, count: int) -> None:
        """Make the first ``count`` pending changes durable."""
        for _ in range(min(count, len(self._pending))):
            change = self._pending.popleft()
            if isinstance(change, Resize):
                _resize(self._durable, change.size_bytes)
            else:
                _overwrite(self._durable, change)

    def survivors(self, keep: Keep) -> bytes:
        """Return the bytes as they may be after a crash.

        Sectors are kept one by one. Lengths are kept in order until ``keep`` refuses one.
        """
        content = bytearray(self._durable)
        lengths_kept = True
        for change in self._pending:
            if isinstance(change, Resize):
                lengths_kept = lengths_kept and keep()
                if lengths_kept:
                    _resize(content, change.size_bytes)
                continue
            for sector in change.sectors():
                if keep():
                    _overwrite(content, sector)
        return bytes(content)


@dataclass(frozen=True, slots=True, eq=False)
class _NameChange:
    """A creation (no source), a removal (no target) or a rename."""

    source: Path | None
    target: Path | None
    content: FileContent

    def touches(self, directory: Path) -> bool:
        return any(
            path is not None and path.parent == directory for path in (self.source, self.target)
        )

    def apply(self, names: dict[Path, FileContent]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None:
            names[self.target] = self.content

    def before(self, moves: Sequence[_DirectoryMove]) -> _NameChange:
        """Return this change with the names that its files have without these moves."""
        return self._named(
            lambda path: functools.reduce(
                lambda at, move: move.source_of(at), reversed(moves), path
            )
        )

    def after(self, move: _DirectoryMove) -> _NameChange:
        """Return this change with the names that its files have after a move."""
        return self._named(move.target_of)

    def _named(self, name: Callable[[Path], Path]) -> _NameChange:
        return _NameChange(
            None if self.source is None else name(self.source),
            None if self.target is None else name(self.target),
            self.content,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _DirectoryMove:
    """A rename of a directory with all that is in it."""

    source: Path
    target: Path

    def touches(self, directory: Path) -> bool:
        return directory in (self.source.parent, self.target.parent)

    def apply(self, names: dict[Path, FileContent]) -> None:
        for path in [path for path in names if self.source in path.parents]:
            names[self.target_of(path)] = names.pop(path)

    def source_of(self, path: Path) -> Path:
        """Return the name before the move."""
        return _moved(path, self.target, self.source)

    def target_of(self, path: Path) -> Path:
        """Return the name after the move."""
        return _moved(path, self.source, self.target)


class PowerLossFileSystem(WrappedFileSystem):
    """Works on the files below ``root`` through ``inner``, by default the machine's file system, until the
    power is cut.

    Existing files count as durable. Only this object may change files below ``root``. A directory that it
    is bound to must not be moved.
    """

    __slots__ = ()

    def __init__(self, root: Path, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self._root = root
        # Guards all below, and is held while files and names change.
        self._lock = threading.Lock()
        self._is_off = False
        self._names: dict[Path, FileContent] = {}
        self._durable_names: dict[Path, FileContent] = {}
        # Changes of names that no sync covered; their files are called as they are now.
        self._pending: list[_NameChange] = []
        self._moves: list[_DirectoryMove] = []
        self._new_directories: list[Path] = []

    def cut(self) -> None:
        """Cut the power: from now on every call fails with EIO and changes nothing."""
        with self._lock:
            self._is_off = True

    def crash(self, seed: int, into: Path) -> None:
        """Cut the power and fill the new directory ``into`` with one possible outcome.

        The outcome depends only on ``seed``: 0 loses everything unsynced, 1 keeps everything, others
        lose some. It may be called again with another seed and directory.
        """
        self.cut()
        keep = _keeper(seed)
        names = dict(self._durable_names)
        lost_moves: list[_DirectoryMove] = []
        for move in self._moves:
            if keep():
                move.apply(names)
            else:
                lost_moves.append(move)
        for change in self._pending:
            if keep():
                change.before(lost_moves).apply(names)
        lost = [path for path in self._new_directories if not keep()]
        known = frozenset([*self._names, *self._durable_names, *lost])
        shutil.copytree(self._root, into, ignore=lambda where, found: _among(known, where, found))
        for path in sorted(names):
            if any(directory in path.parents for directory in lost):
                continue
            target = into / path.relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)  # possibly of a removed tree
            target.write_bytes(names[path].survivors(keep))

    def run(
        self, call: Call, act: Callable[[], _T], discard: Callable[[_T], None] | None = None
    ) -> _T:
        """Do a call that changes nothing; raise EIO once the power is off."""
        self.check_power(call.path)
        return act()

    def open(self, path: Path, mode: str) -> File:
        """Open a file; see :class:`walstore.core.ports.FileSystem`."""
        with self.powered(path):
            content = self._know(path) if mode == "r+" else FileContent(b"")
            file = self._inner.open(path, mode)
            if mode == "x":
                self._change_name(None, path, content)
            return _PowerLossFile(self, file, path, content)

    def make_unsynced_directory(self, path: Path) -> None:
        """Create a directory as other programs do: a crash may lose it, with all that is in it, until
        its parent is synced."""
        with self.powered(path):
            path.mkdir()
            self._new_directories.append(path)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target; a directory, with the files in it."""
        with self.powered(target):
            if source.is_dir():
                self._move_directory(source, target)
                return
            content = self._know(source)
            if self._is_there(target):
                self._know(target)
            self._inner.replace(source, target)
            self._change_name(source, target, content)

    def remove(self, path: Path) -> None:
        """Delete a file."""
        with self.powered(path):
            content = self._know(path)
            self._inner.remove(path)
            self._change_name(path, None, content)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it."""
        with self.powered(path):
            for known in [known for known in self._names if path in known.parents]:
                self._change_name(known, None, self._names[known])
            self._inner.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        """Make the directory's entries durable."""
        inner, path = path, Path(os.path.normpath(path))
        with self.powered(path):
            covered = [change for change in self._pending if change.touches(path)]
            moved = [move for move in self._moves if move.touches(path)]
        self._inner.sync_directory(inner)
        with self.powered(path):
            self._new_directories[:] = [new for new in self._new_directories if new.parent != path]
            for move in moved:
                if move in self._moves:
                    move.apply(self._durable_names)
                    self._moves.remove(move)
            for change in covered:
                if change in self._pending:
                    change.before(self._moves).apply(self._durable_names)
                    self._pending.remove(change)

    def cell(self, path: Path, size: int) -> Cell:
        """Map a small file."""
        with self.powered(path):
            is_new = not self._is_there(path)
            cell = self._inner.cell(path, size)
            content = self._names.get(path)
            if content is None:
                content = FileContent(self._inner.read(path), most_pending=_CELL_STORES)
                self._names[path] = content
                if is_new:
                    self._change_name(None, path, content)
                else:
                    self._durable_names[path] = content
            return _PowerLossCell(self, cell, path, content)

    def check_power(self, path: Path) -> None:
        """Raise EIO once the power is off."""
        if self._is_off:
            raise failure(errno.EIO, path)

    @contextlib.contextmanager
    def powered(self, path: Path) -> Iterator[None]:
        """Hold the lock under which files change; raise EIO once the power is off."""
        with self._lock:
            self.check_power(path)
            yield

    def _is_there(self, path: Path) -> bool:
        return path in self._names or path.name in self._inner.list(path.parent)

    def _know(self, path: Path) -> FileContent:
        """Return the content of a file; content not written through this object counts as durable."""
        content = self._names.get(path)
        if content is None:
            content = FileContent(self._inner.read(path))
            self._names[path] = self._durable_names[path] = content
        return content

    def _move_directory(self, source: Path, target: Path) -> None:
        for path in source.rglob("*"):
            if path.is_file():
                self._know(path)
        self._inner.replace(source, target)
        move = _DirectoryMove(source, target)
        move.apply(self._names)
        self._pending[:] = [change.after(move) for change in self._pending]
        self._moves.append(move)

    def _change_name(self, source: Path | None, target: Path | None, content: FileContent) -> None:
        change = _NameChange(source, target, content)
        change.apply(self._names)
        self._pending.append(change)


class _PowerLossFile(WrappedFile):
    """An open file of a PowerLossFileSystem. The content of one that is only read is not used."""

    def __init__(
        self, system: PowerLossFileSystem, inner: File, path: Path, content: FileContent
    ) -> None:
        super().__init__(system, inner, path)
        self._system = system
        self._content = content

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces."""
        with self._system.powered(self._path):
            self._inner.pwrite(pieces, position)
            self._content.write(position, b"".join(pieces))

    def datasync(self) -> None:
        """Make everything written before the call durable."""
        with self._system.powered(self._path):
            covered = self._content.pending
        self._inner.datasync()
        with self._system.powered(self._path):
            self._content.sync(covered)

    def allocate(self, size: int) -> None:
        """Reserve space."""
        with self._system.powered(self._path):
            self._inner.allocate(size)
            self._content.reserve(size)

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        with self._system.powered(self._path):
            self._inner.truncate(size)
            self._content.resize(size)

    def close(self) -> None:
        """Release the descriptor, also without power."""
        self._inner.close()


class _PowerLossCell:
    """A cell of a PowerLossFileSystem."""

    def __init__(
        self, system: PowerLossFileSystem, inner: Cell, path: Path, content: FileContent
    ) -> None:
        self._system = system
        self._inner = inner
        self._path = path
        self._content = content

    def store(self, data: bytes) -> None:
        """Replace the content."""
        with self._system.powered(self._path):
            self._inner.store(data)
            self._content.write(0, data)

    def close(self) -> None:
        """Unmap, also without power."""
        self._inner.close()


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if source in path.parents else path


def _keeper(seed: int) -> Keep:
    """Return the function that decides, for each change, whether it is kept."""
    if seed in (LOSE_ALL, KEEP_ALL):
        return lambda: seed == KEEP_ALL
    chance = random.Random(seed)
    share = chance.choice((0.1, 0.5, 0.9))
    return lambda: chance.random() < share


def _among(known: frozenset[Path], directory: str, names: Iterable[str]) -> set[str]:
    """Return those of the names in a directory that are known."""
    return {name for name in names if Path(directory) / name in known}


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


def _overwrite(content: bytearray, write: Write) -> None:
    """Replace bytes in place; bytes beyond the end stay lost."""
    room = len(content) - write.position
    if room > 0:
        data = write.data[:room]
        content[write.position : write.position + len(data)] = data
