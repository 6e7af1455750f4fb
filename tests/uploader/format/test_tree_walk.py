"""TreeWalk: every entry of a tree in order, and nothing below what is not entered."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.documents import manifest_of
from uploader.format.entries import Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.layout import MAX_U64
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings, fold, is_ripe, plan
from uploader.format.tree_walk import TreeWalk, named_snapshots

SETTINGS = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)


def grown(count: int) -> tuple[Manifest, dict[str, Snapshot]]:
    """Return a manifest of so many fragments of ten records, and the snapshots under it."""
    manifest, there = manifest_of(*[10] * count), {}
    while is_ripe(manifest, SETTINGS):
        made = plan(manifest, SETTINGS)
        there.update({one.path: one for one in made})
        manifest = fold(manifest, [Replacement(one.children, one.pointer()) for one in made])
    return manifest, there


def walked(walk: TreeWalk[Entry], there: Mapping[str, Snapshot]) -> list[Entry]:
    found: list[Entry] = []
    for entry in walk:
        found.append(entry)
        if not isinstance(entry, Fragment) and entry.path_to_snapshot in there:
            walk.enter(there[entry.path_to_snapshot].children)
    return found


@given(count=st.integers(1, 24), data=st.data())
def test_any_interval_of_any_tree(count: int, data: st.DataObject) -> None:
    manifest, there = grown(count)
    start = data.draw(st.integers(0, 10 * count + 5))
    limit = data.draw(st.integers(start, 10 * count + 5))
    found = walked(TreeWalk(manifest.entries, start, limit), there)
    assert all(entry.limit > start and entry.start < limit for entry in found)
    numbers = [entry.seq_no for entry in found if isinstance(entry, Fragment)]
    wanted = [1 + at for at in range(count) if 11 + 10 * at > start and 1 + 10 * at < limit]
    assert numbers == wanted
    starts = [(entry.start, -entry.limit) for entry in found]
    assert starts == sorted(starts)  # each before what is below it


def test_all_of_a_damaged_tree_is_walked_unless_an_interval_is_given() -> None:
    manifest, there = grown(8)
    lost = manifest.snapshots[0]
    below = there.pop(lost.path_to_snapshot).children
    found = walked(TreeWalk(manifest.entries), there)
    assert lost in found
    assert not {*below} & {*found}
    assert [one.seq_no for one in found if isinstance(one, Fragment)][-1] == 8
    wrong = [dataclasses.replace(lost, start=0, limit=0), dataclasses.replace(lost, start=MAX_U64)]
    assert list(TreeWalk(wrong)) == wrong
    assert list(TreeWalk(wrong, 0, MAX_U64)) == []


def test_a_walk_of_nothing() -> None:
    assert list(TreeWalk(())) == []


@pytest.mark.parametrize("count", [1, 3, 9, 24])
def test_snapshots_of_fragments_are_named_but_not_read(count: int) -> None:
    manifest, there = grown(count)
    read: list[SnapshotPointer] = []

    async def below(pointer: SnapshotPointer) -> tuple[SnapshotPointer, ...]:
        read.append(pointer)
        return there[pointer.path_to_snapshot].snapshots

    assert asyncio.run(named_snapshots(manifest, below)) == {*there}
    assert len(read) == sum(bool(one.snapshots) for one in there.values())
