"""What a group remembers: what is settled, and how often the rest was delivered; and the file of that.

``groups/NAME`` in the log's directory, written only by the owner of the log: a header, then entries of 24
bytes, each with its CRC. Settling appends one and syncs; delivering appends one and does not, so a crash
of the machine may forget a delivery, never an acknowledgement. The file ends at the first entry that is
damaged: what was acknowledged after it is delivered again. A file that has grown is replaced by one with
the present state. A replicated log keeps its entries in registers instead (``kept_journal.py``).
"""

from __future__ import annotations

import contextlib
import logging
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol, TypeVar

from crc32c import crc32c

from walstore.core.format.packed import MOST_OFFSET
from walstore.core.ports import File, FileSystem
from walstore.core.runtime.error_mapping import is_full
from walstore.core.runtime.threads import Lane
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    StorageUnavailableError,
)
from walstore.positions.cursor_state import NAME

logger = logging.getLogger("walstore.groups")

_T = TypeVar("_T")

DIRECTORY_NAME: Final = "groups"
CURSOR_PREFIX: Final = "group."
"""Before a group's name, the name of its cursor."""
SPARE_NAME: Final = ".next"
MAGIC: Final = b"WALGRP\r\n"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sI4x")
ENTRY: Final = struct.Struct("<IBxHQQ")
MOST_JOURNAL_BYTES: Final = 4 << 20
"""A file that is longer, and four times as long as its content needs, is written anew."""
_MOST_DELIVERIES: Final = (1 << 16) - 1


class EntryKind(IntEnum):
    """What an entry says. Numbers are part of the format and never re-used."""

    POSITION = 1
    """All below the first number is settled."""
    SETTLED = 2
    """All from the first number to below the second is settled."""
    DELIVERED = 3
    """The record at the first number was delivered so often, to a member in the owner's process."""
    DELIVERED_AWAY = 4
    """The same, to a member in another process, which may survive the owner."""
    BURIED = 5
    """The record at the first number is appended as the second number's dead letter; 0 is any record."""


def entry(kind: EntryKind, first: int, second: int = 0, count: int = 0) -> bytes:
    """Return an entry."""
    packed = ENTRY.pack(0, kind, min(count, _MOST_DELIVERIES), first, second)
    return crc32c(packed[4:]).to_bytes(4, "little") + packed[4:]


@dataclass(slots=True)
class Remembered:
    """What a journal says."""

    position: int = 1
    settled: list[tuple[int, int]] = field(default_factory=list)
    deliveries: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    """Offsets whose last delivery went to another process."""
    buried: dict[int, int] = field(default_factory=dict)
    """Dead letters that were begun: their numbers by offset."""
    letters: int = 0
    """The highest number of a dead letter."""
    end: int = HEADER.size
    """Where the valid entries end."""

    def note(self, kind: int, count: int, first: int, second: int) -> bool:
        """Take note of an entry; False if its kind is not known."""
        match kind:
            case EntryKind.POSITION:
                self.position = max(self.position, first)
            case EntryKind.SETTLED:
                self.settled.append((first, second))
            case EntryKind.DELIVERED | EntryKind.DELIVERED_AWAY:
                self.deliveries[first] = count  # the last says it: a delivery may have been none
                (self.away.add if kind == EntryKind.DELIVERED_AWAY else self.away.discard)(first)
            case EntryKind.BURIED:
                if first:
                    self.buried[first] = second
                self.letters = max(self.letters, second)
            case _:
                return False
        return True

    def unsettled(self, offsets: Iterable[int]) -> list[int]:
        """Return those of the offsets that no entry settles."""
        ranges = sorted(self.settled)
        starts = [low for low, _ in ranges]
        # How far those reach that begin at or below an offset.
        limits = list(accumulate((high for _, high in ranges), max, initial=self.position))
        return [offset for offset in offsets if limits[bisect_right(starts, offset)] <= offset]

    def entries(self) -> list[bytes]:
        """Return it as entries."""
        away, delivered = EntryKind.DELIVERED_AWAY, EntryKind.DELIVERED
        numbers = {0, *self.buried.values()}
        return [
            entry(EntryKind.POSITION, self.position),
            *(entry(EntryKind.SETTLED, low, high) for low, high in self.settled),
            *(
                entry(away if offset in self.away else delivered, offset, count=count)
                for offset, count in self.deliveries.items()
            ),
            *([entry(EntryKind.BURIED, 0, self.letters)] if self.letters not in numbers else []),
            *(entry(EntryKind.BURIED, offset, number) for offset, number in self.buried.items()),
        ]

    def settled_offsets(self) -> Iterator[int]:
        """Yield what is settled at or above the position, maybe twice."""
        for low, high in self.settled:
            yield from range(max(low, self.position), high)


