"""Stager: a task's part. Cuts fragments of its rows for each log and puts them outside the logs.

Nothing that a task puts is in any log; ``committer.py`` says how it gets there. Each attempt has its own
keys, so attempts that run twice or in parallel do not collide. Memory is bounded by the settings' buffer and
the fragments under way. Staged objects are also deleted here, with the holds that kept logs from collection.

A fragment is encoded for the place that is expected, and again for another one if that is taken. Encoding
takes some milliseconds for each megabyte: for executor threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from uploader.format import layout
from uploader.format.document import Fields
from uploader.format.setsum import Setsum
from uploader.fragments import fragment_file
from uploader.fragments.fragment import FragmentBatch
from uploader.fragments.fragment_builder import EncodedFragment, encode_fragment, setsum_of_column
from uploader.layouts.log_session import find_root
from uploader.partitioned.partitions import SubStore
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.write_id import WriteId, hold_of, is_passing, parse_staged
from uploader.root import cas
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from walstore.core.batches.arrow import SCHEMA, offsets_array
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, RecordTooLargeError, WalError

RECORDS: Final = pa.schema([SCHEMA.field(at) for at in range(1, len(SCHEMA))])
"""Columns of records that have no offsets yet: those of ``arrow.SCHEMA`` without the first."""

Times = tuple[int, int]
"""Times of the first and the last record, in microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class StagedFragment:
    """A fragment that a task put, at a key of its own."""

    key: str
    """Key of the object, relative to the common prefix."""
    start: int
    """Offset of the first record, if the log ends where the task saw it end."""
    limit: int
    """Offset after the last record, likewise."""
    num_bytes: int
    """Length of the object."""
    crc32: int
    """Checksum of the object."""
    setsum: Setsum
    """Sum of the records at these offsets."""
    times_us: Times

    @property
    def count(self) -> int:
        """Number of records."""
        return self.limit - self.start

    def to_json(self) -> dict[str, Any]:
        """Return the fragment as a commit record holds it."""
        return {
            "key": self.key,
            "start": self.start,
            "limit": self.limit,
            "num_bytes": self.num_bytes,
            "crc32": self.crc32,
            "setsum": self.setsum.hexdigest(),
            "first_us": self.times_us[0],
            "last_us": self.times_us[1],
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> StagedFragment:
        """Read a fragment from a commit record; CorruptionError for a bad shape."""
        found = cls(
            key=fields.text("key"),
            start=fields.number("start"),
            limit=fields.number("limit"),
            num_bytes=fields.number("num_bytes"),
            crc32=fields.number("crc32"),
            setsum=fields.setsum("setsum"),
            times_us=(fields.number("first_us"), fields.number("last_us")),
        )
        if found.count < 1:
            raise CorruptionError("a staged fragment without records", path=fields.path)
        return found


def encode(
    records: pa.Table, *, start: int, timestamp_us: int, writer: str
) -> tuple[EncodedFragment, int, Times]:
    """Return the fragment of records (columns of :data:`RECORDS`), its checksum, and its times.

    ``timestamp_us`` is the fragment's own time; ``writer`` is named in its footer.
    """
    limit = start + records.num_rows
    columns = [offsets_array(start, limit), *records.columns]
    batch = FragmentBatch(pa.Table.from_arrays(columns, schema=SCHEMA), start=start)
    built = encode_fragment([batch], timestamp_us=timestamp_us, writer=writer)
    return built, zlib.crc32(built.data), _times(records)


def raised(records: pa.Table, floor_us: int) -> pa.Table:
    """Return records none of which is older than ``floor_us`` or the one before it."""
    times = records.column("timestamp_us").combine_chunks()
    times = pc.cumulative_max(times, start=pa.scalar(floor_us, pa.uint64()))
    return records.set_column(0, RECORDS.field(0), times)


def placed(
    data: bytes, staged: StagedFragment, *, start: int, floor_us: int, writer: str
) -> tuple[EncodedFragment, Times]:
    """Return the fragment that holds the same records at ``start``, none of them older than ``floor_us``.

    That is the staged object itself where it fits. CorruptionError if it is not what was staged.
    """
    _check(data, staged)
    if staged.start == start and staged.times_us[0] >= floor_us:
        return EncodedFragment(data, staged.start, staged.limit, staged.setsum), staged.times_us
    content = fragment_file.read(data, path=staged.key)
    records = raised(content.records.select(RECORDS.names), floor_us)
    built, _, times = encode(records, start=start, timestamp_us=content.timestamp_us, writer=writer)
    return built, times


def setsum_at(data: bytes, staged: StagedFragment, start: int) -> Setsum:
    """Return the sum that the records have at ``start``."""
    if staged.start == start:
        return staged.setsum
    _check(data, staged)
    content = fragment_file.read(data, path=staged.key)
    values = content.records.column("value")
    return setsum_of_column(values, start, content.timestamp_us)


def _check(data: bytes, staged: StagedFragment) -> None:
    if len(data) != staged.num_bytes or zlib.crc32(data) != staged.crc32:
        raise CorruptionError("a staged fragment is not what a task put", path=staged.key)


def _times(records: pa.Table) -> Times:
    times = records.column("timestamp_us")
    return int(times[0].as_py()), int(times[-1].as_py())


BATCH_KEYS: Final = 1000
"""Staged objects that are deleted at a time."""

Staged = dict[int, tuple[StagedFragment, ...]]
"""What a task put, by partition, in the order of its rows."""


@dataclass(slots=True)
class _Buffer:
    """Records that wait for one log."""

    next_offset: int
    records: list[pa.Table] = field(default_factory=list)
    size_bytes: int = 0
    floor_us: int = 0
    staged: list[StagedFragment | None] = field(default_factory=list)


class Stager:
    """Stages the rows of one attempt of one task. An async context manager; one task may call it."""

    def __init__(
        self,
        store: ObjectStore,
        write: WriteId,
        attempt: str,
        *,
        settings: SinkSettings,
        retry: RetryPolicy,
        clock: Clock,
        worker: Worker,
    ) -> None:
        """Put below ``write.staging``, under a unique name of the attempt."""
        self._store = store
        self._folder = f"{write.staging}{attempt}/"
        self._settings = settings
        self._retry = retry
        self._clock = clock
        self._worker = worker
        self._buffers: dict[int, _Buffer] = {}
        self._buffered_bytes = 0
        self._slots = asyncio.Semaphore(settings.max_in_flight)
        self._around = contextlib.AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._put: list[str] = []
        self._is_finished = False

    async def __aenter__(self) -> Self:
        self._tasks = await self._around.enter_async_context(task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._around.__aexit__(kind, error, traceback)
        finally:
            if not self._is_finished:
                with contextlib.suppress(WalError):
                    await remove(self._store, self._put, rule=is_passing)

    async def add(self, partition: int, records: pa.Table) -> None:
        """Add records, in the columns of ``RECORDS``, for one log. Waits while too much is under way.

        A time that is older than the one before is raised to that. Raises RecordTooLargeError, and ValueError
        for a time too far ahead.
        """
        if not records.num_rows:
            return
        self._check(records)
        buffer = self._buffers.get(partition)
        if buffer is None:
            buffer = self._buffers[partition] = await self._new_buffer(partition)
        records = raised(records, buffer.floor_us)
        buffer.floor_us = int(records.column("timestamp_us")[-1].as_py())
        for part in _pieces(records, self._settings.fragment_bytes):
            buffer.records.append(part)
            buffer.size_bytes += part.nbytes
            self._buffered_bytes += part.nbytes
            if buffer.size_bytes >= self._settings.fragment_bytes:
                await self._cut(buffer, partition)
        while self._buffered_bytes > self._settings.buffer_bytes:
            largest = max(self._buffers, key=lambda at: self._buffers[at].size_bytes)
            await self._cut(self._buffers[largest], largest)

    async def finish(self) -> Staged:
        """Return what was put, once all of it was."""
        for partition, buffer in self._buffers.items():
            await self._cut(buffer, partition)
        for _ in range(self._settings.max_in_flight):
            await self._slots.acquire()
        self._is_finished = True
        return {
            partition: tuple(one for one in buffer.staged if one is not None)
            for partition, buffer in sorted(self._buffers.items())
        }

    # -- inside ------------------------------------------------------------------------------

    async def _new_buffer(self, partition: int) -> _Buffer:
        """Find out where the log ends: most likely our records go there."""
        log = SubStore(self._store, partition)
        root = await find_root(log, retry=self._retry, worker=self._worker)
        async with contextlib.aclosing(root):
            return _Buffer(root.manifest.next_offset if root.is_known else layout.FIRST_OFFSET)

    async def _cut(self, buffer: _Buffer, partition: int) -> None:
        """Begin a fragment of all records that wait for a log."""
        if not buffer.records:
            return
        assert self._tasks is not None
        records = pa.concat_tables(buffer.records)
        place = len(buffer.staged)
        start = buffer.next_offset
        self._buffered_bytes -= buffer.size_bytes
        buffer.records, buffer.size_bytes = [], 0
        buffer.next_offset += records.num_rows
        buffer.staged.append(None)
        key = f"{self._folder}{partition}-{place}.parquet"
        await self._slots.acquire()
        self._tasks.create_task(self._stage(buffer, place, key, records, start))

    async def _stage(
        self, buffer: _Buffer, place: int, key: str, records: pa.Table, start: int
    ) -> None:
        make = partial(
            encode, records, start=start, timestamp_us=self._clock.now_us(), writer=writer_of(key)
        )
        built, crc32, times_us = await self._worker.run(make)
        self._put.append(key)
        result = await cas.create(self._store, key, built.data, retry=self._retry)
        result.decided(self._store.url, f"{key} was put")
        if result.outcome is not cas.PutOutcome.COMMITTED:
            raise WalError(f"another writer put {key} in {self._store.url}")
        buffer.staged[place] = StagedFragment(
            key, built.start, built.limit, len(built.data), crc32, built.setsum, times_us
        )
        self._slots.release()

    def _check(self, records: pa.Table) -> None:
        longest = pc.max(pc.binary_length(records.column("value"))).as_py()
        if longest > self._settings.max_record_bytes:
            raise RecordTooLargeError(
                f"a value of {longest} bytes exceeds max_record_bytes "
                f"({self._settings.max_record_bytes})",
                size_bytes=longest,
                limit_bytes=self._settings.max_record_bytes,
            )
        latest = self._clock.now_us() + int(self._settings.max_timestamp_lead_seconds * 1e6)
        newest = pc.max(records.column("timestamp_us")).as_py()
        if newest > latest:
            raise ValueError(
                f"a timestamp of {newest} us since 1970 is more than "
                f"{self._settings.max_timestamp_lead_seconds:g} s ahead of the clock; it would date all"
                " records behind it"
            )


async def delete_staged(store: ObjectStore, prefix: str, *, most_epoch: int | None = None) -> None:
    """Delete the objects below a prefix, with ``most_epoch`` only those of epochs up to that.

    The prefix is that of a query or longer: keys are in the order of their epochs.
    """
    doomed: list[str] = []
    async for listed in store.list(prefix):
        found = parse_staged(listed.key)
        if most_epoch is not None and found is not None and found[1] > most_epoch:
            break
        doomed.append(listed.key)
        if len(doomed) == BATCH_KEYS:
            await forget_staged(store, doomed)
            doomed = []
    await forget_staged(store, doomed)


async def forget_staged(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete staged objects of jobs that are over. Their holds are deleted first: the keys name them."""
    holds = dict.fromkeys(hold for hold in map(hold_of, keys) if hold is not None)
    await remove(store, holds, rule=is_passing)
    await remove(store, keys, rule=is_passing)


def writer_of(key: str) -> str:
    """Return the writer that the footers of a fragment staged at ``key``, and of its copies, name."""
    return f"walstore {key}"


def _pieces(records: pa.Table, most_bytes: int) -> list[pa.Table]:
    """Return the records in parts of about that size, at least one record each; nothing is copied."""
    rows = records.num_rows
    if records.nbytes <= most_bytes or rows == 1:
        return [records]
    half = rows // 2
    return [
        *_pieces(records.slice(0, half), most_bytes),
        *_pieces(records.slice(half), most_bytes),
    ]
