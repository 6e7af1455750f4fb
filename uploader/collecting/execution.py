"""Execution: carries out a planned collection. The steps are those that ``collector.py`` lists."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from uploader.collecting.collection import (
    AuditCallback,
    Collected,
    CollectorSettings,
    Plan,
    Progress,
    ProgressCallback,
)
from uploader.collecting.collection_heads import MICROSECONDS, Head, HeadFile
from uploader.collecting.deleter import Deleter
from uploader.collecting.dropping import Dropping, HeldError
from uploader.collecting.garbage import Garbage, StaleGarbageError, is_dropped
from uploader.collecting.garbage_file import GarbageFile
from uploader.collecting.leaks import Leak
from uploader.manifests.manifest import Manifest
from uploader.manifests.tree import ManifestTree
from walstore.errors import CollectionRefusedError, ContentionError
from walstore.ports import Clock

logger = logging.getLogger("walstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Carries out collections of one log. One task at a time."""

    url: str
    file: GarbageFile
    heads: HeadFile
    dropping: Dropping
    deleter: Deleter
    tree: ManifestTree
    newest: Callable[[], Awaitable[Manifest]]
    settings: CollectorSettings
    clock: Clock

    async def run(
        self, plan: Plan, progress: ProgressCallback | None, audit: AuditCallback | None
    ) -> Collected:
        """Do what was planned, from wherever it stopped; see :meth:`GarbageCollector.apply`."""
        garbage = plan.garbage
        etag = await self._announce(plan)
        manifest = await self.newest()
        if not is_dropped(manifest, garbage):
            if plan.is_pending:
                await self.dropping.put_snapshots(garbage)
            await self._drop(garbage, etag)
            manifest = await self.newest()
        if progress is not None:
            progress(Progress("drop", 1, 1))
        due_us = await self._wait(await self.heads.note(manifest), progress)
        if due_us is not None:
            return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, due_us=due_us)
        return await self._finish(plan, progress, audit)

    # -- inside ------------------------------------------------------------------------------

    async def _announce(self, plan: Plan) -> str:
        """Swap the announcement from empty to the plan, unless it says so already; return its ETag."""
        found, etag = await self.file.load()
        if found == plan.garbage:
            assert etag is not None
            return etag
        if found.is_empty and etag == plan.etag:
            await self.dropping.put_snapshots(plan.garbage)
            announced = await self.file.swap(plan.garbage, etag)
            if announced is not None:
                return announced
        raise ContentionError(
            f"another collector of {self.url} was quicker; plan again", retriable=True
        )

    async def _drop(self, garbage: Garbage, etag: str) -> None:
        """Drop the garbage from the manifest, or give it up and raise ContentionError."""
        try:
            try:
                await self.dropping.drop(garbage)
            except HeldError as held:
                logger.warning("%s: %s; waiting before it is given up", self.url, held)
                await self._outwait(garbage, held)
        except (StaleGarbageError, HeldError) as error:
            await self.file.clear(etag)
            raise ContentionError(
                f"the announced collection of {self.url} was given up: {error}", retriable=True
            ) from error

    async def _outwait(self, garbage: Garbage, held: HeldError) -> None:
        """Try once more when no other collector can be about to drop it.

        HeldError if the same cursor holds it still: then every collector that looked meanwhile saw it.
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

    async def _wait(self, head: Head, progress: ProgressCallback | None) -> int | None:
        """Wait until what lies below a head can be deleted; return when, if that is too long."""
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
        """Check once more, delete, and say that this collection is done with."""
        garbage = plan.garbage
        manifest = await self.newest()
        found, etag = await self.file.load()
        if found != garbage or etag is None:
            return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, is_superseded=True)
        dropped = {pointer.path_to_snapshot for pointer in garbage.snapshots_to_drop}
        named = await self._named_at_head(manifest)
        if not is_dropped(manifest, garbage) or not named.isdisjoint(
            dropped.union(garbage.fragment_keys)
        ):
            raise CollectionRefusedError(
                f"the manifest of {self.url} names what was announced as garbage; verify the log"
            )
        # One after the other: a forged announcement may name more than memory holds.
        reason = _reason(plan)
        doomed = (Leak(key, kind, reason) for key, kind in garbage.objects())
        total = garbage.fragments + len(dropped)
        deleted = await self.deleter.delete(
            _each(doomed), phase="delete", total=total, progress=progress, audit=audit
        )
        await self.file.clear(etag)
        return Collected(head=manifest.oldest_offset, cutoff=plan.cutoff, deleted=deleted)

    async def _named_at_head(self, manifest: Manifest) -> set[str]:
        """Return the keys of the snapshots that hold the log's first record: the only ones that could be
        those of dropped ones."""
        named: set[str] = set()
        pointers = manifest.snapshots
        while pointers:
            named.add(pointers[0].path_to_snapshot)
            pointers = (await self.tree.snapshot(pointers[0])).snapshots
        return named


def _reason(plan: Plan) -> str:
    reason = f"the log begins at {plan.garbage.first_to_keep}"
    return reason if plan.is_pending else f"{reason}, held by {plan.cutoff.held_by}"


async def _each(items: Iterable[Leak]) -> AsyncIterator[Leak]:
    for item in items:
        yield item
