"""Execution: carries out a planned collection. The steps are those that ``collector.py`` lists."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from uploader.format.garbage import Garbage, StaleGarbageError, is_dropped
from uploader.format.manifest import Manifest
from uploader.garbage.collection import (
    AuditCallback,
    Collected,
    CollectorSettings,
    Plan,
    Progress,
    ProgressCallback,
)
from uploader.garbage.garbage_file import GarbageFile
from uploader.garbage.observed_heads import MICROSECONDS, HeadFile, ObservedHead
from uploader.gc.collectable import Collectable
from uploader.gc.deleter import Deleter
from uploader.gc.manifest_drop import Dropping, HeldError
from uploader.gc.orphans import Leak
from uploader.stores.port import ObjectStore
from walstore.errors import CollectionRefusedError, ContentionError
from walstore.ports import Clock
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Carries out collections of one log. One task at a time."""

    store: ObjectStore
    file: GarbageFile
    heads: HeadFile
    dropping: Dropping
    deleter: Deleter
    worker: Worker
    newest: Callable[[], Awaitable[Manifest]]
    settings: CollectorSettings
    clock: Clock

    async def run(
        self, plan: Plan, progress: ProgressCallback | None, audit: AuditCallback | None
    ) -> Collected:
        """Do what was planned, from wherever it stopped; see :meth:`GarbageCollector.apply`."""
        garbage = plan.garbage
        await self._announce(plan)
        manifest = await self.newest()
        if not is_dropped(manifest, garbage):
            if plan.is_pending:
                await self.dropping.put_snapshots(garbage)
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
        found, etag = await self.file.load()
        if found == plan.garbage:
            return
        if found.is_empty and etag == plan.etag:
            await self.dropping.put_snapshots(plan.garbage)
            if await self.file.swap(plan.garbage, etag) is not None:
                return
        raise ContentionError(
            f"another collector of {self.url} was quicker; plan again", retriable=True
        )

    async def _drop(self, garbage: Garbage) -> Manifest:
        """Drop the garbage and return the manifest, or abandon the collection and raise ContentionError."""
        try:
            try:
                await self.dropping.drop(garbage)
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
        found, etag = await self.file.load()
        if found == garbage and etag is not None:
            await self.file.clear(etag)

    async def _outwait(self, garbage: Garbage, held: HeldError) -> None:
        """Try again when no other collector can be about to drop it.

        HeldError if the same cursor still holds it: then every collector that looked meanwhile saw it.
        """
        await self.clock.sleep(self.settings.interval_seconds)
        if is_dropped(await self.newest(), garbage):
            return
        try:
            await self.dropping.drop(garbage)
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
        found, etag = await self.file.load()
        if found != garbage or etag is None:
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
        await self.file.clear(etag)
        return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, deleted=deleted)


def _reason(plan: Plan) -> str:
    reason = f"the log begins at {plan.garbage.first_to_keep}"
    return reason if plan.is_pending else f"{reason}, held by {plan.cutoff.held_by}"


async def _each(garbage: Garbage, reason: str) -> AsyncIterator[Leak]:
    for key, kind in garbage.objects():
        yield Leak(key, kind, reason)
