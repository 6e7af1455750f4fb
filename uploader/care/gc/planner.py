"""Planner: finds out what a collection would do, and whether it may. Changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.care.gc.collection_plan import CollectorSettings, Cutoff, Plan
from uploader.care.gc.garbage_plan import Cut, count_dropped, plan_garbage
from uploader.care.gc.observed_heads import MICROSECONDS, HeadFile
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Entry, Fragment, Snapshot
from uploader.format.garbage import Garbage, StaleGarbageError, apply_garbage, is_dropped
from uploader.format.manifest import Manifest
from uploader.format.tree_walk import TreeWalk
from uploader.root.garbage_file import GarbageFile
from uploader.root.holds import GarbageHold, Keepers, lowest_cursor
from uploader.root.tree import ManifestTree
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, CorruptionError

ANNOUNCED: Final = "announcement"
"""Name of what holds the cutoff of a collection that was announced before."""

_ATTEMPTS: Final = 10

OffsetAt = Callable[[Manifest, int], Awaitable[int | None]]
"""Returns the first offset of a manifest at or after a time in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans collections of one log. One task at a time."""

    file: GarbageFile
    heads: HeadFile
    keepers: Keepers
    newest: Callable[[], Awaitable[Manifest]]
    tree: ManifestTree
    offset_at: OffsetAt
    settings: CollectorSettings
    clock: Clock
    worker: Worker

    async def plan(self, *, rolled_up_only: bool = False) -> Plan:
        """Return what a collection would do now.

        With ``rolled_up_only`` the fragments outside the snapshots stay, if there are snapshots: they may be
        rolled up before the plan is carried out, which invalidates it.

        CorruptionError if the log, a cursor or the announced collection is damaged; ContentionError if
        cursors keep moving back.
        """
        announced = await self.file.read()
        garbage, etag = announced.value, announced.etag
        cursors, manifest = await self._read()
        if not garbage.is_empty:
            cutoff = Cutoff(garbage.first_to_keep, ANNOUNCED)
            return await self._describe(garbage, etag, manifest, cursors, cutoff, has_more=True)
        manifest, cut, cutoff = await self._cut(manifest, cursors, rolled_up_only=rolled_up_only)
        has_more = (
            cut is not None
            and (rolled_up_only or len(cut.fragments) == self.settings.max_fragments)
            and cut.limit < cutoff.offset
        )
        garbage = Garbage() if cut is None else cut.garbage
        return await self._describe(garbage, etag, manifest, cursors, cutoff, has_more=has_more)

    async def _read(self) -> tuple[Sequence[CloudCursor], Manifest]:
        """Return cursors and a manifest such that no cursor was below those when it was read."""
        before = await self.keepers.list()
        for _ in range(_ATTEMPTS):
            manifest = await self.newest()
            after = await self.keepers.list()
            now_us = self.clock.now_us()
            first, last = lowest_cursor(before, now_us), lowest_cursor(after, now_us)
            if last is None or (first is not None and first.position <= last.position):
                return before if last is not None else after, manifest
            before = after
        raise ContentionError("cursors keep going back; collect later", retriable=True)

    async def _cut(
        self, manifest: Manifest, cursors: Sequence[CloudCursor], *, rolled_up_only: bool
    ) -> tuple[Manifest, Cut | None, Cutoff]:
        """Return what could be dropped from the manifest, or from a newer one, which is also returned."""
        while True:
            try:
                cut = await self._cut_one(manifest, cursors, rolled_up_only=rolled_up_only)
                return manifest, *cut
            except CorruptionError:
                # A collector that does not wait may have deleted what this manifest still names.
                newer = await self.newest()
                if newer.oldest_offset == manifest.oldest_offset:
                    raise
                manifest = newer

    async def _cut_one(
        self, manifest: Manifest, cursors: Sequence[CloudCursor], *, rolled_up_only: bool
    ) -> tuple[Cut | None, Cutoff]:
        now_us = self.clock.now_us()
        cutoff = await find_cutoff(
            manifest,
            lowest_cursor(cursors, now_us),
            settings=self.settings,
            tree=self.tree,
            offset_at=partial(self.offset_at, manifest),
            now_us=now_us,
        )
        most, end = self.settings.max_fragments, cutoff.offset
        if rolled_up_only and manifest.snapshots:
            end = min(end, manifest.snapshots[-1].limit)
        snapshots = await load_beginning(self.tree, manifest, end, most)
        plan = partial(plan_garbage, manifest, end, snapshots, max_fragments=most)
        return await self.worker.run(plan), cutoff

    async def _describe(
        self,
        garbage: Garbage,
        etag: str | None,
        manifest: Manifest,
        cursors: Sequence[CloudCursor],
        cutoff: Cutoff,
        *,
        has_more: bool,
    ) -> Plan:
        is_pending = cutoff.held_by == ANNOUNCED
        most = self.settings.max_drop_fraction
        verify = partial(_verify, manifest, garbage, most=most, is_pending=is_pending)
        live, dropped, findings = await self.worker.run(verify)
        return Plan(
            garbage=garbage,
            etag=etag,
            is_pending=is_pending,
            is_dropped=is_dropped(manifest, garbage),
            due_us=await self._due_us(manifest, garbage),
            cutoff=cutoff,
            cursors=tuple(one for one in cursors if not isinstance(one, GarbageHold)),
            head=manifest.oldest_offset,
            tail=manifest.next_offset,
            live_bytes=live,
            drop_bytes=dropped,
            has_more=has_more,
            findings=tuple(findings),
        )

    async def _due_us(self, manifest: Manifest, garbage: Garbage) -> int | None:
        if garbage.is_empty or not is_dropped(manifest, garbage):
            return None
        head = await self.heads.find(garbage.first_to_keep)
        interval_us = round(self.settings.interval_seconds * MICROSECONDS)
        return None if head is None else head.due_us(interval_us)


def _verify(
    manifest: Manifest, garbage: Garbage, *, most: float, is_pending: bool
) -> tuple[int, int, list[str]]:
    """Return the log's bytes, those that would be dropped, and the findings against it."""
    live = manifest.live_bytes
    try:
        after = apply_garbage(manifest, garbage)
    except (StaleGarbageError, CorruptionError) as error:
        # The collector that applies an announced one finds that out, and abandons it.
        return live, 0, [] if is_pending else [f"it does not balance: {error}"]
    dropped = 0 if after is None else live - after.live_bytes
    if dropped <= most * live:
        return live, dropped, []
    finding = (
        f"it would take {dropped} of the log's {live} bytes, which is more than {most:.0%}; "
        "raise max_drop_fraction if that is meant"
    )
    return live, dropped, [finding]


