"""Manifests with trees of snapshots of every shape, and what they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.uploader.documents import manifest_of, rolled_up, snapshot_of
from uploader.format.entries import Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.stores.port import ObjectStore


@dataclass
class Tree:
    """A manifest and the snapshots under it, by key as in a store: the first one put stays."""

    manifest: Manifest
    snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> SnapshotPointer:
        self.snapshots.setdefault(snapshot.path, snapshot)
        return snapshot.pointer()

    def roll_up(self, count: int) -> None:
        """Move the oldest fragments into a snapshot, if one is left outside."""
        if 0 < count < len(self.manifest.fragments):
            self.manifest, snapshot = rolled_up(self.manifest, count)
            self.add(snapshot)

    def deepen(self, at: int, count: int) -> None:
        """Put a snapshot above some of the manifest's snapshots; one may be alone under it."""
        chosen = self.manifest.snapshots[at : at + count]
        if chosen:
            above = self.add(snapshot_of(chosen))
            pointers = self.manifest.snapshots
            self.manifest = dataclasses.replace(
                self.manifest, snapshots=(*pointers[:at], above, *pointers[at + len(chosen) :])
            )

    def fragments(self) -> list[Fragment]:
        """Return all fragments that the manifest names, in order."""
        return resolve(self.manifest, self.snapshots)

    async def put(self, store: ObjectStore) -> None:
        """Put the manifest and the snapshots into a store, and something for each fragment."""
        await store.put_if_absent("manifest/MANIFEST", self.manifest.serialise())
        for path, snapshot in self.snapshots.items():
            await store.put_if_absent(path, snapshot.serialise())
        for fragment in self.fragments():
            await store.put_if_absent(fragment.path, b"fragment")


def resolve(manifest: Manifest, snapshots: Mapping[str, Snapshot]) -> list[Fragment]:
    """Return all fragments that a manifest names, in order; KeyError if a snapshot is missing."""
    found: list[Fragment] = []

    def visit(pointers: Sequence[SnapshotPointer]) -> None:
        for pointer in pointers:
            snapshot = snapshots[pointer.path_to_snapshot]
            snapshot.scrub()
            assert (snapshot.pointer().start, snapshot.pointer().limit) == (
                pointer.start,
                pointer.limit,
            )
            visit(snapshot.snapshots)
            found.extend(snapshot.fragments)

    visit(manifest.snapshots)
    return [*found, *manifest.fragments]


def grown(sizes: Sequence[int], *, fragments: int, snapshots: int) -> Tree:
    """Return the tree of a log that rolls up as it grows, as wal3 would with such thresholds."""
    tree = Tree(manifest_of(*sizes))
    while len(tree.manifest.fragments) > fragments:
        tree.roll_up(fragments)
        depth = 1
        while True:
            level = [at for at, p in enumerate(tree.manifest.snapshots) if p.depth == depth]
            if len(level) < snapshots:
                break
            tree.deepen(level[0], snapshots)
            depth += 1
    return tree


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a log with fragments in snapshots of any shape, some deeper than need be."""
    tree = Tree(manifest_of(*draw(st.lists(st.integers(1, 4), max_size=14))))
    for count in draw(st.lists(st.integers(1, 5), max_size=6)):
        tree.roll_up(count)
    for at, count in draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=6)):
        tree.deepen(at, count)
    return tree
