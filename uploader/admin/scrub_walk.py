"""ScrubWalk: yields the fragments that a manifest names, in order, and continues past damage.

Owns the descent of the snapshot tree. A snapshot that is missing or damaged may have been replaced by a
collector or a roll-up since the manifest was read. So it is reported only if a newer manifest still leads to
it; else the walk continues at the same offset with the newer manifest. Keeps one snapshot per level in
memory. Never reads fragments.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise

from uploader.format.entries import Entry, Fragment, SnapshotPointer
from uploader.format.findings import (
    RESTORE,
    Finding,
    Severity,
    check_order,
    check_snapshot,
    of_error,
)
from uploader.format.manifest import Manifest
from uploader.format.snapshot import Snapshot
from uploader.root.stored_document import read_stored
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker


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
            entries: tuple[Entry, ...] = (*manifest.snapshots, *manifest.fragments)
            try:
                async with aclosing(self._below(entries, position, limit)) as found:
                    async for entry in found:
                        self._check_order(entry)
                        position = entry.limit
                        yield entry
            except _SuspectError as suspect:
                self._suspects.add(suspect.key)
                manifest = await self._newest()
                position = max(position, suspect.start, manifest.oldest_offset)
            else:
                return

    # -- inside ------------------------------------------------------------------------------

    async def _below(
        self, entries: Sequence[Entry], start: int, limit: int
    ) -> AsyncGenerator[Fragment, None]:
        for entry in entries:
            if entry.limit <= start or entry.start >= limit:
                continue
            if isinstance(entry, Fragment):
                yield entry
                continue
            snapshot = await self._snapshot(entry)
            if snapshot is None:
                self._before = None
                continue
            self.snapshots += 1
            children = snapshot.snapshots or snapshot.fragments
            async with aclosing(self._below(children, start, limit)) as found:
                async for fragment in found:
                    yield fragment

    async def _snapshot(self, pointer: SnapshotPointer) -> Snapshot | None:
        """Return a snapshot; None, after a report, if it is unusable."""
        path = pointer.path_to_snapshot
        snapshot: Snapshot | None = None
        try:
            parse = partial(_parse, pointer=pointer)
            read = await read_stored(self._store, path, parse, worker=self._worker)
            snapshot, findings = read.value
        except ObjectNotFoundError:
            what = f"a snapshot is missing, and with it the way to records {pointer.start} to {pointer.limit}"
            findings = [Finding(Severity.ERROR, path, what, RESTORE, pointer, None)]
        except CorruptionError as error:
            findings = [of_error(error)]
        if not findings:
            return snapshot
        if path not in self._suspects:
            raise _SuspectError(path, pointer.start)
        for finding in findings:
            self._report(finding)
        # A damaged snapshot is still followed if its pointers are usable.
        return snapshot if snapshot is not None and _leads_down(snapshot, pointer) else None

    def _check_order(self, entry: Fragment) -> None:
        before = self._before
        if before is not None and before.limit == entry.start:
            for finding in check_order(before, entry, entry.path):
                self._report(finding)
        self._before = entry


class _SuspectError(Exception):
    """A snapshot is damaged or was replaced meanwhile."""

    def __init__(self, key: str, start: int) -> None:
        super().__init__(key)
        self.key = key
        self.start = start


def _parse(data: bytes, pointer: SnapshotPointer) -> tuple[Snapshot | None, list[Finding]]:
    try:
        snapshot = Snapshot.parse(data, path=pointer.path_to_snapshot)
    except CorruptionError as error:
        return None, [of_error(error)]
    return snapshot, check_snapshot(snapshot, pointer)


def _leads_down(snapshot: Snapshot, pointer: SnapshotPointer) -> bool:
    """Return whether following a snapshot terminates and stays within its pointer's range."""
    children: Sequence[Entry] = snapshot.snapshots or snapshot.fragments
    return (
        all(child.depth < pointer.depth for child in snapshot.snapshots)
        and all(pointer.start <= child.start < child.limit <= pointer.limit for child in children)
        and all(low.limit <= high.start for low, high in pairwise(children))
    )
