"""Options and locations: what is taken, what is refused, and that each refusal names the option."""

from __future__ import annotations

import pickle
from urllib.parse import parse_qs, urlsplit

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.bounds import Edge
from walstore.spark.options import ReadOptions, Selection, parse_location, parse_options


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


@pytest.mark.parametrize(
    ("path", "is_store", "topic"),
    [
        ("/srv/logs/orders", False, "orders"),
        ("/srv/logs/orders/", False, "orders"),
        ("file:///srv/logs/orders", True, "orders"),
        ("file:///srv/the%20log/", True, "the log"),
        ("s3://bucket/eu/orders", True, "orders"),
        ("s3://bucket/eu/orders/?region=eu-central-1", True, "orders"),
        ("s3://bucket", True, "bucket"),
        ("s3://bucket/", True, "bucket"),
    ],
)
def test_topic_is_the_last_component(path, is_store, topic):
    location = parse_location(path, {})
    assert (location.is_store, location.topic) == (is_store, topic)


def test_a_relative_path_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse_location("data/orders", {}).text == str(tmp_path / "data" / "orders")


def test_store_options_become_parameters():
    url = parse_location(
        "s3://bucket/orders?region=eu", {"endpoint_url": "http://127.0.0.1:9000/?a&b"}
    ).text
    assert url.startswith("s3://bucket/orders?")
    assert parse_qs(urlsplit(url).query) == {
        "region": ["eu"],
        "endpoint_url": ["http://127.0.0.1:9000/?a&b"],
    }


def test_hadoops_name_for_a_bucket_is_taken():
    location = parse_location("s3a://bucket/eu/orders", {"region": "eu"})
    assert (location.text, location.topic) == ("s3://bucket/eu/orders?region=eu", "orders")


def test_a_url_without_store_options_is_kept():
    url = "s3://bucket/a%20b?endpoint_url=http%3A%2F%2Fhost"
    assert parse_location(url, {}).text == url


@pytest.mark.parametrize(
    ("path", "store", "message"),
    [
        ("/srv/orders", {"region": "eu"}, "store URL"),
        ("s3://bucket/orders?region=eu", {"region": "us"}, "not both"),
        ("memory://orders", {}, "only in the process"),
        ("s3://key:hunter2@bucket/orders", {}, "credentials"),
    ],
)
def test_refused(path, store, message):
    with pytest.raises(InvalidSettingsError, match=message) as caught:
        parse_location(path, store)
    assert "hunter2" not in str(caught.value)
