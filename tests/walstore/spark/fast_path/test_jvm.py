"""How the JVM names objects."""

from __future__ import annotations

import pytest

from walstore.spark.environment import FastPathError
from walstore.spark.fast_path.jvm import hadoop_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///data/orders", "file:/data/orders/log/x"),
        ("file:///", "file:/log/x"),
        ("file:///a%20b/100%25/%C3%BC", "file:/a b/100%/ü/log/x"),
        ("file:///%7Ba%2Cb%7D/%5Bc%5D/%2A%3F%5C", r"file:/\{a,b\}/\[c\]/\*\?\\/log/x"),
        ("s3://bucket", "s3a://bucket/log/x"),
        ("s3://bucket/some/orders?region=eu-west-1", "s3a://bucket/some/orders/log/x"),
    ],
)
def test_paths(url, path):
    assert hadoop_store(url, {}).path("log/x") == path


def test_other_vendors_are_read_with_python():
    for url in ("gs://b/p", "az://c/p"):
        with pytest.raises(FastPathError, match="not"):
            hadoop_store(url, {})


def test_a_directory_needs_no_settings():
    store = hadoop_store("file:///data", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert (store.scheme, store.options) == ("file", {})


def options(url: str, **environment: str) -> dict[str, str]:
    found = hadoop_store(url, environment).options
    assert all(name.startswith("fs.s3a.bucket.b.") for name in found)
    return {name.removeprefix("fs.s3a.bucket.b."): value for name, value in found.items()}


def test_settings_are_those_of_the_bucket():
    assert options("s3://b/p") == {}
    assert options("s3://b/p?region=eu-west-1") == {"endpoint.region": "eu-west-1"}
    assert options("s3://b/p?endpoint_url=http%3A%2F%2F127.0.0.1%3A9000") == {
        "endpoint": "http://127.0.0.1:9000",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    assert options("s3://b/p?endpoint_url=https%3A%2F%2Fs3.example&region=x") == {
        "endpoint": "https://s3.example",
        "endpoint.region": "x",
        "path.style.access": "true",
        "connection.ssl.enabled": "true",
    }


def test_the_environment_names_server_and_region():
    assert options("s3://b/p", AWS_REGION="a", AWS_DEFAULT_REGION="z") == {"endpoint.region": "a"}
    found = options("s3://b/p", AWS_ENDPOINT_URL_S3="http://one", AWS_ENDPOINT_URL="http://two")
    assert found["endpoint"] == "http://one"
    found = options("s3://b/p?endpoint_url=http%3A%2F%2Fhere", AWS_ENDPOINT_URL="http://there")
    assert found["endpoint"] == "http://here"


def test_credentials_are_never_settings():
    secret = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert "hunter2" not in str(hadoop_store("s3://b/p?region=x", secret))
