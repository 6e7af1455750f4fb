"""Options: what is taken, what is refused, and that each refusal names the option."""

from __future__ import annotations

import pickle

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.options import Edge, Moment, ReadOptions, parse_options


def parse(**options: str) -> ReadOptions:
    return parse_options({"path": "/srv/orders", **options})


def test_defaults_read_all_there_is():
    options = parse()
    assert (options.starting, options.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.min_partitions == 1
    assert options.use_tier


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Edge.EARLIEST),
        ("LATEST", Edge.LATEST),
        ("42", 42),
        ('{"orders": {"0": 42}}', 42),
        ('{"orders": {"0": -2}}', Edge.EARLIEST),
        ('{"orders": {"0": -1}}', Edge.LATEST),
    ],
)
def test_starting_offsets_as_kafka_has_them(text, bound):
    assert parse(startingOffsets=text).starting == bound
    assert parse(STARTINGOFFSETS=text).starting == bound


@pytest.mark.parametrize("text", ["latest", '{"orders":{"0":-1}}'])
def test_ending_at_the_tail(text):
    assert parse(endingOffsets=text).ending is Edge.LATEST


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "-1",
        "1.5",
        "",
        "{",
        "{}",
        "[1]",
        '{"orders": 3}',
        '{"orders": {"0": -3}}',
        '{"orders": {"0": true}}',
        '{"orders": {"0": "3"}}',
        '{"orders": {"1": 3}}',
        '{"orders": {"0": 1, "1": 3}}',
        '{"bills": {"0": 3}}',
    ],
)
def test_bad_offsets_are_refused(text):
    with pytest.raises(InvalidSettingsError, match="startingOffsets"):
        parse(startingOffsets=text)


@pytest.mark.parametrize("text", ["earliest", '{"orders":{"0":-2}}'])
def test_ending_at_the_head_is_refused(text):
    with pytest.raises(InvalidSettingsError, match="endingOffsets"):
        parse(endingOffsets=text)


def test_times_are_milliseconds():
    options = parse(startingTimestamp="1700000000000", endingTimestamp="1700000000001")
    assert options.starting == Moment(1_700_000_000_000_000)
    assert options.ending == Moment(1_700_000_000_001_000)


@pytest.mark.parametrize("text", ["now", "-5", "1e9", "2023-01-01"])
def test_bad_times_are_refused(text):
    with pytest.raises(InvalidSettingsError, match="endingTimestamp"):
        parse(endingTimestamp=text)


def test_two_ways_to_start_are_refused():
    with pytest.raises(InvalidSettingsError, match="not both"):
        parse(startingOffsets="1", startingTimestamp="1")


def test_words_and_numbers():
    options = parse(
        minPartitions="8",
        failOnDataLoss="FALSE",
        includeHeaders="true",
        tier="off",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert options.min_partitions == 8
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert not options.use_tier
    assert not options.needs_record


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", "1"),
        ("tier", "on"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
    ],
)
def test_bad_words_are_refused(name, text):
    with pytest.raises(InvalidSettingsError, match=name):
        parse(**{name: text})


def test_unknown_options_are_refused_with_the_known_ones():
    with pytest.raises(InvalidSettingsError, match=r"startingofset.*startingOffsets.*store\.\*"):
        parse(startingOfset="1")


@pytest.mark.parametrize("options", [{}, {"path": ""}])
def test_a_log_must_be_named(options):
    with pytest.raises(InvalidSettingsError, match="name the log"):
        parse_options(options)


def test_options_can_be_pickled():
    options = parse(startingTimestamp="5")
    assert pickle.loads(pickle.dumps(options)) == options
