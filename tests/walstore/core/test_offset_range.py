"""OffsetRange: what is a record of the log, what is a position, and which error the others get."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from walstore.core.offset_range import OffsetRange
from walstore.errors import OffsetError, OffsetNotWrittenError, OffsetTrimmedError

LOG = OffsetRange(10, 20)
EMPTY = OffsetRange(10, 10)
TRIMMED, NOT_WRITTEN = OffsetTrimmedError, OffsetNotWrittenError


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (LOG.check_position, {9: TRIMMED, 10: None, 19: None, 20: None, 21: NOT_WRITTEN}),
        (EMPTY.check_position, {9: TRIMMED, 10: None, 11: NOT_WRITTEN}),
        (LOG.check_record, {9: TRIMMED, 10: None, 19: None, 20: NOT_WRITTEN}),
        (EMPTY.check_record, {9: TRIMMED, 10: NOT_WRITTEN}),
        (LOG.check_head, {9: TRIMMED, 10: None, 99: None}),
        (LOG.check_tail, {9: None, 20: None, 21: NOT_WRITTEN}),
        (LOG.check_assigned, {0: NOT_WRITTEN, 1: None, 19: None, 20: NOT_WRITTEN}),
    ],
)
def test_bounds_of_each_check(
    check: Callable[[int], None], expected: dict[int, type[OffsetError] | None]
) -> None:
    for offset, error in expected.items():
        if error is None:
            check(offset)
        else:
            with pytest.raises(error) as caught:
                check(offset)
            assert caught.value.requested == offset


def test_a_record_that_is_not_visible_yet() -> None:
    LOG.check_record(14, 15)
    with pytest.raises(
        OffsetNotWrittenError, match=r"not durable yet \(requested=15 head=10 tail=20"
    ):
        LOG.check_record(15, 15)
    with pytest.raises(OffsetNotWrittenError, match="the offset has not been written yet"):
        LOG.check_record(20, 15)


def test_messages() -> None:
    with pytest.raises(
        OffsetTrimmedError, match=r"the offset was removed .* \(requested=1 head=10"
    ):
        LOG.check_position(1)
    with pytest.raises(OffsetTrimmedError, match="gone"):
        LOG.check_position(1, "gone", "never there")
    with pytest.raises(OffsetNotWrittenError, match="never there"):
        LOG.check_position(30, "gone", "never there")
    assert str(LOG.trimmed(1, "gone")) == "gone (requested=1 head=10 tail=20)"
