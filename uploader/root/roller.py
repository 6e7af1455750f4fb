"""Roller: puts the snapshots of roll-ups in the background, so that no publishing waits for them.

Owns one task, which lives as long as there is something to put. ``rollup.py`` decides what to roll up;
the root adds finished roll-ups to its next swap. Never touches the manifest: a crash,
or a failed swap, leaves a snapshot that nothing names. It is harmless and found again
under the same key.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from uploader.format.entries import Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings, fold, is_ripe, plan
from uploader.root import cas
from uploader.runtime.task_groups import BackgroundTask, settle_all
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, WalError

logger = logging.getLogger("walstore.upload")


class Roller:
    """Makes the snapshots for one root, one roll-up at a time. Belongs to one event loop."""

    def __init__(
        self, store: ObjectStore, retry: RetryPolicy, worker: Lane, settings: RollUpSettings
    ) -> None:
        self._store = store
        self._retry = retry
        self._worker = worker
        self._settings = settings
        self._background = BackgroundTask[list[Replacement]]()
        self._ready: Sequence[Replacement] = ()
        self._resume_at = 0
        self.put_snapshots = 0
        """Snapshots that were put, or found in place, so far."""

    @property
    def is_busy(self) -> bool:
        """Whether snapshots are being put."""
        return self._background.is_busy

    def fold(self, manifest: Manifest) -> Manifest:
        """Return the manifest with finished roll-ups applied; the same object if there are none.

        Raises the task's error if that is a defect of the program.
        """
        self._collect(manifest)
        return fold(manifest, self._ready)

    def begin(self, manifest: Manifest) -> None:
        """Start to put the snapshots that this manifest, now current, calls for; return at once.

        Does nothing while others are in progress, or wait to be applied.
        """
        self._collect(manifest)
        if self._background.has_task or fold(manifest, self._ready) is not manifest:
            return
        self._ready = ()
        if manifest.next_seq_no >= self._resume_at and is_ripe(manifest, self._settings):
            self._background.start(self._roll_up(manifest), f"roll up {self._store.url}")

    async def wait(self) -> None:
        """Return when nothing is in progress. Snapshots that were put wait to be applied."""
        await self._background.wait()

    async def aclose(self) -> None:
        """Cancel the task and wait for its end; idempotent."""
        await self._background.aclose()

    # -- inside ------------------------------------------------------------------------------

    def _collect(self, manifest: Manifest) -> None:
        """Take the result of the task if it has ended."""
        task = self._background.take()
        if task is None:
            return
        try:
            self._ready = task.result()
        except WalError as error:
            # Most likely the store is failing, and publishing will report it. Do not retry at every swap.
            self._resume_at = manifest.next_seq_no + 1 + self._settings.fragments_per_snapshot // 4
            logger.warning("%s: rolling up the manifest failed: %s", self._store.url, error)

    async def _roll_up(self, manifest: Manifest) -> list[Replacement]:
        snapshots = await self._worker.run(plan, manifest, self._settings)
        return await settle_all(map(self._put, snapshots))

    async def _put(self, snapshot: Snapshot) -> Replacement:
        data = await self._worker.run(snapshot.serialise)
        result = await cas.create(self._store, snapshot.path, data, retry=self._retry)
        result.decided(self._store.url, f"{snapshot.path} was put")
        pointer = snapshot.pointer()
        if result.outcome is cas.PutOutcome.LOST:
            assert result.data is not None  # there is an object in the way
            found = await self._worker.run(_parse, result.data, snapshot.path)
            pointer = _same(found, snapshot)
        self.put_snapshots += 1
        return Replacement(snapshot.children, pointer)


def _parse(data: bytes, path: str) -> Snapshot:
    snapshot = Snapshot.parse(data, path=path)
    snapshot.scrub()
    return snapshot


def _same(found: Snapshot, snapshot: Snapshot) -> SnapshotPointer:
    """Return the pointer to another program's object in a snapshot's place.

    CorruptionError unless it holds the same records. A program with other thresholds may have divided it
    in another way, so it may be deeper or less deep. What it holds is still there: no object
    is removed before its records are collected.
    """
    stated, own = snapshot.pointer(), found.pointer()
    holds_itself = any(child.setsum == found.setsum for child in found.snapshots)
    if holds_itself or dataclasses.replace(own, depth=stated.depth) != stated:
        raise CorruptionError(
            "an object in a snapshot's place does not contain its records",
            path=snapshot.path,
            expected=stated,
            found=own,
        )
    return own
