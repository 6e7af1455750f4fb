"""What counts as an error of a log."""

from __future__ import annotations

from walstore import DiskFullError, RecordTooLargeError, WalClosedError, WouldBlock
from walstore.runtime.statistics import ErrorCounts


def test_errors_are_counted_by_type() -> None:
    errors = ErrorCounts()
    errors.count(DiskFullError("full"))
    errors.count(DiskFullError("full"))
    errors.count(RecordTooLargeError("large", size_bytes=2, limit_bytes=1))
    assert errors.snapshot() == {"DiskFullError": 2, "RecordTooLargeError": 1}


def test_waiting_and_closing_are_no_errors() -> None:
    errors = ErrorCounts()
    errors.count(WouldBlock("wait"))
    errors.count(WalClosedError("closed"))
    assert errors.snapshot() == {}


def test_a_snapshot_stays_as_it_is() -> None:
    errors = ErrorCounts()
    before = errors.snapshot()
    errors.count(DiskFullError("full"))
    assert before == {}
