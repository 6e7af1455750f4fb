"""Deleter: removes objects slowly, and reports what it removed and why."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass

from uploader.garbage.collection import (
    AuditCallback,
    CollectorSettings,
    Deleted,
    Phase,
    Progress,
    ProgressCallback,
)
from uploader.gc.collectable import Collectable
from uploader.gc.orphans import Leak
from uploader.stores.port import ObjectStore, remove
from walstore.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleter:
    """Deletes objects of one log in small batches with pauses between them."""

    store: ObjectStore
    settings: CollectorSettings
    clock: Clock

    async def delete(
        self,
        doomed: AsyncIterable[Leak],
        collectable: Collectable,
        *,
        phase: Phase,
        total: int,
        progress: ProgressCallback | None,
        audit: AuditCallback | None,
    ) -> tuple[Deleted, ...]:
        """Delete all, and return what was deleted; ``total`` is for ``progress``, 0 if it is unknown.

        Snapshots that are gone, or cannot be read, are left out. CollectionRefusedError for what must stay,
        and the store's errors; what was deleted before one was reported to ``audit``.
        """
        found: list[Deleted] = []
        batch: list[Leak] = []
        async for item in doomed:
            if item.kind == "snapshot" and await collectable.read(item.key) is None:
                continue
            batch.append(item)
            if len(batch) == self.settings.delete_batch:
                await self._delete(batch, collectable, found, audit)
                batch.clear()
                if progress is not None:
                    progress(Progress(phase, len(found), total))
        if batch:
            await self._delete(batch, collectable, found, audit)
        if progress is not None:
            progress(Progress(phase, len(found), len(found)))
        return tuple(found)

    async def _delete(
        self,
        batch: list[Leak],
        collectable: Collectable,
        found: list[Deleted],
        audit: AuditCallback | None,
    ) -> None:
        if found:
            await self.clock.sleep(self.settings.delete_pause_seconds)
        await remove(self.store, [item.key for item in batch], rule=collectable.admits)
        now_us = self.clock.now_us()
        for item in batch:
            deleted = Deleted(item.key, item.kind, item.reason, now_us)
            found.append(deleted)
            if audit is not None:
                audit(deleted.to_line())
