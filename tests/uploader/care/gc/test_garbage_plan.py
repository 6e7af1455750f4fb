"""Planning a collection, and dropping it: the algebra, on trees of every shape."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.documents import fragments, manifest_of
from tests.uploader.trees import Tree, grown, resolve, trees
from uploader.care.gc.garbage_plan import WRITER, Cut, plan_garbage
from uploader.format.entries import Fragment
from uploader.format.garbage import Garbage, apply_garbage, first_seq_no, is_dropped
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError


def cut_off(tree: Tree, cutoff: int, *, max_fragments: int | None = None) -> Cut | None:
    """Plan, drop, and check all that must hold; the tree goes on without the garbage."""
    before, live = tree.manifest, tree.fragments()
    cut = plan_garbage(before, cutoff, tree.snapshots, max_fragments=max_fragments)
    expected = [fragment for fragment in live if fragment.limit <= cutoff][:max_fragments]
    if cut is None:
        assert not expected
        return None
    assert list(cut.fragments) == expected
    garbage = cut.garbage
    assert not garbage.is_empty
    assert Garbage.parse(garbage.serialise()) == garbage
    assert not is_dropped(before, garbage)
    after = apply_garbage(before, garbage)
    assert after is not None
    check_dropped(before, after, expected)
    assert apply_garbage(after, garbage) is None
    assert is_dropped(after, garbage)
    doomed = {key for key, _ in garbage.objects()}
    for snapshot in garbage.snapshots_to_make:
        assert snapshot.writer == WRITER
        tree.snapshots.setdefault(snapshot.path, snapshot)
    tree.manifest = after
    kept = {path: item for path, item in tree.snapshots.items() if path not in doomed}
    assert resolve(after, kept) == live[len(expected) :]
    assert not doomed & {fragment.path for fragment in live[len(expected) :]}
    tree.snapshots = kept
    return cut


def check_dropped(before: Manifest, after: Manifest, dropped: list[Fragment]) -> None:
    after.scrub()
    before.scrub_successor(after)
    gone = Setsum.total(fragment.setsum for fragment in dropped)
    assert after.setsum == before.setsum
    assert after.collected == before.collected + gone
    assert (after.acc_bytes, after.writer) == (before.acc_bytes, before.writer)
    assert (after.next_offset, after.next_seq_no) == (before.next_offset, before.next_seq_no)
    assert after.initial_offset == after.oldest_offset == dropped[-1].limit
    assert after.initial_seq_no == dropped[-1].seq_no + 1


@given(trees())
def test_a_cut_at_every_offset_of_any_tree(tree: Tree) -> None:
    """G1, G2: setsum, next offset and next number stay, and exactly the whole fragments below go."""
    for cutoff in range(tree.manifest.next_offset + 2):
        cut_off(Tree(tree.manifest, dict(tree.snapshots)), cutoff)


@given(trees(), st.lists(st.integers(1, 60), max_size=8), st.sampled_from([None, 1, 3]))
def test_one_cut_after_the_other(tree: Tree, cutoffs: list[int], most: int | None) -> None:
    """Each begins where the one before ended; the last one takes everything."""
    for cutoff in sorted(cutoffs):
        cut_off(tree, cutoff, max_fragments=most)
    while cut_off(tree, tree.manifest.next_offset, max_fragments=most) is not None:
        pass
    manifest = tree.manifest
    assert (manifest.snapshots, manifest.fragments, tree.snapshots) == ((), (), {})
    assert manifest.collected == manifest.setsum
    assert manifest.initial_seq_no in (None, manifest.next_seq_no)


@given(trees(), st.integers(1, 60), st.integers(1, 4))
def test_the_garbage_is_dropped_beside_a_writer(tree: Tree, cutoff: int, grown_by: int) -> None:
    """Appends between plan and drop do not matter; the order does not either."""
    cut = plan_garbage(tree.manifest, cutoff, tree.snapshots)
    if cut is None:
        return
    manifest = tree.manifest
    added = fragments(*[2] * grown_by, seq_no=manifest.next_seq_no, start=manifest.next_offset)
    first = apply_garbage(manifest.apply_fragments(added, "writer"), cut.garbage)
    dropped = apply_garbage(manifest, cut.garbage)
    assert dropped is not None
    assert first == dropped.apply_fragments(added, "writer")


@pytest.mark.parametrize("size", [2, 3])
def test_garbage_at_every_offset_of_a_log_that_rolls_up(size: int) -> None:
    """wal3's property: with small thresholds, one record at a time, the numbers go on without a gap."""
    tree = grown([1] * 40, fragments=size, snapshots=size)
    last = 0
    for cutoff in range(1, 42):
        cut_off(tree, cutoff)
        assert first_seq_no(tree.manifest) >= last
        last = first_seq_no(tree.manifest)
    assert tree.manifest.next_seq_no == last == 41
    assert (tree.manifest.next_offset, tree.manifest.initial_offset) == (41, 41)


