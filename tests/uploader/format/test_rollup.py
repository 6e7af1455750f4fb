"""Rolling up: whatever the thresholds and however a log grew, a manifest names the same fragments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.uploader.documents import fragment, fragments, manifest_of, snapshot_of
from uploader.format.entries import MAX_DEPTH, Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.rollup import (
    MAX_SNAPSHOTS,
    Replacement,
    RollUpSettings,
    fold,
    is_ripe,
    plan,
)
from uploader.format.setsum import Setsum
from walstore.errors import InvalidSettingsError

Shelf = dict[str, Snapshot]


def settings(fragments: int = 2, snapshots: int = 2) -> RollUpSettings:
    return RollUpSettings(fragments_per_snapshot=fragments, snapshots_per_snapshot=snapshots)


def replacement(snapshot: Snapshot) -> Replacement:
    return Replacement(snapshot.snapshots or snapshot.fragments, snapshot.pointer())


def replacements(snapshots: Iterable[Snapshot]) -> list[Replacement]:
    return [replacement(snapshot) for snapshot in snapshots]


def keep(shelf: Shelf, snapshots: Iterable[Snapshot]) -> None:
    """Put snapshots, written and read again; none may lie where another one does."""
    for snapshot in snapshots:
        assert snapshot.path not in shelf
        read = Snapshot.parse(snapshot.serialise(), path=snapshot.path)
        read.scrub(expected=snapshot.pointer())
        assert read == snapshot
        shelf[snapshot.path] = read


def turn(manifest: Manifest, wanted: RollUpSettings, shelf: Shelf) -> Manifest:
    """Roll up once."""
    snapshots = plan(manifest, wanted)
    assert bool(snapshots) == is_ripe(manifest, wanted)
    keep(shelf, snapshots)
    return fold(manifest, replacements(snapshots))


def resolved(entries: Iterable[Entry], shelf: Shelf) -> list[Fragment]:
    """Return the fragments under some entries, checking every pointer on the way."""
    found: list[Fragment] = []
    for entry in entries:
        if isinstance(entry, Fragment):
            found.append(entry)
        else:
            snapshot = shelf[entry.path_to_snapshot]
            snapshot.scrub(expected=entry)
            found += resolved(snapshot.snapshots or snapshot.fragments, shelf)
    return found


def shape(manifest: Manifest) -> list[int]:
    """Return the depths of what the manifest lists, fragments as 0."""
    return [*(pointer.depth for pointer in manifest.snapshots), *[0] * len(manifest.fragments)]


def check_same(before: Manifest, after: Manifest, shelf: Shelf) -> None:
    """Both name the same log, and may stand for each other."""
    after.scrub()
    before.scrub_successor(after)
    after.scrub_successor(before)
    assert Manifest.parse(after.serialise()) == after
    for name in ("setsum", "collected", "acc_bytes", "writer", "initial_offset", "initial_seq_no"):
        assert getattr(after, name) == getattr(before, name)
    assert (after.oldest_offset, after.next_offset) == (before.oldest_offset, before.next_offset)
    assert after.next_seq_no == before.next_seq_no
    everything = resolved((*before.snapshots, *before.fragments), shelf)
    assert resolved((*after.snapshots, *after.fragments), shelf) == everything


THRESHOLDS = st.tuples(st.integers(1, 100), st.integers(2, 100))


# -- the algebra -----------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 9), THRESHOLDS, st.booleans()), min_size=1, max_size=12),
    st.data(),
)
def test_a_log_that_grows_and_is_rolled_up_stays_the_same_log(runs, data: st.DataObject) -> None:
    """With any thresholds, that change at any time, by writers that roll up now and then."""
    manifest, shelf, seen = Manifest.initial("w"), Shelf(), list[Fragment]()
    for count, (per_fragments, per_snapshots), rolls in runs:
        sizes = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
        run = fragments(*sizes, seq_no=manifest.next_seq_no, start=manifest.next_offset)
        manifest, seen = manifest.apply_fragments(run, "w"), seen + run
        if rolls:
            wanted = settings(min(per_fragments, 7), min(per_snapshots, 7))
            after = turn(manifest, wanted, shelf)
            check_same(manifest, after, shelf)
            manifest = after
    assert resolved((*manifest.snapshots, *manifest.fragments), shelf) == seen
    assert manifest.setsum == Setsum.total(entry.setsum for entry in seen)


@pytest.mark.parametrize("wanted", [(1, 2), (2, 2), (3, 5), (7, 4), (100, 2), (10, 100)])
def test_a_manifest_stays_short(wanted: tuple[int, int]) -> None:
    """However long the log: one swap adds, the next one names what was rolled up meanwhile."""
    chosen, shelf, manifest = settings(*wanted), Shelf(), Manifest.initial("w")
    pending: list[Snapshot] = []
    for seq_no in range(1, 1001):
        grown = manifest.apply_fragments([fragment(seq_no, seq_no, seq_no + 1)], "w")
        manifest = fold(grown, replacements(pending))
        pending = plan(manifest, chosen)
        keep(shelf, pending)
        depths = [pointer.depth for pointer in manifest.snapshots]
        assert depths == sorted(depths, reverse=True)
        assert 1 <= len(manifest.fragments) <= wanted[0] + 2
        assert all(depths.count(depth) <= wanted[1] + 1 for depth in depths)
    manifest.scrub()
    assert len(resolved((*manifest.snapshots, *manifest.fragments), shelf)) == 1000


@pytest.mark.parametrize("threshold", [2, 10, 100])
def test_a_thousand_fragments_with_each_threshold(threshold: int) -> None:
    """wal3's property test, thresholds 2 to 100: the sum of all is the sum of the parts, at any time."""
    manifest, shelf = Manifest.initial("w"), Shelf()
    for seq_no in range(1, 1001):
        added = fragment(seq_no, seq_no, seq_no + 1)
        manifest = manifest.apply_fragments([added], "w")
        manifest = turn(manifest, settings(threshold, threshold), shelf)
    manifest.scrub()
    assert (manifest.next_offset, manifest.next_seq_no) == (1001, 1001)
    assert manifest.setsum == manifest_of(*[1] * 1000).setsum
    assert len(resolved((*manifest.snapshots, *manifest.fragments), shelf)) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2, 11))
