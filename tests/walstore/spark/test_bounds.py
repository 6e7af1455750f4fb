"""Where reads start and end: Kafka's words, times, and JSON for each log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore.errors import InvalidSettingsError
from walstore.spark.bounds import (
    ENDING,
    STARTING,
    BoundNames,
    Bounds,
    Edge,
    TimeBound,
    from_json,
    offsets_json,
    show,
    to_json,
)
from walstore.spark.options import Options, parse_bounds


def parse(names: BoundNames = STARTING, default: Edge = Edge.EARLIEST, **options: str) -> Bounds:
    return parse_bounds(Options(options, names.all), names, default=default)


@pytest.mark.parametrize(
    ("text", "bound"),
    [("earliest", Edge.EARLIEST), ("LATEST", Edge.LATEST), (" 42 ", 42), ("0", 0)],
)
def test_one_bound_for_every_log(text, bound):
    assert parse(startingOffsets=text) == Bounds(bound, None, "startingOffsets")
    assert parse(STARTINGOFFSETS=text).of("orders", 7) == bound


def test_defaults():
    assert parse().of("any", 0) is Edge.EARLIEST
    assert parse(ENDING, Edge.LATEST).of("any", 0) is Edge.LATEST


def test_json_names_each_log():
    bounds = parse(startingOffsets='{"a": {"0": 23, "1": -2}, "b/c": {"10": -1}}')
    assert bounds.each == {("a", 0): 23, ("a", 1): Edge.EARLIEST, ("b/c", 10): Edge.LATEST}
    bounds.check([("a", 0), ("a", 1), ("b/c", 10)])
    assert bounds.of("a", 0) == 23


def test_times_are_milliseconds():
    assert parse(startingTimestamp="1700000000000").every == TimeBound(1_700_000_000_000_000)
    bounds = parse(ENDING, endingOffsetsByTimestamp='{"a":{"0":5},"b":{"0":0}}')
    assert bounds.each == {("a", 0): TimeBound(5000), ("b", 0): TimeBound(0)}
    assert bounds.option == "endingOffsetsByTimestamp"


BAD_JSON = [
    "{",
    "{}",
    "[1]",
    '{"a": 3}',
    '{"a": {}}',
    '{"a": {"0": true}}',
    '{"a": {"0": "3"}}',
    '{"a": {"00": 3}}',
    '{"a": {"-1": 3}}',
    '{"a": {"x": 3}}',
    '{"a": {"0": 1, "0": 2}}',
    '{"a": {"0": 1}, "a": {"1": 1}}',
]


def test_bad_offsets_are_refused():
    for text in (*BAD_JSON, "yesterday", "-1", "1.5", "", '{"a": {"0": -3}}'):
        with case(text), pytest.raises(InvalidSettingsError, match="startingOffsets"):
            parse(startingOffsets=text)


def test_bad_times_of_logs_are_refused():
    for text in (*BAD_JSON, "5", "latest", '{"a": {"0": -1}}'):
        with (
            case(text),
            pytest.raises(InvalidSettingsError, match="startingOffsetsByTimestamp must be JSON"),
        ):
            parse(startingOffsetsByTimestamp=text)


@pytest.mark.parametrize("text", ["now", "-5", "1e9", "2023-01-01", "²"])
def test_bad_times_are_refused(text):
    with pytest.raises(InvalidSettingsError, match="endingTimestamp"):
        parse(ENDING, endingTimestamp=text)


def test_two_ways_are_refused():
    with pytest.raises(
        InvalidSettingsError, match="startingOffsets or startingTimestamp, not both"
    ):
        parse(startingOffsets="1", startingTimestamp="1")


def test_every_partition_must_be_named_and_no_other():
    bounds = parse(startingOffsets='{"a": {"0": 1}, "z": {"3": 1}}')
    with pytest.raises(
        InvalidSettingsError, match=r"names z/3, not in this read and lacks a/1, b/0"
    ):
        bounds.check([("a", 0), ("a", 1), ("b", 0)])
    many = [("t", at) for at in range(9)]
    with pytest.raises(InvalidSettingsError, match=r"lacks t/0, t/1, t/2, t/3, t/4 and 4 more"):
        parse(startingOffsets='{"a": {"0": 1}}').check([("a", 0), *many])


def test_an_offset_by_itself_goes_with_one_log():
    parse(startingOffsets="5").check([("a", 0)])
    with pytest.raises(InvalidSettingsError, match=r'of each of the 2 logs.*"b": \{"1": 5\}'):
        parse(startingOffsets="5").check([("a", 0), ("b", 1)])
    parse(startingTimestamp="5").check([("a", 0), ("b", 1)])


@given(
    st.dictionaries(
        st.tuples(st.text("abc/.-ü", min_size=1), st.integers(0, 1000)),
        st.integers(0, 1 << 62),
        min_size=1,
    )
)
def test_offsets_go_through_json(offsets):
    text = offsets_json(offsets)
    assert parse(startingOffsets=text).each == offsets
    topics = list(json.loads(text))
    assert topics == sorted(topics)


@pytest.mark.parametrize("text", ["oldest", "", "-1", "1.5", "[1]", "{}", '{"orders":{"0":"x"}}'])
def test_a_wrong_offset_is_told_all_that_may_be_given(text):
    with pytest.raises(InvalidSettingsError) as caught:
        parse_bounds(
            Options({"startingOffsets": text}, STARTING.all), STARTING, default=Edge.LATEST
        )
    for words in ("startingOffsets must be earliest, latest, an offset, or JSON as", "-2 for"):
        assert words in str(caught.value)
    with pytest.raises(InvalidSettingsError) as caught:
        parse_bounds(Options({"endingOffsets": text}, ENDING.all), ENDING, default=Edge.LATEST)
    assert "endingOffsets must be latest, an offset, or JSON as" in str(caught.value)
    assert "earliest" not in str(caught.value)


def test_there_and_back():
    offsets = {("orders", 0): 123, ("orders", 1): 7, ("clicks", 0): 1}
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_the_same_offsets_have_the_same_text():
    """Spark starts a micro-batch whenever the text is another one."""
    names = [("b", 10), ("a", 0), ("b", 9), ("b", 1)]
    one = dict.fromkeys(names, 5)
    other = dict.fromkeys(reversed(names), 5)
    assert json.dumps(to_json(one)) == json.dumps(to_json(other))
    assert json.dumps(to_json(one)) == '{"a": {"0": 5}, "b": {"1": 5, "9": 5, "10": 5}}'


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [],
        {"orders": 5},
        {"orders": {"0": "5"}},
        {"orders": {"0": 0}},
        {"orders": {"0": True}},
        {"orders": {"x": 5}},
        {"orders": {"-1": 5}},
        {"partition-1": {"index": 3}},
    ],
)
def test_offsets_of_another_source_are_refused(value):
    with pytest.raises(InvalidSettingsError, match="checkpointLocation of its own"):
        from_json(value)


def test_names_for_messages():
    assert [show(("orders", 0)), show(("orders", 3))] == ["orders", "orders/3"]
