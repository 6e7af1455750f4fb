"""Fragments of ours and of wal3 stay readable, by us and by the library that wal3 uses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.golden.regenerate_fragments import DIRECTORY, FILES, MANY_STREAMS, TIME_US, describe
from tests.uploader.parquet import read_by_arrow_rs
from uploader.format.layout import fragment_path
from uploader.fragments.fragment import inspect_fragment, verify_fragment
from uploader.fragments.fragment_file import fragment_time_bounds, fragment_timestamp, read_footer

PATHS = sorted(DIRECTORY.glob("*.parquet"))


def test_the_files_are_there() -> None:
    assert {path.stem for path in PATHS} == set(FILES)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_golden_fragment_reads_as_it_always_did(path: Path) -> None:
    data, expected = path.read_bytes(), json.loads(path.with_suffix(".json").read_text())
    entry = inspect_fragment(data, fragment_path(1))
    assert (entry.start, entry.limit) == (expected["start"], expected["limit"])
    assert entry.setsum.hexdigest() == expected["setsum"]
    found = verify_fragment(data, entry)
    assert describe(path.stem, found.records()) == expected
    assert fragment_timestamp(data) == expected["timestamp_us"]
    assert list(fragment_time_bounds(data)) == expected["times_us"]
    streams = read_footer(data).streams
    assert all(map(streams.may_hold, expected["streams"]))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_arrow_rs_finds_exactly_the_types_that_wal3_asks_for(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    table = read_by_arrow_rs(path.read_bytes())
    types = {name: table.schema.field(name).type for name in ("offset", "timestamp_us", "body")}
    assert types == {"offset": pa.uint64(), "timestamp_us": pa.uint64(), "body": pa.binary()}
    assert not any(table.schema.field(name).nullable for name in types)
    assert table.column("offset").to_pylist() == list(range(expected["start"], expected["limit"]))
    assert set(table.column("timestamp_us").to_pylist()) == {TIME_US}
    assert table.column("body").null_count == 0


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_is_new_in_files_of_today_is_still_read_by_arrow_rs(path: Path) -> None:
    """The same records written now: the golden file and this one give arrow-rs the same table."""
    data, _ = FILES[path.stem]()
    again, golden = read_by_arrow_rs(data), read_by_arrow_rs(path.read_bytes())
    assert again.equals(golden)
    assert again.schema.equals(golden.schema)


def test_what_the_footers_say_of_streams() -> None:
    def streams(name: str):
        return read_footer((DIRECTORY / f"{name}.parquet").read_bytes()).streams

    assert streams("ours").names == {"eu", "us"}
    assert not streams("ours-no-streams").is_known
    assert streams("ours-long").names == set()
    assert streams("wal3-records").names == set()
    many = streams("ours-many-streams")
    assert many.names is None
    others = [f"other-{at}" for at in range(1000)]
    assert sum(map(many.may_hold, others)) < 30
    assert all(many.may_hold(record.stream or "") for record in MANY_STREAMS)


def test_how_wal3_stores_it() -> None:
    """So that these files go on being what they are here for."""
    group = pq.read_metadata(DIRECTORY / "wal3-repeated.parquet").row_group(0)
    body = group.column(2)
    assert (body.path_in_schema, body.compression) == ("body", "SNAPPY")
    assert body.has_dictionary_page
    assert body.statistics is not None
    assert pq.read_metadata(DIRECTORY / "wal3-records.parquet").created_by.startswith("parquet-rs")
