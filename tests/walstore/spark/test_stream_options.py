"""Options of a stream: what there is, what there is not, and what it says then."""

from __future__ import annotations

import pytest

from tests.cases import case
from walstore.errors import InvalidSettingsError
from walstore.spark.bounds import Edge, TimeBound
from walstore.spark.options import Budget, parse_stream_options

PATH = "s3://bucket/orders"


def parse(**options: str):
    return parse_stream_options({"path": PATH} | options)


def test_defaults():
    found = parse()
    assert found.location.topic == "orders"
    assert found.selection.is_whole
    assert found.starting.every is Edge.EARLIEST
    assert (*found.most, found.cursor, found.stream, found.most_records) == (None,) * 7
    assert found.fail_on_data_loss
    assert found.use_tier
    assert not found.include_headers
    assert found.poll_seconds == 0.5
    assert found.discovery_seconds == 30


def test_every_option_is_taken_in_any_case():
    found = parse_stream_options(
        {
            "PATH": PATH,
            "SubscribePattern": "orders.*",
            "startingoffsets": "latest",
            "CURSORNAME": "etl",
            "maxoffsetspertrigger": "1000",
            "maxBytesPerTrigger": "1000000",
            "MINoffsetsPerTrigger": "10",
            "maxTriggerDelay": "2h",
            "minPartitions": "4",
            "maxrecordsperpartition": "50",
            "failOnDataLoss": "false",
            "includeHeaders": "TRUE",
            "pollIntervalMs": "250",
            "discoveryIntervalMs": "1000",
            "stream": "eu",
            "tier": "off",
            "store.region": "eu-west-1",
        }
    )
    assert found.starting.every is Edge.LATEST
    assert found.most == Budget(1000, 1_000_000, least_rows=10)
    assert (found.delay_seconds, found.min_partitions, found.most_records) == (7200, 4, 50)
    assert (found.cursor, found.stream, found.selection.pattern) == ("etl", "eu", "orders.*")
    assert (found.poll_seconds, found.discovery_seconds) == (0.25, 1.0)
    assert found.include_headers
    assert not found.fail_on_data_loss
    assert not found.use_tier
    assert found.location.text == f"{PATH}?region=eu-west-1"


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name):
    with pytest.raises(
        InvalidSettingsError, match=f"{name} is an option of batch reads.*availableNow"
    ):
        parse(**{name: "5"})


def test_unknown_options_are_refused():
    with pytest.raises(InvalidSettingsError, match=r"unknown option maxoffset; known are path"):
        parse(maxOffset="5")


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "1700000000000"},
        {"startingOffsetsByTimestamp": '{"orders": {"0": 1700000000000}}'},
        {"startingOffsets": '{"orders": {"0": -1}}'},
    ],
)
def test_a_start_that_moves_needs_a_cursor_that_holds_it(options):
    """Trap 1: Spark asks for the start twice and after each crash, and remembers no answer."""
    with pytest.raises(InvalidSettingsError, match="cursorName"):
        parse(**options)
    assert parse(cursorName="etl", **options).cursor == "etl"


@pytest.mark.parametrize(
    ("value", "bound"), [("earliest", Edge.EARLIEST), ("7", 7), ('{"orders": {"0": 9}}', 9)]
)
def test_a_start_that_stays_needs_none(value, bound):
    assert parse(startingOffsets=value).starting.of("orders", 0) == bound


def test_times_are_milliseconds():
    found = parse(startingTimestamp="1700000000123", cursorName="c")
    assert found.starting.every == TimeBound(1_700_000_000_123_000)
    assert (
        parse(
            startingTimestamp="1", cursorName="c", startingOffsetsByTimestampStrategy="latest"
        ).needs_record
        is False
    )


def test_numbers_are_whole_and_positive():
    for value in ("0", "-1", "many", "1.5"):
        for name in (
            "maxOffsetsPerTrigger",
            "maxBytesPerTrigger",
            "minOffsetsPerTrigger",
            "maxRecordsPerPartition",
            "pollIntervalMs",
            "discoveryIntervalMs",
        ):
            with (
                case(value, name),
                pytest.raises(InvalidSettingsError, match=f"{name} must be a whole number from 1"),
            ):
                parse(**{name: value})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90s", 90), ("15m", 900), (" 2 MIN ", 120), ("1d", 86_400)],
)
def test_a_delay_is_a_time_as_spark_writes_it(text, seconds):
    assert parse(minOffsetsPerTrigger="5", maxTriggerDelay=text).delay_seconds == seconds
    assert parse(minOffsetsPerTrigger="5").delay_seconds == 900


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay goes with minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "must be a time such as 90s"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5"}, "must be a time such as 90s"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "at most maxOffsetsPerTrigger, 4",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(InvalidSettingsError, match=message):
        parse(**options)
