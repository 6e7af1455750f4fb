"""ScrubRoot and ScrubWalk: read the manifest and the snapshots of a log, and continue past damage.

ScrubRoot owns the handling of a damaged manifest: every fault is reported, and the manifest is still followed
as far as possible.

ScrubWalk owns the descent of the snapshot tree. A snapshot that is missing or damaged may have been replaced
by a collector or a roll-up since the manifest was read. So it is reported only if a newer manifest still
leads to it; else the walk continues at the same offset with the newer manifest. Keeps one snapshot per level
in memory. Never reads fragments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise

from uploader.format import layout
from uploader.format.entries import Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.findings import (
    RESTORE,
    Finding,
    Severity,
    check_manifest,
    check_order,
    check_snapshot,
    of_error,
)
from uploader.format.manifest import Manifest
from uploader.format.tree_walk import TreeWalk
from uploader.layouts.log_session import find_root
from uploader.root.root import Root
from uploader.root.stored_document import read_stored
from uploader.root.write_guard import missing
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, FormatVersionError


class ScrubRoot:
    """The root of one log for one scrub. Any number of tasks may call it."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        retry: RetryPolicy,
        *,
        report: Callable[[Finding], None],
    ) -> None:
        """``report`` receives the manifest's faults."""
        self._store = store
        self._worker = worker
        self._retry = retry
        self._report = report
        self._root: Root | None = None
        self._known: Manifest | None = None
        # One request for the manifest at a time, so that an older answer never replaces a newer one.
        self._reading = asyncio.Lock()

    async def read(self) -> Manifest | None:
        """Return the newest manifest, or the last one that could be read; None if none ever could.

        LogNotFoundError if there is none.
        """
        async with self._reading:
            await self._read()
            return self._known

    async def newest(self) -> Manifest:
        """Return what :meth:`read` returns, once it has returned a manifest."""
        manifest = await self.read()
        assert manifest is not None
        return manifest

    async def aclose(self) -> None:
        """Close the root; the store stays open."""
        if self._root is not None:
            await self._root.aclose()

    async def _read(self) -> None:
        try:
            if self._root is None:
                self._root = await find_root(self._store, retry=self._retry, worker=self._worker)
                is_there = self._root.is_known
            else:
                is_there = await self._root.load()
            if not is_there:
                raise missing(self._store.url)
            self._known = self._root.manifest
        except FormatVersionError as error:
            self._report(of_error(error))
        except CorruptionError as error:
            await self._read_damaged(error)

    async def _read_damaged(self, error: CorruptionError) -> None:
        if error.path != layout.MANIFEST:
            self._report(of_error(error))
            return
        try:
            read = await read_stored(
                self._store, layout.MANIFEST, _parse_manifest, worker=self._worker
            )
            manifest, findings = read.value
        except ObjectNotFoundError:
            raise missing(self._store.url) from None
        except (CorruptionError, FormatVersionError) as damage:
            self._report(of_error(damage))
            return
        for finding in findings or [of_error(error)]:
            self._report(finding)
        self._known = manifest


def _parse_manifest(data: bytes) -> tuple[Manifest, list[Finding]]:
    manifest = Manifest.parse(data)
    return manifest, check_manifest(manifest)


class ScrubWalk:
    """One walk over a log. Belongs to one task."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        *,
        newest: Callable[[], Awaitable[Manifest]],
        report: Callable[[Finding], None],
    ) -> None:
        """``newest`` reads the manifest again; ``report`` receives each fault as it is found."""
        self._store = store
        self._worker = worker
        self._newest = newest
        self._report = report
        self._suspects: set[str] = set()
        self._before: Fragment | None = None
        self.snapshots = 0
        """Snapshots that were followed."""

    async def fragments(
        self, manifest: Manifest, start: int, limit: int
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments that overlap ``[start, limit)``, as far as they are retained."""
        position = max(start, manifest.oldest_offset)
        while position < limit:
            walk = TreeWalk(manifest.entries, position, limit)
            for entry in walk:
                if isinstance(entry, Fragment):
                    self._check_order(entry)
                    position = entry.limit
                    yield entry
                    continue
                snapshot, findings = await self._look(entry)
                if findings and entry.path_to_snapshot not in self._suspects:
                    self._suspects.add(entry.path_to_snapshot)
                    manifest = await self._newest()
                    position = max(position, entry.start, manifest.oldest_offset)
                    break
                for finding in findings:
                    self._report(finding)
                if snapshot is None:
                    self._before = None
                else:
                    self.snapshots += 1
                    walk.enter(snapshot.children)
            else:
                return

    # -- inside ------------------------------------------------------------------------------

    async def _look(self, pointer: SnapshotPointer) -> tuple[Snapshot | None, list[Finding]]:
        """Return a snapshot, None if it is unusable, and what is wrong with it."""
        path = pointer.path_to_snapshot
        try:
            parse = partial(_parse_snapshot, pointer=pointer)
            return (await read_stored(self._store, path, parse, worker=self._worker)).value
        except ObjectNotFoundError:
            what = f"a snapshot is missing, and with it the way to records {pointer.start} to {pointer.limit}"
            return None, [Finding(Severity.ERROR, path, what, RESTORE, pointer, None)]
        except CorruptionError as error:
            return None, [of_error(error)]

    def _check_order(self, entry: Fragment) -> None:
        before = self._before
        if before is not None and before.limit == entry.start:
            for finding in check_order(before, entry, entry.path):
                self._report(finding)
        self._before = entry


def _parse_snapshot(data: bytes, pointer: SnapshotPointer) -> tuple[Snapshot | None, list[Finding]]:
    try:
        snapshot = Snapshot.parse(data, path=pointer.path_to_snapshot)
    except CorruptionError as error:
        return None, [of_error(error)]
    findings = check_snapshot(snapshot, pointer)
    # A damaged snapshot is still followed if its pointers are usable.
    return (snapshot if not findings or _leads_down(snapshot, pointer) else None), findings


def _leads_down(snapshot: Snapshot, pointer: SnapshotPointer) -> bool:
    """Return whether following a snapshot terminates and stays within its pointer's range."""
    children: Sequence[Entry] = snapshot.children
    return (
        all(child.depth < pointer.depth for child in snapshot.snapshots)
        and all(pointer.start <= child.start < child.limit <= pointer.limit for child in children)
        and all(low.limit <= high.start for low, high in pairwise(children))
    )
