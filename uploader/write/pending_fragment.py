"""PendingFragment: records that go into one fragment, and the appends that wait for it.

Its place in the log is decided when it is cut, and again if another writer was quicker. So it keeps its
records until it is committed. Pure, except for the futures of the callers. An :class:`Encoding` is what has
been built of it for the place that it is expected to get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgpack
import pyarrow as pa

from uploader.format.entries import Fragment
from uploader.format.layout import MAX_U64
from uploader.fragments.fragment import FragmentBatch
from uploader.fragments.fragment_builder import Building, EncodedFragment, Records
from uploader.write.fragment_puts import Taken
from walstore.core.batches.arrow import SCHEMA, offsets_array
from walstore.core.batches.batch_builder import AppendRequest, BatchBuilder
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.threads import Worker
from walstore.errors import LimitExceededError, OffsetMismatchError, WalError

_T = TypeVar("_T")

Waiter = tuple["asyncio.Future[int]", int, int | None]
"""The future of an append, the number of its records, and the offset at which it must begin, if any."""


@dataclass(slots=True, eq=False)
class PendingFragment:
    """One fragment that is being gathered, or under way."""

    builder: BatchBuilder = field(default_factory=lambda: BatchBuilder(0))
    """The records, column by column."""
    waiters: list[Waiter] = field(default_factory=list)
    """The appends, in the order of their records."""
    is_conditional: bool = False
    """Whether any append must begin at a certain offset."""
    size_bytes: int = 0
    """Budget that the records take."""
    attempts: int = 0
    """How often another writer was quicker."""
    decided: asyncio.Future[None] | None = None
    """For callers that wait until its outcome is known; made on request."""
    encoding: Encoding | None = None
    """What has been encoded of it before it is cut, for the place that was expected."""

    # Set when it is cut.
    seq_no: int = 0
    start: int = 0
    built: EncodedFragment | None = None
    entry: Fragment | None = None
    """What a manifest says of it, once it was put."""
    taken: Taken | None = None
    """What its place holds instead."""
    streams: frozenset[str] = frozenset()
    """Streams of its records, once it has its place."""
    closings: int = 0
    """Closings of streams under which its fragment was made; see ``stream_table.py``."""
    is_exposed: bool = False
    """Whether its fragment may be in the store, where others could adopt it."""
    _next_offset: int = 0

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.builder.values)

    @property
    def limit(self) -> int:
        """Offset after its last record."""
        return self.start + self.count

    @property
    def record_streams(self) -> frozenset[str]:
        """Streams of its records at present."""
        return frozenset(name for name in self.builder.streams or () if name is not None)

    def add(
        self, group: AppendRequest, waiter: asyncio.Future[int], expect_offset: int | None
    ) -> None:
        """Add an append."""
        self.builder.extend(group)
        self.waiters.append((waiter, group.count, expect_offset))
        self.is_conditional |= expect_offset is not None
        self.size_bytes += group.size_bytes

    def place(
        self, seq_no: int, start: int, check_stream: Callable[[str | None], None] | None = None
    ) -> None:
        """Give it its place in the log; appends that must not be there are refused and leave it.

        It may be empty then. ``check_stream`` raises if a stream takes no appends.
        """
        self.seq_no, self.start = seq_no, start
        self.built = self.entry = self.taken = None
        self.is_exposed = False
        if self.limit > MAX_U64 or seq_no > MAX_U64:
            self._refuse_all(used_up())
        elif self.is_conditional or check_stream is not None:
            self._refuse_misplaced(check_stream)
        self.streams = self.record_streams

    def note_put(self, found: Fragment | Taken) -> None:
        """Note what its place holds after a put: its own fragment, or another object."""
        self.entry = None if isinstance(found, Taken) else found
        self.taken = found if isinstance(found, Taken) else None

    def resolve(self, first: int, most: int) -> bool:
        """Resolve up to ``most`` appends, from the ``first`` on, with the offsets of their records.

        Returns whether those were the last ones. Call it in order, from the first to the last.
        """
        offset = self._next_offset if first else self.start
        part = self.waiters[first : first + most]
        for waiter, count, _ in part:
            if not waiter.done():
                waiter.set_result(offset)
            offset += count
        self._next_offset = offset
        if first + most < len(self.waiters):
            return False
        self._end()
        return True

    def fail(self, error: WalError) -> None:
        """Fail every append."""
        for waiter, _, _ in self.waiters:
            refuse(waiter, copy_error(error))
        self._end()

    def wait_decided(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future that resolves when its appends are resolved or failed. Do not cancel it."""
        if self.decided is None:
            self.decided = loop.create_future()
        return self.decided

    # -- inside ------------------------------------------------------------------------------

    def _refuse_all(self, error: WalError) -> None:
        for waiter, _, _ in self.waiters:
            refuse(waiter, copy_error(error))
        self.builder, self.waiters, self.encoding = BatchBuilder(0), [], None

    def _refuse_misplaced(self, check_stream: Callable[[str | None], None] | None) -> None:
        kept: list[Waiter] = []
        rows: list[int] = []
        row, offset, streams = 0, self.start, self.builder.streams
        for item in self.waiters:
            waiter, count, expected = item
            try:
                if expected is not None and expected != offset:
                    raise mismatch(expected, offset)
                if check_stream is not None and streams is not None:
                    check_stream(streams[row])
            except WalError as error:
                refuse(waiter, error)
            else:
                kept.append(item)
                rows += range(row, row + count)
                offset += count
            row += count
        if len(rows) < row:
            self.encoding = None
            self.builder.pad()
            self.builder = _pick(self.builder, rows)
            self.waiters = kept

    def _end(self) -> None:
        self.built = self.taken = self.encoding = None
        if self.decided is not None and not self.decided.done():
            self.decided.set_result(None)


