"""Frames: the bytes are those of docs/format.md, and no damage goes unseen."""

from __future__ import annotations

import struct
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests import format_tables
from tests.frames import build, columns_of, header_of, record_lists, values_only
from walstore.care.repair.rebuild import FILLER_KIND
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.format import frame
from walstore.core.format.frame import Column, ColumnKind, FrameHeader
from walstore.core.format.ledger import Marks
from walstore.records import Record

RICH = [
    Record(5, b"first", b"key", "eu", {"h": b"1"}, 1_000_000),
    Record(6, b"", None, None, {}, 1_000_007),
    Record(7, b"third value", b"", "us", {"h": b"2", "i": b""}, 1_000_500),
]


# -- the code against the document ----------------------------------------------------------------


def test_the_header_is_as_documented() -> None:
    rows = format_tables.table("Frame header")
    assert frame.HEADER.format == format_tables.struct_format(rows)
    names = format_tables.field_names(rows)
    assert names[0] == "magic"
    assert names[1:] == [name for name in FrameHeader.__dataclass_fields__ if name != "position"]
    number, text = format_tables.magic(rows)
    assert number == frame.FRAME_MAGIC
    assert struct.pack("<I", number) == text
    assert frame.HEADER_BYTES == 80
    assert int(rows[names.index("length")]["at"]) == frame.CRC_FROM


def test_the_directory_and_trailer_are_as_documented() -> None:
    directory = format_tables.table("Column directory")
    assert frame.DIRECTORY_ENTRY.format == format_tables.struct_format(directory)
    trailer = format_tables.table("Frame trailer")
    assert frame.TRAILER.format == format_tables.struct_format(trailer)
    number, text = format_tables.magic(trailer)
    assert number == frame.TRAILER_MAGIC
    assert struct.pack("<I", number) == text


def test_the_kinds_are_as_documented() -> None:
    *rows, filler = format_tables.table("Column kinds")
    assert {row["name"].strip("`"): int(row["kind"]) for row in rows} == {
        kind.name: kind.value for kind in ColumnKind
    }
    assert int(filler["kind"]) == FILLER_KIND >= frame.IGNORABLE_KINDS_FROM
    plain = {
        ColumnKind.STREAM_NAMES,
        ColumnKind.KEYS,
        ColumnKind.HEADERS,
        ColumnKind.MARKS,
        ColumnKind.VALUES,
    }
    assert {ColumnKind(int(row["kind"])) for row in rows if row["encoding"] == "bytes"} == plain


def test_the_encodings_are_as_documented() -> None:
    rows = {int(row["encoding"]): row["name"] for row in format_tables.table("Column encodings")}
    assert rows == {
        frame.CONSTANT: "constant",
        1: "u8",
        2: "u16",
        4: "u32",
        8: "u64",
        frame.BLOB: "bytes",
    }
    for width in (1, 2, 4, 8):
        column = frame.uint_column(ColumnKind.VALUE_LENGTHS, [0, (1 << (8 * width)) - 1])
        assert (column.encoding, column.size_bytes) == (width, 2 * width)


def test_the_checksum_is_the_documented_one() -> None:
    text = format_tables.PAGE.read_text(encoding="utf-8")
    assert f"`0x{crc32c(b'123456789'):X}`" in text
    assert f"{frame.MAX_FRAME_BYTES:,}".replace(",", " ") in text


def test_a_frame_byte_by_byte() -> None:
    """One small frame against bytes put together by hand."""
    length = 80 + 2 * 8 + 2 + 4 + 2 + 8
    body = struct.pack("<IIQIHBBQQQQIIII", length, 9, 7, 2, 2, 1, 0, 50, 50, 3, 6, 0, 6, 6, 0)
    body += bytes([1, 1, 0, 0, 2, 0, 0, 0]) + bytes([15, 255, 0, 0, 4, 0, 0, 0])
    body += bytes([1, 3]) + b"abcd" + bytes(2)
    body += struct.pack("<I", length) + b"WEnd"
    crc = crc32c(body[:72], crc32c(body[72:]))
    expected = b"WBF1" + struct.pack("<I", crc) + body
    records = values_only(b"a", b"bcd", start=7, timestamp_us=50)
    assert build(records, previous_crc=9, epoch=3, synced_limit=6) == expected


