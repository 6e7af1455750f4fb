"""Checkpoint and durable cell: hints that either say the truth or nothing."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from crc32c import crc32c

from walstore import FormatVersionError
from walstore.core.format import checkpoint
from walstore.core.format.checkpoint import Checkpoint, DurableCell
from walstore.core.format.segment import SegmentIndex, SegmentSummary

CELL = DurableCell(1, 1000, 3, 900, 123_456, 1000, 0xBEEF)


def make(**changes) -> Checkpoint:
    index = SegmentIndex()
    index.add(900, 64, 5)
    index.add(950, 90_000, 7)
    whole = Checkpoint(
        log_id=bytes(range(16)),
        epoch=3,
        head=100,
        sealed=(SegmentSummary(100, 500, 70_000, 1, 2), SegmentSummary(500, 900, 80_000, 3, 4)),
        tail_start=900,
        tail_position=123_456,
        tail_index=index,
        next_offset=1000,
        previous_crc=0xCAFE,
        timestamp_us=7,
        uploaded_limit=500,
        tier_url="s3://bucket/orders",
        tail_salt=77,
        own_epoch=2,
    )
    return dataclasses.replace(whole, **changes)


def comparable(found: Checkpoint | None):
    assert found is not None
    return dataclasses.replace(found, tail_index=found.tail_index.to_bytes())


@pytest.mark.parametrize(
    "original",
    [
        make(),
        make(sealed=(), tail_index=SegmentIndex(), tier_url=None),
        make(is_closed=True, is_epoch_written=True),
    ],
)
def test_checkpoint_round_trip(original) -> None:
    found = checkpoint.decode_checkpoint(checkpoint.encode_checkpoint(original), "CHECKPOINT")
    assert comparable(found) == comparable(original)


@pytest.mark.slow
def test_every_flipped_bit_makes_it_no_checkpoint() -> None:
    whole = checkpoint.encode_checkpoint(make())
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert checkpoint.decode_checkpoint(bytes(data), "f") is None, bit


def test_a_cut_or_extended_checkpoint_is_none() -> None:
    whole = checkpoint.encode_checkpoint(make())
    for size in range(len(whole)):
        found = checkpoint.decode_checkpoint(whole[:size], "f")
        assert found is None or not any(whole[size:])
    assert checkpoint.decode_checkpoint(whole + b"\1", "f") is None


def test_a_newer_version_is_named() -> None:
    body = b"whatever a later version puts here"
    fields = struct.pack("<II", checkpoint.VERSION + 1, len(body))
    crc = crc32c(fields + body)
    data = checkpoint.MAGIC + fields + struct.pack("<I", crc) + body
    with pytest.raises(FormatVersionError) as found:
        checkpoint.decode_checkpoint(data, "some/CHECKPOINT")
    assert (found.value.path, found.value.found) == ("some/CHECKPOINT", checkpoint.VERSION + 1)


def test_cell_round_trip() -> None:
    data = checkpoint.encode_cell(CELL)
    assert len(data) == checkpoint.CELL_BYTES
    assert checkpoint.decode_cell(data) == CELL
    unsalted = CELL._replace(tail_salt=None)
    assert checkpoint.decode_cell(checkpoint.encode_cell(unsalted)) == unsalted


def test_every_flipped_bit_makes_it_no_cell() -> None:
    whole = checkpoint.encode_cell(CELL)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert checkpoint.decode_cell(bytes(data)) is None, bit


def test_a_cell_caught_half_way_through_an_update_is_none() -> None:
    old = checkpoint.encode_cell(CELL)
    new = checkpoint.encode_cell(CELL._replace(durable_limit=1017, tail_position=130_000))
    for cut in range(1, len(old)):
        assert checkpoint.decode_cell(new[:cut] + old[cut:]) in (None, CELL)
    assert checkpoint.decode_cell(b"") is None
    assert checkpoint.decode_cell(bytes(checkpoint.CELL_BYTES)) is None