def test_only_whole_fragments_go() -> None:
    """A cut inside a fragment keeps all of it."""
    manifest = manifest_of(10, 10, 10)
    for cutoff in (0, 1, 10):
        assert plan_garbage(manifest, cutoff, {}) is None
    for cutoff in (11, 12, 20):
        cut = plan_garbage(manifest, cutoff, {})
        assert cut is not None
        assert (cut.fragments[0].start, cut.limit, cut.fragments[0].num_bytes) == (1, 11, 100)
    cut = plan_garbage(manifest, 21, {})
    assert cut is not None
    assert (cut.garbage.start_seq_no, cut.garbage.limit_seq_no) == (1, 3)
    assert cut.garbage.first_to_keep == 21


def test_a_straddled_snapshot_is_trimmed_in_the_same_pass() -> None:
    """wal3 leaves it whole when another snapshot is dropped before it, until the next pass."""
    tree = Tree(manifest_of(*[1] * 7))
    tree.roll_up(3)
    tree.roll_up(3)
    first, second = tree.manifest.snapshots
    cut = cut_off(tree, 5)
    assert cut is not None
    assert cut.garbage.snapshots_to_drop == (first, second)
    assert len(cut.garbage.snapshots_to_make) == 1
    assert tree.manifest.oldest_offset == 5


def test_a_single_snapshot_takes_the_place_of_the_one_it_was_in() -> None:
    """A new one around it would have its sum, hence its key, and be deleted under its name one day."""
    tree = Tree(manifest_of(*[1] * 7))
    tree.roll_up(3)
    tree.roll_up(3)
    kept = tree.manifest.snapshots[1]
    tree.deepen(0, 2)
    cut = cut_off(tree, 4)
    assert cut is not None
    assert cut.garbage.snapshots_to_make == ()
    assert cut.garbage.snapshot_for_root == kept
    assert tree.manifest.snapshots == (kept,)


def test_snapshots_with_the_same_key_go_once() -> None:
    """wal3 makes chains of snapshots that hold one another alone: they share one object."""
    tree = Tree(manifest_of(1, 1, 1))
    tree.roll_up(2)
    tree.deepen(0, 1)
    tree.deepen(0, 1)
    assert len(tree.snapshots) == 1
    cut = cut_off(tree, 3)
    assert cut is not None
    assert [kind for _, kind in cut.garbage.objects()] == ["fragment", "fragment", "snapshot"]


def test_fragments_with_keys_of_their_own_are_listed() -> None:
    """Their keys cannot be told from their numbers, once the manifest names them no more."""
    manifest = manifest_of(1, 1, 1)
    own = tuple(
        dataclasses.replace(item, path=f"other/FragmentSeqNo={item.seq_no:x}.parquet")
        for item in manifest.fragments
    )
    cut = plan_garbage(dataclasses.replace(manifest, fragments=own), 3, {})
    assert cut is not None
    assert cut.garbage.fragment_keys == (own[0].path, own[1].path)
    found = Garbage.parse(cut.garbage.serialise())
    assert [key for key, _ in found.objects()] == [own[0].path, own[1].path]


def test_numbers_with_a_gap_are_corruption() -> None:
    """The range of numbers would delete what was never seen."""
    manifest = manifest_of(1, 1, 1)
    gap = dataclasses.replace(
        manifest, fragments=(manifest.fragments[0], *fragments(1, seq_no=3, start=2))
    )
    with pytest.raises(CorruptionError):
        plan_garbage(gap, 3, {})
