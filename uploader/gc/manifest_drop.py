"""Dropping: takes announced garbage out of the manifest, unless a cursor came before the announcement."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from uploader.format.cloud_cursor import CloudCursor
from uploader.format.garbage import Garbage, StaleGarbageError, apply_garbage
from uploader.format.manifest import Manifest
from uploader.format.snapshot import Snapshot
from uploader.garbage.cutoff import lowest_cursor
from uploader.garbage.garbage_file import GarbageFile
from uploader.garbage.holds import Keepers
from uploader.root import cas
from uploader.root.root import Root
from uploader.root.tree import ManifestTree
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, CorruptionError, WalError
from walstore.ports import Clock
from walstore.runtime.threads import Worker


class HeldError(WalError):
    """A cursor holds the announced garbage, or there is no longer a cursor."""

    def __init__(self, message: str, *, cursor: CloudCursor | None) -> None:
        super().__init__(message)
        self.cursor = cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """Drops garbage from one log's manifest. One task at a time."""

    store: ObjectStore
    root: Root
    file: GarbageFile
    keepers: Keepers
    retry: RetryPolicy
    clock: Clock
    worker: Worker
    interval_seconds: float

    async def put_snapshots(self, garbage: Garbage) -> None:
        """Put the snapshots that the manifest will name, unless they are there.

        CorruptionError if something else is; OutcomeUnknownError if the store does not say.
        """
        for snapshot in garbage.snapshots_to_make:
            data = await self.worker.run(snapshot.serialise)
            result = await cas.create(self.store, snapshot.path, data, retry=self.retry)
            result.decided(self.store.url, f"{snapshot.path} was put; collect again")
            if result.outcome is cas.PutOutcome.LOST:
                await self.worker.run(_check_same, snapshot, result.data)

    async def drop(self, garbage: Garbage) -> None:
        """Look at the cursors, inform writers, and swap the manifest for one without the garbage.

        Also returns if it was dropped before, or a writer does it. HeldError if a cursor keeps it;
        StaleGarbageError if the manifest cannot drop it; ContentionError if it is no longer announced, or if
        that took so long that the cursors must be checked again; else the errors of changing the manifest.
        """
        await self._check_root(garbage)
        found, etag = await self.file.load()
        if found != garbage or etag is None:
            raise ContentionError("another collector has finished or given it up", retriable=True)
        looked_at = self.clock.monotonic()
        cursors = await self.keepers.list()
        lowest = lowest_cursor(cursors, self.clock.now_us())
        if lowest is None or lowest.position < garbage.first_to_keep:
            await self._mark(found, etag, cursors_checked=False)
        if lowest is None:
            raise HeldError("all cursors are gone, so nothing may be collected", cursor=None)
        if lowest.position < garbage.first_to_keep:
            raise HeldError(
                f"cursor {lowest.name} stands at {lowest.position}, "
                f"below the announced end {garbage.first_to_keep}",
                cursor=lowest,
            )

        def check_in_time() -> None:
            took = self.clock.monotonic() - looked_at
            if took > self.interval_seconds / 2 > 0:
                raise ContentionError(
                    f"it took {took:.0f} s from the cursors to the manifest; collect again",
                    retriable=True,
                )

        def make(manifest: Manifest) -> Manifest | None:
            check_in_time()
            try:
                return apply_garbage(manifest, garbage)
            except CorruptionError as error:
                raise StaleGarbageError(
                    f"the garbage does not fit the manifest: {error}"
                ) from error

        # One that no longer fits, or never did, is not given to writers.
        make(self.root.manifest)
        await self._mark(found, etag, cursors_checked=True)
        await self.root.change(make)

    async def _check_root(self, garbage: Garbage) -> None:
        """Raise StaleGarbageError unless the snapshot is there that the manifest is to name instead."""
        if garbage.snapshot_for_root is None:
            return
        try:
            tree = ManifestTree(self.store, self.worker, cache_bytes=0)
            await tree.snapshot(garbage.snapshot_for_root)
        except CorruptionError as error:
            raise StaleGarbageError(f"what is to stand for the rest is missing: {error}") from error

    async def _mark(self, found: Garbage, etag: str, *, cursors_checked: bool) -> None:
        """Note in the announcement whether writers may drop it; ContentionError if it has changed."""
        if found.cursors_checked == cursors_checked:
            return
        marked = dataclasses.replace(found, cursors_checked=cursors_checked)
        if await self.file.swap(marked, etag) is None:
            raise ContentionError("another collector was quicker", retriable=True)


def _check_same(made: Snapshot, data: bytes | None) -> None:
    """Raise CorruptionError unless the object contains the same records, whatever program made it."""
    found = None if data is None else Snapshot.parse(data, path=made.path)
    if found is not None:
        found.scrub()
        own, other = made.pointer(), found.pointer()
        if (own.setsum, own.start, own.limit) == (other.setsum, other.start, other.limit):
            return
    raise CorruptionError(
        "a snapshot is not what its key says", path=made.path, expected=made, found=found
    )
