"""FragmentReader: finds, fetches and checks the fragments that a manifest names.

Owns a cache of decoded fragments, bounded by bytes, next to the cached footers (``fragment_ranges.py``),
the tree of snapshots (``tree.py``) and, if there is one, the cache on disk (``fragment_cache.py``). Used by
``CloudLog`` and by the cloud tier of a local log; never writes to the store.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from uploader.chain.inline import InlineStore
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import FragmentBatch, decode_fragment, has_length, verify_fragment
from uploader.layouts.log_session import find_root
from uploader.read.fragment_cache import FragmentCache
from uploader.read.fragment_ranges import PARALLEL, FragmentFooters, read_columns
from uploader.root.stored_document import read_fragment
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import check_not_destroyed
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.batches.batch import Batch
from walstore.core.runtime.lru_cache import LruCache
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, WalError

logger = logging.getLogger("walstore.read")

_T = TypeVar("_T")

_MOST_PIECE_ROWS: Final = 4096
"""Records in one batch for a reader, which decodes them on the event loop."""
_FIRST_EXPANSION: Final = 4.0
"""Estimated bytes of memory per stored byte, until the first fragment is decoded."""


def missing_fragment(entry: Fragment, newest: Manifest, url: str) -> WalError:
    """Return the error for a fragment that is not in the store at ``url``: collected, or lost.

    A collection changes the manifest first.
    """
    if entry.start < newest.oldest_offset:
        return newest.offsets.trimmed(entry.start, f"{entry.path} was collected from {url}")
    return CorruptionError("a fragment that the manifest names is missing", path=entry.path)


class FragmentReader:
    """Reads fragments of one log. Belongs to one event loop; any number of tasks may call it."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        worker: Worker,
        cache_bytes: int,
        newest: Callable[[], Awaitable[Manifest]] | None = None,
        disk_cache: FragmentCache | None = None,
    ) -> None:
        """Read from ``store``.

        Args:
            store: Contains the log.
            worker: Decodes fragments, off the event loop.
            cache_bytes: Bounds the decoded fragments that are kept; readers' own are not counted.
            newest: Reads the log's newest manifest, to distinguish collected fragments from lost ones; by
                default the root found in the store is asked.
            disk_cache: Asked before the store, and filled from it.
        """
        self._store = store = InlineStore(store, worker)
        self._worker = worker
        self._disk = disk_cache
        self._newest = newest or self._load_newest
        self._cached: LruCache[str, _Decoded] = LruCache(cache_bytes)
        # Readers that want the same fragment at the same time fetch it once.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_warned = False
        self.expansion = _FIRST_EXPANSION
        """Bytes of memory per stored byte of the fragment that was read last."""
        self.tree = ManifestTree(store, worker, newest=self._newest)
        """Which fragments there are."""
        self.footers = FragmentFooters(self._range, self._fetch_other, worker)
        """The footers of fragments."""

    async def locate(self, manifest: Manifest, position: int) -> Fragment:
        """Return the entry of the fragment that contains ``position``.

        Raises OffsetTrimmedError, OffsetNotWrittenError, CorruptionError if none does.
        """
        entry = await self.tree.locate(manifest, position)
        if entry is None:
            manifest.offsets.check_record(position)
            raise CorruptionError(f"no fragment has offset {position}", path=layout.MANIFEST)
        return entry

    async def read_from(
        self, manifest: Manifest, position: int, limit: int, max_bytes: int
    ) -> list[Batch]:
        """Return the rest of the fragment that contains ``position``, up to ``limit``.

        In batches of at most about ``max_bytes``, at least one record each; they share the fragment's memory.
        Raises as :meth:`locate` and :meth:`read`.
        """
        batch = await self.read(await self.locate(manifest, position))
        return pieces(batch, position, limit, max_bytes)

    async def read(self, entry: Fragment, *, verify: bool = False) -> FragmentBatch:
        """Return a fragment's records, checked against its entry (length, offsets; with ``verify``, or if the
        object has another length, also the setsum).

        If the object is gone: OffsetTrimmedError if it was collected since the manifest was read, else
        CorruptionError.
        """
        lock = self._fetching.setdefault(entry.path, asyncio.Lock())
        async with lock:
            cached = self._cached.get(entry.path)
            if cached is not None and cached.serves(entry, verify=verify):
                return cached.batch
            check = verify_fragment if verify else decode_fragment
            batch = await self._from_disk(entry, check)
            if batch is None:
                data = self.footers.take_whole(entry) or await self.fetch(entry)
                batch = await self._worker.run(check, data, entry)
                self.note_length(entry, data)
                self._write_to_disk(entry, data)
            self._keep(entry, batch, is_verified=verify)
            return batch

    async def read_columns(self, entry: Fragment, names: Collection[str]) -> FragmentBatch:
        """Return a fragment's records, checked as by :meth:`read`, with at least the columns ``names``.

        These are of ``arrow.SCHEMA``; offsets are always included. Fetches only their ranges of the
        object, if that saves half of it or more; the others are then null.
        """
        end = await self.footers.end(entry)
        if end is None:
            return await self.read(entry)
        found = await read_columns(entry, end, names, fetch=self._range, worker=self._worker)
        return await self.read(entry) if found is None else found

    async def fetch(self, entry: Fragment) -> bytes:
        """Return all bytes of a fragment, unchecked and uncached; errors as :meth:`read`.

        One request; one more if the object is longer than its entry says.
        """
        return await self._or_describe(entry, read_fragment(self._store, entry))

    def note_length(self, entry: Fragment, data: bytes) -> None:
        """Log a warning, once, about fragments whose lengths differ from their entries.

        ``data`` is that of a fragment whose records are those of its entry.
        """
        if self._has_warned or has_length(data, entry):
            return
        self._has_warned = True
        logger.warning(
            "%s: %s is %d bytes long, but the manifest says %d; its records are right, so it is read, as any "
            "others like it; scrub the log to see which",
            self._store.url,
            entry.path,
            len(data),
            entry.num_bytes,
        )

    async def offset_at(self, manifest: Manifest, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older.

        Reads the footers of about log2(fragments) fragments, and one whole fragment: timestamps never go
        back within a log.
        """

        async def reaches(entry: Fragment) -> bool:
            return await self._newest_us(entry) >= timestamp_us

        entry = await self.tree.first(manifest, reaches)
        if entry is None:
            return None
        return await self._worker.run(_first_at, await self.read(entry), timestamp_us)

    async def holding(
        self,
        manifest: Manifest,
        stream: str,
        start: int,
        limit: int,
        *,
        at_once: int = 1,
        most_in_row: int | None = None,
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments of ``[start, limit)`` whose footers say they may contain a stream's records.

        See :meth:`FragmentFooters.holding`.
        """
        async with (
            aclosing(self.tree.runs(manifest, start, limit)) as runs,
            aclosing(
                self.footers.holding(runs, stream, at_once=at_once, most_in_row=most_in_row)
            ) as found,
        ):
            async for entry in found:
                yield entry

    async def streams(self, manifest: Manifest, start: int, limit: int) -> dict[str, int]:
        """Return the streams of the records in ``[start, limit)``, and an offset below which each has none.

        In the order of their first fragments. Reads footers, and the stream column of fragments that do not
        list their streams.
        """
        found: dict[str, int] = {}
        async with aclosing(self.tree.runs(manifest, start, limit)) as runs:
            async for run in runs:
                for low in range(0, len(run), PARALLEL):
                    window = run[low : low + PARALLEL]
                    async with task_group() as tasks:
                        asked = [tasks.create_task(self._streams_of(entry)) for entry in window]
                    for entry, task in zip(window, asked, strict=True):
                        for name in sorted(task.result()):
                            found.setdefault(name, max(start, entry.start))
        return found

    async def skip_stream(self, manifest: Manifest, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` before which there is no record of a stream.

        Skips the fragments whose footers rule out the stream; reads only footers.
        """
        async with aclosing(self.holding(manifest, name, position, limit)) as found:
            async for entry in found:
                return max(position, entry.start)
        return limit

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Start a task that :meth:`aclose` ends. Awaiting the task raises its error."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    @property
    def cached_bytes(self) -> int:
        """Memory of the decoded fragments that are kept."""
        return self._cached.nbytes

    async def aclose(self) -> None:
        """End all tasks that were started, and keep nothing in memory; may be called twice."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._cached.clear()
        self.footers.clear()
        self.tree.clear()

    # -- inside ------------------------------------------------------------------------------

    async def _streams_of(self, entry: Fragment) -> frozenset[str]:
        names = (await self.footers.get(entry)).streams.names
        if names is not None:
            return names
        batch = await self.read_columns(entry, {"stream"})
        return frozenset(name for name in batch.streams if name is not None)

    async def _from_disk(
        self, entry: Fragment, check: Callable[[bytes, Fragment], FragmentBatch]
    ) -> FragmentBatch | None:
        if self._disk is None:
            return None
        key = self._disk_key(entry)
        data = await self._disk.get(key)
        if data is None:
            return None
        try:
            return await self._worker.run(check, data, entry)
        except CorruptionError:
            await self._disk.drop(key)  # the store is authoritative
            return None

    def _write_to_disk(self, entry: Fragment, data: bytes) -> None:
        """Start to write; no reader waits for it."""
        if self._disk is not None:
            writing = self._disk.put(self._disk_key(entry), data)
            self.spawn(writing, f"walstore cache {entry.path}")

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else the loop reports one that no task awaits

    def _disk_key(self, entry: Fragment) -> str:
        return f"{self._store.url} {entry.path} {entry.num_bytes} {entry.setsum.hexdigest()}"

    def _keep(self, entry: Fragment, batch: FragmentBatch, *, is_verified: bool) -> None:
        self.expansion = batch.memory_bytes / max(1, entry.num_bytes)
        self._cached.put(entry.path, _Decoded(batch, is_verified), batch.memory_bytes)

    async def _newest_us(self, entry: Fragment) -> int:
        """Return the time of a fragment's newest record, from its footer if that contains it."""
        times_us = (await self.footers.get(entry)).times_us
        if times_us is not None:
            return times_us[1]
        return max((await self.read(entry)).timestamps_us)

    async def _range(self, entry: Fragment, start: int, limit: int) -> bytes:
        """Read a part by its range: an ETag is not needed, and may cost a hash."""
        return await self._or_describe(entry, self._store.get_range(entry.path, start, limit))

    async def _fetch_other(self, entry: Fragment) -> bytes:
        """Return the bytes of a fragment whose length differs from its entry; hashes its records."""
        data = await self.fetch(entry)
        await self._worker.run(verify_fragment, data, entry)
        self.note_length(entry, data)
        return data

    async def _or_describe(self, entry: Fragment, reading: Awaitable[_T]) -> _T:
        try:
            return await reading
        except ObjectNotFoundError as error:
            raise missing_fragment(entry, await self._newest(), self._store.url) from error

    async def _load_newest(self) -> Manifest:
        root = await find_root(self._store, retry=RetryPolicy(), worker=self._worker)
        if not root.is_known:
            await check_not_destroyed(self._store)
            raise CorruptionError("the manifest is missing", path=layout.MANIFEST)
        return root.manifest


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A fragment in memory."""

    batch: FragmentBatch
    is_verified: bool

    def serves(self, entry: Fragment, *, verify: bool) -> bool:
        """Return whether it is the requested fragment, and checked as thoroughly."""
        batch = self.batch
        is_same = (batch.start, batch.limit) == (entry.start, entry.limit)
        return is_same and (self.is_verified or not verify)


def pieces(batch: FragmentBatch, position: int, limit: int, max_bytes: int) -> list[Batch]:
    """Return a fragment's part in ``[position, limit)`` in batches of about ``max_bytes``.

    At least one record each. They share the fragment's memory.
    """
    rows = max(1, max_bytes * len(batch) // max(1, batch.nbytes))
    step = min(rows, _MOST_PIECE_ROWS)
    end = min(limit, batch.limit)
    return [batch.slice(low, min(low + step, end)) for low in range(position, end, step)]


def _first_at(batch: FragmentBatch, timestamp_us: int) -> int:
    return batch.start + bisect_left(batch.timestamps_us, timestamp_us)