# -- round trips ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(record_lists(), st.integers(0, (1 << 32) - 1), st.integers(0, 7))
def test_headers_go_round(records: list[Record], previous_crc: int, words: int) -> None:
    data = build(records, previous_crc=previous_crc, epoch=3, synced_limit=1)
    buffer = memoryview(bytes(8 * words) + data)
    header = frame.parse_header(buffer, 8 * words)
    assert header is not None
    assert frame.is_whole(buffer, header)
    assert (header.position, header.end, header.length) == (8 * words, len(buffer), len(data))
    assert (header.start, header.limit, header.count) == (
        records[0].offset,
        records[-1].offset + 1,
        len(records),
    )
    assert (header.base_timestamp_us, header.max_timestamp_us) == (
        records[0].timestamp_us,
        records[-1].timestamp_us,
    )
    assert (header.previous_crc, header.epoch, header.synced_limit) == (previous_crc, 3, 1)
    assert len(data) % frame.ALIGNMENT == 0


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
def test_integers_go_round(values: list[int]) -> None:
    column = frame.uint_column(ColumnKind.VALUE_LENGTHS, values)
    data = b"".join(bytes(piece) for piece in column.pieces)
    assert len(data) == column.size_bytes
    assert list(frame.decode_uints(memoryview(data), column.encoding, len(values))) == values


@pytest.mark.parametrize("value", [0, 1, 255, 256, (1 << 32) - 1])
def test_equal_integers_are_stored_once(value: int) -> None:
    column = frame.uint_column(ColumnKind.VALUE_LENGTHS, [value] * 1000)
    assert (column.encoding, column.size_bytes) == (frame.CONSTANT, 4)


def test_the_crc_returned_is_the_one_stored() -> None:
    data, crc = frame.encode(
        [],
        start=1,
        count=0,
        base_timestamp_us=0,
        max_timestamp_us=0,
        epoch=1,
        previous_crc=0,
        synced_limit=1,
    )
    assert header_of(bytes(data)).crc == crc
    assert len(data) == frame.HEADER_BYTES + frame.TRAILER.size


@given(st.binary(max_size=100), st.integers(1, 1 << 60), st.integers(0, (1 << 32) - 1))
def test_a_record_by_itself_has_the_bytes_of_any_batch(
    value: bytes, number: int, previous_crc: int
) -> None:
    """The short way to frame one value makes what the long way makes, header and columns included."""
    draft = BatchBuilder(number, [value])
    usual, crc = frame.encode(
        draft.columns(None),
        start=number,
        count=1,
        base_timestamp_us=number,
        max_timestamp_us=number,
        epoch=3,
        previous_crc=previous_crc,
        synced_limit=number,
    )
    assert (usual, crc) == frame.encode_value(
        value,
        start=number,
        timestamp_us=number,
        epoch=3,
        previous_crc=previous_crc,
        synced_limit=number,
    )


@pytest.mark.parametrize(
    ("changes", "is_alone"),
    [
        ({}, True),
        ({"values": [b"a", b"b"]}, False),
        ({"values": []}, False),
        ({"keys": [None]}, False),
        ({"streams": ["s"]}, False),
        ({"headers": [None]}, False),
        ({"timestamps_us": [5]}, False),
        ({"marks": Marks(head=1)}, False),
    ],
)
def test_which_drafts_are_a_record_by_itself(changes: dict[str, object], is_alone: bool) -> None:
    draft = BatchBuilder(7, [b"a"])
    for name, value in changes.items():
        setattr(draft, name, value)
    draft.pad()
    assert (draft.only_value == b"a") is is_alone


