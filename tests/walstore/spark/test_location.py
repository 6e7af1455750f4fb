"""Locations: path or store URL, the topic's name, store.* options, and no credentials."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.location import parse_location


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
