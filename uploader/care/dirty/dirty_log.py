"""DirtyLog: which of very many logs were written, at a cost that grows with what is written.

To look for work in each of a million logs takes a million requests, though few were written. So a program
that writes many logs notes each fragment that it publishes in an additional log, the dirty log, with a record
of some hundred bytes. The compactor reads the dirty log and rolls it up: it writes the remaining work again
at the end and moves the cursor, so that the beginning can be collected.

A fragment must never be in a log without a marker. So it is noted before it is published; and what survives
a roll-up is written again before the cursor moves. A crash in between leaves duplicate markers, which are
joined when they are read. So a marker may be about records that were never published, or were already
compacted: markers are hints, and the manifest of the log in question is the truth.

A marker says which log was written where. Its JSON form is that of wal3's service, whose ``collection_id`` is
the name of the log here. Many markers become one entry per log.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.format.cloud_cursor import CloudCursor
from uploader.format.document import MOST_SMALL_BYTES, Fields, check_u64, read_document, serialise
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.read.cloud_log import CloudLog
from uploader.root.root import Note
from uploader.root.stored_document import run_aside
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.resource import Opening
from walstore.core.validation.arguments import as_int, as_mapping, as_text
from walstore.errors import CorruptionError, InvalidSettingsError

_CLEAR = b'"clear"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirty:
    """A range of a log that was written and not yet compacted, as far as the dirty log knows."""

    name: str
    """Which log."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last one."""
    first_us: int
    """When the first of it was noted, in microseconds since 1970 UTC; it stays through roll-ups."""
    reinserted: int = 0
    """How many roll-ups it has survived."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits, and an empty range; ValueError.

        TypeError for an invalid name or number: no reader could read the marker, nor any after it.
        """
        as_text(self.name, "the name of a log")
        check_u64(
            start=self.start,
            limit=self.limit,
            first_us=self.first_us,
            reinserted=self.reinserted,
        )
        if self.start >= self.limit:
            raise ValueError(f"not a stretch of a log: {self}")

    def serialise(self) -> bytes:
        """Return the record that notes it."""
        return serialise(
            {
                "mark_dirty": {
                    "collection_id": self.name,
                    "log_position": self.start,
                    "num_records": self.limit - self.start,
                    "reinsert_count": self.reinserted,
                    "initial_insertion_epoch_us": self.first_us,
                }
            }
        )

    def join(self, other: Dirty) -> Dirty:
        """Return the range that covers both. Joining a part of it again changes nothing."""
        return Dirty(
            name=self.name,
            start=min(self.start, other.start),
            limit=max(self.limit, other.limit),
            first_us=min(self.first_us, other.first_us),
            reinserted=max(self.reinserted, other.reinserted),
        )


@dataclass(frozen=True, slots=True)
class Purge:
    """A log is gone: earlier markers of it no longer matter."""

    name: str
    """Which log."""

    def __post_init__(self) -> None:
        """Refuse an invalid name; TypeError, ValueError."""
        as_text(self.name, "the name of a log")

    def serialise(self) -> bytes:
        """Return the record that says so."""
        return serialise({"purge": {"collection_id": self.name}})


def parse_marker(data: bytes, *, path: str) -> Dirty | Purge | None:
    """Read a record; None if it means nothing. CorruptionError, naming ``path``, if it is not a marker."""
    if data == _CLEAR:
        return None
    return read_document(data, _marker, path=path, most_bytes=MOST_SMALL_BYTES)


def coalesce(known: dict[str, Dirty], markers: Iterable[Dirty | Purge | None]) -> None:
    """Merge markers, in order, into what is known of each log."""
    for marker in markers:
        if isinstance(marker, Purge):
            known.pop(marker.name, None)
        elif marker is not None:
            before = known.get(marker.name)
            known[marker.name] = marker if before is None else before.join(marker)