def test_columns_that_compression_would_enlarge_are_stored_as_they_are() -> None:
    noise = [Random(number).randbytes(5000) for number in range(3)]
    columns = columns_of(values_only(*noise))
    plain = frame.encode_body(columns, count=3, compress=False)
    assert frame.encode_body(columns, count=3, compress=True) == plain


def test_a_value_that_is_too_large_for_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_FRAME_BYTES", 200)
    terms = {"start": 1, "timestamp_us": 0, "epoch": 1, "previous_crc": 0, "synced_limit": 1}
    frame.encode_value(bytes(80), **terms)
    with pytest.raises(ValueError, match="does not fit a frame"):
        frame.encode_value(bytes(100), **terms)


def test_a_batch_that_is_too_large_for_a_frame_is_refused() -> None:
    huge = Column(ColumnKind.VALUES, frame.BLOB, (), 1 << 32)
    with pytest.raises(ValueError, match="does not fit a frame"):
        frame.encode(
            [huge],
            start=1,
            count=1,
            base_timestamp_us=0,
            max_timestamp_us=0,
            epoch=1,
            previous_crc=0,
            synced_limit=1,
        )


# -- damage ---------------------------------------------------------------------------------------


def is_good(data: bytes | bytearray) -> bool:
    """Whether the bytes begin with a frame that a reader would take."""
    buffer = memoryview(data)
    header = frame.parse_header(buffer, 0)
    return header is not None and frame.is_whole(buffer, header)


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(build(RICH, previous_crc=7, epoch=2, synced_limit=4))
    data += build(values_only(b"next", start=8))  # so that a longer length finds bytes
    size = header_of(bytes(data)).length
    assert is_good(data)
    for bit in range(8 * size):
        data[bit // 8] ^= 1 << bit % 8
        assert not is_good(data), f"bit {bit % 8} of byte {bit // 8}"
        data[bit // 8] ^= 1 << bit % 8
    assert is_good(data)


def test_a_frame_cut_anywhere_is_not_whole() -> None:
    data = build(RICH)
    for size in range(len(data)):
        assert not is_good(data[:size])
        assert not is_good(data[:size] + bytes(len(data) - size))


@pytest.mark.slow
@given(record_lists(), st.data())
def test_overwritten_bytes_are_found(records: list[Record], data: st.DataObject) -> None:
    whole = build(records)
    low = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=len(whole) - low))
    damaged = whole[:low] + junk + whole[low + len(junk) :]
    assert is_good(damaged) == (damaged == whole)


@given(st.binary(max_size=300))
def test_junk_is_no_frame_and_raises_nothing(junk: bytes) -> None:
    assert not is_good(junk)
    assert not is_good(b"WBF1" + junk)


def test_a_frame_without_its_trailer_is_not_whole() -> None:
    """Also with the right checksum: whoever looks for cut frames trusts the trailer alone."""
    data = bytearray(build(RICH))
    data[-frame.TRAILER.size :] = bytes(frame.TRAILER.size)
    body = crc32c(data[frame.HEADER_BYTES :])
    crc = crc32c(data[frame.CRC_FROM : frame.HEADER_BYTES], body)
    data[4 : frame.CRC_FROM] = crc.to_bytes(4, "little")
    header = frame.parse_header(memoryview(data), 0)
    assert header is not None
    assert header.crc == crc
    assert not frame.is_whole(memoryview(data), header, frame.NOWHERE)


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 28), st.integers(1, 1 << 28))
def test_a_frame_is_whole_only_at_its_place(salt: int, position: int, shift: int) -> None:
    at = frame.place(salt, 8 * position)
    data = build(RICH, at=at, synced_position=8 * position)
    header = frame.parse_header(memoryview(data), 0)
    assert header is not None
    assert (header.version, header.synced_position) == (2, 8 * position)
    assert frame.is_whole(memoryview(data), header, at)
    for elsewhere in (
        frame.NOWHERE,
        frame.place(salt, 8 * (position + shift)),
        frame.place(salt ^ shift, 8 * position),
    ):
        assert not frame.is_whole(memoryview(data), header, elsewhere)
    # Copied together with the salt that makes up for it, it is whole again.
    assert frame.is_whole(
        memoryview(data), header, frame.place(salt + 8 * shift, 8 * (position - shift))
    )
    assert frame.salt_of(memoryview(data), header, 8 * position) == salt


