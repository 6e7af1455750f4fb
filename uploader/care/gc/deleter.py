"""Deleter and Collectable: removes objects slowly, and only those that may be deleted.

What may be deleted follows from the log itself: the newest manifest, keys, and the contents of snapshots. An
announcement and a record of heads may be forged: they can only reduce the set. It stays valid, since
manifests only move forward:

  * a fragment whose number is below those that the manifest names: no number is given again;
  * a snapshot that begins below the log's head: no later manifest names a record from there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.care.gc.collection_plan import (
    AuditCallback,
    CollectorSettings,
    Deleted,
    Kind,
    Phase,
    Progress,
    ProgressCallback,
)
from uploader.care.gc.observed_heads import ObservedHead
from uploader.format.entries import Snapshot
from uploader.format.garbage import first_seq_no
from uploader.format.inventory import Part, fragment_number, part_of
from uploader.format.manifest import Manifest
from uploader.root.stored_document import find_stored
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ObjectStore, remove
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import CollectionRefusedError, CorruptionError, FormatVersionError

logger = logging.getLogger("walstore.gc")

_AT_ONCE: Final = 16


class Collectable:
    """The objects of one log that may be deleted, as of one manifest. One task at a time."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        manifest: Manifest,
        head: ObservedHead | None = None,
    ) -> None:
        """``manifest`` is the newest, or was a moment ago; with ``head``, only what is below that."""
        self._store = store
        self._worker = worker
        self._offset = manifest.oldest_offset
        self.limit_seq_no = first_seq_no(manifest)
        """Fragments with lower numbers may be deleted."""
        if head is not None:
            self._offset = min(self._offset, head.offset)
            self.limit_seq_no = min(self.limit_seq_no, head.seq_no)
        self._read: dict[str, bool] = {}

    def admits(self, key: str) -> bool:
        """Return whether the object may be deleted. Snapshots must have been read: see :meth:`read`."""
        part = part_of(key)
        if part is Part.FRAGMENT:
            return fragment_number(key) < self.limit_seq_no
        return part is Part.SNAPSHOT and self._read.get(key, False)

    async def read(self, key: str) -> bool | None:
        """Return whether the snapshot may be deleted; None if it is gone, or cannot be read.

        Reads it once. One that is damaged stays, with a warning. The store's errors are passed on.
        """
        if key not in self._read:
            snapshot = await self._snapshot(key)
            if snapshot is None:
                return None
            self._read[key] = snapshot.pointer().start < self._offset
        return self._read[key]

    async def check(self, keys: Sequence[str]) -> None:
        """Raise CollectionRefusedError if one of these snapshots must stay."""
        for low in range(0, len(keys), _AT_ONCE):
            some = keys[low : low + _AT_ONCE]
            for key, may_go in zip(some, await gather_all(map(self.read, some)), strict=True):
                if may_go is False:
                    raise CollectionRefusedError(
                        f"{key} in {self._store.url} holds what is not collected; verify the log"
                    )

    # -- inside ------------------------------------------------------------------------------

    async def _snapshot(self, key: str) -> Snapshot | None:
        try:
            parse = partial(_parse, key=key)
            found = await find_stored(self._store, key, parse, worker=self._worker)
        except (CorruptionError, FormatVersionError) as error:
            logger.warning("%s is left alone: %s", key, error)
            return None
        return None if found is None else found.value


def _parse(data: bytes, key: str) -> Snapshot:
    snapshot = Snapshot.parse(data, path=key)
    snapshot.scrub()
    if snapshot.path != key:
        raise CorruptionError(f"a snapshot that says that it is {snapshot.path}", path=key)
    return snapshot


@dataclass(frozen=True, slots=True)
class Leak:
    """An object that can be deleted, and why."""

    key: str
    kind: Kind
    reason: str


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