def _marker(fields: Fields) -> Dirty | Purge:
    if fields.has("mark_dirty"):
        dirty = fields.object("mark_dirty")
        start = dirty.number("log_position")
        return Dirty(
            name=dirty.text("collection_id"),
            start=start,
            limit=start + dirty.number("num_records"),
            reinserted=dirty.number("reinsert_count"),
            first_us=dirty.number("initial_insertion_epoch_us"),
        )
    if fields.has("purge"):
        return Purge(fields.object("purge").text("collection_id"))
    raise CorruptionError("neither a marker nor a purge", path=fields.path)


_CURSOR: Final = "stable_prefix"
_MARKERS_AT_ONCE: Final = 4096
_MOST_NAME_BYTES: Final = 64 << 10
"""Escaped as JSON a name may take six times as much; a marker must stay below the readers' limit."""
_WORTH_WHILE: Final = 2
"""A roll-up that would write more than one marker per this many read is postponed."""


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What :meth:`DirtyLog.roll_up` has done."""

    markers: int
    """Markers that were read."""
    logs: int
    """Logs that were dirty by them."""
    kept: int
    """Logs that still are; each has one marker again if the cursor moved."""
    position: int
    """Position of the cursor: what is before it may be collected."""


class DirtyLog(Owned):
    """One log of markers. Make one with :meth:`open`; any number of tasks may call it.

    Several programs may write one, or each its own; one at a time rolls it up. All methods belong to the
    event loop that opened it, and so does a writer that has its note: elsewhere they raise WrongLoopError,
    in a forked child WalClosedError.
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        settings: WriterSettings | None = None,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[DirtyLog]:
        """Open the dirty log under ``url``, creating it if there is none.

        Raises as :meth:`uploader.write.cloud_writer.CloudWriter.open`. The options are the same.
        """

        async def open_it() -> DirtyLog:
            ticking = clock or SystemClock()
            policy = retry or RetryPolicy(clock=ticking)
            used = chosen_store(url, store)
            writer = await CloudWriter.open(
                url, settings=settings, store=used, retry=policy, clock=ticking
            )
            try:
                log = await CloudLog.open(url, store=used, retry=policy, clock=ticking)
            except BaseException:
                await writer.aclose()
                raise
            return cls(writer, log, used, policy, ticking)

        return Opening(open_it)

    def __init__(
        self,
        writer: CloudWriter,
        log: CloudLog,
        store: ObjectStore,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self._writer = writer
        self._log = log
        self._clock = clock
        self._cursors = CloudCursors(
            store,
            newest=self._newest,
            retry=retry,
            clock=clock,
            writer="walstore dirty log",
            known=lambda: log.tail,
        )
        self._rolling = asyncio.Lock()

    @property
    def url(self) -> str:
        """The dirty log's location, without credentials."""
        return self._log.url

    # -- writing -----------------------------------------------------------------------------

    def note_for(self, name: str) -> Note:
        """Return what a writer of the log called ``name`` needs to note what it publishes.

        TypeError and InvalidSettingsError as :meth:`mark`, at once.
        """
        name = _checked(name)

        async def note(fragments: Sequence[Fragment]) -> None:
            if fragments:
                await self.mark(name, fragments[0].start, fragments[-1].limit)

        return note

    async def mark(self, name: str, start: int, limit: int) -> None:
        """Note that ``[start, limit)`` is about to be in the log called ``name``.

        Returns when it is in the dirty log; raises as :meth:`uploader.write.cloud_writer.CloudWriter.append`.
        Marks that are made at the same time share a fragment. TypeError and ValueError for an invalid range,
        InvalidSettingsError for a name of more than 64 KiB: no unreadable marker is written.
        """
        made = Dirty(name=_checked(name), start=start, limit=limit, first_us=self._clock.now_us())
        await self._writer.append(made.serialise())

    async def purge(self, name: str) -> None:
        """Note that the log no longer exists; earlier markers of it do not count."""
        await self._writer.append(Purge(_checked(name)).serialise())

    # -- reading -----------------------------------------------------------------------------

    async def dirty(self) -> list[Dirty]:
        """Return one entry for each log that has work to do, the longest waiting first.

        Reads the dirty log from its cursor on. CorruptionError if it holds anything but markers.
        """
        _, known, _ = await self._read(await self._cursors.load(_CURSOR))
        return sorted(known.values(), key=lambda dirty: (dirty.first_us, dirty.name))

    async def roll_up(self, compacted: Mapping[str, int]) -> RolledUp:
        """Drop what was done, write the rest again at the end, and move the cursor past the beginning.

        ``compacted`` maps logs to the offsets up to which they are done. Does nothing if nothing would be
        gained. CursorMovedError if another program has rolled it up meanwhile: its work counts, too.
        Killed or cancelled anywhere, it drops no unfinished work; call again. TypeError unless
        ``compacted`` has offsets by names.
        """
        compacted = _checked_offsets(compacted)
        async with self._rolling:
            cursor = await self._cursors.load(_CURSOR)
            if cursor is None:
                cursor = await self._cursors.move(_CURSOR, (await self._newest()).oldest_offset)
            markers, known, end = await self._read(cursor)
            kept = [rest for dirty in known.values() if (rest := _rest(dirty, compacted))]
            position = cursor.position
            if len(kept) * _WORTH_WHILE <= markers or len(kept) < len(known):
                for low in range(0, len(kept), _MARKERS_AT_ONCE):
                    part = kept[low : low + _MARKERS_AT_ONCE]
                    await self._writer.append_many([dirty.serialise() for dirty in part])
                if end > position:
                    await self._cursors.move(_CURSOR, end, seen=cursor)
                    position = end
            return RolledUp(markers=markers, logs=len(known), kept=len(kept), position=position)

    async def aclose(self) -> None:
        """Write what was noted, and release connections and threads; may be called twice."""
        try:
            await self._writer.aclose()
        finally:
            await self._log.aclose()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._writer.check_owner()

    # -- inside ------------------------------------------------------------------------------

    async def _read(self, cursor: CloudCursor | None) -> tuple[int, dict[str, Dirty], int]:
        """Return the number of markers after the cursor, their contents, and where they end."""
        await self._log.refresh()
        start = self._log.head if cursor is None else cursor.position
        end = self._log.tail
        known: dict[str, Dirty] = {}
        count = 0
        async with self._log.reader(start, stop=end) as reader:
            async for batch in reader.batches():
                path = f"{self.url} at offset {batch.start}"
                parse = partial(_parse_all, batch.values, path)
                coalesce(known, await run_aside(parse, size_bytes=batch.nbytes))
                count += len(batch)
        return count, known, end

    async def _newest(self) -> Manifest:
        await self._log.refresh()
        return self._log.manifest


def _parse_all(values: Iterable[bytes], path: str) -> list[Dirty | Purge | None]:
    return [parse_marker(value, path=path) for value in values]


def _checked(name: str) -> str:
    """Return the name of a log that a marker can hold; TypeError, ValueError, InvalidSettingsError."""
    text = as_text(name, "the name of a log")
    if len(text.encode()) > _MOST_NAME_BYTES:
        raise InvalidSettingsError(
            f"the name of a log must be 64 KiB at most, not {len(text.encode())} bytes"
        )
    return text


def _checked_offsets(compacted: Mapping[str, int]) -> dict[str, int]:
    """Return up to where logs are done; TypeError, ValueError."""
    found = as_mapping(compacted, "what was compacted must be a mapping of names to offsets")
    return {
        as_text(name, "the name of a log"): as_int(offset, "the offset up to which a log is done")
        for name, offset in found.items()
    }


def _rest(dirty: Dirty, compacted: Mapping[str, int]) -> Dirty | None:
    """Return what is left to do of a log, one roll-up older; None if nothing is."""
    start = max(dirty.start, compacted.get(dirty.name, 0))
    if start >= dirty.limit:
        return None
    return dataclasses.replace(dirty, start=start, reinserted=dirty.reinserted + 1)
