"""Names: newest first, and all that a manifest needs."""

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