async def find_cutoff(
    manifest: Manifest,
    lowest: CloudCursor | None,
    *,
    settings: CollectorSettings,
    tree: ManifestTree,
    offset_at: Callable[[int], Awaitable[int | None]],
    now_us: int,
) -> Cutoff:
    """Return from where on the log must be kept; its beginning, if there is no cursor.

    ``offset_at(us)`` returns the first offset of the manifest at or after a time, None if all records
    are older. It is asked only if ``keep_seconds`` is set.
    """
    if lowest is None:
        return Cutoff(manifest.oldest_offset, "no cursor")
    found = Cutoff(manifest.next_offset, "end of the log")
    if lowest.position < found.offset:
        kind = "write" if isinstance(lowest, GarbageHold) else "cursor"
        found = Cutoff(lowest.position, f"{kind} {lowest.name}")
    if settings.keep_bytes and found.offset > manifest.oldest_offset:
        offset = await _offset_before_bytes(tree, manifest, settings.keep_bytes)
        if offset < found.offset:
            found = Cutoff(offset, "keep_bytes")
    if settings.keep_seconds and found.offset > manifest.oldest_offset:
        young_us = now_us - round(settings.keep_seconds * MICROSECONDS)
        young = await offset_at(max(0, young_us))
        if young is not None and young < found.offset:
            found = Cutoff(young, "keep_seconds")
    return found


async def load_beginning(
    tree: ManifestTree, manifest: Manifest, cutoff: int, max_fragments: int
) -> dict[str, Snapshot]:
    """Return by key the snapshots that :func:`uploader.care.gc.garbage_plan.plan_garbage` asks for.

    They begin below the cutoff and hold the first ``max_fragments`` fragments.
    """
    found: dict[str, Snapshot] = {}
    fragments = 0
    walk = TreeWalk(manifest.snapshots, limit=cutoff)
    for pointer in walk:
        if fragments >= max_fragments:
            break
        snapshot = await tree.snapshot(pointer)
        found[pointer.path_to_snapshot] = snapshot
        fragments += count_dropped(snapshot.fragments, cutoff)
        walk.enter(snapshot.snapshots)
    return found


async def _offset_before_bytes(tree: ManifestTree, manifest: Manifest, keep_bytes: int) -> int:
    """Return where the newest fragments begin that have so many bytes together; the head if all lack it."""
    entries: Sequence[Entry] = manifest.entries
    missing = keep_bytes
    while True:
        for entry in reversed(entries):
            if entry.num_bytes >= missing:
                break
            missing -= entry.num_bytes
        else:
            return manifest.oldest_offset
        if isinstance(entry, Fragment):
            return entry.start
        entries = (await tree.snapshot(entry)).children
