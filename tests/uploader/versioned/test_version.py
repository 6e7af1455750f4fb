"""Versions of the merged area: contiguous batches, and their documents."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.versioned.shapes import damaged, merged, merged_key, version_key, version_of
from uploader.format.layout import MAX_U64
from uploader.versioned.version import MergedBatch, Version
from walstore.errors import CorruptionError, FormatVersionError


def parse(document: Any, n: int = 1) -> Version:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Version.parse(data, path=version_key(n))


@given(
    rows=st.lists(st.integers(0, MAX_U64), max_size=5),
    n=st.integers(0, MAX_U64),
    since=st.integers(0, MAX_U64),
)
def test_a_version_is_read_back(rows: list[int], n: int, since: int) -> None:
    version = dataclasses.replace(
        version_of(*rows, n=n, since=since), parent=version_key(4), created_us=8
    )
    assert parse(version.serialise(), n) == version
    assert version.rows == sum(rows)
    assert version.upper == 10 * len(rows)


def test_a_batch_belongs_to_the_layer_of_its_rows() -> None:
    layers = [merged(0, 1, rows).layer for rows in (0, 1, 2, 3, 4, 5, 8, 9, 1 << 40)]
    assert layers == [0, 0, 1, 2, 2, 3, 3, 4, 40]


@pytest.mark.parametrize(
    "changes",
    [
        {"lower": 10},
        {"lower": 11},
        {"upper": MAX_U64 + 1},
        {"rows": 0},
        {"keys": ()},
        {"keys": ("head",)},
    ],
)
def test_what_no_batch_can_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        dataclasses.replace(merged(0, 10), **changes)


@pytest.mark.parametrize(
    "batches",
    [
        (merged(1, 10),),
        (merged(0, 10), merged(11, 20)),
        (merged(0, 10), merged(9, 20)),
        (merged(10, 20), merged(0, 10)),
        (merged(0, 10, since=6),),
    ],
)
def test_batches_are_contiguous_and_not_ahead_of_their_version(
    batches: tuple[MergedBatch, ...],
) -> None:
    with pytest.raises(ValueError, match="batch"):
        Version(batches=batches, since=5)


def test_the_parent_is_a_version() -> None:
    with pytest.raises(ValueError, match="key of a version"):
        Version(parent="head")


def test_a_run_is_found_only_if_it_is_exactly_there() -> None:
    version = version_of(8, 4, 2)
    one, two, three = version.batches
    places = [version.position_of(run) for run in ([one], [two, three], [one, two, three], [])]
    assert places == [0, 1, 0, 3]
    wrong = ([one, three], [two, one], [three, merged(30, 40)], [merged(0, 10, 9)])
    assert [version.position_of(run) for run in wrong] == [None] * 4


def test_batches_before_a_time_and_their_objects() -> None:
    version = version_of(8, 4, 0)
    assert [version.before(limit) for limit in (0, 1, 10, 11)] == [
        [],
        [version.batches[0]],
        [version.batches[0]],
        list(version.batches[:2]),
    ]
    assert list(version.object_keys()) == [merged_key(0), merged_key(10)]


def test_a_forged_version_is_corruption_or_another_version() -> None:
    for forged in damaged(json.loads(version_of(2, 1).serialise())):
        try:
            found = parse(forged)
        except (CorruptionError, FormatVersionError):
            continue
        numbers = (found.n, found.since, found.created_us, found.upper, found.rows)
        assert all(type(number) is int and 0 <= number <= 2 * MAX_U64 for number in numbers)
        assert parse(found.serialise()) == found


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 9000, b'{"n":1' + b"0" * 5000])
def test_what_is_no_document_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse(data)


def test_the_document_of_another_version_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="document of version 1"):
        parse(version_of(1).serialise(), n=2)


def test_a_newer_format_is_said() -> None:
    document = {**json.loads(version_of(1).serialise()), "format": 2, "batches": "something new"}
    with pytest.raises(FormatVersionError):
        parse(document)
