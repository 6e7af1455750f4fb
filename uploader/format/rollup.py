"""Rolling up: which entries of a manifest become which snapshot, and how they are replaced. Pure.

Without it a manifest would grow with its log. Owns the choice and the edit; ``roller.py`` puts the snapshots.

Invariants (tests/uploader/format/test_rollup.py)
  U1  Resolved, a manifest names the same fragments before and after; nothing else in it changes.
  U2  The newest fragment stays outside the snapshots: the next fragment's number is counted from it.
  U3  A snapshot holds either fragments or snapshots, at least two of the latter, and is deeper than those. So
      none has the sum, hence the key, of one that it holds.
  U4  A manifest that is rolled up while it grows has at most ``fragments_per_snapshot`` fragments, and
      fewer than ``snapshots_per_snapshot`` snapshots of each depth, apart from what was added since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, TypeVar

from uploader.format.entries import MAX_DEPTH, Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from walstore.core.validation.fields import check_fields, described, whole

_Entry = TypeVar("_Entry", bound=Entry)

MAX_CHILDREN: Final = 4096
"""Entries of a snapshot, at the most; its object is then about 1 MB long."""
MAX_SNAPSHOTS: Final = 16
"""Snapshots made at once, the oldest first; a manifest with more to roll up takes several turns."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpSettings:
    """How a log's manifests are kept short. Logs may be written with different ones in turn.

    A fragment's entry takes about 240 bytes, a snapshot's 260. With the defaults the manifest of a log of
    10 million fragments is at most 47 kB long, on average 28 kB (bench/manifest_tree.py).
    """

    fragments_per_snapshot: int = whole(
        64,
        "Fragments that are replaced by one snapshot once there are more of them.",
        low=1,
        high=MAX_CHILDREN,
    )

    snapshots_per_snapshot: int = whole(
        32,
        "Snapshots of the same depth that are replaced by a deeper one.",
        low=2,
        high=MAX_CHILDREN,
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A snapshot in the store, and the entries it replaces in the manifest."""

    children: tuple[Fragment, ...] | tuple[SnapshotPointer, ...]
    """Consecutive entries of the manifest."""
    pointer: SnapshotPointer
    """What takes their place."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Replacement:
        """Return the replacement of what a snapshot holds by the snapshot."""
        return cls(snapshot.children, snapshot.pointer())


def is_ripe(manifest: Manifest, settings: RollUpSettings) -> bool:
    """Return whether :func:`plan` would return anything. Quick: for the event loop."""
    if len(manifest.fragments) > settings.fragments_per_snapshot:
        return True
    return len(manifest.snapshots) >= settings.snapshots_per_snapshot and any(
        _ripe_runs(manifest.snapshots, settings)
    )


def plan(manifest: Manifest, settings: RollUpSettings) -> list[Snapshot]:
    """Return the snapshots to make, none of which holds another one, at most :data:`MAX_SNAPSHOTS`.

    Full ones only, each of the oldest entries of its level.
    """
    runs: list[Sequence[Fragment] | Sequence[SnapshotPointer]] = []
    runs += _ripe_runs(manifest.snapshots, settings)
    runs += _chunks(manifest.fragments[:-1], settings.fragments_per_snapshot)
    return [Snapshot.of(run, manifest.writer) for run in runs[:MAX_SNAPSHOTS]]


def fold(manifest: Manifest, replacements: Iterable[Replacement]) -> Manifest:
    """Return the manifest with each replacement made whose entries it still has.

    The very same manifest if there is none: they were collected or replaced meanwhile.
    """
    for replacement in replacements:
        manifest = _fold_one(manifest, replacement)
    return manifest


def roll_up(manifest: Manifest, settings: RollUpSettings) -> tuple[Manifest, list[Snapshot]]:
    """Return the manifest rolled up until nothing is ripe, and the snapshots to be put before it."""
    made: list[Snapshot] = []
    while planned := plan(manifest, settings):
        made += planned
        manifest = fold(manifest, map(Replacement.of, planned))
    return manifest, made


def _fold_one(manifest: Manifest, replacement: Replacement) -> Manifest:
    children, pointer = replacement.children, replacement.pointer
    count = len(children)
    snapshots, fragments = manifest.snapshots, manifest.fragments
    if isinstance(children[0], Fragment):
        if len(fragments) <= count or fragments[:count] != children:
            return manifest
        return dataclasses.replace(
            manifest, snapshots=(*snapshots, pointer), fragments=fragments[count:]
        )
    starts = [snapshot.start for snapshot in snapshots]
    at = starts.index(pointer.start) if pointer.start in starts else 0
    if snapshots[at : at + count] != children:
        return manifest
    return dataclasses.replace(
        manifest, snapshots=(*snapshots[:at], pointer, *snapshots[at + count :])
    )


def _ripe_runs(
    snapshots: Sequence[SnapshotPointer], settings: RollUpSettings
) -> list[Sequence[SnapshotPointer]]:
    """Return runs of consecutive snapshots to be replaced by one each.

    A snapshot counts as deep as the deepest behind it. In a manifest that only ever grew, none is deeper
    than one before it; collection, or a program with other thresholds, may leave such.
    """
    deepest_behind = accumulate((snapshot.depth for snapshot in reversed(snapshots)), max)
    levels = list(zip(reversed(list(deepest_behind)), snapshots, strict=True))
    ripe: list[Sequence[SnapshotPointer]] = []
    for depth, level in groupby(levels, key=itemgetter(0)):
        if depth < MAX_DEPTH:
            run = [snapshot for _, snapshot in level]
            ripe += _chunks(run, settings.snapshots_per_snapshot)
    return ripe


def _chunks(entries: Sequence[_Entry], size: int) -> list[Sequence[_Entry]]:
    """Return as many runs of ``size`` entries as there are, from the oldest."""
    return [entries[low : low + size] for low in range(0, len(entries) - size + 1, size)]
