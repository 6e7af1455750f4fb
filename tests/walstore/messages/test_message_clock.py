"""The message clock: strictly increasing, and near the time."""

from __future__ import annotations

from walstore.messages import MessageClock, time_us
from walstore.testing import ManualClock


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