def decode(data: bytes, path: str) -> Remembered:
    """Parse a journal; CorruptionError if it is none, FormatVersionError if it is newer."""
    found = Remembered()
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise CorruptionError(
            "this is no journal of a group; delete it, and the group begins at its cursor",
            path=path,
        )
    _, version = HEADER.unpack_from(data)
    if version != VERSION:
        raise FormatVersionError(
            "the journal of the group is newer", path=path, found=version, supported=VERSION
        )
    for at in range(HEADER.size, len(data) - ENTRY.size + 1, ENTRY.size):
        crc, kind, count, first, second = ENTRY.unpack_from(data, at)
        if crc32c(data[at + 4 : at + ENTRY.size]) != crc or max(first, second) > MOST_OFFSET:
            break
        found.end = at + ENTRY.size
        if not found.note(kind, count, first, second):
            raise FormatVersionError(
                "the journal of the group is newer",
                path=path,
                found=f"entry {kind}",
                supported=VERSION,
            )
    return found


class Journal(Protocol):
    """Where a group's entries are kept. Belongs to the event loop; one call at a time.

    After a call that raises an error which is retriable, its entries may be given again: they say the same
    twice as once. After any other error nobody knows what is kept.
    """

    most_bytes: int
    """Of more it is worth keeping only the present state, if that is much smaller."""

    async def load(self, position: int) -> Remembered:
        """Return what is kept, of a group that began at ``position`` if it is new."""

    async def append(self, entries: bytes, *, syncs: bool) -> int:
        """Add entries, which the next owner finds when this returns; with ``syncs`` also after a crash.

        Returns the size of all that is kept.
        """

    async def rewrite(self, entries: Sequence[bytes]) -> None:
        """Keep these entries instead of all others, durably."""

    async def aclose(self) -> None:
        """Release what is open; twice is allowed."""


class FileJournal:
    """A :class:`Journal` in a file, which is written on a thread."""

    most_bytes = MOST_JOURNAL_BYTES

    def __init__(
        self, fs: FileSystem, directory: Path, name: str, lane: Callable[[], Lane]
    ) -> None:
        """``directory`` is the log's; ``lane()`` returns the thread."""
        self._name = name
        self._lane = lane
        self._journal = GroupJournal(fs, directory, name)

    async def load(self, position: int) -> Remembered:
        """As of :class:`Journal`."""
        return await self._blocking(self._journal.load, position)

    async def append(self, entries: bytes, *, syncs: bool) -> int:
        """As of :class:`Journal`."""
        return await self._blocking(partial(self._journal.append, entries, syncs=syncs))

    async def rewrite(self, entries: Sequence[bytes]) -> None:
        """As of :class:`Journal`."""
        await self._blocking(self._journal.rewrite, entries)

    async def aclose(self) -> None:
        """As of :class:`Journal`."""
        await self._blocking(self._journal.close)

    async def _blocking(self, call: Callable[..., _T], *args: object) -> _T:
        try:
            return await self._lane().run(call, *args)
        except OSError as error:
            if is_full(error):
                raise DiskFullError(
                    f"no space for the journal of group {self._name!r}: {error}; free some and try again",
                    outcome="unknown",
                    retriable=True,
                ) from error
            text = f"the journal of group {self._name!r} cannot be read or written: {error}"
            raise StorageUnavailableError(text, outcome="unknown", retriable=False) from error