def test_every_threshold(first: int) -> None:
    """The same with all of them, in nine parts."""
    for threshold in range(first, 101, 9):
        with case(threshold):
            test_a_thousand_fragments_with_each_threshold(threshold)


@given(st.integers(1, 60), THRESHOLDS, THRESHOLDS)
def test_a_backlog_is_worked_off(
    count: int, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """A log written with one pair of thresholds goes on with another."""
    manifest, shelf = manifest_of(*[2] * count), Shelf()
    for wanted in (first, second):
        before = manifest
        turns = 0
        while is_ripe(manifest, settings(*wanted)):
            manifest = turn(manifest, settings(*wanted), shelf)
            turns += 1
            assert turns <= 20
        check_same(before, manifest, shelf)
        assert len(manifest.fragments) <= wanted[0]


# -- what becomes of what --------------------------------------------------------------------


def test_nothing_is_ripe() -> None:
    for manifest in (Manifest.initial("w"), manifest_of(3), manifest_of(3, 4)):
        assert not is_ripe(manifest, settings())
        assert plan(manifest, settings()) == []
        assert fold(manifest, []) is manifest


def test_the_newest_fragment_stays_outside() -> None:
    """Else the number of the next one could not be told; wal3's writers hung on such."""
    manifest, shelf = manifest_of(3), Shelf()
    assert plan(manifest, settings(1)) == []
    after = turn(manifest_of(3, 4), settings(1), shelf)
    assert shape(after) == [1, 0]
    assert after.next_seq_no == 3
    whole = replacement(snapshot_of(manifest.fragments))
    assert fold(manifest, [whole]) is manifest


def test_the_published_thresholds() -> None:
    """wal3's scenario 04: one fragment, two snapshots."""
    manifest, shelf, shapes = Manifest.initial("w"), Shelf(), []
    for seq_no in range(1, 6):
        grown = manifest.apply_fragments([fragment(seq_no, seq_no, seq_no + 1)], "w")
        manifest = turn(grown, settings(1, 2), shelf)
        shapes.append(shape(manifest))
    assert shapes == [[0], [1, 0], [1, 1, 0], [2, 1, 0], [2, 1, 1, 0]]
    pointer = manifest.snapshots[0]
    assert (pointer.start, pointer.limit, pointer.depth) == (1, 3, 2)


def test_a_hundred_appends_in_tens() -> None:
    """wal3's scenario 70: a hundred fragments of ten records, thresholds of two, and all adds up."""
    manifest, shelf = Manifest.initial("w"), Shelf()
    for seq_no in range(1, 101):
        start = 1 + (seq_no - 1) * 10
        grown = manifest.apply_fragments([fragment(seq_no, start, start + 10)], "w")
        manifest = turn(grown, settings(2, 2), shelf)
    manifest.scrub()
    assert manifest.next_offset == 1001
    found = resolved((*manifest.snapshots, *manifest.fragments), shelf)
    assert [entry.seq_no for entry in found] == list(range(1, 101))
    assert manifest.setsum == Setsum.total(entry.setsum for entry in found)


def test_all_levels_that_are_ripe_are_rolled_up_at_once() -> None:
    low = [snapshot_of([one]) for one in fragments(1, 1, 1, 1)]
    manifest = dataclasses.replace(
        manifest_of(*[1] * 9),
        snapshots=tuple(snapshot.pointer() for snapshot in low),
        fragments=tuple(fragments(1, 1, 1, 1, 1, seq_no=5, start=5)),
    )
    made = plan(manifest, settings())
    assert [snapshot.depth for snapshot in made] == [2, 2, 1, 1]
    shelf = {snapshot.path: snapshot for snapshot in low}
    assert shape(turn(manifest, settings(), shelf)) == [2, 2, 1, 1, 0]


def test_a_long_backlog_takes_turns_from_the_oldest_on() -> None:
    """So that no roll-up holds up another program's for long."""
    manifest = manifest_of(*[1] * 100)
    made = plan(manifest, settings())
    assert len(made) == MAX_SNAPSHOTS
    after = fold(manifest, replacements(made))
    assert shape(after) == [1] * MAX_SNAPSHOTS + [0] * (100 - 2 * MAX_SNAPSHOTS)
    again = plan(after, settings())
    assert [snapshot.depth for snapshot in again].count(2) == MAX_SNAPSHOTS // 2
    assert [snapshot.depth for snapshot in again].count(1) == MAX_SNAPSHOTS // 2


def test_snapshots_before_deeper_ones_are_taken_along() -> None:
    """Collection cuts the oldest snapshot, and what is left of it may be less deep than the next."""
    leaves = [snapshot_of([one]) for one in fragments(1, 1, 1, 1)]
    deep = snapshot_of([leaves[1].pointer(), leaves[2].pointer()])
    manifest = dataclasses.replace(
        manifest_of(*[1] * 5),
        snapshots=(leaves[0].pointer(), deep.pointer(), leaves[3].pointer()),
        fragments=(fragment(5, 5, 6),),
    )
    manifest.scrub()
    assert shape(manifest) == [1, 2, 1, 0]
    shelf = {snapshot.path: snapshot for snapshot in (*leaves, deep)}
    assert shape(turn(manifest, settings(), shelf)) == [3, 1, 0]


def test_no_snapshot_gets_too_deep() -> None:
    """wal3 keeps the depth in one byte."""
    one, two, last = fragments(1, 1, 1)
    pointers = [
        SnapshotPointer(
            setsum=leaf.setsum,
            path_to_snapshot=snapshot_of([leaf]).path,
            depth=MAX_DEPTH,
            start=leaf.start,
            limit=leaf.limit,
            num_bytes=100,
        )
        for leaf in (one, two)
    ]
    manifest = dataclasses.replace(
        manifest_of(1, 1, 1), snapshots=tuple(pointers), fragments=(last,)
    )
    manifest.scrub()
    assert not is_ripe(manifest, settings())
    assert plan(manifest, settings()) == []
    with pytest.raises(ValueError, match="depth"):
        Snapshot.of(pointers, "w")


def test_no_snapshot_has_the_key_of_one_that_it_holds() -> None:
    """A chain of snapshots with one child each would share one key; none is ever made."""
    manifest, shelf = Manifest.initial("w"), Shelf()
    for seq_no in range(1, 200):
        grown = manifest.apply_fragments([fragment(seq_no, seq_no, seq_no + 1)], "w")
        manifest = turn(grown, settings(1, 2), shelf)  # ``keep`` refuses a key that is taken
    assert all(len(snapshot.snapshots) != 1 for snapshot in shelf.values())


# -- folding into a manifest that went on ----------------------------------------------------


def test_a_roll_up_is_folded_into_a_later_manifest() -> None:
    before, shelf = manifest_of(1, 1, 1), Shelf()
    pending = plan(before, settings())
    keep(shelf, pending)
    later = before.apply_fragments(fragments(1, 1, seq_no=4, start=4), "another")
    after = fold(later, replacements(pending))
    check_same(later, after, shelf)
    assert shape(after) == [1, 0, 0, 0]
    assert fold(after, replacements(pending)) is after, "once is enough"


def test_a_roll_up_of_what_was_collected_comes_to_nothing() -> None:
    before = manifest_of(1, 1, 1)
    pending = replacements(plan(before, settings()))
    collected = dataclasses.replace(
        before,
        collected=before.fragments[0].setsum,
        fragments=before.fragments[1:],
        initial_offset=2,
        initial_seq_no=2,
    )
    collected.scrub()
    assert fold(collected, pending) is collected


@given(st.integers(0, 12), st.integers(1, 4), st.integers(2, 4))
def test_collecting_meanwhile_never_breaks_a_manifest(gone: int, low: int, high: int) -> None:
    """Whatever a collector cut off before the roll-up is folded in, by whole entries of the manifest."""
    shelf, before = Shelf(), manifest_of(*[1] * 13)
    for _ in range(3):
        before = turn(before, settings(low, high), shelf)
    pending = plan(before, settings(low, high))
    keep(shelf, pending)
    entries: list[Entry] = [*before.snapshots, *before.fragments]
    gone = min(gone, len(entries) - 1)
    kept = entries[gone:]
    newest = [entry for entry in kept if isinstance(entry, Fragment)]
    cut = dataclasses.replace(
        before,
        collected=Setsum.total(entry.setsum for entry in entries[:gone]),
        snapshots=tuple(entry for entry in kept if isinstance(entry, SnapshotPointer)),
        fragments=tuple(newest),
        initial_offset=kept[0].start,
    )
    cut.scrub()
    check_same(cut, fold(cut, replacements(pending)), shelf)


def test_snapshots_that_were_rolled_up_by_somebody_else_are_left() -> None:
    shelf = Shelf()
    before = turn(manifest_of(*[1] * 5), settings(), shelf)
    pending = replacements(plan(before, settings()))
    theirs = turn(before, settings(2, 2), dict(shelf))
    assert shape(theirs) == [2, 0]
    assert fold(theirs, pending) is theirs


@pytest.mark.parametrize("wanted", [(0, 2), (4097, 2), (1, 1), (1, 4097), (-1, 2)])
def test_thresholds_out_of_range(wanted: tuple[int, int]) -> None:
    with pytest.raises(InvalidSettingsError, match="_per_snapshot must be"):
        settings(*wanted)
