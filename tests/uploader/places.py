"""A log in a memory store for the collector's tests, and a clock that leaps instead of sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.uploader.trees import Tree, grown, resolve
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format import layout
from uploader.format.entries import Fragment, Snapshot
from uploader.format.garbage import Garbage
from uploader.format.manifest import Manifest
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore

INTERVAL_SECONDS = 1000.0
SETTINGS = CollectorSettings(interval_seconds=INTERVAL_SECONDS, delete_batch=3)


class LeapClock:
    """Sleeping moves both times on at once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return 1_750_000_000_000_000 + round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Place:
    """A log, cursors on it, and collectors. Several stores may stand before the same objects."""

    def __init__(self, tree: Tree, inner: MemoryStore, clock: LeapClock) -> None:
        self.tree = tree
        self.inner = inner
        self.store = FaultyStore(inner)
        self.clock = clock
        self.retry = RetryPolicy(clock=clock, jitter=lambda: 0.0, first_wait_seconds=0.001)
        self.live = tree.fragments()
        self.cursors = CloudCursors(
            inner, newest=self.manifest, retry=self.retry, clock=clock, writer="reader"
        )

    @classmethod
    async def make(
        cls, sizes: Sequence[int] = (1,) * 12, *, fragments: int = 3, snapshots: int = 2
    ) -> Place:
        """Put a log whose fragments have so many records each; it rolls up as it grows."""
        tree = grown(sizes, fragments=fragments, snapshots=snapshots)
        inner = MemoryStore()
        await tree.put(inner)
        return cls(tree, inner, LeapClock())

    @asynccontextmanager
    async def collector(
        self, store: ObjectStore | None = None, settings: CollectorSettings = SETTINGS
    ) -> AsyncIterator[GarbageCollector]:
        async with GarbageCollector.open(
            "memory://ignored",
            settings=settings,
            store=self.store if store is None else store,
            retry=self.retry,
            clock=self.clock,
        ) as collector:
            yield collector

    async def manifest(self) -> Manifest:
        return Manifest.parse((await self.inner.get(layout.MANIFEST)).data)

    async def set_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest as another program would."""
        etag = (await self.inner.get(layout.MANIFEST)).etag
        await self.inner.put_if_match(layout.MANIFEST, manifest.serialise(), etag)

    async def garbage(self) -> Garbage:
        return Garbage.parse((await self.inner.get(layout.GARBAGE)).data)

    async def keys(self, prefix: str = "") -> set[str]:
        return {listed.key async for listed in self.inner.list(prefix)}

    async def named(self) -> list[Fragment]:
        """Return the fragments that the manifest names; all of it must be sound and in the store."""
        manifest = await self.manifest()
        manifest.scrub()
        snapshots: dict[str, Snapshot] = {}
        for key in await self.keys(layout.SNAPSHOT_FOLDER):
            snapshots[key] = Snapshot.parse((await self.inner.get(key)).data, path=key)
        found = resolve(manifest, snapshots)
        assert {fragment.path for fragment in found} <= await self.keys(layout.FRAGMENT_FOLDER)
        assert manifest.setsum == self.tree.manifest.setsum
        assert manifest.next_offset == self.tree.manifest.next_offset
        assert manifest.next_seq_no == self.tree.manifest.next_seq_no
        return found

    def above(self, cutoff: int) -> list[Fragment]:
        """Return the fragments that a cut must keep."""
        return [fragment for fragment in self.live if fragment.limit > cutoff]

    async def check_collected(self, cutoff: int, *, spare_snapshots: bool = False) -> None:
        """Check that everything below is gone, everything else there, and nothing under way.

        A collection that was given up leaves snapshots above the head, which later ones sweep.
        """
        kept = self.above(cutoff)
        assert await self.named() == kept
        assert await self.keys(layout.FRAGMENT_FOLDER) == {fragment.path for fragment in kept}
        assert (await self.inner.get(layout.GARBAGE)).data == Garbage().serialise()
        snapshots, named = await self.keys(layout.SNAPSHOT_FOLDER), await self.named_snapshots()
        assert snapshots > named if spare_snapshots else snapshots == named

    async def named_snapshots(self) -> set[str]:
        """Return the keys of all snapshots under the manifest."""
        waiting = list((await self.manifest()).snapshots)
        found: set[str] = set()
        while waiting:
            path = waiting.pop().path_to_snapshot
            found.add(path)
            waiting += Snapshot.parse((await self.inner.get(path)).data, path=path).snapshots
        return found
