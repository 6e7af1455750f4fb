"""A disk that follows a trace: what is on it for sure, and what a power failure may leave of the rest. Pure.

What no sync covers:
  * each 512-byte sector of a write is kept or lost on its own; a sector is never half written;
  * changes of a file's length are kept in order up to some point; a length without its data shows zeroes;
  * each creation, removal and rename is kept or lost on its own, a rename never half. Syncing a file does
    not make its name durable, syncing its directory does;
  * a mapped cell shows any of its newest stores.

Everything may be called again and again with other choices: a disk changes only by :meth:`Disk.apply`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Final

SECTOR: Final = 512
_CELL_STORES: Final = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a write within one sector."""

    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A new length."""

    size: int


@dataclass(frozen=True, slots=True)
class NameChange:
    """What a call did to the names: one goes, one comes, or both at once."""

    old: str | None
    new: str | None
    file: int | None

    def touches(self, directory: str) -> bool:
        return any(name is not None and parent(name) == directory for name in (self.old, self.new))

    def apply(self, names: dict[str, int | None]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.new is not None:
            names[self.new] = self.file


def parent(path: str) -> str:
    """Return the relative path of the directory that holds a name."""
    return str(PurePath(path).parent)


@dataclass(slots=True)
class Content:
    """A file's bytes: the durable ones, and the changes since, in order."""

    durable: bytes = b""
    pending: list[Piece | Resize] = field(default_factory=list)
    cells: deque[bytes] = field(default_factory=lambda: deque(maxlen=_CELL_STORES))
    """Newest stores into the file's mapped memory, or into its only sector."""
    size: int = 0
    _digest: bytes | None = None

    def digest(self) -> bytes:
        """Return the hash of the durable bytes."""
        if self._digest is None:
            self._digest = hashlib.blake2b(self.durable, digest_size=16).digest()
        return self._digest

    def write(self, position: int, data: bytes) -> None:
        """Note a write, which makes the file longer if it reaches behind the end.

        A sector that is overwritten again and again without a sync is a cell, whoever writes it.
        """
        limit = position + len(data)
        same = [at for at in self.pending if isinstance(at, Piece) and at.position == position]
        if position == 0 and limit == self.size <= SECTOR and (self.cells or same):
            self.cells.append(data)
            return
        if limit > self.size:
            self.resize(limit)
        first = position - position % SECTOR
        cuts = [position, *range(first + SECTOR, limit, SECTOR), limit]
        for low, high in pairwise(cuts):
            self.pending.append(Piece(low, data[low - position : high - position]))

    def resize(self, size: int) -> None:
        """Note a new length."""
        self.size = size
        self.pending.append(Resize(size))

    def outcome(self, kept: Sequence[bool] | None, cell: int | None) -> bytes:
        """Return the bytes with those pending changes that are kept; None keeps all.

        ``cell`` says which of the newest stores the mapped memory shows, None shows what was written.
        """
        pending = self.pending
        data = bytearray(self.durable)
        limit = len(data)
        is_whole = True  # until the first change of the length that is lost
        for at, change in enumerate(pending):
            is_kept = kept is None or kept[at]
            if isinstance(change, Resize):
                is_whole = is_whole and is_kept
                if is_whole:
                    limit = change.size
                    del data[limit:]
            elif is_kept:
                end = change.position + len(change.data)
                if end > len(data):
                    data.extend(bytes(end - len(data)))
                data[change.position : end] = change.data
        del data[limit:]
        data.extend(bytes(limit - len(data)))
        if cell is not None and self.cells:
            stored = self.cells[cell][: len(data)]
            data[: len(stored)] = stored
        return bytes(data)

    def settle(self, count: int) -> None:
        """Make the first pending changes durable."""
        if count:
            rest = self.pending[count:]
            del self.pending[count:]
            self.durable = self.outcome(None, len(self.cells) - 1 if self.cells else None)
            self.pending = rest
            self._digest = None


class Disk:
    """Names and contents below one directory."""

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.names: dict[str, int | None] = {}
        """As programs see them; None is a directory."""
        self.durable_names: dict[str, int | None] = {}
        self.pending_names: list[NameChange] = []
        self._syncs: dict[int, tuple[Content, int] | list[NameChange]] = {}

    def apply(self, event: Sequence) -> bool:
        """Follow one event of a trace; return whether it changed what is, or may be, on the disk."""
        kind, *what = event
        if kind == "write":
            self.contents[what[0]].write(what[1], what[2])
        elif kind == "size":
            self.contents[what[0]].resize(what[1])
        elif kind == "store":
            self.contents[what[0]].cells.append(what[1])
        elif kind == "create":
            self.contents[what[1]] = Content()
            self._rename(NameChange(None, what[0], what[1]))
        elif kind == "mkdir":
            self._rename(NameChange(None, what[0], None))
        elif kind == "rename":
            self._rename(NameChange(what[0], what[1], self.names[what[0]]))
        elif kind == "link":
            self._rename(NameChange(None, what[1], self.names[what[0]]))
        elif kind == "unlink":
            self._rename(NameChange(what[0], None, None))
        elif kind == "syncing":
            self._begin_sync(*what)
            return False
        elif kind == "synced":
            self._end_sync(what[0])
        else:
            return False
        return True

    def _rename(self, change: NameChange) -> None:
        change.apply(self.names)
        self.pending_names.append(change)

    def _begin_sync(self, what: int | str, token: int) -> None:
        if isinstance(what, str):
            self._syncs[token] = [change for change in self.pending_names if change.touches(what)]
        else:
            content = self.contents[what]
            self._syncs[token] = (content, len(content.pending))

    def _end_sync(self, token: int) -> None:
        covered = self._syncs.pop(token)
        if isinstance(covered, tuple):
            covered[0].settle(covered[1])
            return
        for change in covered:
            if any(change is other for other in self.pending_names):
                change.apply(self.durable_names)
        gone = {id(change) for change in covered}
        self.pending_names = [other for other in self.pending_names if id(other) not in gone]

    def visible(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield what programs see: each path with the file's bytes, or None for a directory."""
        for path, file in self.names.items():
            content = None if file is None else self.contents[file]
            yield path, None if content is None else content.outcome(None, len(content.cells) - 1)
