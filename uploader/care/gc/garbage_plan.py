"""Planning a collection: which fragments end below a cutoff, and what becomes of the snapshots. Pure.

Only whole fragments are dropped. Snapshots that contain only garbage are dropped with it; the rest of one
that contains some becomes a new one, level by level. A rest that is a single snapshot replaces the one it
was in, so that no snapshot ever has the key of another one (tests/uploader/care/gc/test_garbage_plan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from uploader.format import layout
from uploader.format.entries import (
    Entry,
    Fragment,
    Snapshot,
    SnapshotPointer,
    fragment_faults,
    raise_first,
    run_faults,
)
from uploader.format.garbage import Garbage
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum

WRITER: Final = "garbage collection"
"""The recorded writer of the snapshots; as in wal3."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Garbage, with the entries of the fragments in it."""

    garbage: Garbage
    fragments: tuple[Fragment, ...]
    """In offset order; at least one."""

    @property
    def limit(self) -> int:
        """Offset after the last record that is dropped."""
        return self.fragments[-1].limit


def plan_garbage(
    manifest: Manifest,
    cutoff: int,
    snapshots: Mapping[str, Snapshot],
    *,
    max_fragments: int | None = None,
    key_of: Callable[[int], str] = layout.fragment_path,
) -> Cut | None:
    """Return what of the manifest ends at or below ``cutoff``; None if nothing does.

    Args:
        manifest: The log.
        cutoff: Offset of the first record that must be kept.
        snapshots: By key, those that begin below the cutoff, on all levels; with a limit on fragments,
            as many of them from the beginning as hold so many. KeyError for one that is not there.
        max_fragments: How many fragments may go at once.
        key_of: The key that a fragment's number stands for. If a fragment has another one, the garbage
            lists all keys.

    CorruptionError if the fragments are not a run with numbers that go up by one.
    """
    cutter = _Cutter(cutoff, snapshots, max_fragments)
    kept = cutter.keep(manifest.snapshots)
    cutter.keep(manifest.fragments)
    dropped = cutter.fragments
    if not dropped:
        return None
    raise_first(run_faults(dropped, path=layout.MANIFEST))
    raise_first(fragment_faults(dropped, path=layout.MANIFEST))
    is_plain = all(fragment.path == key_of(fragment.seq_no) for fragment in dropped)
    has_root = bool(kept) and kept[0] not in manifest.snapshots
    root = kept[0] if has_root else None
    assert not isinstance(root, Fragment)
    garbage = Garbage(
        snapshots_to_drop=tuple(cutter.to_drop),
        snapshots_to_make=tuple(cutter.to_make),
        snapshot_for_root=root,
        start_seq_no=dropped[0].seq_no,
        limit_seq_no=dropped[-1].seq_no + 1,
        setsum_to_discard=Setsum.total(fragment.setsum for fragment in dropped),
        first_to_keep=dropped[-1].limit,
        fragment_keys=() if is_plain else tuple(fragment.path for fragment in dropped),
    )
    return Cut(garbage, tuple(dropped))


class _Cutter:
    """Walks the tree from the oldest record on, and notes what is dropped."""

    def __init__(
        self, cutoff: int, snapshots: Mapping[str, Snapshot], max_fragments: int | None
    ) -> None:
        self._cutoff = cutoff
        self._snapshots = snapshots
        self._max_fragments = max_fragments
        self.fragments: list[Fragment] = []
        self.to_drop: list[SnapshotPointer] = []
        self.to_make: list[Snapshot] = []

    def keep(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what is kept of some entries: the later ones as they are, the first maybe in part."""
        kept: list[Entry] = []
        for entry in entries:
            if len(self.fragments) == self._max_fragments:
                self._cutoff = min(self._cutoff, entry.start)
            if entry.start >= self._cutoff:
                kept.append(entry)
            elif not isinstance(entry, Fragment):
                kept += self._keep_below(entry)
            elif entry.limit <= self._cutoff:
                self.fragments.append(entry)
            else:
                kept.append(entry)
        return kept

    def _keep_below(self, pointer: SnapshotPointer) -> list[Entry]:
        """Return what stands for a snapshot afterwards: nothing, or one entry."""
        snapshot = self._snapshots[pointer.path_to_snapshot]
        kept = self.keep(snapshot.children)
        if kept == list(snapshot.children):
            return [pointer]
        self.to_drop.append(pointer)
        if not kept or (len(kept) == 1 and not isinstance(kept[0], Fragment)):
            return kept
        made = Snapshot.of(kept, WRITER)  # type: ignore[arg-type]  # children are of one kind
        self.to_make.append(made)
        return [made.pointer()]


def count_dropped(fragments: Sequence[Fragment], cutoff: int) -> int:
    """Return how many of some fragments end at or below the cutoff."""
    return sum(fragment.limit <= cutoff for fragment in fragments)
