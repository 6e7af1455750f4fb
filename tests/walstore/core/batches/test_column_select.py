"""Picking rows of columns gives what decoding all of them gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore.core.batches import column_select
from walstore.core.format import frame
from walstore.core.format.frame import ColumnKind

CHOICES = st.lists(st.booleans(), max_size=60)


def rows_where(chosen: list[bool]) -> list[int]:
    return [row for row, wanted in enumerate(chosen) if wanted]


def test_rows_of_a_value_in_every_encoding() -> None:
    for count in (1, 7, 100, 2000):
        for names in (1, 3, 200, 300, 70_000):
            with case(count, names):
                values = [row * row % names for row in range(count)]
                column = frame.uint_column(ColumnKind.STREAM_IDS, values)
                data = memoryview(b"".join(column.pieces))
                for wanted in {*values[:20], 0, 1, 256, 65_536, 1 << 20}:
                    found = column_select.rows_of(wanted, data, column.encoding, count)
                    assert list(found) == [
                        row for row, value in enumerate(values) if value == wanted
                    ]


@given(st.lists(st.integers(0, 600), min_size=1, max_size=300), st.data())
def test_rows_of_any_value(values: list[int], data: st.DataObject) -> None:
    column = frame.uint_column(ColumnKind.STREAM_IDS, values)
    wanted = data.draw(st.sampled_from(values) | st.integers(0, 1000))
    packed = memoryview(b"".join(column.pieces))
    found = column_select.rows_of(wanted, packed, column.encoding, len(values))
    assert list(found) == [row for row, value in enumerate(values) if value == wanted]


def test_all_and_none_are_ranges() -> None:
    column = frame.uint_column(ColumnKind.STREAM_IDS, [2] * 50)
    data = memoryview(b"".join(column.pieces))
    assert column_select.rows_of(2, data, column.encoding, 50) == range(50)
    assert column_select.rows_of(1, data, column.encoding, 50) == range(0)


@given(st.lists(st.binary(max_size=9), max_size=60), CHOICES)
def test_picked_items_are_those_of_the_rows(items: list[bytes], chosen: list[bool]) -> None:
    rows = rows_where(chosen[: len(items)])
    blob = memoryview(b"".join(items))
    lengths = [len(item) for item in items]
    assert column_select.pick_blobs(blob, lengths, rows) == [items[row] for row in rows]


@given(st.lists(st.none() | st.binary(max_size=5), max_size=60), CHOICES)
def test_picked_optional_items_are_those_of_the_rows(items, chosen: list[bool]) -> None:
    rows = rows_where(chosen[: len(items)])
    blob = memoryview(b"".join(item for item in items if item))
    sizes = [0 if item is None else len(item) + 1 for item in items]
    assert column_select.pick_optional_blobs(blob, sizes, rows) == [items[row] for row in rows]


def test_items_of_one_size() -> None:
    for count in (0, 1, 15, 16, 31, 32, 33, 47, 48, 500):
        for size in (1, 7, 100):
            with case(count, size):
                items = [bytes([row % 251]) * size for row in range(count)]
                blob = memoryview(b"".join(items))
                assert column_select.split_even(blob, size) == items
                rows = range(0, count, 3)
                assert column_select.pick_even_blobs(blob, size, rows) == [
                    items[row] for row in rows
                ]


def test_picking_all_of_a_column_is_the_column() -> None:
    column = list(range(10))
    assert column_select.pick(column, range(10)) is column
    assert column_select.pick(column, range(2, 5)) == [2, 3, 4]
    assert column_select.pick(column, [1, 9]) == [1, 9]
