"""Trees of snapshots as wal3 writes them: read, written again byte for byte, and made anew by our roll-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.wal3.regenerate import DIRECTORY
from uploader.format import layout
from uploader.format.entries import Fragment, Snapshot
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings, fold, plan
from uploader.root.tree import ManifestTree
from uploader.stores import MemoryStore
from walstore.core.runtime.threads import Worker

SNAPSHOTS = sorted(DIRECTORY.glob("snapshot-*.json"))
TREE = sorted(DIRECTORY.glob("snapshot-tree-*.json"))


def manifest(name: str) -> Manifest:
    found = Manifest.parse((DIRECTORY / f"manifest-{name}.json").read_bytes())
    found.scrub()
    return found


async def resolved(found: Manifest) -> list[Fragment]:
    """Return all fragments of a manifest, over a store that holds the golden snapshots."""
    store, worker = MemoryStore(), Worker("test")
    for path in TREE:
        data = path.read_bytes()
        await store.put_if_absent(Snapshot.parse(data, path="?").path, data)
    entries = await ManifestTree(store, worker).entries(found)
    worker.close()
    return entries


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_golden_snapshots_are_read_and_written_byte_for_byte(path: Path) -> None:
    snapshot = Snapshot.parse(path.read_bytes(), path=path.name)
    snapshot.scrub(expected=snapshot.pointer())
    assert snapshot.serialise() == path.read_bytes()


async def test_a_golden_tree_is_resolved() -> None:
    entries = await resolved(manifest("with-tree"))
    assert [entry.seq_no for entry in entries] == list(range(1, 8))
    assert [entry.path for entry in entries] == [layout.fragment_path(at) for at in range(1, 8)]


async def test_a_golden_tree_after_collection_is_resolved() -> None:
    """One snapshot stands for two of the same sum."""
    found = manifest("with-collected-tree")
    assert (found.oldest_offset, found.next_offset, found.next_seq_no) == (4, 8, 8)
    assert [entry.seq_no for entry in await resolved(found)] == [4, 5, 6, 7]
    names = ["snapshot-tree-4-only", "snapshot-holds-one-snapshot"]
    inner, outer = (
        Snapshot.parse((DIRECTORY / f"{name}.json").read_bytes(), path=name) for name in names
    )
    assert inner.path == outer.path == found.snapshots[0].path_to_snapshot
    assert outer.pointer() == found.snapshots[0]


async def test_rolling_up_makes_the_golden_tree() -> None:
    """Two fragments or two snapshots each: every object has the very bytes."""
    golden = manifest("with-tree")
    settings = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
    found, made = Manifest.initial("test writer"), set[bytes]()
    for fragment in await resolved(golden):
        found = found.apply_fragments([fragment], "test writer")
        snapshots = plan(found, settings)
        made |= {snapshot.serialise() for snapshot in snapshots}
        found = fold(
            found, [Replacement(one.snapshots or one.fragments, one.pointer()) for one in snapshots]
        )
    assert found.serialise() == golden.serialise()
    theirs = {path.read_bytes() for path in TREE if "4-only" not in path.stem}
    assert made == theirs
