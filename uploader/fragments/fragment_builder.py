"""Fragments in the making: batches in, one immutable object out.

:class:`FragmentBuilder` is pure, but slow: for executor threads. Encoding and hashing are two ways through
the same records. An object can be put once it is encoded, while its records are still being hashed, and
records that are known early can go through both before the rest. :class:`Building` runs one on a worker's
threads.

Encoding and hashing what arrives within a tenth of a second keeps the interpreter busy for some 10 ms. If
all of it were done when a fragment is cut, every record would wait for it, since the next change of the root
begins once the fragment is put. So most of it is done a little earlier; the rest takes a millisecond or two.

The columns are made from long batches without a Python object for each record: values are shared with the
frames, and the small columns are computed for a whole batch at once. Only batches of a few records are taken
apart, and batches of other kinds go through their own Arrow form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from uploader.format.document import check_u64
from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from uploader.fragments.fragment_file import FileWriter
from walstore.core.batches.arrow import SCHEMA, offsets_array
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format.frame import ColumnKind
from walstore.core.runtime.threads import Lane, Worker
from walstore.errors import StorageUnavailableError

_APART_BYTES: Final = 256 * 1024
"""From this size on a fragment is hashed while another thread makes the file, which takes about half as
long and, other than hashing, leaves the interpreter to others."""


_F = TypeVar("_F", bound="FragmentFile")
Records = Callable[[], Sequence[Batch]]
"""Returns records in a form that can be encoded; called on a thread."""


class Encoders(Protocol):
    """Encodes whole fragments elsewhere: :class:`uploader.fragments.encoder_processes.EncoderProcesses`."""

    def lane_for(self, batches: Sequence[Batch]) -> Lane | None:
        """Return a lane of threads for :meth:`encode`; None if that would do nothing."""

    def encode(
        self,
        batches: Sequence[Batch],
        *,
        timestamp_us: int,
        writer: str | None,
        closings: int | None,
    ) -> EncodedFragment | None:
        """Return the fragment of these records, or None if it has to be encoded here."""


@dataclass(frozen=True, slots=True)
class FragmentFile:
    """An object ready to be put."""

    data: bytes = field(repr=False)
    """The object."""
    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""

    def summed(self, setsum: Setsum) -> EncodedFragment:
        """Return the fragment, now that the sum of its records is known."""
        return EncodedFragment(self.data, self.start, self.limit, setsum)


@dataclass(frozen=True, slots=True)
class EncodedFragment(FragmentFile):
    """A fragment ready to be put, and what the manifest will say of it."""

    setsum: Setsum
    """Sum of the records."""

    def entry(self, seq_no: int) -> Fragment:
        """Return its manifest entry as the fragment with that number."""
        return Fragment.numbered(
            seq_no,
            start=self.start,
            limit=self.limit,
            num_bytes=len(self.data),
            setsum=self.setsum,
            is_ours=True,
        )


class FragmentBuilder:
    """One fragment in the making. One thread at a time, and none that runs an event loop.

    Any number of calls of :meth:`add`, then :meth:`write` and :meth:`sum`, or :meth:`finish` for both. A call
    that refuses its batches with ValueError changes nothing; after any other error it is of no use any more.
    """

    def __init__(
        self,
        *,
        timestamp_us: int,
        writer: str | None = None,
        closings: int | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        """``timestamp_us`` and ``writer`` as for :func:`encode_fragment`; ``closings`` as for FileWriter.

        ``encoders`` are asked for a fragment of which nothing was added before.
        """
        check_u64(timestamp_us=timestamp_us)
        self._timestamp_us = timestamp_us
        self._writer = writer
        self._closings = closings
        self._encoders = encoders
        self._file = FileWriter(timestamp_us=timestamp_us, writer=writer, closings=closings)
        self._bounds: tuple[int, int] | None = None  # of the records so far
        self._setsum = Setsum()  # of what was hashed
        self._unsummed: list[Batch] = []

    def add(self, batches: Sequence[Batch]) -> None:
        """Encode and hash the next records, as a part of the file of their own.

        ValueError if the batches do not follow each other, or if a number does not fit 64 bits.
        """
        found = self._follow(batches)
        if found:
            self._file.add(to_table(found))
            self._setsum += setsum_of(found, self._timestamp_us)

    def write(self, batches: Sequence[Batch] = ()) -> FragmentFile:
        """Encode the last records and return the file; their hashes are left to :meth:`sum`.

        ValueError as :meth:`add`, and if there is no record at all.
        """
        made = self._made_elsewhere(batches)
        if made is not None:
            self._setsum = made.setsum
            return made
        found = self._last(batches)
        if found:
            self._file.add(to_table(found))
        self._unsummed = found
        return self._file_of(self._file.finish())

    def sum(self) -> Setsum:
        """Return the sum of all records."""
        self._setsum += setsum_of(self._unsummed, self._timestamp_us)
        self._unsummed = []
        return self._setsum

    def finish(self, batches: Sequence[Batch] = ()) -> EncodedFragment:
        """Do what :meth:`write` and :meth:`sum` do; if it is much, on two threads."""
        made = self._made_elsewhere(batches)
        if made is not None:
            return made
        found = self._last(batches)
        if not found:
            return self._file_of(self._file.finish()).summed(self._setsum)
        records = to_table(found)

        def write() -> bytes:
            self._file.add(records)
            return self._file.finish()

        if records.nbytes < _APART_BYTES:
            data, setsum = write(), setsum_of(found, self._timestamp_us)
        else:
            with ThreadPoolExecutor(1, "walstore-parquet") as background:
                writing: Future[bytes] | None = None
                with suppress(RuntimeError):  # the system has no more threads
                    writing = background.submit(write)
                setsum = setsum_of(found, self._timestamp_us)
                data = write() if writing is None else writing.result()
        return self._file_of(data).summed(self._setsum + setsum)

    # -- inside ------------------------------------------------------------------------------

    def _made_elsewhere(self, batches: Sequence[Batch]) -> EncodedFragment | None:
        """Return the fragment if an encoder makes it; what it refuses is refused here, too."""
        if self._encoders is None or self._bounds is not None:
            return None
        return self._encoders.encode(
            batches,
            timestamp_us=self._timestamp_us,
            writer=self._writer,
            closings=self._closings,
        )

    def _last(self, batches: Sequence[Batch]) -> list[Batch]:
        found = self._follow(batches)
        if self._bounds is None:
            raise ValueError("a fragment needs at least one record")
        return found

    def _follow(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches that have records, after checking that they continue where others ended."""
        found = [batch for batch in batches if len(batch)]
        bounds = self._bounds
        for batch in found:
            check_u64(start=batch.start, limit=batch.limit)
            start, end = bounds or (batch.start, batch.start)
            if end != batch.start:
                raise ValueError(f"{batch!r} does not follow offset {end}")
            bounds = start, batch.limit
        self._bounds = bounds
        return found

    def _file_of(self, data: bytes) -> FragmentFile:
        assert self._bounds is not None
        return FragmentFile(data, *self._bounds)


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
        encoders: Encoders | None = None,
    ) -> None:
        """``timestamp_us`` is the fragment's time; ``writer`` and ``closings`` go into the footer."""
        self._worker = worker
        self._encoders = encoders
        self._builder = FragmentBuilder(
            timestamp_us=timestamp_us, writer=writer, closings=closings, encoders=encoders
        )
        self._turn = asyncio.Lock()
        self._missing = 0  # parts that were not added yet, or never will be
        self._is_whole = False
        self._finished: EncodedFragment | None = None
        self._failure: Exception | None = None
        self.is_broken = False
        """Whether records are missing from it for good. Then it is useless."""

    def add(self, records: Records) -> Coroutine[None, None, None]:
        """Encode and hash the next records. If this is cancelled or fails, the building is broken."""
        self._missing += 1  # at once: a task may be cancelled before it takes its first step
        return self._add(records)

    def build(self, records: Records, turn: asyncio.Semaphore) -> Coroutine[None, None, None]:
        """Encode and hash all records, when it is its turn: those that :meth:`finish` or :meth:`write` will
        name. An error is theirs."""
        self._is_whole = True  # at once, as in add()
        return self._build(records, turn)

    async def finish(self, records: Records) -> EncodedFragment:
        """Encode and hash the last records and return the fragment; what is finished stays as it is."""
        async with self._turn:
            if self._failure is not None:
                raise self._failure
            if self._finished is None:
                self._check()
                self._finished = await self._run(self._builder.finish, records)
            return self._finished

    async def write(self, records: Records) -> FragmentFile:
        """Encode the last records and return the file; then call :meth:`sum`."""
        if self._is_whole:
            return await self.finish(records)
        async with self._turn:
            self._check()
            return await self._run(self._builder.write, records)

    async def sum(self) -> Setsum:
        """Hash what has not been hashed yet, and return the sum of all records."""
        async with self._turn:
            if self._finished is not None:
                return self._finished.setsum
            return await self._worker.run(self._builder.sum)

    # -- inside ------------------------------------------------------------------------------

    async def _build(self, records: Records, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                await self.finish(records)
            except Exception as error:  # noqa: BLE001 - raised when it is wanted
                self._failure = error

    async def _run(self, make: Callable[[Sequence[Batch]], _F], records: Records) -> _F:
        lane = None if self._encoders is None else self._encoders.lane_for(records())
        if lane is not None:
            is_begun = False

            def begin() -> _F:
                nonlocal is_begun
                is_begun = True
                return make(records())

            try:
                return await lane.run(begin)
            except StorageUnavailableError:  # perhaps no thread could be started
                if is_begun:
                    raise
        return await self._worker.run(lambda: make(records()))

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


def encode_fragment(
    batches: Sequence[Batch], *, timestamp_us: int, writer: str | None = None
) -> EncodedFragment:
    """Return the fragment that holds the batches' records.

    ``timestamp_us`` is the fragment's own time, in microseconds since 1970 UTC; wal3 hashes it with every
    record. Values of longer batches are not copied on their way to the Parquet encoder. The same input
    gives the same bytes; ``writer``, noted in the file, distinguishes those of two writers. Larger fragments
    take two threads. ValueError if there is no record, if the batches do not follow each other, or if a
    number does not fit 64 bits.
    """
    return FragmentBuilder(timestamp_us=timestamp_us, writer=writer).finish(batches)


_UINTS: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_TOGETHER_ROWS: Final = 1024
"""So many records of short batches are made columns together."""
_FEW_ROWS: Final = 64
"""Making Arrow columns of a batch takes some 100 µs however short it is; below this, going record by record
and making columns of many batches together takes less."""


def to_table(batches: Sequence[Batch]) -> pa.Table:
    """Return the records in the columns of ``walstore.core.batches.arrow.SCHEMA``.

    The values' bytes are shared. The batches have a record each, and follow each other.
    """
    parts = [_part(run[0]) if len(run) == 1 else _together(run) for run in _grouped(batches)]
    columns = [offsets_array(batches[0].start, batches[-1].limit)]
    columns += [
        pa.chunked_array([part[at] for part in parts], SCHEMA.field(at + 1).type)
        for at in range(len(SCHEMA) - 1)
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def setsum_of(batches: Sequence[Batch], timestamp_us: int) -> Setsum:
    """Return the sum of the batches' records under the fragment's time."""
    return Setsum.total(_sum(run, timestamp_us) for run in _grouped(batches))


def setsum_of_column(values: pa.ChunkedArray, start: int, timestamp_us: int) -> Setsum:
    """Return the sum of the records with these values, from the offset ``start`` on; nothing is copied."""
    sums = []
    for chunk in values.chunks:
        if len(chunk):
            sums.append(Setsum.of_slices(start, timestamp_us, *_slices(chunk)))
        start += len(chunk)
    return Setsum.total(sums)


def _grouped(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """Yield short batches that follow each other together, about _TOGETHER_ROWS records, others alone."""
    run: list[Batch] = []
    rows = 0
    for batch in batches:
        is_short = len(batch) < _FEW_ROWS
        if run and (not is_short or rows >= _TOGETHER_ROWS):
            yield run
            run, rows = [], 0
        if is_short:
            run.append(batch)
            rows += len(batch)
        else:
            yield [batch]
    if run:
        yield run


def _together(run: Sequence[Batch]) -> list[pa.Array]:
    """Return the columns of several short batches but for the offsets; everything is copied."""
    held = [_undecoded(batch) for batch in run]
    columns = [
        chain.from_iterable(batch.timestamps_us for batch in held),
        chain.from_iterable(batch.values for batch in held),
        chain.from_iterable(batch.keys for batch in held),
        chain.from_iterable(batch.streams for batch in held),
        (list(item.items()) or None for batch in held for item in batch.headers),
    ]
    types = SCHEMA.types[1:]
    return [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]


def _undecoded(batch: Batch) -> Batch:
    """Return a view, so that the values decoded from it do not stay in memory with the frame."""
    if isinstance(batch, FrameBatch) and not batch.has_decoded_values:
        return batch.view(batch.start, batch.limit)
    return batch


def _part(batch: Batch) -> list[pa.Array]:
    """Return a batch's columns but for the offsets."""
    if isinstance(batch, FrameBatch):
        return [
            _timestamps(batch),
            batch.values_array(),
            _keys(batch),
            _streams(batch),
            _headers(batch),
        ]
    return list(batch.to_arrow().columns[1:])


def _timestamps(batch: FrameBatch) -> pa.Array:
    base = pa.scalar(batch.header.base_timestamp_us, pa.uint64())
    if not batch.has(ColumnKind.TIMESTAMP_DELTAS):
        return pa.repeat(base, len(batch))
    return _cut(batch, pc.add(_uints(batch, ColumnKind.TIMESTAMP_DELTAS).cast(pa.uint64()), base))


def _keys(batch: FrameBatch) -> pa.Array:
    """Return the keys: a length of 0 means that there is none, n + 1 means n bytes."""
    if not batch.has(ColumnKind.KEYS):
        return pa.nulls(len(batch), pa.binary())
    # Checked here: Arrow would read what is behind the buffer.
    batch.sizes(ColumnKind.KEY_LENGTHS, ColumnKind.KEYS)
    lengths = _uints(batch, ColumnKind.KEY_LENGTHS).cast(pa.int32())
    is_there = pc.greater(lengths, 0)
    sizes = pc.subtract(lengths, is_there.cast(pa.int32()))
    bounds = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int32()), sizes]))
    buffers = [
        is_there.buffers()[1],
        bounds.buffers()[1],
        pa.py_buffer(batch.column(ColumnKind.KEYS)[1]),
    ]
    return _cut(batch, pa.Array.from_buffers(pa.binary(), len(lengths), buffers))


