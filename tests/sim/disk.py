"""A disk and its page cache: what processes see, and what is left when the power fails.

What a power failure may do is that of :mod:`walstore.testing.power`: unsynced sectors, lengths, names are
kept or lost one by one, a mapped cell shows any of its last stores.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from tests.sim.loop import Process
from walstore.testing.calls import failure
from walstore.testing.power import FileContent

_CELL_STORES: Final = 64


class Inode:
    """A file: its bytes as processes see them, and as the disk may have them."""

    def __init__(self, data: bytes = b"", *, most_pending: int | None = None) -> None:
        self.data = bytearray(data)
        self.content = FileContent(data, most_pending=most_pending)
        self.holders: dict[object, bool] = {}
        """Who holds a lock on it, and whether that excludes all others."""
        self.openers: list[Process] = []
        """The process of each open descriptor of it."""

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = data
        self.content.write(position, data)

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.content.resize(size)

    def reserve(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))
        self.content.reserve(size)


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """A creation (no source), a removal (no target) or a rename."""

    source: Path | None
    target: Path | None
    inode: Inode

    def touches(self, directory: Path) -> bool:
        return any(
            path is not None and path.parent == directory for path in (self.source, self.target)
        )

    def apply(self, names: dict[Path, Inode]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None:
            names[self.target] = self.inode


class Disk:
    """Names and files. Directories are durable once made."""

    def __init__(self, random: Random, *, lies: bool = False) -> None:
        """``lies``: a sync returns and makes nothing durable."""
        self.random = random
        self.lies = lies
        self.names: dict[Path, Inode] = {}
        self.directories: set[Path] = {Path("/")}
        self._durable_names: dict[Path, Inode] = {}
        self._pending: list[NameChange] = []

    def find(self, path: Path) -> Inode:
        """Return a file; FileNotFoundError."""
        inode = self.names.get(path)
        if inode is None:
            raise failure(errno.EISDIR if path in self.directories else errno.ENOENT, path)
        return inode

    def create(self, path: Path, *, most_pending: int | None = None) -> Inode:
        """Make an empty file."""
        self.check_directory(path.parent)
        inode = Inode(most_pending=most_pending)
        self.change(None, path, inode)
        return inode

    def check_directory(self, path: Path) -> None:
        """Raise FileNotFoundError if there is no such directory."""
        if path not in self.directories:
            raise failure(errno.ENOTDIR if path in self.names else errno.ENOENT, path)

    def change(self, source: Path | None, target: Path | None, inode: Inode) -> None:
        """Create, rename or remove a name; not durable before :meth:`sync_directory`."""
        change = NameChange(source, target, inode)
        change.apply(self.names)
        self._pending.append(change)

    def pending_names(self, directory: Path) -> list[NameChange]:
        """Return the changes that a sync of the directory beginning now covers."""
        return [change for change in self._pending if change.touches(directory)]

    def sync_names(self, covered: list[NameChange]) -> None:
        """Make changes of names durable, those before them first."""
        if self.lies:
            return
        for change in covered:
            if change in self._pending:
                change.apply(self._durable_names)
                self._pending.remove(change)

    def sync(self, inode: Inode, count: int) -> None:
        """Make the first ``count`` pending changes of a file durable."""
        if not self.lies:
            inode.content.sync(count)

    def lose_power(self) -> None:
        """Keep what was synced and, of the rest, what chance keeps."""
        random = self.random
        share = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))

        def keep() -> bool:
            return random.random() < share

        names = dict(self._durable_names)
        for change in self._pending:
            if keep():
                change.apply(names)
        made: dict[Inode, Inode] = {}
        self.names = {}
        for path in sorted(names):
            old = names[path]
            if old not in made:
                most = old.content._pending.maxlen
                made[old] = Inode(old.content.survivors(keep), most_pending=most)
            self.names[path] = made[old]
        self._durable_names = dict(self.names)
        self._pending = []

    def put_back(self, directory: Path, files: dict[Path, bytes]) -> None:
        """Replace the files of a directory by those of an earlier time, durably."""
        made = {path: Inode(data) for path, data in files.items()}
        for names in (self.names, self._durable_names):
            for path in [path for path in names if path.parent == directory]:
                del names[path]
            names.update(made)
        self._pending = [one for one in self._pending if not one.touches(directory)]

    def release_locks(self, process: Process) -> None:
        """Drop the locks of a process that is gone."""
        for inode in self.names.values():
            for holder in [held for held in inode.holders if held.process is process]:
                del inode.holders[holder]

    def holds_lock(self, process: Process, path: Path) -> bool:
        """Return whether a process has the exclusive lock of a file."""
        inode = self.names.get(path)
        return inode is not None and any(
            exclusive and held.process is process  # type: ignore[attr-defined]
            for held, exclusive in inode.holders.items()
        )


@cache
def normal(path: Path) -> Path:
    """Return a path without dots."""
    return Path(os.path.normpath(path))
