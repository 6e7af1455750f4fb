"""The manifest of a rebuilt log, with the snapshots below it. Pure.

Snapshots of the damaged log that are whole stay as they are; what was below others is rolled up again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from uploader.care.rebuilding.survey import SeenSnapshot
from uploader.format import layout, rollup
from uploader.format.entries import Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.format.setsum import Setsum

_FOLD_FRAGMENTS: Final = 256
"""Fragments that are added to the manifest at once; it is copied each time."""
_SETTINGS: Final = RollUpSettings()


def grow(
    run: Sequence[Fragment],
    whole: Mapping[SnapshotPointer, Collection[Fragment]],
    writer: str,
    *,
    collected: Setsum,
    acc_bytes: int,
) -> tuple[Manifest, list[Snapshot]]:
    """Return the manifest of fragments that continue each other, and all snapshots that are new in it.

    Args:
        run: The fragments; at least one.
        whole: Snapshots in the store that can be pointed at, with the fragments below them.
        writer: The writer in the snapshots and the manifest.
        collected: Sum of the records that the log held before and no longer holds.
        acc_bytes: Length of all fragments ever added, as far as that is known.
    """
    made: list[Snapshot] = []
    pointers, rest = _reuse(run, whole, writer, made)
    first = rest[0]
    manifest = dataclasses.replace(
        Manifest.initial(writer, start=run[0].start, seq_no=run[0].seq_no),
        snapshots=tuple(pointers),
        fragments=(first,),
    )
    for low in range(1, max(len(rest), 2), _FOLD_FRAGMENTS):
        manifest = manifest.apply_fragments(rest[low : low + _FOLD_FRAGMENTS], writer)
        manifest, rolled_up = rollup.roll_up(manifest, _SETTINGS)
        made += rolled_up
    live = sum(entry.num_bytes for entry in run)
    manifest = dataclasses.replace(
        manifest,
        setsum=Setsum.total([collected, *(entry.setsum for entry in run)]),
        collected=collected,
        acc_bytes=min(max(acc_bytes, live), layout.MAX_U64),
    )
    manifest.scrub()
    return manifest, made


def to_put(made: Sequence[Snapshot], seen: Mapping[str, SeenSnapshot]) -> list[Snapshot]:
    """Return the new snapshots that are not in the store already."""
    missing = {}
    for snapshot in made:
        there = seen.get(snapshot.path)
        held = None if there is None else there.snapshot
        if held is None or (held.depth, held.snapshots, held.fragments) != (
            snapshot.depth,
            snapshot.snapshots,
            snapshot.fragments,
        ):
            missing[snapshot.path] = snapshot
    return list(missing.values())


def _reuse(
    run: Sequence[Fragment],
    whole: Mapping[SnapshotPointer, Collection[Fragment]],
    writer: str,
    made: list[Snapshot],
) -> tuple[list[SnapshotPointer], list[Fragment]]:
    """Return pointers for the beginning of the run, and the fragments behind; at least one of those."""
    held = {entry.seq_no: entry for entry in run}
    usable = {
        pointer.start: (pointer, len(below))
        for pointer, below in whole.items()
        if pointer.limit < run[-1].limit
        and pointer.num_bytes == sum(one.num_bytes for one in below)
        and all(held.get(one.seq_no) == one for one in below)
    }
    pointers: list[SnapshotPointer] = []
    loose: list[Fragment] = []
    at = 0
    while at < len(run):
        pointer, count = usable.get(run[at].start, (None, 1))
        if pointer is None:
            loose.append(run[at])
        else:
            pointers += _roll_up(loose, writer, made)
            pointers.append(pointer)
            loose = []
        at += count
    return pointers, loose


def _roll_up(
    fragments: Sequence[Fragment], writer: str, made: list[Snapshot]
) -> list[SnapshotPointer]:
    size = _SETTINGS.fragments_per_snapshot
    snapshots = [
        Snapshot.of(fragments[low : low + size], writer) for low in range(0, len(fragments), size)
    ]
    made += snapshots
    return [snapshot.pointer() for snapshot in snapshots]
