"""Options: what is taken, what is refused, and that each refusal names the option."""

from __future__ import annotations

import pickle

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.bounds import Edge
from walstore.spark.options import ReadOptions, Selection, parse_options


def parse(**options: str) -> ReadOptions:
    return parse_options({"path": "/srv/orders", **options})


def test_defaults_read_all_there_is():
    options = parse()
    assert options.selection.is_whole
    assert (options.starting.every, options.ending.every) == (Edge.EARLIEST, Edge.LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.min_partitions == 1
    assert options.stream is None
    assert options.use_tier


@pytest.mark.parametrize("text", ["earliest", '{"orders":{"0":-2}}', '{"a":{"0":1},"b":{"0":-2}}'])
def test_ending_at_the_head_is_refused(text):
    with pytest.raises(InvalidSettingsError, match="endingOffsets"):
        parse(endingOffsets=text)


@pytest.mark.parametrize(
    ("options", "selection"),
    [
        ({"subscribe": "a"}, Selection(names=("a",))),
        ({"subscribe": "a, b/1,a"}, Selection(names=("a", "b/1"))),
        ({"subscribePattern": "a.*"}, Selection(pattern="a.*")),
        ({"assign": '{"a":[2,0,2],"b":[1]}'}, Selection(assigned=(("a", (0, 2)), ("b", (1,))))),
    ],
)
def test_selectors(options, selection):
    found = parse(**options).selection
    assert found == selection
    assert not found.is_whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("subscribe", ""),
        ("subscribe", "a,,b"),
        ("subscribePattern", "a("),
        ("assign", "a"),
        ("assign", "{}"),
        ("assign", '{"a":[]}'),
        ("assign", '{"a":0}'),
        ("assign", '{"a":[-1]}'),
        ("assign", '{"a":["0"]}'),
        ("assign", '{"a":[true]}'),
        ("assign", '["a"]'),
    ],
)
def test_bad_selectors_are_refused(name, text):
    with pytest.raises(InvalidSettingsError, match=name):
        parse(**{name: text})


def test_two_selectors_are_refused():
    with pytest.raises(InvalidSettingsError, match="subscribe or assign, not both"):
        parse(subscribe="a", assign='{"a":[0]}')


def test_words_and_numbers():
    options = parse(
        minPartitions="8",
        failOnDataLoss="FALSE",
        includeHeaders="true",
        tier="off",
        stream="eu",
        pushdown="on",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert options.min_partitions == 8
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert not options.use_tier
    assert options.stream == "eu"
    assert options.takes_filters
    assert not options.needs_record


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", "1"),
        ("tier", "on"),
        ("pushdown", "true"),
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
    options = parse(startingOffsets='{"a":{"0":5}}', subscribe="a")
    assert pickle.loads(pickle.dumps(options)) == options
