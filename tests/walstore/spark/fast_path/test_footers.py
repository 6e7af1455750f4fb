"""What footers say, and which of it stops a read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.uploader.parquet import by_pyarrow, wal3_table
from tests.walstore.spark.fast_path.building import ours, records, wal3
from uploader.format.layout import fragment_path
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_file import read_footer
from walstore.errors import CorruptionError, FormatVersionError
from walstore.spark import FastPathError
from walstore.spark.fast_path.footers import FragmentKind, kind_of


def kind(data: bytes, **footer: Any) -> FragmentKind:
    entry = inspect_fragment(data, fragment_path(1))
    return kind_of(replace(read_footer(data), **footer), entry)


def test_both_kinds():
    found = records(7, 20, 1)
    assert kind(ours(found)) is FragmentKind.OURS
    assert kind(wal3(found)) is FragmentKind.WAL3


def test_without_statistics_offsets_are_not_compared():
    data = by_pyarrow(wal3_table(7, 1, [b"a", b"b"]), write_statistics=False)
    assert read_footer(data).offsets is None
    assert kind(data) is FragmentKind.WAL3


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        ({"rows": 19}, "number of records: 19, but the manifest says 20"),
        ({"offsets": (8, 27)}, r"offsets: \(8, 27\), but the manifest says \(7, 26\)"),
        ({"columns": frozenset({"offset", "timestamp_us", "body"})}, "lacks the column 'headers'"),
    ],
)
def test_not_the_fragment_that_is_meant(footer, message):
    with pytest.raises(CorruptionError, match=message):
        kind(ours(records(7, 20, 1)), **footer)


def test_a_column_of_wal3_is_missing():
    with pytest.raises(CorruptionError, match="lacks the column 'body'"):
        kind(wal3(records(7, 20, 1)), columns=frozenset({"offset", "timestamp_us"}))


def test_a_newer_version():
    with pytest.raises(FormatVersionError, match="a fragment of a newer version"):
        kind(ours(records(7, 20, 1)), version=b"2")


def test_somebody_elses_columns_are_left_to_python():
    table = wal3_table(7, 1, [b"a", b"b"]).append_column("key", pa.array([1, 2]))
    with pytest.raises(FastPathError, match="written by another program and has a column 'key'"):
        kind(by_pyarrow(table))
