"""ManifestTree: the fragments under a manifest, found through its snapshots in bounded memory.

Follows snapshots as far as an interval or a search needs them, several siblings at once. ``SnapshotReader``
fetches and checks them, and keeps those read last. Never reads fragments and never writes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from uploader.format.entries import Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import REWRITTEN, Manifest
from uploader.format.setsum import Setsum
from uploader.root.stored_document import read_stored
from uploader.runtime.task_groups import settle_all
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from walstore.core.runtime.lru_cache import LruCache
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, CorruptionError

MEMORY_FACTOR: Final = 4
"""Bytes that a snapshot takes in memory for each byte of its object, rounded up."""


class SnapshotMissingError(Exception):
    """A snapshot is not there; whether that is damage depends on the newest manifest."""

    def __init__(self, path: str) -> None:
        """``path`` is its key."""
        super().__init__(path)
        self.path = path

    def as_corruption(self) -> CorruptionError:
        """Return the error for a snapshot that should be there."""
        return CorruptionError("snapshot is missing", path=self.path)


@dataclass(frozen=True, slots=True)
class _Node:
    """A snapshot in memory."""

    snapshot: Snapshot
    pointer: SnapshotPointer
    memory_bytes: int


class SnapshotReader:
    """Reads snapshots of one log. Belongs to one event loop; any number of tasks may call it.

    Owns a cache bounded by bytes.
    """

    def __init__(self, store: ObjectStore, worker: Worker, *, cache_bytes: int) -> None:
        """``worker`` takes snapshots apart; ``cache_bytes`` bounds those that are kept."""
        self._store = store
        self._worker = worker
        self._cached: LruCache[str, _Node] = LruCache(cache_bytes)
        # Tasks that want the same snapshot at the same time fetch it once.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, pointer: SnapshotPointer) -> Snapshot:
        """Return the snapshot that is pointed at.

        SnapshotMissingError if it is not there, CorruptionError if it is damaged or not what is said of
        it, else the store's errors.
        """
        path = pointer.path_to_snapshot
        lock = self._fetching.setdefault(path, asyncio.Lock())
        async with lock:
            node = self._cached.get(path)
            if node is None:
                try:
                    parse = partial(_parse, path=path)
                    found = await read_stored(self._store, path, parse, worker=self._worker)
                except ObjectNotFoundError as error:
                    raise SnapshotMissingError(path) from error
                node = found.value
                self._cached.put(path, node, node.memory_bytes)
        _check_pointer(node.pointer, pointer)
        return node.snapshot

    async def get_all(self, pointers: Sequence[SnapshotPointer]) -> list[Snapshot]:
        """Return several at once, read in parallel; raises for the first that cannot be read."""
        if len(pointers) == 1:
            return [await self.get(pointers[0])]
        return await settle_all(map(self.get, pointers))

    @property
    def cached_bytes(self) -> int:
        """Memory that the kept snapshots take, as estimated."""
        return self._cached.nbytes

    def clear(self) -> None:
        """Keep none of them."""
        self._cached.clear()


def _parse(data: bytes, path: str) -> _Node:
    snapshot = Snapshot.parse(data, path=path)
    snapshot.scrub()
    return _Node(snapshot, snapshot.pointer(), MEMORY_FACTOR * len(data))


def _check_pointer(own: SnapshotPointer, pointer: SnapshotPointer) -> None:
    """Raise CorruptionError unless the snapshot holds what the level above says.

    It may be less deep than that: wal3 stores one object for snapshots of the same sum, such as one that
    holds only another. It is never deeper, so following snapshots ends.
    """
    stated = pointer.path_to_snapshot, pointer.setsum, pointer.start, pointer.limit
    found = own.path_to_snapshot, own.setsum, own.start, own.limit
    if stated != found or own.depth > pointer.depth:
        raise CorruptionError(
            "a snapshot is not what is said of it",
            path=pointer.path_to_snapshot,
            expected=pointer,
            found=own,
        )


_Entry = TypeVar("_Entry", bound=Entry)

DEFAULT_CACHE_BYTES: Final = 16 << 20
"""Memory for snapshots that were read and may be needed again."""
_MOST_EXPECTED: Final = 64
"""Ends of older manifests that are remembered; of more, the newest."""


class ManifestTree:
    """Resolves manifests of one log. Belongs to one event loop; any number of tasks may call it.

    A snapshot that is missing because its records were collected after the manifest was read is not
    taken for damage if ``newest`` is given: the call continues with a newer manifest, or ends with
    OffsetTrimmedError if that lacks the place it had reached.

    All methods raise CorruptionError if a snapshot is missing, damaged, or not what is said of it, and
    pass on the store's errors. Cancelling them has no effect on anything but the cache.
    """

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        *,
        newest: Callable[[], Awaitable[Manifest]] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        parallel: int = 4,
    ) -> None:
        """Follow snapshots in ``store``.

        Args:
            store: The store of the log.
            worker: Takes snapshots apart, off the event loop.
            newest: Reads the log's newest manifest.
            cache_bytes: Bounds the snapshots that are kept; those in use come on top.
            parallel: Siblings that are read at the same time, and held by one iteration, on each level.
        """
        self._store = store
        self._newest = newest
        self._parallel = parallel
        self._snapshots = SnapshotReader(store, worker, cache_bytes=cache_bytes)
        self._expected: dict[int, Setsum] = {}

    def expect(self, offset: int, setsum: Setsum) -> None:
        """Record that all records before ``offset``, collected ones included, add up to ``setsum``.

        An older manifest ended there, and a newer one hides the place in a snapshot. A later read through
        that snapshot raises CorruptionError if it says otherwise; it is not read only for this check.
        """
        self._expected[offset] = setsum
        while len(self._expected) > _MOST_EXPECTED:
            del self._expected[next(iter(self._expected))]

    @property
    def cached_bytes(self) -> int:
        """Memory that the kept snapshots take, as estimated."""
        return self._snapshots.cached_bytes

    def clear(self) -> None:
        """Keep no snapshot in memory."""
        self._snapshots.clear()

    async def runs(
        self, manifest: Manifest, start: int = 0, limit: int | None = None
    ) -> AsyncGenerator[Sequence[Fragment], None]:
        """Yield the fragments that overlap ``[start, limit)`` in order, a snapshot's worth at a time.

        ``limit`` defaults to the manifest's end. The first snapshots are read one at a time, later ones
        several at once, so that a caller that needs one fragment does not pay for many.
        """
        limit = manifest.next_offset if limit is None else limit
        position = max(start, manifest.oldest_offset)
        while position < limit:
            try:
                async with aclosing(self._walk(manifest, position, limit)) as found:
                    async for run in found:
                        position = run[-1].limit
                        yield run
            except SnapshotMissingError as missing:
                manifest = await self._renew(manifest, missing, position)
            else:
                return

    async def fragments(
        self, manifest: Manifest, start: int = 0, limit: int | None = None
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments that overlap ``[start, limit)``, in order; see :meth:`runs`."""
        async with aclosing(self.runs(manifest, start, limit)) as found:
            async for run in found:
                for fragment in run:
                    yield fragment

    async def entries(
        self, manifest: Manifest, start: int = 0, limit: int | None = None
    ) -> list[Fragment]:
        """Return the fragments that overlap ``[start, limit)``; not for whole logs, which may be long."""
        return [fragment async for fragment in self.fragments(manifest, start, limit)]

    async def locate(self, manifest: Manifest, offset: int) -> Fragment | None:
        """Return the fragment that holds an offset, or None if the manifest names none.

        Reads one snapshot on each level.
        """
        if not manifest.oldest_offset <= offset < manifest.next_offset:
            return None
        async with aclosing(self.runs(manifest, offset, offset + 1)) as found:
            async for run in found:
                return run[0]
        return None

    async def is_published(self, manifest: Manifest, fragments: Sequence[Fragment]) -> bool:
        """Return whether the manifest names a writer's fragments, which follow each other: all of them.

        Asked after a lost answer. Meanwhile others may have appended, rolled up and even collected. Then no
        entry is left to compare, and the ContentionError reports an unknown outcome. In a chain another
        writer may have put its own fragment in the place of the first, and adopted the last one behind it.
        """
        last = fragments[-1]
        if manifest.next_seq_no <= last.seq_no:
            return False
        if last.limit <= manifest.oldest_offset:
            raise ContentionError(
                f"another writer went on at {self._store.url}, and offset {last.start} was collected "
                "before it was known whose records it had",
                outcome="unknown",
            )
        for fragment in reversed(fragments):
            is_kept = fragment.limit > manifest.oldest_offset
            if is_kept and await self.locate(manifest, fragment.start) != fragment:
                return False
        return True

    async def first(
        self, manifest: Manifest, reaches: Callable[[Fragment], Awaitable[bool]]
    ) -> Fragment | None:
        """Return the first fragment for which ``reaches`` is true, or None if there is none.

        If it is true for a fragment, it must be true for all later ones, such as that they end at or
        after a time. It is called about log2(fragments) times, each time after at most as many reads of
        snapshots as the tree is deep.
        """
        while True:
            try:
                return await self._first(manifest, reaches)
            except SnapshotMissingError as missing:
                manifest = await self._renew(manifest, missing, manifest.next_offset)

    async def snapshot(self, pointer: SnapshotPointer) -> Snapshot:
        """Return the snapshot that a manifest or snapshot points at, checked against that."""
        try:
            return await self._snapshots.get(pointer)
        except SnapshotMissingError as missing:
            raise missing.as_corruption() from missing

    # -- walking -----------------------------------------------------------------------------

    async def _walk(
        self, manifest: Manifest, start: int, limit: int
    ) -> AsyncGenerator[Sequence[Fragment], None]:
        before = manifest.collected if self._expected else None
        below = self._below(manifest.snapshots, before, start, limit)
        async with aclosing(below) as found:
            async for run in found:
                yield run
        if run := overlapping(manifest.fragments, start, limit):
            yield run

    async def _below(
        self, pointers: Sequence[SnapshotPointer], before: Setsum | None, start: int, limit: int
    ) -> AsyncGenerator[Sequence[Fragment], None]:
        """``before`` is the sum of all records before the first pointer; None if nothing is expected."""
        wanted = overlapping(pointers, start, limit)
        if before is not None and wanted:
            before = _sum(before, pointers[: pointers.index(wanted[0])])
        low, step = 0, 1
        while low < len(wanted):
            for snapshot in await self._snapshots.get_all(wanted[low : low + step]):
                if before is not None:
                    self._check(snapshot, before)
                if run := overlapping(snapshot.fragments, start, limit):
                    yield run
                below = self._below(snapshot.snapshots, before, start, limit)
                async with aclosing(below) as found:
                    async for run in found:
                        yield run
                if before is not None:
                    before += snapshot.setsum
            low, step = low + step, min(2 * step, self._parallel)

    def _check(self, snapshot: Snapshot, before: Setsum) -> None:
        """Compare a snapshot with the ends of older manifests inside it; those it shows are done with."""
        children: Sequence[Entry] = snapshot.children
        low, high = children[0].start, children[-1].limit
        for offset in [offset for offset in self._expected if low < offset < high]:
            at = bisect_left(children, offset, key=_start_of)
            last = children[at - 1]
            if last.limit > offset and not isinstance(last, Fragment):
                continue  # a deeper snapshot shows it
            if last.limit != offset or _sum(before, children[:at]) != self._expected[offset]:
                raise CorruptionError(
                    f"the records before offset {offset} are not those that were there before: {REWRITTEN}",
                    path=snapshot.path,
                )
            del self._expected[offset]

    async def _first(
        self, manifest: Manifest, reaches: Callable[[Fragment], Awaitable[bool]]
    ) -> Fragment | None:
        level: Sequence[Entry] = manifest.entries
        limit = len(level)
        while True:
            low, high = 0, limit
            while low < high:
                middle = (low + high) // 2
                if await reaches(await self._last(level[middle])):
                    high = middle
                else:
                    low = middle + 1
            if low == len(level):
                return None
            found = level[low]
            if isinstance(found, Fragment):
                return found
            snapshot = await self._snapshots.get(found)
            level = snapshot.children
            limit = len(level) - 1  # of the last one it has said yes already

    async def _last(self, entry: Entry) -> Fragment:
        while not isinstance(entry, Fragment):
            entry = (await self._snapshots.get(entry)).children[-1]
        return entry

    async def _renew(
        self, manifest: Manifest, missing: SnapshotMissingError, position: int
    ) -> Manifest:
        """Return a newer manifest to continue with, if collection explains what is missing."""
        newest = manifest if self._newest is None else await self._newest()
        if newest.oldest_offset <= manifest.oldest_offset:
            raise missing.as_corruption() from missing
        if position < newest.oldest_offset:
            raise newest.offsets.trimmed(
                position, f"{missing.path} was collected from {self._store.url}"
            ) from missing
        return newest


_start_of = attrgetter("start")
_limit_of = attrgetter("limit")


def _sum(before: Setsum, entries: Sequence[Entry]) -> Setsum:
    return Setsum.total((before, *(entry.setsum for entry in entries)))


def overlapping(entries: Sequence[_Entry], start: int, limit: int) -> Sequence[_Entry]:
    """Return the entries that overlap ``[start, limit)``; they abut and are in order."""
    low = bisect_right(entries, start, key=_limit_of)
    high = bisect_left(entries, limit, lo=low, key=_start_of)
    return entries[low:high]
