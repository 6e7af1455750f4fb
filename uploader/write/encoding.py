"""Encoding: fragments in the making. Their first records may be encoded before they are cut.

Encoding and hashing what arrives within a tenth of a second keeps the interpreter busy for some 10 ms. If
all of it were done at the cut, every record would wait for it, since the next change of the root begins once
the fragment is put. So most of it is done a little earlier; the rest takes a millisecond or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

import msgpack
import pyarrow as pa

from uploader.format.setsum import Setsum
from uploader.fragments.fragment_batch import FragmentBatch
from uploader.fragments.fragment_builder import EncodedFragment, FragmentBuilder, FragmentFile
from walstore.batches.arrow import SCHEMA, offsets_array
from walstore.batches.batch import Batch
from walstore.batches.batch_builder import BatchBuilder
from walstore.runtime.threads import Worker

Records = Callable[[], Sequence[Batch]]
"""Returns records in a form that can be encoded; called on a thread."""


class Building:
    """One fragment in the making, on the worker's threads. Belongs to the event loop.

    Calls run one after another, in the order in which they were made.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        timestamp_us: int,
        writer: str | None = None,
        closings: int | None = None,
    ) -> None:
        """``timestamp_us`` is the fragment's time; ``writer`` and ``closings`` go into the footer."""
        self._worker = worker
        self._builder = FragmentBuilder(timestamp_us=timestamp_us, writer=writer, closings=closings)
        self._turn = asyncio.Lock()
        self._missing = 0  # parts that were not added yet, or never will be
        self.is_broken = False
        """Whether records are missing from it for good. Then it is useless."""

    def add(self, records: Records) -> Coroutine[None, None, None]:
        """Encode and hash the next records. If this is cancelled or fails, the building is broken."""
        self._missing += 1  # at once: a task may be cancelled before it takes its first step
        return self._add(records)

    async def finish(self, records: Records) -> EncodedFragment:
        """Encode and hash the last records and return the fragment."""
        async with self._turn:
            self._check()
            return await self._worker.run(lambda: self._builder.finish(records()))

    async def write(self, records: Records) -> FragmentFile:
        """Encode the last records and return the file; then call :meth:`sum`."""
        async with self._turn:
            self._check()
            return await self._worker.run(lambda: self._builder.write(records()))

    async def sum(self) -> Setsum:
        """Hash what has not been hashed yet, and return the sum of all records."""
        async with self._turn:
            return await self._worker.run(self._builder.sum)

    # -- inside ------------------------------------------------------------------------------

    async def _add(self, records: Records) -> None:
        try:
            async with self._turn:
                await self._worker.run(lambda: self._builder.add(records()))
        except BaseException:
            self.is_broken = True
            raise
        self._missing -= 1

    def _check(self) -> None:
        if self._missing:
            raise RuntimeError("a part of the fragment was given up")


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
