"""Store URLs: what is understood, how it is normalised, and what is refused without repeating it."""

from __future__ import annotations

import pytest

from tests.cases import case
from uploader.stores import HedgedStore, LocalStore, MemoryStore, S3Store, open_store
from walstore.errors import InvalidSettingsError

GOOD = [
    ("file:///srv/bucket/orders", LocalStore, "file:///srv/bucket/orders"),
    ("file:///srv//bucket/./x/../orders/", LocalStore, "file:///srv/bucket/orders"),
    ("file://localhost/srv", LocalStore, "file:///srv"),
    ("file:////srv", LocalStore, "file:///srv"),
    ("file:///a%20b/%C3%A9%23", LocalStore, "file:///a%20b/%C3%A9%23"),
    ("FILE:///srv", LocalStore, "file:///srv"),
    ("memory://name", MemoryStore, "memory://name"),
    ("memory://name/below/", MemoryStore, "memory://name/below"),
    ("s3://bucket", S3Store, "s3://bucket"),
    ("s3://bucket/", S3Store, "s3://bucket"),
    ("s3://bucket/a/b/", S3Store, "s3://bucket/a/b"),
    ("s3://bucket/a%20b", S3Store, "s3://bucket/a%20b"),
    ("s3://bucket/a?region=eu-west-1", S3Store, "s3://bucket/a?region=eu-west-1"),
    (
        "s3://bucket/a?region=eu-west-1&endpoint_url=http%3A%2F%2F127.0.0.1%3A9000/",
        S3Store,
        "s3://bucket/a?endpoint_url=http://127.0.0.1:9000&region=eu-west-1",
    ),
    ("s3://bucket/a?max_connections=64", S3Store, "s3://bucket/a"),
    ("s3://bucket/a?hedges_per_second=0.5&region=x", HedgedStore, "s3://bucket/a?region=x"),
]


async def test_good_urls():
    for url, kind, normalised in GOOD:
        with case(url, kind, normalised):
            store = open_store(url)
            assert isinstance(store, kind)
            assert store.url == normalised
            assert open_store(store.url).url == normalised
            assert normalised in repr(store)
            await store.aclose()


BAD = [
    ("", "must begin with file:///"),
    ("/srv/bucket", "must begin with file:///"),
    ("relative/path", "must begin with file:///"),
    ("https://bucket", "not https:"),
    ("ftp://bucket", "not ftp:"),
    ("gs://", "needs a bucket"),
    ("az://container?region=x", "no such option region; allowed: endpoint_url, max_connections"),
    ("gs://bucket?client=obstore", "no such option client"),
    ("s3://bucket?client=curl", "client must be aioboto3 or obstore"),
    ("s3:bucket", "must begin with"),
    ("file:/srv", "must begin with"),
    ("file://host/srv", "absolute path"),
    ("file://", "absolute path"),
    ("file:///srv?fsync=no", "no such option fsync; allowed: none"),
    ("file:///srv%00", "absolute path"),
    ("file:///srv#1", "%23"),
    ("memory://", "needs a name"),
    ("s3://", "needs a bucket"),
    ("s3:///prefix", "needs a bucket"),
    ("s3://b", "needs a bucket"),
    ("s3://bucket/a//b", "key"),
    ("s3://bucket/../b", "key"),
    (
        "s3://bucket?colour=red",
        "no such option colour; allowed: endpoint_url, max",
    ),
    ("s3://bucket?region=a&region=b", "once"),
    ("s3://bucket?region=", "value"),
    ("s3://bucket?max_connections=0", "max_connections must be a whole number above 0"),
    ("s3://bucket?max_connections=1.5", "whole number"),
    ("s3://bucket?hedges_per_second=0.0", "hedges_per_second must be a number above 0"),
    ("s3://bucket?hedges_per_second=-1", "number above 0"),
    ("file:///srv?hedges_per_second=1", "no such option hedges_per_second"),
    ("s3://bucket?endpoint_url=127.0.0.1:9000", "http"),
    ("s3://bucket?endpoint_url=http://host:99999", "http"),
    ("s3://[bucket", "brackets"),
]


def test_bad_urls():
    for url, message in BAD:
        with case(url, message):
            with pytest.raises(InvalidSettingsError) as caught:
                open_store(url)
            assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAhunter2:hunter2@bucket/prefix",
        "s3://hunter2@bucket",
        "s3://bucket?aws_secret_access_key=hunter2",
        "s3://bucket?hunter2",
        "s3://bucket?max_connections=hunter2",
        "s3://bucket?endpoint_url=http://user:hunter2@host",
        "s3://[hunter2:hunter2@bucket",
        "file://user:hunter2@host/srv",
        "hunter2/not/a/url",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url):
    with pytest.raises(InvalidSettingsError) as caught:
        open_store(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__


async def test_memory_stores_of_one_name_are_one():
    await open_store("memory://test_url/shared").put_if_absent("a", b"1")
    assert (await open_store("memory://test_url/shared").get("a")).data == b"1"
    assert await open_store("memory://test_url/other").head("a") is None
    assert await MemoryStore().head("a") is None


def test_a_relative_directory_is_refused(tmp_path):
    with pytest.raises(InvalidSettingsError, match="absolute"):
        LocalStore(tmp_path.relative_to("/"))
