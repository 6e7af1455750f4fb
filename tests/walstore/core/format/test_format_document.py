"""docs/format.md and the code agree on segments, checkpoint and durable cell (frames: test_frame.py)."""

from __future__ import annotations

import re

import pytest

from tests import format_tables
from walstore.core.format import checkpoint, segment

STRUCTS = [
    ("Segment header", segment.HEADER, segment.HEADER_MAGIC),
    ("Segment footer", segment.FOOTER, segment.FOOTER_MAGIC),
    ("Segment seal", segment.SEAL, segment.SEAL_MAGIC),
    ("Checkpoint", checkpoint.PREFIX, checkpoint.MAGIC),
]


@pytest.mark.parametrize(("title", "layout", "magic"), STRUCTS, ids=[row[0] for row in STRUCTS])
def test_the_tables_are_the_structs(title, layout, magic) -> None:
    rows = format_tables.table(title)
    assert format_tables.struct_format(rows) == layout.format
    (text,) = [row["meaning"] for row in rows if row["field"] == "`magic`"]
    written = re.search(r"`([^`]+)`", text)[1].encode().decode("unicode_escape")
    assert written.encode() == magic


def test_the_cell_is_its_struct_and_a_crc() -> None:
    rows = format_tables.table("Durable cell")
    assert format_tables.struct_format(rows) == checkpoint.CELL.format + "I"


def test_the_index_has_these_columns() -> None:
    names = format_tables.field_names(format_tables.table("Segment index"))
    assert names == ["starts", "positions", "timestamps_us"]
    assert 8 * len(names) == segment.SegmentIndex.ENTRY_BYTES
    page = format_tables.PAGE.read_text()
    assert f"at least {segment.INDEX_INTERVAL_BYTES} bytes" in page


def test_the_list_of_streams_has_this_column() -> None:
    (row,) = format_tables.table("Segment streams")
    assert (row["size"], row["type"]) == ("4m", "u32")
    assert segment.SegmentStreams.ENTRY_BYTES == 4
    assert f"more than {segment.MOST_STREAMS} streams" in format_tables.PAGE.read_text()


def test_the_checkpoint_has_these_keys() -> None:
    keys = [row["key"].strip("`") for row in format_tables.table("Checkpoint body")]
    assert sorted(keys) == sorted(field for field in checkpoint.Checkpoint.__slots__)
