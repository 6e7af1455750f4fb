"""Entries of manifests and snapshots: bounds and keys. Their JSON is tested with the documents."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.wal3.regenerate import DIRECTORY
from tests.uploader.documents import SIZES, fragment, fragments, manifest_of, rolled_up, snapshot_of
from uploader.format import layout
from uploader.format.entries import Fragment, Snapshot
from uploader.format.layout import MAX_U64
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError


def test_a_numbered_fragment_has_the_key_of_its_number() -> None:
    entry = Fragment.numbered(0x1234, start=1, limit=2, num_bytes=3, setsum=Setsum())
    assert entry.path == "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001234.parquet"


@pytest.mark.parametrize("field", ["seq_no", "start", "limit", "num_bytes"])
def test_numbers_of_fragments_fit_64_bits(field: str) -> None:
    assert getattr(dataclasses.replace(fragment(1, 1, 2), **{field: MAX_U64}), field) == MAX_U64
    for number in (-1, MAX_U64 + 1):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(fragment(1, 1, 2), **{field: number})


@pytest.mark.parametrize("field", ["start", "limit", "num_bytes"])
def test_numbers_of_pointers_fit_64_bits(field: str) -> None:
    pointer = snapshot_of(fragments(1)).pointer()
    for number in (-1, MAX_U64 + 1):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(pointer, **{field: number})


GOLDEN = (DIRECTORY / "snapshot-two-fragments.json").read_bytes()
LEAVES = fragments(10, 20, 30, 40)
LOW, HIGH = snapshot_of(LEAVES[:2]), snapshot_of(LEAVES[2:])
UPPER = snapshot_of([LOW.pointer(), HIGH.pointer()])


def changed(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return dataclasses.replace(snapshot, **changes)


def resummed(snapshot: Snapshot, **changes: Any) -> Snapshot:
    """Return the snapshot with changes, its setsum and key made to fit them."""
    found = changed(snapshot, **changes)
    setsum = Setsum.total(child.setsum for child in (*found.snapshots, *found.fragments))
    return changed(found, setsum=setsum, path=layout.snapshot_path(setsum))


def test_the_golden_snapshot_is_read_and_written_byte_for_byte() -> None:
    manifest = Manifest.parse((DIRECTORY / "manifest-with-snapshot.json").read_bytes())
    pointer = manifest.snapshots[0]
    snapshot = Snapshot.parse(GOLDEN, path=pointer.path_to_snapshot)
    snapshot.scrub(expected=pointer)
    assert snapshot.pointer() == pointer
    assert snapshot.serialise() == GOLDEN


def test_the_key_is_the_published_setsum() -> None:
    snapshot = Snapshot.parse(GOLDEN, path="snapshot/x")
    assert snapshot.setsum.hexdigest() == (
        "f3a0b9a55a6df8228cc533a227f04cca0a016f8c573a8f30dea88ff084bd0e68"
    )


def test_sound_trees_pass() -> None:
    for snapshot in (LOW, HIGH, UPPER):
        snapshot.scrub()
    UPPER.scrub(expected=UPPER.pointer())
    assert (UPPER.depth, UPPER.pointer().start, UPPER.pointer().limit) == (2, 1, 101)
    assert UPPER.pointer().num_bytes == 400
    # A shallower snapshot may stand beside a deeper one.
    snapshot_of([UPPER.pointer(), snapshot_of(fragments(5, seq_no=5, start=101)).pointer()]).scrub()


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (changed(LOW, snapshots=(HIGH.pointer(),)), "either snapshots or fragments"),
        (resummed(LOW, fragments=()), "either snapshots or fragments"),
        (changed(LOW, depth=0), "depth 0 stands above"),
        (changed(UPPER, depth=1), "depth 1 stands above one of depth 1"),
        (changed(LOW, setsum=Setsum()), "do not add up"),
        (changed(LOW, fragments=LOW.fragments[:1]), "do not add up"),
        (changed(LOW, path=HIGH.path), "key is not its setsum"),
        (changed(LOW, path="snapshot/SNAPSHOT.00"), "key is not its setsum"),
        (resummed(LOW, fragments=(LEAVES[0], LEAVES[2])), "missing or named twice"),
        (resummed(LOW, fragments=(LEAVES[0], fragment(3, 11, 31))), "stands where 2 belongs"),
        (resummed(LOW, fragments=(fragment(1, 1, 1),)), "holds no record"),
        (resummed(UPPER, snapshots=UPPER.snapshots[::-1]), "missing or named twice"),
    ],
)
def test_every_broken_invariant_is_found(snapshot: Snapshot, message: str) -> None:
    with pytest.raises(CorruptionError, match=message) as caught:
        snapshot.scrub()
    assert caught.value.path == snapshot.path


@pytest.mark.parametrize(
    "changes", [{"depth": 2}, {"start": 2}, {"limit": 30}, {"num_bytes": 1}, {"setsum": Setsum()}]
)
def test_a_snapshot_is_what_is_said_of_it(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError, match="not what is said of it"):
        LOW.scrub(expected=dataclasses.replace(LOW.pointer(), **changes))


def test_nothing_points_at_a_snapshot_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        changed(LOW, fragments=()).pointer()


@pytest.mark.parametrize("depth", [-1, 256])
def test_the_depth_fits_a_byte(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        changed(LOW, depth=depth)
    with pytest.raises(ValueError, match="depth"):
        dataclasses.replace(LOW.pointer(), depth=depth)
    document = json.loads(GOLDEN) | {"depth": depth}
    with pytest.raises(CorruptionError, match="'depth'"):
        Snapshot.parse(json.dumps(document).encode(), path="p")


@pytest.mark.parametrize("field", ["path", "depth", "setsum", "writer", "snapshots", "fragments"])
def test_a_missing_field_is_corruption(field: str) -> None:
    document = json.loads(GOLDEN)
    del document[field]
    with pytest.raises(CorruptionError, match=f"'{field}' is missing") as caught:
        Snapshot.parse(json.dumps(document).encode(), path="snapshot/x")
    assert caught.value.path == "snapshot/x"


@given(SIZES.filter(lambda sizes: len(sizes) > 1), st.data())
def test_rolling_up_keeps_the_log(sizes: list[int], data: st.DataObject) -> None:
    manifest = manifest_of(*sizes)
    count = data.draw(st.integers(1, len(sizes) - 1))
    smaller, snapshot = rolled_up(manifest, count)
    smaller.scrub()
    read = Snapshot.parse(snapshot.serialise(), path=snapshot.path)
    read.scrub(expected=smaller.snapshots[0])
    assert read == snapshot
    assert (*read.fragments, *smaller.fragments) == manifest.fragments
    manifest.scrub_successor(smaller)
    assert smaller.next_offset == manifest.next_offset


def test_fragments_longer_than_any_number_are_corruption() -> None:
    """Their lengths fit one by one; what points at them could not state the sum."""
    low, high = fragments(2, 3)
    long = [dataclasses.replace(one, num_bytes=2**63) for one in (low, high)]
    snapshot = snapshot_of(long)
    with pytest.raises(CorruptionError, match="claims 18446744073709551616 bytes"):
        Snapshot.parse(snapshot.serialise(), path=snapshot.path).scrub()