def test_a_frame_of_one_value_has_its_place_too() -> None:
    at = frame.place(7, 64)
    terms = {"start": 1, "epoch": 1, "previous_crc": 2, "synced_limit": 1, "synced_position": 64}
    data, crc = frame.encode_value(b"abc", timestamp_us=5, at=at, **terms)
    assert header_of(bytes(data), at=at).crc == crc


# -- what a reader of version 1 must refuse or skip -------------------------------------------------


def changed(position: int, form: str, value: int) -> tuple[memoryview, FrameHeader]:
    """Return a rich frame with one field changed, CRC made good."""
    data = bytearray(build(RICH))
    struct.pack_into(form, data, position, value)
    struct.pack_into("<I", data, 4, crc32c(bytes(data[8:80]), crc32c(bytes(data[80:]))))
    return memoryview(data), header_of(bytes(data))


@pytest.mark.parametrize(
    ("position", "form", "value", "message"),
    [
        (30, "<B", 3, "frame version 3"),
        (31, "<B", 2, "codec 2"),
        (64, "<I", 2, "frame flags 0x2"),
        (64, "<I", 0x8000, "frame flags 0x8000"),
        (80, "<B", 10, "column kind 10"),
        (80, "<B", 127, "column kind 127"),
    ],
)
def test_what_must_be_understood_is_refused(
    position: int, form: str, value: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        frame.directory(*changed(position, form, value))


@pytest.mark.parametrize(("position", "value"), [(64, 0x10000), (64, 1 << 31), (76, 5)])
def test_what_may_be_ignored_is_ignored(position: int, value: int) -> None:
    assert set(frame.directory(*changed(position, "<I", value))) == set(ColumnKind) - {
        ColumnKind.MARKS
    }


def test_unknown_columns_from_128_are_skipped() -> None:
    extra = frame.blob_column(ColumnKind.VALUES, [b"from the future"], 15)
    future = Column(200, extra.encoding, extra.pieces, extra.size_bytes)
    data = build(RICH, extra=[future])
    found = frame.directory(memoryview(data), header_of(data))
    assert {kind for kind in found if kind < 128} == set(ColumnKind) - {ColumnKind.MARKS}
    assert bytes(found[ColumnKind.VALUES][1]) == b"firstthird value"


@pytest.mark.parametrize(
    ("data", "encoding", "count"),
    [
        (b"abc", 2, 2),
        (b"abcd", 3, 1),
        (b"abcd", frame.BLOB, 4),
        (b"abc", frame.CONSTANT, 2),
        (b"", 1, 1),
    ],
)
def test_an_integer_column_of_the_wrong_size_is_refused(
    data: bytes, encoding: int, count: int
) -> None:
    with pytest.raises(ValueError, match="integer column"):
        frame.decode_uints(memoryview(data), encoding, count)


def test_a_frame_without_records_takes_no_offset() -> None:
    marks = frame.blob_column(ColumnKind.MARKS, [b"\x80"], 1)
    data, _ = frame.encode(
        [marks],
        start=7,
        count=0,
        base_timestamp_us=0,
        max_timestamp_us=0,
        epoch=1,
        previous_crc=0,
        synced_limit=7,
    )
    header = header_of(bytes(data))
    assert (header.start, header.limit) == (7, 7)
