"""The stamp, its clock, producer ids, and the bytes of checkpoints and states: golden, and as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import format_tables
from walstore import FormatVersionError, Record
from walstore.messages import (
    HEADER,
    CoordinatorState,
    Flag,
    MessageClock,
    ProducerState,
    ReadCheckpoint,
    Stamp,
    new_producer_id,
    time_us,
)
from walstore.messages.stamp import LAYOUT, stamped
from walstore.testing import ManualClock

PAGE = Path(__file__).parents[3] / "docs" / "messages.md"
GOLDEN_STAMP = bytes.fromhex("0102 0102030405fe efcdab8967452301")
GOLDEN_CHECKPOINT = bytes.fromhex(
    "9301cd012c92"
    "95c406502d2d2d2d2d0509cd0118cf0006379da05b6000"
    "95c406512d2d2d2d2dcf8000000000000000cf80000000000000000007"
)
GOLDEN_STATE = bytes.fromhex(
    "950192c406502d2d2d2d2dc406512d2d2d2d2d91d920" + "30" * 32 + "81d920" + "30" * 32 + "c410"
    "73737373737373737373737373737373c403706f73"
)


def test_golden_stamp() -> None:
    stamp = Stamp(bytes.fromhex("0102030405fe"), 0x0123456789ABCDEF, Flag.ACK)
    assert stamp.encode() == GOLDEN_STAMP
    assert Stamp.decode(GOLDEN_STAMP) == stamp
    assert HEADER == "walstore.stamp"
    assert [*Flag] == [0, 1, 2, 3]


def test_the_table_is_the_struct() -> None:
    rows = format_tables.table("Stamp", PAGE)
    assert format_tables.struct_format(rows) == LAYOUT.format
    assert format_tables.field_names(rows) == ["version", "flag", "producer", "clock"]


def test_golden_checkpoint() -> None:
    states = {
        b"P-----": ProducerState(5, 9, 280, 1_750_000_000_000_000),
        b"Q-----": ProducerState(2**63, 2**63, 0, 7),
    }
    checkpoint = ReadCheckpoint(300, states)
    assert checkpoint.to_bytes() == GOLDEN_CHECKPOINT
    assert ReadCheckpoint.from_bytes(GOLDEN_CHECKPOINT) == checkpoint
    assert checkpoint.pin == 280
    assert ReadCheckpoint(300).pin == 300


def test_golden_state() -> None:
    name = "0" * 32
    state = CoordinatorState((b"P-----", b"Q-----"), (name,), {name: b"s" * 16}, b"pos")
    assert state.to_bytes() == GOLDEN_STATE
    assert CoordinatorState.from_bytes(GOLDEN_STATE) == state


@pytest.mark.parametrize("data", [b"", GOLDEN_STAMP[:-1], b"\x02" + GOLDEN_STAMP[1:]])
def test_a_stamp_of_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(FormatVersionError, match="record 7"):
        Stamp.of(Record(7, b"", headers={HEADER: data}))


@pytest.mark.parametrize("kind", [ReadCheckpoint, CoordinatorState])
def test_values_of_another_version_are_refused(kind) -> None:
    with pytest.raises(FormatVersionError, match="found 2"):
        kind.from_bytes(b"\x91\x02")
    for data in (b"", b"\x90", b"nonsense", b"\xc1"):
        with pytest.raises(ValueError, match="not"):
            kind.from_bytes(data)


def test_stamps_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="6 bytes, not 5"):
        Stamp(b"short", 1, Flag.ACK).encode()
    with pytest.raises(ValueError, match="64 bits"):
        Stamp(b"P-----", 2**64, Flag.ACK).encode()


def test_the_header_name_is_reserved() -> None:
    stamp = Stamp(b"P-----", 1, Flag.OUTSIDE)
    assert stamped({"mine": b"x"}, stamp) == {"mine": b"x", HEADER: stamp.encode()}
    with pytest.raises(ValueError, match="reserved"):
        stamped({HEADER: b"x"}, stamp)


def test_producer_ids_are_random_but_for_the_multicast_bit() -> None:
    assert new_producer_id(lambda size: bytes(size)) == b"\x01" + bytes(5)
    assert new_producer_id(lambda size: b"\xfe" * size) == b"\xff" + b"\xfe" * 5
    assert len({new_producer_id() for _ in range(100)}) == 100


def test_values_tell_the_time_and_count_up_while_it_stands_still(clock: ManualClock) -> None:
    ticks = MessageClock(clock)
    first = ticks.tick()
    assert first == clock.now_us() * 10 << 4
    assert [ticks.tick() for _ in range(40)] == [first + n for n in range(1, 41)]
    assert time_us(ticks.last) == clock.now_us()
    clock.advance(1)
    assert ticks.tick() == first + (10_000_000 << 4)


def test_values_never_go_back_with_the_wall_clock(clock: ManualClock) -> None:
    ticks = MessageClock(clock)
    before = ticks.tick()
    clock.shift_wall(-3600)
    assert ticks.tick() == before + 1
    clock.shift_wall(3601)
    assert time_us(ticks.tick()) == clock.now_us()


def test_a_clock_at_the_epoch_gives_no_zero() -> None:
    """0 means "not tracked"."""
    assert MessageClock(ManualClock(0)).tick() == 1
