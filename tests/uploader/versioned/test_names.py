"""Keys of a collection's objects, and the names in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.format.layout import MAX_U64
from uploader.versioned import names
from walstore.errors import InvalidSettingsError

U64 = st.integers(0, MAX_U64)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@pytest.mark.slow
@given(number=U64, writer=NAMES)
def test_each_key_is_read_back_as_what_it_is_and_as_nothing_else(number: int, writer: str) -> None:
    version, merged = names.version_key(number), names.merged_key(number)
    pending = names.pending_key(writer, number)
    assert names.parse_version_key(version) == number
    assert names.parse_merged_key(merged) == number
    assert names.parse_pending_key(pending) == (writer, number)
    assert names.check_name(writer, "writer") == writer
    for key in (version, merged, pending):
        parsers = (names.parse_version_key, names.parse_merged_key, names.parse_pending_key)
        assert sum(parse(key) is not None for parse in parsers) == 1
        assert names.is_collection_key(key)


@given(one=U64, other=U64)
def test_keys_are_in_the_order_of_their_numbers(one: int, other: int) -> None:
    keys = [names.pending_key("w", number) for number in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


def test_keys_of_versions_and_merged_batches_are_never_used_twice() -> None:
    assert names.version_key(1) != names.version_key(1)
    assert names.merged_key(1) != names.merged_key(1)
    assert len(names.new_id()) == 32


@pytest.mark.parametrize(
    "key",
    [
        names.HEAD,
        "",
        "pending/w/00.parquet",
        "pending/w/000000000000000A.parquet",
        "pending/a/b/0000000000000001.parquet",
        "pending//0000000000000001.parquet",
        "pending/w/0000000000000001.parquet\n",
        f"versions/{1:016x}-{1:031x}.json",
        f"merged/{1:016x}/{1:033x}.parquet",
        f"x/merged/{1:016x}/{1:032x}.parquet",
        f"merged/{1 << 64:016x}/{1:032x}.parquet",
    ],
)
def test_any_other_key_is_none_of_them(key: str) -> None:
    assert not names.is_collection_key(key)


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "a b", "ä", "a\n", ".."])
def test_a_name_that_no_key_may_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettingsError, match="the name of a reader"):
        names.check_name(name, "the name of a reader")


@pytest.mark.parametrize("name", [None, 1, b"w"])
def test_a_name_is_text(name: object) -> None:
    with pytest.raises(TypeError, match="writer"):
        names.check_name(name, "writer")


@pytest.mark.parametrize("lower", [-1, MAX_U64 + 1])
def test_a_frontier_has_64_bits(lower: int) -> None:
    with pytest.raises(InvalidSettingsError):
        names.pending_key("w", lower)
