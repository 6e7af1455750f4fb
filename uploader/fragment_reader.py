"""FragmentReader: finds, fetches and checks the fragments that a manifest names.

Owns a cache of decoded fragments, bounded by bytes. Snapshots are followed as far as an interval needs
them. Used by ``CloudLog`` and by the cloud tier of a local log; never writes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final
from weakref import WeakValueDictionary

from uploader import layout
from uploader.entries import Fragment, SnapshotPointer
from uploader.fragment import decode_fragment, fragment_time_bounds
from uploader.fragment_batch import FragmentBatch
from uploader.manifest import Manifest
from uploader.snapshot import Snapshot
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from walstore.batch import Batch
from walstore.errors import CorruptionError, OffsetTrimmedError, WalError
from walstore.threads import Worker

_MOST_SNAPSHOTS: Final = 64
_MOST_PIECE_ROWS: Final = 4096
"""Records of one batch given to a reader, who takes them apart on the event loop."""
_TAIL_BYTES: Final = (64 << 10, 1 << 20)
"""How much of a fragment's end is asked for, to find its times in the footer, before all of it is."""


class FragmentReader:
    """Reads fragments of one log. Belongs to one event loop; any number of tasks may call it."""

    def __init__(self, *, store: ObjectStore, worker: Worker, cache_bytes: int) -> None:
        """``cache_bytes`` bounds the decoded fragments that are kept; readers' own come on top."""
        self._store = store
        self._worker = worker
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[str, FragmentBatch] = OrderedDict()
        self._cached_bytes = 0
        # Readers that want the same fragment at the same time fetch it once.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()

    async def entries(self, manifest: Manifest, start: int, limit: int) -> list[Fragment]:
        """Return the entries of all fragments that overlap ``[start, limit)``, in order.

        CorruptionError if a snapshot is missing, damaged, or not what is said of it.
        """
        found: list[Fragment] = []
        if start >= limit:
            return found
        for pointer in manifest.snapshots:
            if pointer.start < limit and pointer.limit > start:
                found += await self._snapshot_entries(pointer, start, limit)
        found += _overlapping(manifest.fragments, start, limit)
        return found

    async def read_from(
        self, manifest: Manifest, position: int, limit: int, max_bytes: int
    ) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``.

        In batches of at most about ``max_bytes``, one record at least; they share the fragment's memory.
        Raises as :meth:`read`, and OffsetTrimmedError if the manifest does not name the position.
        """
        entries = await self.entries(manifest, position, position + 1)
        if not entries:
            raise OffsetTrimmedError(
                "the offset was removed from the log",
                requested=position,
                head=manifest.oldest_offset,
                tail=manifest.next_offset,
            )
        batch = await self.read(entries[0])
        rows = max(1, max_bytes * len(batch) // max(1, batch.nbytes))
        step = min(rows, _MOST_PIECE_ROWS)
        end = min(limit, batch.limit)
        return [batch.slice(low, min(low + step, end)) for low in range(position, end, step)]

    async def read(self, entry: Fragment) -> FragmentBatch:
        """Return a fragment's records, checked against its entry (length, offsets).

        If the object is gone: OffsetTrimmedError if it was collected since the manifest was read, else
        CorruptionError.
        """
        lock = self._fetching.setdefault(entry.path, asyncio.Lock())
        async with lock:
            cached = self._cached.get(entry.path)
            if cached is not None and (cached.start, cached.limit) == (entry.start, entry.limit):
                self._cached.move_to_end(entry.path)
                return cached
            data = await self.fetch(entry)
            batch = await self._worker.run(decode_fragment, data, entry)
            self._keep(entry.path, batch)
            return batch

    async def fetch(self, entry: Fragment) -> bytes:
        """Return the bytes of a fragment, unchecked and uncached; errors as :meth:`read`.

        One byte more is asked for than there should be, so that a longer object shows too.
        """
        return await self._range(entry, 0, entry.num_bytes + 1)

    async def offset_at(self, manifest: Manifest, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older.

        Reads the ends of about log2(fragments) of them, and one whole: timestamps never go back within
        a log.
        """
        entries = await self.entries(manifest, 0, manifest.next_offset)
        low, high = 0, len(entries)
        while low < high:
            middle = (low + high) // 2
            if await self._newest_us(entries[middle]) < timestamp_us:
                low = middle + 1
            else:
                high = middle
        if low == len(entries):
            return None
        batch = await self.read(entries[low])
        return await self._worker.run(_first_at, batch, timestamp_us)

    # -- inside ------------------------------------------------------------------------------

    def _keep(self, path: str, batch: FragmentBatch) -> None:
        before = self._cached.pop(path, None)
        self._cached_bytes -= before.nbytes if before is not None else 0
        if batch.nbytes > self._cache_bytes:
            return
        self._cached_bytes += batch.nbytes
        self._cached[path] = batch
        while self._cached_bytes > self._cache_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._cached_bytes -= oldest.nbytes

    async def _newest_us(self, entry: Fragment) -> int:
        """Return the time of a fragment's newest record, from its footer if that has it."""
        for tail_bytes in _TAIL_BYTES:
            if tail_bytes < entry.num_bytes:
                data = await self._range(entry, entry.num_bytes - tail_bytes, entry.num_bytes)
                try:
                    return (await self._bounds(entry, data))[1]
                except CorruptionError:
                    continue  # the footer is longer, or does not tell
        return (await self._bounds(entry, await self.fetch(entry)))[1]

    async def _bounds(self, entry: Fragment, data: bytes) -> tuple[int, int]:
        return await self._worker.run(partial(fragment_time_bounds, data, path=entry.path))

    async def _range(self, entry: Fragment, start: int, limit: int) -> bytes:
        """Read a part by its range: an ETag is not needed, and may cost a hash."""
        try:
            return await self._store.get_range(entry.path, start, limit)
        except ObjectNotFoundError as error:
            raise await self._describe_missing(entry) from error

    async def _describe_missing(self, entry: Fragment) -> WalError:
        """Tell a fragment that was collected from one that was lost: the manifest goes first."""
        try:
            stored = await self._store.get(layout.MANIFEST)
        except ObjectNotFoundError:
            return CorruptionError("the manifest is missing", path=layout.MANIFEST)
        manifest = await self._worker.run(Manifest.parse, stored.data)
        if manifest.oldest_offset <= entry.start:
            return CorruptionError("a fragment that the manifest names is missing", path=entry.path)
        return OffsetTrimmedError(
            f"{entry.path} was collected from {self._store.url}",
            requested=entry.start,
            head=manifest.oldest_offset,
            tail=manifest.next_offset,
        )

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
                stored = await self._store.get(path)
            except ObjectNotFoundError as error:
                raise CorruptionError("snapshot is missing", path=path) from error
            snapshot = await self._worker.run(_parse_snapshot, stored.data, path)
            self._snapshots[path] = snapshot
            if len(self._snapshots) > _MOST_SNAPSHOTS:
                self._snapshots.popitem(last=False)
        _check_pointer(snapshot, pointer)
        return snapshot


