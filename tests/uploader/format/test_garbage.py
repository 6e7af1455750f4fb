"""The document gc/GARBAGE, and what cannot be dropped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.uploader.documents import manifest_of, rolled_up, snapshot_of
from tests.uploader.trees import Tree
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format.entries import Snapshot
from uploader.format.garbage import (
    Garbage,
    StaleGarbageError,
    apply_garbage,
    first_seq_no,
    is_dropped,
)
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError

GOLDEN = Path(__file__).parents[2] / "golden"
EMPTY = (GOLDEN / "wal3_garbage" / "garbage-empty.json").read_bytes()
FULL = (GOLDEN / "wal3_garbage" / "garbage-snapshot-split.json").read_bytes()


def test_the_empty_document_is_wal3s() -> None:
    assert Garbage().serialise() == EMPTY
    assert Garbage.parse(EMPTY).is_empty


def test_a_full_document_is_wal3s() -> None:
    """Read and written again byte for byte."""
    garbage = Garbage.parse(FULL)
    assert garbage.serialise() == FULL
    assert not garbage.is_empty
    assert (garbage.start_seq_no, garbage.limit_seq_no, garbage.first_to_keep) == (1, 2, 2)
    assert len(garbage.snapshots_to_drop) == len(garbage.snapshots_to_make) == 1
    assert garbage.snapshot_for_root == garbage.snapshots_to_make[0].pointer()


def test_the_golden_manifest_drops_the_golden_garbage() -> None:
    """And it is what we would have planned for it."""
    manifest = Manifest.parse((GOLDEN / "wal3" / "manifest-with-snapshot.json").read_bytes())
    data = (GOLDEN / "wal3" / "snapshot-two-fragments.json").read_bytes()
    pointer = manifest.snapshots[0]
    snapshots = {pointer.path_to_snapshot: Snapshot.parse(data, path=pointer.path_to_snapshot)}
    cut = plan_garbage(manifest, 2, snapshots)
    assert cut is not None
    assert cut.garbage.serialise() == FULL
    after = apply_garbage(manifest, Garbage.parse(FULL))
    assert after is not None
    assert after.oldest_offset == 2


def test_documents_of_other_versions_of_wal3() -> None:
    """Older ones lack a field, newer ones have more."""
    document = json.loads(FULL)
    del document["fragments_are_uuids"]
    document["fragments_to_drop_uuid_limit"] = None
    document["of tomorrow"] = [1]
    assert Garbage.parse(json.dumps(document).encode()) == Garbage.parse(FULL)


def test_a_log_replicated_by_wal3_is_refused() -> None:
    document = json.loads(EMPTY) | {"fragments_are_uuids": True}
    with pytest.raises(FormatVersionError):
        Garbage.parse(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("snapshots_to_drop", {}),
        ("snapshots_to_make", [3]),
        ("snapshot_for_root", 7),
        ("fragments_to_drop_start", -1),
        ("fragments_to_drop_limit", "x"),
        ("setsum_to_discard", "00"),
        ("first_to_keep", 3),
        ("fragment_keys", "log/1"),
        ("fragment_keys", [1]),
    ],
)
def test_bad_shapes(name: str, value: object) -> None:
    document = json.loads(FULL) | {name: value}
    with pytest.raises(CorruptionError, match="gc/GARBAGE"):
        Garbage.parse(json.dumps(document).encode())


def planned(tree: Tree, cutoff: int) -> Garbage:
    cut = plan_garbage(tree.manifest, cutoff, tree.snapshots)
    assert cut is not None
    return cut.garbage


def test_nothing_to_drop() -> None:
    """Empty garbage, and garbage below the head, are no change."""
    manifest = manifest_of(1, 1)
    assert apply_garbage(manifest, Garbage()) is None
    assert is_dropped(manifest, Garbage())
    assert apply_garbage(Manifest.initial("w"), Garbage()) is None


def test_rolled_up_meanwhile_is_stale() -> None:
    """G3: the fragments are in a snapshot now, which the garbage does not know."""
    tree = Tree(manifest_of(1, 1, 1, 1))
    garbage = planned(tree, 3)
    for count in (1, 2, 3):
        later, _ = rolled_up(tree.manifest, count)
        with pytest.raises(StaleGarbageError):
            apply_garbage(later, garbage)
        assert not is_dropped(later, garbage)


def test_snapshots_rolled_up_meanwhile_are_stale() -> None:
    tree = Tree(manifest_of(1, 1, 1, 1, 1))
    tree.roll_up(2)
    tree.roll_up(2)
    garbage = planned(tree, 2)
    tree.deepen(0, 2)
    with pytest.raises(StaleGarbageError):
        apply_garbage(tree.manifest, garbage)


def test_collected_by_another_in_part_is_stale() -> None:
    tree = Tree(manifest_of(1, 1, 1, 1))
    less, more = planned(tree, 2), planned(tree, 4)
    after = apply_garbage(tree.manifest, less)
    assert after is not None
    with pytest.raises(StaleGarbageError):
        apply_garbage(after, more)
    everything = apply_garbage(tree.manifest, more)
    assert everything is not None
    assert apply_garbage(everything, less) is None


def test_a_sum_that_does_not_balance_is_not_dropped() -> None:
    tree = Tree(manifest_of(1, 1, 1))
    wrong = dataclasses.replace(planned(tree, 2), setsum_to_discard=Setsum.of_items([b"x"]))
    with pytest.raises(StaleGarbageError):
        apply_garbage(tree.manifest, wrong)


@pytest.mark.parametrize("first_to_keep", [3, 4])
def test_a_wrong_beginning_is_not_dropped(first_to_keep: int) -> None:
    tree = Tree(manifest_of(1, 1, 1))
    wrong = dataclasses.replace(planned(tree, 2), first_to_keep=first_to_keep)
    with pytest.raises(CorruptionError):
        apply_garbage(tree.manifest, wrong)


def test_a_hole_is_not_dropped() -> None:
    """Garbage from the middle balances, but the log would not be a run any more."""
    tree = Tree(manifest_of(1, 1, 1))
    middle = Garbage(
        start_seq_no=2,
        limit_seq_no=3,
        setsum_to_discard=tree.manifest.fragments[1].setsum,
        first_to_keep=3,
    )
    with pytest.raises(CorruptionError):
        apply_garbage(tree.manifest, middle)


def test_a_root_that_is_there_already_is_not_added() -> None:
    """wal3 may name a snapshot for the root that the manifest has (#5191)."""
    tree = Tree(manifest_of(1, 1, 1, 1, 1))
    tree.roll_up(2)
    tree.roll_up(2)
    kept = tree.manifest.snapshots[1]
    garbage = dataclasses.replace(planned(tree, 3), snapshot_for_root=kept)
    after = apply_garbage(tree.manifest, garbage)
    assert after is not None
    assert after.snapshots == (kept,)


def test_dropped_goes_by_offset_and_number() -> None:
    """A manifest that says otherwise is not trusted with deleting."""
    tree = Tree(manifest_of(1, 1, 1))
    garbage = planned(tree, 3)
    after = apply_garbage(tree.manifest, garbage)
    assert after is not None
    assert is_dropped(after, garbage)
    assert not is_dropped(dataclasses.replace(after, initial_seq_no=2), garbage)


def test_everything_may_go() -> None:
    """wal3 began again at number 1 once (#4874): the numbers go on instead."""
    tree = Tree(manifest_of(2, 2))
    after = apply_garbage(tree.manifest, planned(tree, 5))
    assert after is not None
    assert (after.fragments, after.next_offset, after.next_seq_no) == ((), 5, 3)
    assert first_seq_no(after) == 3


def test_wal3s_repair_of_a_log_whose_data_went_too_early() -> None:
    """Its tool makes garbage with no fragments, which drops snapshots that are lost."""
    tree = Tree(manifest_of(1, 1, 1, 1))
    tree.roll_up(2)
    lost = tree.manifest.snapshots[0]
    repair = Garbage(
        snapshots_to_drop=(lost,),
        start_seq_no=3,
        limit_seq_no=3,
        setsum_to_discard=lost.setsum,
        first_to_keep=3,
    )
    after = apply_garbage(tree.manifest, repair)
    assert after is not None
    assert (after.snapshots, after.oldest_offset, after.initial_seq_no) == ((), 3, 3)
    assert [kind for _, kind in repair.objects()] == ["snapshot"]


def test_the_lowest_number_a_manifest_tells() -> None:
    tree = Tree(manifest_of(1, 1, 1))
    assert first_seq_no(Manifest.initial("w")) == 1
    assert first_seq_no(tree.manifest) == 1
    tree.roll_up(2)
    assert first_seq_no(tree.manifest) == 1
    assert first_seq_no(dataclasses.replace(tree.manifest, initial_seq_no=1)) == 1
    assert snapshot_of(manifest_of(1).fragments).depth == 1


@pytest.mark.parametrize("numbers", [(0, 2**62, 9), (5, 4, 9), (1, 12, 10), (2**62, 2**64 - 1, 2)])
def test_fragments_that_cannot_all_lie_below_what_is_kept_are_refused(
    numbers: tuple[int, int, int],
) -> None:
    start, limit, head = numbers
    document = json.loads(EMPTY) | {
        "fragments_to_drop_start": start,
        "fragments_to_drop_limit": limit,
        "first_to_keep": {"offset": head},
    }
    with pytest.raises(CorruptionError, match="cannot all be below"):
        Garbage.parse(json.dumps(document).encode())


def test_keys_of_fragments_are_text() -> None:
    document = json.loads(FULL) | {"fragment_keys": ["\ud800"]}
    with pytest.raises(CorruptionError, match="fragment_keys"):
        Garbage.parse(json.dumps(document).encode())
