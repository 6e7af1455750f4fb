"""Execution: carries out a planned collection. The steps are those that ``collector.py`` lists."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from uploader.care.gc.collection_plan import (
    AuditCallback,
    Collected,
    CollectorSettings,
    Plan,
    Progress,
    ProgressCallback,
)
from uploader.care.gc.deleter import Collectable, Deleter, Leak
from uploader.care.gc.observed_heads import MICROSECONDS, HeadFile, ObservedHead
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Snapshot
from uploader.format.garbage import Garbage, StaleGarbageError, apply_garbage, is_dropped
from uploader.format.manifest import Manifest
from uploader.root import cas
from uploader.root.garbage_file import GarbageFile
from uploader.root.holds import Keepers, lowest_cursor
from uploader.root.root import Root
from uploader.root.stored_document import StoredDocument
from uploader.root.tree import ManifestTree
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import CollectionRefusedError, ContentionError, CorruptionError, WalError

logger = logging.getLogger("walstore.gc")


class HeldError(WalError):
    """A cursor holds the announced garbage, or there is no longer a cursor."""

    def __init__(self, message: str, *, cursor: CloudCursor | None) -> None:
        super().__init__(message)
        self.cursor = cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Carries out collections of one log. One task at a time."""

    store: ObjectStore
    root: Root
    file: GarbageFile
    heads: HeadFile
    keepers: Keepers
    deleter: Deleter
    newest: Callable[[], Awaitable[Manifest]]
    settings: CollectorSettings
    retry: RetryPolicy
    clock: Clock
    worker: Worker

    async def run(
        self, plan: Plan, progress: ProgressCallback | None, audit: AuditCallback | None
    ) -> Collected:
        """Do what was planned, from wherever it stopped; see :meth:`GarbageCollector.apply`."""
        garbage = plan.garbage
        await self._announce(plan)
        manifest = await self.newest()
        if not is_dropped(manifest, garbage):
            if plan.is_pending:
                await self._put_snapshots(garbage)
            manifest = await self._drop(garbage)
        if progress is not None:
            progress(Progress("drop", 1, 1))
        due_us = await self._wait(await self.heads.note(manifest), progress)
        if due_us is not None:
            return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, due_us=due_us)
        return await self._finish(plan, progress, audit)

    @property
    def url(self) -> str:
        """The log's location."""
        return self.store.url

    # -- inside ------------------------------------------------------------------------------

    async def _announce(self, plan: Plan) -> None:
        """Swap the announcement from empty to the plan, unless it says so already."""
        found = await self.file.read()
        if found.value == plan.garbage:
            return
        if found.value.is_empty and found.etag == plan.etag:
            await self._put_snapshots(plan.garbage)
            if (await self.file.swap(plan.garbage, found)).put is not None:
                return
        raise ContentionError(
            f"another collector of {self.url} was quicker; plan again", retriable=True
        )

    async def _drop(self, garbage: Garbage) -> Manifest:
        """Drop the garbage and return the manifest, or abandon the collection and raise ContentionError."""
        try:
            try:
                await self._try_drop(garbage)
            except HeldError as held:
                logger.warning("%s: %s; waiting before it is given up", self.url, held)
                await self._outwait(garbage, held)
            manifest = await self.newest()
            if not is_dropped(manifest, garbage):
                raise StaleGarbageError("the log begins there, but not with that fragment")
            return manifest
        except (StaleGarbageError, HeldError) as error:
            await self._give_up(garbage)
            raise ContentionError(
                f"the announced collection of {self.url} was given up: {error}", retriable=True
            ) from error

    async def _give_up(self, garbage: Garbage) -> None:
        """Clear the announcement, unless it has changed by now."""
        found = await self.file.read()
        if found.value == garbage and found.etag is not None:
            await self.file.swap(Garbage(), found)

    async def _outwait(self, garbage: Garbage, held: HeldError) -> None:
        """Try again when no other collector can be about to drop it.

        HeldError if the same cursor still holds it: then every collector that looked meanwhile saw it.
        """
        await self.clock.sleep(self.settings.interval_seconds)
        if is_dropped(await self.newest(), garbage):
            return
        try:
            await self._try_drop(garbage)
        except HeldError as again:
            if again.cursor == held.cursor:
                raise
            raise ContentionError(str(again), retriable=True) from again

    async def _wait(self, head: ObservedHead, progress: ProgressCallback | None) -> int | None:
        """Wait until what is below a head can be deleted; return that time, if the wait is too long."""
        interval_us = round(self.settings.interval_seconds * MICROSECONDS)
        due_us = head.due_us(interval_us)
        remaining = max(0, due_us - self.clock.now_us()) / MICROSECONDS
        most = self.settings.max_wait_seconds
        if most is not None and remaining > most:
            return due_us
        waited = 0.0
        while waited < remaining:
            step = remaining if progress is None else max(1.0, remaining / 100)
            step = min(step, remaining - waited)
            await self.clock.sleep(step)
            waited += step
            if progress is not None:
                progress(Progress("wait", waited, remaining))
        return None

    async def _finish(
        self, plan: Plan, progress: ProgressCallback | None, audit: AuditCallback | None
    ) -> Collected:
        """Check again, delete, and mark this collection as finished."""
        garbage = plan.garbage
        manifest = await self.newest()
        found = await self.file.read()
        if found.etag is None or found.value != garbage:
            return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, is_superseded=True)
        if not is_dropped(manifest, garbage):
            raise CollectionRefusedError(
                f"the manifest of {self.url} names what was announced as garbage; verify the log"
            )
        collectable = Collectable(self.store, self.worker, manifest)
        snapshots = [pointer.path_to_snapshot for pointer in garbage.snapshots_to_drop]
        await collectable.check(snapshots)
        deleted = await self.deleter.delete(
            _each(garbage, _reason(plan)),
            collectable,
            phase="delete",
            total=plan.fragments + len(set(snapshots)),
            progress=progress,
            audit=audit,
        )
        await self.file.swap(Garbage(), found)
        return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, deleted=deleted)

    # -- dropping ----------------------------------------------------------------------------

    async def _put_snapshots(self, garbage: Garbage) -> None:
        """Put the snapshots that the manifest will name, unless they are there.

        CorruptionError if something else is; OutcomeUnknownError if the store does not say.
        """
        for snapshot in garbage.snapshots_to_make:
            data = await self.worker.run(snapshot.serialise)
            result = await cas.create(self.store, snapshot.path, data, retry=self.retry)
            result.decided(self.store.url, f"{snapshot.path} was put; collect again")
            if result.outcome is cas.PutOutcome.LOST:
                await self.worker.run(_check_same, snapshot, result.data)

    async def _try_drop(self, garbage: Garbage) -> None:
        """Look at the cursors, inform writers, and swap the manifest for one without the garbage.

        Also returns if it was dropped before, or a writer does it. HeldError if a cursor keeps it;
        StaleGarbageError if the manifest cannot drop it; ContentionError if it is no longer announced, or if
        that took so long that the cursors must be checked again; else the errors of changing the manifest.
        """
        await self._check_root(garbage)
        found = await self.file.read()
        if found.value != garbage or found.etag is None:
            raise ContentionError("another collector has finished or given it up", retriable=True)
        looked_at = self.clock.monotonic()
        cursors = await self.keepers.list()
        lowest = lowest_cursor(cursors, self.clock.now_us())
        if lowest is None or lowest.position < garbage.first_to_keep:
            await self._mark(found, cursors_checked=False)
        if lowest is None:
            raise HeldError("all cursors are gone, so nothing may be collected", cursor=None)
        if lowest.position < garbage.first_to_keep:
            raise HeldError(
                f"cursor {lowest.name} stands at {lowest.position}, "
                f"below the announced end {garbage.first_to_keep}",
                cursor=lowest,
            )

        def make(manifest: Manifest) -> Manifest | None:
            took = self.clock.monotonic() - looked_at
            if took > self.settings.interval_seconds / 2 > 0:
                raise ContentionError(
                    f"it took {took:.0f} s from the cursors to the manifest; collect again",
                    retriable=True,
                )
            try:
                return apply_garbage(manifest, garbage)
            except CorruptionError as error:
                raise StaleGarbageError(
                    f"the garbage does not fit the manifest: {error}"
                ) from error

        # One that no longer fits, or never did, is not given to writers.
        make(self.root.manifest)
        await self._mark(found, cursors_checked=True)
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

    async def _mark(self, found: StoredDocument[Garbage], *, cursors_checked: bool) -> None:
        """Note in the announcement whether writers may drop it; ContentionError if it has changed."""
        if found.value.cursors_checked == cursors_checked:
            return
        marked = dataclasses.replace(found.value, cursors_checked=cursors_checked)
        if (await self.file.swap(marked, found)).put is None:
            raise ContentionError("another collector was quicker", retriable=True)


def _reason(plan: Plan) -> str:
    reason = f"the log begins at {plan.garbage.first_to_keep}"
    return reason if plan.is_pending else f"{reason}, held by {plan.cutoff.held_by}"


async def _each(garbage: Garbage, reason: str) -> AsyncIterator[Leak]:
    for key, kind in garbage.objects():
        yield Leak(key, kind, reason)


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