def _parse_snapshot(data: bytes, path: str) -> Snapshot:
    snapshot = Snapshot.parse(data, path=path)
    snapshot.scrub()
    return snapshot


def _check_pointer(snapshot: Snapshot, pointer: SnapshotPointer) -> None:
    """Raise CorruptionError unless the snapshot holds what the level above says.

    It may be less deep than that: wal3 stores one object for snapshots of the same sum, such as one that
    holds nothing but another. It is never deeper, so that following snapshots comes to an end.
    """
    stated = pointer.path_to_snapshot, pointer.setsum, pointer.start, pointer.limit
    own = snapshot.pointer()
    if (
        stated != (own.path_to_snapshot, own.setsum, own.start, own.limit)
        or own.depth > pointer.depth
    ):
        raise CorruptionError(
            "a snapshot is not what is said of it",
            path=pointer.path_to_snapshot,
            expected=pointer,
            found=own,
        )


_start_of = attrgetter("start")
_limit_of = attrgetter("limit")


def _overlapping(entries: Sequence[Fragment], start: int, limit: int) -> Sequence[Fragment]:
    """Return the entries that overlap ``[start, limit)``; they abut and are in order."""
    low = bisect_right(entries, start, key=_limit_of)
    high = bisect_left(entries, limit, lo=low, key=_start_of)
    return entries[low:high]


def _first_at(batch: FragmentBatch, timestamp_us: int) -> int:
    return batch.start + bisect_left(batch.timestamps_us, timestamp_us)
