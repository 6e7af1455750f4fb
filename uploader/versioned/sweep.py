"""Sweep: which objects of a collection are garbage, and their removal.

The order makes it safe at every point: first the head says that objects before a version, and pending batches
before a time, may be gone; then they are removed. A reader registers in the head, too, so it either stops the
first step or begins with a newer version. A writer's put does not change the head. So the time is announced
in the head before, and the pending area is listed again after that: a batch that this listing does not show
was put later, and whoever relies on it reads the announcement, and withdraws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from uploader.stores.port import ObjectNotFoundError, ObjectStore, remove
from uploader.versioned import transitions
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.head import Head
from uploader.versioned.names import (
    MERGED_FOLDER,
    PENDING_FOLDER,
    VERSION_FOLDER,
    parse_merged_key,
    parse_pending_key,
    parse_version_key,
)
from uploader.versioned.pending import PendingSpan
from uploader.versioned.version import Version
from walstore.errors import CollectionRefusedError, CorruptionError

_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What a collection of garbage removed, or would remove."""

    pending: int
    """Pending batches."""
    merged: int
    """Objects of merged batches."""
    versions: int
    """Documents of versions."""
    size_bytes: int
    gc_floor: int
    """The oldest version that is kept."""
    purged: int
    """Pending batches before this time are gone."""
    held_by: str | None
    """The reader that holds the oldest version; None if the newest is the oldest that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Which objects go once the head has these floors."""

    gc_floor: int
    purged: int
    needed: frozenset[str] = field(repr=False)
    """Objects of all versions that are kept, and their documents."""
    doomed: tuple[tuple[str, int], ...] = field(repr=False)
    """Keys and lengths of the objects to remove, in the order of their removal."""

    def swept(self, head: Head) -> Purged:
        """Return the report."""
        keys = [key for key, _ in self.doomed]
        holders = [
            name for name, hold in head.readers.items() if hold.version == head.oldest_held_version
        ]
        return Purged(
            pending=sum(key.startswith(PENDING_FOLDER) for key in keys),
            merged=sum(key.startswith(MERGED_FOLDER) for key in keys),
            versions=sum(key.startswith(VERSION_FOLDER) for key in keys),
            size_bytes=sum(size_bytes for _, size_bytes in self.doomed),
            gc_floor=self.gc_floor,
            purged=self.purged,
            held_by=min(holders, default=None),
        )


async def plan_sweep(
    session: CollectionSession, head: Head, *, delete_after_seconds: float
) -> SweepPlan:
    """Return what may be removed. Reads the documents of the versions that are kept.

    The oldest version that is kept is the newest that no reader needs to be kept and that is
    ``delete_after_seconds`` old. So nothing is removed sooner than that after a newer version replaced it.
    """
    versions = await _chain(session, head)
    latest_us = session.after_us(-delete_after_seconds)
    floor = next(
        (
            version
            for _, version in versions
            if version.n <= head.oldest_held_version and version.created_us <= latest_us
        ),
        versions[-1][1],
    )
    kept = [(key, version) for key, version in versions if version.n >= floor.n]
    needed = frozenset(
        [key for key, _ in kept if key is not None]
        + [key for _, version in kept for key in version.object_keys()]
    )
    pending = await session.pending.spans(head)
    purged = max(head.purged, _cut(pending, floor.upper))
    gc_floor = max(head.gc_floor, floor.n)
    return SweepPlan(
        gc_floor=gc_floor,
        purged=purged,
        needed=needed,
        doomed=tuple(await _doomed(session.store, needed, purged)),
    )


async def check_purge(session: CollectionSession, head: Head, plan: SweepPlan) -> None:
    """Raise CollectionRefusedError if a batch was put since that must stay; the purge must be announced."""
    if _cut(await session.pending.spans(head), plan.purged) < plan.purged:
        raise CollectionRefusedError("a batch was published meanwhile; look again")


async def _chain(session: CollectionSession, head: Head) -> list[tuple[str | None, Version]]:
    """Return the versions from the newest back to the floor, with their keys.

    FencedError if another controller has removed one of them, CorruptionError if nobody may have.
    """
    found: list[tuple[str | None, Version]] = [(head.version_key, head.version)]
    while (parent := found[-1][1].parent) is not None and found[-1][1].n > head.gc_floor:
        try:
            found.append((parent, await session.head.version(parent)))
        except ObjectNotFoundError:
            newest = await session.head.load()
            transitions.check_epoch(newest, head.epoch)
            if (parse_version_key(parent) or 0) < newest.gc_floor:
                break  # collected since ``head`` was read, while this was a dry run
            raise CorruptionError(
                "the document of a version that must be kept is missing", path=parent
            ) from None
    if found[-1][1].n == 1 and head.gc_floor == 0:
        found.append((None, Version()))
    return found


def _cut(spans: Sequence[PendingSpan], limit: int) -> int:
    """Return the greatest time up to ``limit`` that lies within no batch. Pure.

    A batch that reaches beyond it may still be read from its middle on, so it must begin at it or later.
    """
    while True:
        begun = [span.position for span in spans if span.position < limit < span.upper]
        if not begun:
            return limit
        limit = min(begun)


async def _doomed(store: ObjectStore, needed: frozenset[str], purged: int) -> list[tuple[str, int]]:
    """Return keys and lengths of all objects that no kept version needs, in the order of their removal.

    No compaction runs meanwhile, and of an earlier controller's none can be committed any more. So merged
    batches and versions that are not needed are garbage, those that were never committed too.
    """
    found = []
    async for listed in store.list(PENDING_FOLDER):
        name = parse_pending_key(listed.key)
        if name is not None and name[1] < purged:
            found.append((listed.key, listed.size_bytes))
    for folder, parse in ((MERGED_FOLDER, parse_merged_key), (VERSION_FOLDER, parse_version_key)):
        async for listed in store.list(folder):
            if parse(listed.key) is not None and listed.key not in needed:
                found.append((listed.key, listed.size_bytes))
    return found


async def sweep(store: ObjectStore, plan: SweepPlan, head: Head) -> None:
    """Remove what was planned; the head must have the plan's floors already."""

    def may_go(key: str) -> bool:
        name = parse_pending_key(key)
        if name is not None:
            return name[1] < head.purged
        is_ours = parse_merged_key(key) is not None or parse_version_key(key) is not None
        return is_ours and key not in plan.needed

    keys = [key for key, _ in plan.doomed]
    for start in range(0, len(keys), _AT_ONCE):
        await remove(store, keys[start : start + _AT_ONCE], rule=may_go)