def _streams(batch: FrameBatch) -> pa.Array:
    if not batch.has(ColumnKind.STREAM_IDS):
        return pa.nulls(len(batch), pa.string())
    names = pa.array([None, *batch.stream_names], pa.string())
    try:
        return names.take(_cut(batch, _uints(batch, ColumnKind.STREAM_IDS)))
    except pa.ArrowIndexError:
        batch.refuse("a stream that has no name")


def _headers(batch: FrameBatch) -> pa.Array:
    type_ = SCHEMA.field("headers").type
    if not batch.has(ColumnKind.HEADERS):
        return pa.nulls(len(batch), type_)
    return pa.array([list(item.items()) or None for item in batch.headers], type_)


def _uints(batch: FrameBatch, kind: ColumnKind) -> pa.Array:
    """Return an integer column of the whole frame."""
    found = batch.uints(kind)
    if isinstance(found, list):  # all alike
        return pa.repeat(pa.scalar(found[0], pa.uint64()), len(found))
    whole = memoryview(found)  # type: ignore[arg-type]
    return pa.Array.from_buffers(_UINTS[whole.itemsize], len(found), [None, pa.py_buffer(whole)])


def _cut(batch: FrameBatch, column: pa.Array) -> pa.Array:
    low, high = batch.rows()
    return column.slice(low, high - low)


def _sum(run: Sequence[Batch], timestamp_us: int) -> Setsum:
    first = run[0]
    if len(run) > 1:
        values = [value for batch in run for value in _undecoded(batch).values]
        return Setsum.of_records(first.start, timestamp_us, values)
    return setsum_of_column(pa.chunked_array([_values(first)]), first.start, timestamp_us)


def _values(batch: Batch) -> pa.Array:
    if isinstance(batch, FrameBatch):
        return batch.values_array()
    return batch.to_arrow().column("value")


def _slices(values: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """Return the bytes of values that are not null, and where each begins and the last one ends."""
    _, bounds, data = values.buffers()
    cuts = memoryview(bounds).cast("i")[values.offset : values.offset + len(values) + 1]
    return memoryview(data or b""), cuts
