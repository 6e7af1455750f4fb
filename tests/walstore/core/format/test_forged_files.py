"""Forged files: right checksums over what no writer writes. Each decoder refuses it with its own type."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import msgpack
import pytest
from crc32c import crc32c

from tests.cases import case
from tests.frames import batch_of, build, values_only
from walstore import CorruptionError, Record
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import checkpoint, codec, frame, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.frame import Column, ColumnKind
from walstore.core.format.ledger import Ledger, Marks, ProducerRun
from walstore.core.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US, MalformedError
from walstore.core.format.segment import MOST_STREAMS, SegmentIndex, SegmentStreams, SegmentSummary

RECORDS = [
    Record(1, b"one", b"k", "eu", {"h": b"1"}, 5),
    Record(2, b"three", None, "us", {}, 7),
]


def forged(columns: list[Column], *, count: int = 2, **fields: int) -> memoryview:
    """Return a frame of these columns with a right CRC."""
    data, _ = frame.encode(
        columns,
        start=fields.get("start", 1),
        count=count,
        base_timestamp_us=0,
        max_timestamp_us=fields.get("max_timestamp_us", 10),
        epoch=fields.get("epoch", 1),
        previous_crc=0,
        synced_limit=1,
    )
    return memoryview(bytes(data))


def column(kind: int, encoding: int, data: bytes) -> Column:
    return Column(kind, encoding, (data,), len(data))


LENGTHS = column(ColumnKind.VALUE_LENGTHS, 1, b"\x01\x02")
VALUES = column(ColumnKind.VALUES, frame.BLOB, b"abc")


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [LENGTHS],
        [VALUES],
        [LENGTHS, VALUES, VALUES],
        [column(ColumnKind.VALUE_LENGTHS, 1, b"\x01"), VALUES],
        [column(ColumnKind.VALUE_LENGTHS, 3, b"\x01" * 6), VALUES],
        [column(ColumnKind.VALUE_LENGTHS, frame.BLOB, b"\x01\x02"), VALUES],
        [column(ColumnKind.VALUE_LENGTHS, 0, b"\x01"), VALUES],
        [column(ColumnKind.VALUE_LENGTHS, 0, b"\x09\0\0\0"), VALUES],
        [LENGTHS, column(ColumnKind.VALUES, 1, b"ab")],
        [LENGTHS, column(ColumnKind.STREAM_IDS, 1, b"\0\0"), VALUES],
        [LENGTHS, column(ColumnKind.KEYS, frame.BLOB, b"k"), VALUES],
        [LENGTHS, column(ColumnKind.HEADER_LENGTHS, 1, b"\0\0"), VALUES],
    ],
)
def test_columns_that_do_not_belong_together_are_refused_at_once(columns: list[Column]) -> None:
    data = forged(columns)
    header = frame.parse_header(data, 0)
    assert header is not None
    with pytest.raises(MalformedError):
        FrameBatch(data, header)


def test_records_without_bytes_are_bounded() -> None:
    columns = [
        column(ColumnKind.VALUE_LENGTHS, 0, bytes(4)),
        column(ColumnKind.VALUES, frame.BLOB, b""),
    ]
    data = forged(columns, count=frame.MOST_RECORDS + 1)
    header = frame.parse_header(data, 0)
    assert header is not None
    with pytest.raises(MalformedError, match="the maximum is"):
        FrameBatch(data, header)


@pytest.mark.parametrize(
    "fields",
    [
        {"start": MOST_OFFSET},
        {"start": (1 << 64) - 1},
        {"epoch": MOST_OFFSET + 1},
        {"max_timestamp_us": MOST_TIMESTAMP_US + 1},
    ],
)
def test_numbers_that_no_log_reaches_begin_no_frame(fields: dict[str, int]) -> None:
    assert frame.parse_header(forged([LENGTHS, VALUES]), 0) is not None
    assert frame.parse_header(forged([LENGTHS, VALUES], **fields), 0) is None


@pytest.mark.parametrize(
    ("attribute", "columns"),
    [
        ("values", [column(ColumnKind.VALUE_LENGTHS, 8, struct.pack("<2Q", 1, 1 << 63)), VALUES]),
        ("timestamps_us", [LENGTHS, column(ColumnKind.TIMESTAMP_DELTAS, 1, b"\x00\x0b"), VALUES]),
        (
            "streams",
            [
                LENGTHS,
                column(ColumnKind.STREAM_IDS, 1, b"\x01\x02"),
                column(ColumnKind.STREAM_NAMES, frame.BLOB, msgpack.packb(["eu"])),
                VALUES,
            ],
        ),
        (
            "stream_names",
            [
                LENGTHS,
                column(ColumnKind.STREAM_IDS, 1, b"\x01\x01"),
                column(ColumnKind.STREAM_NAMES, frame.BLOB, msgpack.packb([7])),
                VALUES,
            ],
        ),
        (
            "keys",
            [
                LENGTHS,
                column(ColumnKind.KEY_LENGTHS, 1, b"\x03\x03"),
                column(ColumnKind.KEYS, frame.BLOB, b"k"),
                VALUES,
            ],
        ),
        (
            "headers",
            [
                LENGTHS,
                column(ColumnKind.HEADER_LENGTHS, 1, b"\x02\x00"),
                column(ColumnKind.HEADERS, frame.BLOB, b"\x90"),
                VALUES,
            ],
        ),
    ],
)
def test_what_is_in_a_column_is_checked_when_it_is_decoded(
    attribute: str, columns: list[Column]
) -> None:
    batch = batch_of(bytes(forged(columns)))
    with pytest.raises(CorruptionError, match="batch at offset 1 holds"):
        getattr(batch, attribute)
    with pytest.raises(CorruptionError):
        batch.check()
    if attribute == "streams":
        with pytest.raises(CorruptionError):
            _ = batch.select_stream("eu").slice(1, 2).streams, batch.to_arrow()


def test_a_slice_decodes_the_headers_of_its_rows() -> None:
    batch = batch_of(build([*RECORDS, Record(3, b"x", headers={"n": b"3"}, timestamp_us=8)]))
    batch.check()
    assert [dict(one) for one in batch.slice(2, 4).headers] == [{}, {"n": b"3"}]
    assert [dict(one) for one in batch.slice(1, 2).headers] == [{"h": b"1"}]


def test_few_bytes_do_not_claim_gigabytes() -> None:
    packed = memoryview(b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1 << 30) + bytes(40))
    with pytest.raises(codec.BodyError, match="claims"):
        codec.decompress(packed, 1 << 30)
    zeroes = bytes(8 << 20)
    assert bytes(codec.decompress(memoryview(codec.compress([zeroes])), len(zeroes))) == zeroes


def test_marks_of_other_types_are_malformed() -> None:
    for value in (
        [],
        {"r": []},
        {"r": {"a": 1}},
        {"r": {b"a": "1"}},
        {"p": {}},
        {"p": [["a", 1, 1, 1]]},
        {"p": [[b"a", 1, 1, 1, 1]]},
        {"p": [["a", 0, 1, 1, 1]]},
        {"p": [["a", 1, 1, 1, 0]]},
        {"p": [["a", 1, 1, True, 1]]},
        {"p": [["a", 1, 1, 1 << 40, 1 << 40]]},
        {"s": {"a": [1, {}, 1]}},
        {"s": {"a": [True, {"k": 1}, 1]}},
        {"s": {"a": [True, {}, -1]}},
        {"s": {"a": [True, {}]}},
        {"h": -1},
        {"h": 1 << 63},
        {"h": 1.5},
        {"w": 1},
    ):
        with case(value), pytest.raises(MalformedError):
            Marks.decode(msgpack.packb(value))


def test_a_mark_of_a_newer_version_is_not_malformed() -> None:
    with pytest.raises(ValueError, match="mark 'z'") as caught:
        Marks.decode(msgpack.packb({"h": 1, "z": 1}))
    assert not isinstance(caught.value, MalformedError)


def test_sequence_numbers_that_jump_begin_again() -> None:
    ledger = Ledger(window=4)
    for sequence in (1, 1000, 5):
        ledger.apply(Marks(producers=[("p", ProducerRun(sequence, sequence, 1, 1))]))
        assert ledger.producers["p"].find(sequence) == range(sequence, sequence + 1)
    assert ledger.producers["p"].find(1000) is None


def _footer(index: list[tuple[int, int, int]], *, streams: bytes = b"", **fields: int) -> bytes:
    columns = [array("Q", column).tobytes() for column in zip(*index, strict=True)]
    entries = b"".join(columns) + streams
    numbers = (
        len(index),
        fields.get("limit", 20),
        fields.get("data_bytes", 1000),
        fields.get("max_timestamp_us", 9),
        7,
        len(streams) // 4 + 1 if streams else 0,
    )
    body = segment.FOOTER.pack(segment.FOOTER_MAGIC, 0, *numbers)[12:] + entries
    body += segment.SEAL.pack(fields.get("seal", 1000), segment.SEAL_MAGIC)
    return segment.FOOTER_MAGIC + struct.pack("<I", crc32c(body)) + body


def test_a_footer_whose_numbers_agree_is_read() -> None:
    data = _footer([(10, 64, 1), (12, 500, 1)], streams=struct.pack("<2I", 1, 2))
    summary, index = segment.decode_footer(data, 10, "f")
    assert summary == SegmentSummary(10, 20, 1000, 7, 9)
    assert list(index.positions) == [64, 500]


@pytest.mark.parametrize(
    "data",
    [
        _footer([(10, 64, 1)], limit=9),
        _footer([(10, 64, 1)], limit=MOST_OFFSET + 1),
        _footer([(10, 64, 1)], seal=999),
        _footer([(10, 64, 1)], max_timestamp_us=MOST_TIMESTAMP_US + 1),
        _footer([(10, 63, 1)]),
        _footer([(10, 1000, 1)]),
        _footer([(21, 64, 1)]),
        _footer([(10, 64, 1), (9, 100, 1)]),
        _footer([(10, 64, 1), (11, 60, 1)]),
        _footer([(10, 64, 2), (11, 100, 1)]),
        _footer([(10, 64, 1)], streams=struct.pack("<2I", 2, 1)),
        _footer([(10, 64, 1)], streams=struct.pack("<2I", 1, 1)),
    ],
)
def test_another_footer_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="segment footer holds") as caught:
        segment.decode_footer(data, 10, "f")
    assert (caught.value.path, caught.value.position is not None) == ("f", True)


def test_a_list_of_streams_is_bounded() -> None:
    with pytest.raises(MalformedError):
        SegmentStreams.from_bytes(array("I", range(MOST_STREAMS + 1)).tobytes())
    with pytest.raises(MalformedError):
        SegmentStreams.from_bytes(b"\x01\x00\x00")


CHECKPOINT = Checkpoint(
    log_id=bytes(16),
    epoch=3,
    head=1,
    sealed=(SegmentSummary(1, 5, 100, 7, 9), SegmentSummary(5, 9, 100, 7, 9)),
    tail_start=9,
    tail_position=500,
    tail_index=SegmentIndex(),
    next_offset=12,
    previous_crc=1,
    timestamp_us=9,
    uploaded_limit=0,
    tier_url=None,
    ledger=Marks(registers={"a": "b"}).encode(),
)


def _checkpoint(changes: dict[Any, Any], gone: tuple[str, ...] = ()) -> bytes:
    data = checkpoint.encode_checkpoint(CHECKPOINT)
    _, version, size, _ = checkpoint.PREFIX.unpack_from(data)
    fields = msgpack.unpackb(data[checkpoint.PREFIX.size :][:size]) | changes
    body = msgpack.packb({name: fields[name] for name in fields if name not in gone})
    crc = crc32c(body, crc32c(struct.pack("<II", version, len(body))))
    return checkpoint.PREFIX.pack(checkpoint.MAGIC, version, len(body), crc) + body


def test_a_checkpoint_is_read() -> None:
    found = checkpoint.decode_checkpoint(_checkpoint({}), "c")
    assert found is not None
    assert (found.sealed, found.ledger) == (CHECKPOINT.sealed, CHECKPOINT.ledger)


def test_a_forged_checkpoint_is_none() -> None:
    for changes in (
        *({name: None} for name in ("log_id", "epoch", "sealed", "tail_index", "ledger")),
        *(
            {name: "x"}
            for name in ("head", "next_offset", "previous_crc", "own_epoch", "tail_salt")
        ),
        *({name: 1 << 63} for name in ("epoch", "head", "tail_position", "timestamp_us")),
        {"log_id": b"short"},
        {"tier_url": b"x"},
        {"new": 1},
        {b"epoch": 1},
        {"sealed": [[1, 5, 100, 7]]},
        {"sealed": [[1, 5, 100, 7, "x"]]},
        {"sealed": [[1, 4, 100, 7, 9], [5, 9, 100, 7, 9]]},
        {"sealed": [[1, 5, 100, 7, 9]]},
        {"tail_start": 13},
        {"head": 13},
        {"tail_index": bytes(23)},
        {"tail_index": struct.pack("<3Q", 9, 500, 1)},
        {"ledger": b"\x91"},
        {"ledger": msgpack.packb({"r": 1})},
    ):
        with case(changes):
            assert checkpoint.decode_checkpoint(_checkpoint(changes), "c") is None


@pytest.mark.parametrize("name", ["log_id", "sealed", "tail_index", "next_offset", "tier_url"])
def test_a_checkpoint_that_lacks_a_field_is_none(name: str) -> None:
    assert checkpoint.decode_checkpoint(_checkpoint({}, gone=(name,)), "c") is None


def test_a_cell_of_numbers_that_no_log_reaches_is_none() -> None:
    good = DurableCell(1, 12, 3, 9, 500, 12)
    assert checkpoint.decode_cell(checkpoint.encode_cell(good)) == good
    for at in range(6):
        numbers = list(good)
        numbers[at] = MOST_OFFSET + 1
        assert checkpoint.decode_cell(checkpoint.encode_cell(DurableCell(*numbers))) is None


def test_plain_frames_are_whole_batches() -> None:
    assert [r.value for r in batch_of(build(values_only(b"a", b"bcd"))).records()] == [b"a", b"bcd"]


def test_a_footer_with_more_than_its_columns_is_corruption() -> None:
    """Also with the right checksum."""
    whole = _footer([(10, 64, 1)])
    body = whole[12 : -segment.SEAL.size] + bytes(4) + whole[-segment.SEAL.size :]
    longer = segment.FOOTER_MAGIC + struct.pack("<I", crc32c(body)) + body
    with pytest.raises(CorruptionError, match="segment footer is damaged"):
        segment.decode_footer(longer, 10, "f")
