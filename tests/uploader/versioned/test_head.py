"""Documents of heads: read back as they were, and refused in any other shape."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.versioned.shapes import damaged, full_head, head_of, schema_of, version_key
from uploader.format.layout import MAX_U64
from uploader.versioned.head import (
    MOST_HEAD_BYTES,
    MOST_INLINE_BYTES,
    Consumed,
    Head,
    ReaderHold,
    parse_head,
)
from walstore.errors import CorruptionError, FormatVersionError

U64 = st.integers(0, MAX_U64)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
HOLDS = st.builds(
    ReaderHold, handle=TEXTS, frontier=U64, version=st.none() | U64, expires_us=st.none() | U64,
    token=TEXTS,
)  # fmt: skip
CONSUMED = st.builds(Consumed, writer=NAMES, lower=U64, upper=U64, digest=U64)
EMPTY = head_of()
HEADS = st.builds(
    Head, collection=TEXTS, schema=st.sampled_from([schema_of("diff"), schema_of("upsert")]),
    serial=U64, commits=st.lists(TEXTS, max_size=3).map(tuple), epoch=U64, holder=st.none() | TEXTS,
    holder_expires_us=U64, since=U64, gc_floor=U64, purged=U64, purging=U64,
    readers=st.dictionaries(NAMES, HOLDS, max_size=3),
    consumed=st.lists(CONSUMED, max_size=3).map(tuple), is_deleted=st.booleans(),
)  # fmt: skip


def parse(document: Any) -> Head:
    return parse_head(json.dumps(document).encode())


def document(head: Head) -> Any:
    return json.loads(head.serialise())


@pytest.mark.slow
@given(head=HEADS, rows=st.lists(st.integers(0, 9), max_size=3))
def test_a_head_is_read_back(head: Head, rows: list[int]) -> None:
    like = head_of(*rows)
    head = dataclasses.replace(head, version=like.version, version_key=like.version_key)
    assert parse_head(head.serialise()) == head


def test_a_long_version_is_left_out() -> None:
    head = head_of(*range(300, 0, -1))
    data = head.serialise()
    assert len(head.version.serialise()) > MOST_INLINE_BYTES > len(data)
    found = parse_head(data)
    assert found.lacks_version
    assert found.version_key == version_key(1)
    assert dataclasses.replace(found, version=head.version) == head


def test_what_a_head_holds() -> None:
    head = full_head()
    assert (head.upper, head.oldest_held_version) == (20, 1)
    assert head_of().oldest_held_version == 0


def test_a_forged_head_is_corruption_or_another_head() -> None:
    for forged in damaged(document(full_head())):
        try:
            found = parse(forged)
        except (CorruptionError, FormatVersionError):
            continue
        _check_values(found)
        if not found.lacks_version:
            assert parse_head(found.serialise()) == found


def _check_values(head: Head) -> None:
    numbers: list[Any] = [head.serial, head.epoch, head.since, head.gc_floor, head.purged]
    for hold in head.readers.values():
        numbers += [hold.frontier, hold.version or 0, hold.expires_us or 0]
    for item in head.consumed:
        numbers += [item.lower, item.upper, item.digest]
    assert all(type(number) is int and 0 <= number <= MAX_U64 for number in numbers)


@pytest.mark.parametrize(
    "row",
    [
        ["w", True, 5, 1], ["w", 0, True, 1], ["w", 0, 5, False], ["w", -1, 5, 1],
        ["w", 0, 1 << 64, 1], ["w", 0, 5, -1], ["w", 0, 5], ["w", 0, 5, 1, 1], [1, 0, 5, 1], None,
        ["\ud800", 0, 5, 1], ["w", 0.0, 5, 1], {"writer": "w"},
    ],
)  # fmt: skip
def test_a_consumed_batch_has_a_writer_and_three_numbers(row: Any) -> None:
    with pytest.raises(CorruptionError):
        parse({**document(full_head()), "consumed": [row]})


@pytest.mark.parametrize(
    "changes",
    [
        {"version_key": None},
        {"version_key": version_key(2)},
        {"version_key": "head"},
        {"version_key": None, "version": None},
        {"consumed": None},
        {"readers": {"not a name": document(full_head())["readers"]["leased"]}},
    ],
)
def test_fields_that_contradict_each_other_are_corruption(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        parse({**document(full_head()), **changes})


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{}", b"\xff", b"{" * 5000, b"[" * 900, b" " * (MOST_HEAD_BYTES + 1)],
)
def test_what_is_no_document_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse_head(data)


@pytest.mark.parametrize("length", range(0, len(EMPTY.serialise()), 13))
def test_a_cut_head_is_corruption(length: int) -> None:
    with pytest.raises(CorruptionError):
        parse_head(EMPTY.serialise()[:length])


def test_unknown_fields_are_tolerated() -> None:
    assert parse({**document(EMPTY), "new": [1]}) == EMPTY


def test_a_newer_format_is_said_whatever_else_it_has() -> None:
    with pytest.raises(FormatVersionError):
        parse({"format": 2, "schema": "something new"})
