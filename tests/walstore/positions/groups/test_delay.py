"""Delays: what a record's header says, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cases import case
from walstore import InvalidSettingsError, delayed
from walstore.positions.groups.delay import NOT_BEFORE, not_before_us
from walstore.testing import ManualClock


def test_a_number_of_seconds_or_a_moment() -> None:
    clock = ManualClock()
    now = clock.now_us()
    assert not_before_us(delayed(1.5, clock=clock)) == now + 1_500_000
    assert not_before_us(delayed(0, clock=clock)) == now
    assert delayed(datetime(2026, 12, 1, tzinfo=UTC)) == {NOT_BEFORE: b"1796083200000000"}
    assert not_before_us(delayed(3600)) is not None  # by the system's clock


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"soon", b"1" * 19, b" 1", "१".encode()])
def test_what_is_no_moment_is_none(value: bytes) -> None:
    assert not_before_us({NOT_BEFORE: value}) is None
    assert not_before_us({}) is None


def test_what_is_refused() -> None:
    refused: list[tuple[Any, type[Exception]]] = [
        (-1, InvalidSettingsError),
        (float("inf"), InvalidSettingsError),
        (4e8, InvalidSettingsError),
        (datetime(1960, 1, 1, tzinfo=UTC), InvalidSettingsError),
        (datetime(2026, 12, 1), ValueError),
        ("60", TypeError),
        (True, TypeError),
    ]
    for until, kind in refused:
        with case(until), pytest.raises(kind):
            delayed(until)