class Encoding:
    """A building for one place in the log. Belongs to the event loop."""

    def __init__(
        self,
        *,
        start: int,
        timestamp_us: int,
        floor_us: int,
        writer: str,
        worker: Worker,
        closings: int | None = None,
    ) -> None:
        """The first record gets the offset ``start``; none is older than ``floor_us``.

        ``timestamp_us`` is the fragment's time. ``writer`` goes into the footer, so that two writers never
        make the same bytes of the same records; so do the ``closings`` of streams that it knows.
        """
        self.start = start
        self.floor_us = floor_us
        self.closings = closings
        self.latest_us = floor_us
        """Time of the last record taken."""
        self.building = Building(
            worker, timestamp_us=timestamp_us, writer=writer, closings=closings
        )
        self._rows = 0  # taken

    def take(self, builder: BatchBuilder, now_us: int) -> Records:
        """Take the records of ``builder`` that were not taken before, to be built into the fragment next.

        Those without a time of their own get ``now_us``.
        """
        start, part = self.start + self._rows, builder.part(self._rows, len(builder.values))
        base_us, self.latest_us, deltas_us = part.times(now_us, self.latest_us)
        self._rows += len(part.values)
        return lambda: [_batch_of(part, start, base_us, deltas_us)] if part.values else []


def refuse(waiter: asyncio.Future[_T], error: WalError) -> None:
    """Fail an append, unless its caller was cancelled."""
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # a caller cancelled at this moment never looks


def mismatch(expected: int, actual: int) -> OffsetMismatchError:
    """Return the error for an append that would not begin where it must."""
    return OffsetMismatchError(
        f"the records would begin at offset {actual}, not at {expected}; nothing was written",
        expected=expected,
        actual=actual,
    )


def used_up() -> LimitExceededError:
    """Return the error for an append for which there are no offsets left."""
    return LimitExceededError(
        f"the log has no offsets, or no numbers of fragments, up to {MAX_U64} left for the records; nothing "
        "was written",
        limit=MAX_U64,
    )


def _pick(builder: BatchBuilder, rows: list[int]) -> BatchBuilder:
    def column(items: list[_T] | None) -> list[_T] | None:
        return items and [items[row] for row in rows]

    return BatchBuilder(
        0,
        [builder.values[row] for row in rows],
        column(builder.keys),
        column(builder.streams),
        column(builder.headers),
        column(builder.timestamps_us),
    )


def _batch_of(
    builder: BatchBuilder, start: int, base_us: int, deltas_us: list[int] | None
) -> FragmentBatch:
    rows = len(builder.values)
    if deltas_us is None:
        times = pa.repeat(pa.scalar(base_us, pa.uint64()), rows)
    else:
        times = pa.array([base_us + delta for delta in deltas_us], pa.uint64())
    columns = [
        offsets_array(start, start + rows),
        times,
        pa.array(builder.values, pa.binary()),
        _column(builder.keys, "key", rows),
        _column(builder.streams, "stream", rows),
        _column(_unpacked(builder.headers), "headers", rows),
    ]
    return FragmentBatch(pa.Table.from_arrays(columns, schema=SCHEMA), start=start)


def _column(items: Sequence[object] | None, name: str, rows: int) -> pa.Array:
    type_ = SCHEMA.field(name).type
    return pa.nulls(rows, type_) if items is None else pa.array(items, type_)


def _unpacked(packed: Iterable[bytes | None] | None) -> list[list[tuple[str, bytes]] | None] | None:
    if packed is None:
        return None
    unpack: Callable[[bytes], dict[str, bytes]] = msgpack.unpackb
    return [None if item is None else list(unpack(item).items()) for item in packed]
