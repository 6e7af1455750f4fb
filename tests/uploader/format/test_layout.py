"""Keys of objects: exactly wal3's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.documents import SETSUMS, U64
from uploader.format import layout
from uploader.format.layout import (
    MAX_U64,
    MOST_SHARDS,
    FragmentName,
    last_before,
    manifest_key,
    parse_manifest_key,
    shard_folder,
)
from uploader.format.setsum import Setsum
from uploader.stores.port import check_key
from walstore.errors import InvalidSettingsError


@pytest.mark.parametrize(
    ("seq_no", "expected"),
    [
        (0, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000000.parquet"),
        (1, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"),
        (4095, "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000fff.parquet"),
        (4096, "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001000.parquet"),
        (0x1234, "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001234.parquet"),
        (layout.MAX_U64, "log/Bucket=fffffffffffff000/FragmentSeqNo=ffffffffffffffff.parquet"),
    ],
)
def test_fragment_keys(seq_no: int, expected: str) -> None:
    assert layout.fragment_path(seq_no) == expected
    assert layout.parse_fragment_path(expected) == seq_no


@given(U64, U64)
def test_fragment_keys_sort_like_their_numbers(left: int, right: int) -> None:
    keys = layout.fragment_path(left), layout.fragment_path(right)
    assert (keys[0] < keys[1]) == (left < right)
    assert layout.parse_fragment_path(keys[0]) == left


@pytest.mark.parametrize("seq_no", [-1, 1 << 64])
def test_a_fragment_number_is_a_u64(seq_no: int) -> None:
    with pytest.raises(ValueError, match="between 0"):
        layout.fragment_path(seq_no)


@pytest.mark.parametrize(
    ("path", "seq_no"),
    [
        ("some/prefix/log/Bucket=0/FragmentSeqNo=0000000000000001.parquet", 1),
        ("FragmentSeqNo=ff.parquet", 255),
        ("FragmentSeqNo=FF.parquet", 255),
        ("elsewhere/FragmentSeqNo=00000000000000000000002a.parquet", 42),
    ],
)
def test_only_the_last_part_of_a_fragment_key_counts(path: str, seq_no: int) -> None:
    assert layout.parse_fragment_path(path) == seq_no


@pytest.mark.parametrize(
    "path",
    [
        "",
        "log/Bucket=0000000000000000/",
        "log/Bucket=0000000000000000/FragmentSeqNo=.parquet",
        "log/Bucket=0000000000000000/FragmentSeqNo=0x1.parquet",
        "log/Bucket=0000000000000000/FragmentSeqNo=1.parquet.tmp",
        "log/Bucket=0000000000000000/FragmentSeqNo=-1.parquet",
        "log/Bucket=0000000000000000/FragmentSeqNo=1_0.parquet",
        "log/Bucket=0000000000000000/FragmentSeqNo=10000000000000000.parquet",
        "log/Bucket=0000000000000000/FragmentSeqNo=1.parquet\n",
        "log/Uuid=0198a3b2-0000-7000-8000-000000000000.parquet",
        "FragmentSeqNo=1.parquet/",
    ],
)
def test_other_keys_are_no_fragments(path: str) -> None:
    with pytest.raises(ValueError, match="not the key of a fragment"):
        layout.parse_fragment_path(path)


def test_fixed_keys() -> None:
    assert layout.MANIFEST == "manifest/MANIFEST"
    assert layout.GARBAGE == "gc/GARBAGE"
    assert (layout.FIRST_OFFSET, layout.FIRST_SEQ_NO, layout.BUCKET_FRAGMENTS) == (1, 1, 4096)


def test_snapshot_keys() -> None:
    setsum = Setsum.of_items([b""])
    key = "snapshot/SNAPSHOT.a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
    assert layout.snapshot_path(setsum) == key
    assert layout.parse_snapshot_path(key) == setsum


@pytest.mark.parametrize(
    "path", ["", "snapshot/", "snapshot/SNAPSHOT.", "snapshot/SNAPSHOT.00", "SNAPSHOT." + "00" * 32]
)
def test_other_keys_are_no_snapshots(path: str) -> None:
    with pytest.raises(ValueError, match=r"snapshot|setsum"):
        layout.parse_snapshot_path(path)


def test_cursor_keys() -> None:
    assert layout.cursor_path("stable_prefix") == "cursor/stable_prefix.json"
    assert layout.parse_cursor_path("cursor/stable_prefix.json") == "stable_prefix"


@pytest.mark.parametrize("name", ["", "a b", "a-b", "a.b", "../up", "a/b", "ä", "a\n", "٣"])
def test_a_bad_cursor_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettingsError, match="cursor's name"):
        layout.cursor_path(name)


@pytest.mark.parametrize(
    "path",
    ["", "cursor/", "cursor/.json", "cursor/a", "cursor/a.json.json", "a.json", "cursor/a-b.json"],
)
def test_other_keys_are_no_cursors(path: str) -> None:
    with pytest.raises(ValueError, match="not the key of a cursor"):
        layout.parse_cursor_path(path)


def test_examples() -> None:
    assert manifest_key(0) == "manifest/MANIFEST.ffffffffffffffff"
    assert manifest_key(MAX_U64) == "manifest/MANIFEST.0000000000000000"
    name = FragmentName(26, 301, 412, Setsum())
    zeroes = "0" * 64
    assert name.key(shards=12) == f"shard0002/000000000000001a_301_412_{zeroes}.parquet"
    assert name.key(shards=1) == f"shard0001/000000000000001a_301_412_{zeroes}.parquet"


@given(U64, U64)
def test_listings_name_the_newest_first(one: int, other: int) -> None:
    assert parse_manifest_key(manifest_key(one)) == one
    assert (manifest_key(one) < manifest_key(other)) == (one > other)
    assert manifest_key(one) > layout.MANIFEST


@given(
    st.integers(0, MAX_U64),
    st.integers(0, MAX_U64 - 1),
    st.integers(1, 1000),
    SETSUMS,
    st.integers(1, MOST_SHARDS),
)
def test_a_fragment_says_what_it_holds(
    seq_no: int, start: int, count: int, setsum: Setsum, shards: int
) -> None:
    name = FragmentName(seq_no, start, min(start + count, MAX_U64), setsum)
    key = check_key(name.key(shards=shards))
    assert FragmentName.parse(key) == name
    assert layout.parse_fragment_path(key) == seq_no
    shard = int(key[5:9])
    assert 1 <= shard <= shards
    assert key > last_before(shard, seq_no)
    assert seq_no == MAX_U64 or key < last_before(shard, seq_no + 1)


@given(U64, st.integers(1, MOST_SHARDS))
def test_neighbours_lie_in_different_shards(seq_no: int, shards: int) -> None:
    numbers = [n for n in range(seq_no, seq_no + shards) if n <= MAX_U64]
    folders = {FragmentName(n, 1, 2, Setsum()).key(shards=shards)[:10] for n in numbers}
    assert len(folders) == len(numbers)


GOOD = FragmentName(26, 301, 412, Setsum()).key(shards=1)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "manifest/MANIFEST",
        "manifest/MANIFEST.",
        "manifest/MANIFEST.fff",
        "manifest/MANIFEST.FFFFFFFFFFFFFFFF",
        "manifest/MANIFEST.ffffffffffffffff.json",
        "MANIFEST.ffffffffffffffff",
        layout.fragment_path(1),
    ],
)
def test_what_is_no_manifest_of_a_chain(key: str) -> None:
    with pytest.raises(ValueError, match="not the key"):
        parse_manifest_key(key)


@pytest.mark.parametrize(
    "key",
    [
        layout.fragment_path(1),
        GOOD.replace("shard0001", "shard0000"),
        GOOD.replace("shard0001", "shard0013"),
        GOOD.replace("_301", "_0301"),
        GOOD.replace("_412", "_301"),
        GOOD.replace("1a", "1A"),
        GOOD.replace(".parquet", ".log"),
        GOOD.replace("_412", f"_{1 << 64}"),
        GOOD.replace("0" * 64, "f" * 64),
    ],
)
def test_what_is_no_fragment_in_a_shard(key: str) -> None:
    with pytest.raises(ValueError):
        FragmentName.parse(key)


def test_numbers_out_of_range() -> None:
    for call in (
        lambda: manifest_key(-1),
        lambda: manifest_key(1 << 64),
        lambda: shard_folder(0),
        lambda: shard_folder(13),
        lambda: FragmentName(1 << 64, 1, 2, Setsum()).key(shards=1),
    ):
        with pytest.raises(ValueError):
            call()