class GroupJournal:
    """The open file of one group. Every method blocks; only called on a worker's thread, one at a time."""

    def __init__(self, fs: FileSystem, directory: Path, name: str) -> None:
        """``directory`` is the log's."""
        self._fs = fs
        self._directory = directory / DIRECTORY_NAME
        self._path = self._directory / name
        self._file: File | None = None
        self._end = 0

    def load(self, position: int) -> Remembered:
        """Open the file, or make it for a group that begins at ``position``; return what it says."""
        self._fs.make_directory(self._directory)
        try:
            self._file = self._fs.open(self._path, "r+")
        except FileNotFoundError:
            self.rewrite([entry(EntryKind.POSITION, position)])
            return Remembered(position, end=self._end)
        size = self._file.size()
        found = decode(self._file.pread(size, 0), str(self._path))
        if found.end < size:
            self._file.truncate(found.end)  # a torn write: nothing after it was acknowledged
            self._file.datasync()
        self._end = found.end
        return found

    def append(self, entries: bytes, *, syncs: bool) -> int:
        """Append entries, and make them durable with ``syncs``; return the length of the file.

        OSError if they cannot be written: they may be appended again. StorageUnavailableError if the sync
        failed: then nobody knows what is on the disk, and no later sync would tell.
        """
        assert self._file is not None
        self._file.pwrite([entries], self._end)
        self._end += len(entries)
        if syncs:
            try:
                self._file.datasync()
            except OSError as error:
                text = f"the journal {self._path} cannot be synced: {error}; open the log again"
                raise StorageUnavailableError(text, outcome="unknown", retriable=False) from error
        return self._end

    def rewrite(self, entries: Iterable[bytes]) -> None:
        """Replace the file by one with these entries; durable when this returns.

        OSError if nothing was replaced: the old file goes on. StorageUnavailableError if it was, and nobody
        knows which of the two a crash would leave: then no entry may be appended to either.
        """
        spare = self._directory / SPARE_NAME
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(spare)
        data = HEADER.pack(MAGIC, VERSION) + b"".join(entries)
        file = self._fs.open(spare, "x")
        try:
            file.pwrite([data], 0)
            file.datasync()
            try:
                self._fs.replace(spare, self._path)
                self._fs.sync_directory(self._directory)
            except OSError as error:
                text = f"the journal {self._path} cannot be replaced: {error}; open the log again"
                raise StorageUnavailableError(text, outcome="unknown", retriable=False) from error
        except BaseException:
            file.close()
            raise
        self.close()
        self._file, self._end = file, len(data)

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""
        if self._file is not None:
            self._file.close()
            self._file = None


def list_journals(fs: FileSystem, directory: Path) -> list[str]:
    """Return the names of the groups of the log in ``directory``, in order. Blocking; OSError."""
    try:
        names = fs.list(directory / DIRECTORY_NAME)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name != SPARE_NAME and NAME.fullmatch(name))


def remove_journal(fs: FileSystem, directory: Path, name: str) -> bool:
    """Remove a group's journal durably; return whether there was one. Blocking; OSError."""
    try:
        fs.remove(directory / DIRECTORY_NAME / name)
    except FileNotFoundError:
        return False
    fs.sync_directory(directory / DIRECTORY_NAME)
    return True


def look_at_journals(
    fs: FileSystem, directory: Path
) -> dict[str, Remembered | CorruptionError | FormatVersionError]:
    """Return what the journals of the log in ``directory`` say, or what is wrong with them, by name.

    Blocking; OSError.
    """
    found: dict[str, Remembered | CorruptionError | FormatVersionError] = {}
    for name in list_journals(fs, directory):
        path = directory / DIRECTORY_NAME / name
        try:
            with contextlib.closing(fs.open(path, "r")) as file:
                found[name] = decode(file.pread(file.size(), 0), str(path))
        except FileNotFoundError:  # deleted meanwhile
            continue
        except IsADirectoryError:
            text = "this is a directory or a pipe, not the journal of a group; move it away"
            found[name] = CorruptionError(text, path=str(path))
        except (CorruptionError, FormatVersionError) as error:
            found[name] = error
    return found


def read_journals(fs: FileSystem, directory: Path) -> dict[str, Remembered]:
    """Return what the journals of the log in ``directory`` say, by name. Blocking; OSError.

    One that cannot be read is as if it were not there: its group goes on from its cursor.
    """
    found = {}
    for name, said in look_at_journals(fs, directory).items():
        if isinstance(said, Remembered):
            found[name] = said
        else:
            logger.warning("the journal of group %s is not heeded: %s", name, said)
    return found


def remove_journals(fs: FileSystem, directory: Path) -> None:
    """Remove the journals of all groups of the log in ``directory``, durably. Blocking; OSError."""
    names = list_journals(fs, directory)
    for name in names:
        fs.remove(directory / DIRECTORY_NAME / name)
    if names:
        fs.sync_directory(directory / DIRECTORY_NAME)
