"""Records and times."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore.records import (
    EPOCH,
    NO_HEADERS,
    Durability,
    Record,
    Start,
    from_timestamp_us,
    to_timestamp_us,
)


def test_a_record_is_a_plain_value() -> None:
    record = Record(7, b"v")
    assert (record.offset, record.value, record.key, record.stream) == (7, b"v", None, None)
    assert (record.headers, record.timestamp_us, record.timestamp) == ({}, 0, EPOCH)
    assert record == (7, b"v", None, None, {}, 0)
    offset, value, *_ = record
    assert (offset, value) == (7, b"v")


def test_the_shared_empty_headers_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        NO_HEADERS["h"] = b"1"  # type: ignore[index]


def test_records_can_be_pickled() -> None:
    for record in (Record(1, b"v", b"k", "eu", {"h": b"1"}, 5), Record(1, b"v")):
        assert pickle.loads(pickle.dumps(record)) == record


def test_words_compare_as_strings() -> None:
    assert [*Durability] == ["memory", "disk", "cloud", "replicated"]
    assert [*Start] == ["earliest", "latest"]


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)))
def test_times_go_round_to_the_microsecond(moment: datetime) -> None:
    assert from_timestamp_us(to_timestamp_us(moment)) == moment


def test_times_of_other_zones_are_converted() -> None:
    there = timezone(timedelta(hours=5, minutes=30))
    assert to_timestamp_us(datetime(1970, 1, 1, 5, 30, 1, 2, there)) == 1_000_002
    assert Record(1, b"", timestamp_us=1_000_002).timestamp == EPOCH + timedelta(
        seconds=1, microseconds=2
    )


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"datetime.now\(UTC\)"):
        to_timestamp_us(datetime(2024, 1, 1))


def test_a_time_behind_the_last_datetime_is_the_last_datetime() -> None:
    assert Record(1, b"", timestamp_us=(1 << 63) - 1).timestamp.year == 9999
