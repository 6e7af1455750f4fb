"""FragmentReader: finds, fetches and checks the fragments that a manifest names.

Owns a cache of decoded fragments, bounded by bytes. Snapshots are followed as far as an interval needs
them. Used by ``CloudLog`` and by the cloud tier of a local log; never writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from uploader.entries import Fragment, SnapshotPointer
from uploader.fragment import decode_fragment, fragment_time_bounds
from uploader.fragment_batch import FragmentBatch
from uploader.manifest import Manifest
from uploader.snapshot import Snapshot
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError, OffsetTrimmedError
from walstore.threads import Worker


class FragmentReader:
    """Reads fragments of one log. Belongs to one event loop; any number of tasks may call it."""

    def __init__(
        self, *, store: ObjectStore, retry: RetryPolicy, worker: Worker, cache_bytes: int
    ) -> None:
        self._store = store
        self._retry = retry
        self._worker = worker
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[str, FragmentBatch] = OrderedDict()
        self._cached_bytes = 0
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()

    async def entries(self, manifest: Manifest, start: int, limit: int) -> list[Fragment]:
        """Return the entries of all fragments that overlap ``[start, limit)``, in order."""
        found: list[Fragment] = []
        for pointer in manifest.snapshots:
            if pointer.start < limit and pointer.limit > start:
                found += await self._snapshot_entries(pointer, start, limit)
        found += _overlapping(manifest.fragments, start, limit)
        return found

    async def read(self, entry: Fragment) -> FragmentBatch:
        """Return a fragment's records, checked against its entry (length, offsets).

        OffsetTrimmedError if the object is gone: it was collected since the manifest was read.
        """
        cached = self._cached.get(entry.path)
        if cached is not None:
            self._cached.move_to_end(entry.path)
            return cached
        try:
            stored = await self._retry.call(lambda: self._store.get(entry.path))
        except ObjectNotFoundError as error:
            raise OffsetTrimmedError(
                f"{entry.path} is gone from {self._store.url}",
                requested=entry.start,
                head=entry.limit,
                tail=entry.limit,
            ) from error
        batch = await self._worker.run(decode_fragment, stored.data, entry)
        self._keep(entry.path, batch)
        return batch

    async def fetch(self, entry: Fragment) -> bytes:
        """Return the bytes of a fragment, unchecked and uncached."""
        return (await self._retry.call(lambda: self._store.get(entry.path))).data

    async def offset_at(self, manifest: Manifest, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older.

        Reads about log2(fragments) of them: timestamps never go back within a log.
        """
        entries = await self.entries(manifest, 0, manifest.next_offset)
        low, high = 0, len(entries)
        while low < high:
            middle = (low + high) // 2
            if (await self._bounds(entries[middle]))[1] < timestamp_us:
                low = middle + 1
            else:
                high = middle
        if low == len(entries):
            return None
        batch = await self.read(entries[low])
        return await self._worker.run(_first_at, batch, timestamp_us)

    def _keep(self, path: str, batch: FragmentBatch) -> None:
        if batch.nbytes > self._cache_bytes:
            return
        before = self._cached.pop(path, None)
        self._cached_bytes += batch.nbytes - (before.nbytes if before is not None else 0)
        self._cached[path] = batch
        while self._cached_bytes > self._cache_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._cached_bytes -= oldest.nbytes

    async def _bounds(self, entry: Fragment) -> tuple[int, int]:
        data = await self.fetch(entry)
        return await self._worker.run(fragment_time_bounds, data)

    async def _snapshot_entries(
        self, pointer: SnapshotPointer, start: int, limit: int
    ) -> list[Fragment]:
        snapshot = await self._snapshot(pointer)
        found: list[Fragment] = []
        for child in snapshot.snapshots:
            if child.start < limit and child.limit > start:
                found += await self._snapshot_entries(child, start, limit)
        found += _overlapping(snapshot.fragments, start, limit)
        return found

    async def _snapshot(self, pointer: SnapshotPointer) -> Snapshot:
        path = pointer.path_to_snapshot
        snapshot = self._snapshots.get(path)
        if snapshot is None:
            try:
                stored = await self._retry.call(lambda: self._store.get(path))
            except ObjectNotFoundError as error:
                raise CorruptionError("snapshot is missing", path=path) from error
            snapshot = Snapshot.parse(stored.data, path=path)
            snapshot.scrub()
            self._snapshots[path] = snapshot
            if len(self._snapshots) > _MOST_SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return snapshot


_MOST_SNAPSHOTS = 64
_start_of = attrgetter("start")
_limit_of = attrgetter("limit")


def _overlapping(entries: Sequence[Fragment], start: int, limit: int) -> Sequence[Fragment]:
    """Return the entries that overlap ``[start, limit)``; they abut and are in order."""
    low = bisect_right(entries, start, key=_limit_of)
    high = bisect_left(entries, limit, lo=low, key=_start_of)
    return entries[low:high]


def _first_at(batch: FragmentBatch, timestamp_us: int) -> int:
    return batch.start + bisect_left(batch.timestamps_us, timestamp_us)
