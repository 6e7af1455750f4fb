"""Where a collection ends: at the lowest cursor, or earlier if settings keep more. Never writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Entry, Fragment
from uploader.format.manifest import Manifest
from uploader.format.snapshot import Snapshot
from uploader.garbage.collection import CollectorSettings, Cutoff
from uploader.garbage.garbage_plan import count_dropped
from uploader.garbage.holds import GarbageHold
from uploader.garbage.observed_heads import MICROSECONDS
from uploader.root.tree import ManifestTree


def lowest_cursor(cursors: Iterable[CloudCursor], now_us: int) -> CloudCursor | None:
    """Return the cursor or hold that keeps most; expired ones keep nothing.

    None if there is no cursor: holds alone let nothing go.
    """
    holding = [cursor for cursor in cursors if not cursor.is_expired(now_us)]
    if all(isinstance(cursor, GarbageHold) for cursor in holding):
        return None
    return min(holding, key=lambda cursor: cursor.position, default=None)


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
    """Return by key the snapshots that :func:`uploader.garbage.garbage_plan.plan_garbage` asks for.

    They begin below the cutoff and hold the first ``max_fragments`` fragments.
    """
    found: dict[str, Snapshot] = {}
    waiting = list(reversed(manifest.snapshots))
    fragments = 0
    while waiting:
        pointer = waiting.pop()
        if pointer.start >= cutoff or fragments >= max_fragments:
            break
        snapshot = await tree.snapshot(pointer)
        found[pointer.path_to_snapshot] = snapshot
        fragments += count_dropped(snapshot.fragments, cutoff)
        waiting += reversed(snapshot.snapshots)
    return found


async def _offset_before_bytes(tree: ManifestTree, manifest: Manifest, keep_bytes: int) -> int:
    """Return where the newest fragments begin that have so many bytes together; the head if all lack it."""
    entries: Sequence[Entry] = (*manifest.snapshots, *manifest.fragments)
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
        snapshot = await tree.snapshot(entry)
        entries = snapshot.snapshots or snapshot.fragments
