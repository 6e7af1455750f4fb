"""The S3 store against an emulator over real HTTP: opening, credentials, buckets, and the probe."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import aclosing

import pytest

from tests.s3.rgw import ACCESS_KEY, SECRET_KEY
from uploader.stores import S3Store, open_store, probe_conditional_puts
from uploader.stores.s3_client import Connection, _shared
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalClosedError,
)

pytestmark = pytest.mark.s3


async def test_objects_lie_below_the_prefix(s3_url, s3_bucket, s3_admin):
    async with aclosing(open_store(s3_url)) as store:
        await store.put_if_absent("manifest/MANIFEST", b"{}")
    listed = s3_admin.list_objects_v2(Bucket=s3_bucket)["Contents"]
    assert [item["Key"] for item in listed] == ["logs/orders/manifest/MANIFEST"]


async def test_a_sibling_prefix_is_another_store(s3_server, s3_bucket):
    endpoint = f"?endpoint_url={s3_server.endpoint_url}"
    async with (
        aclosing(open_store(f"s3://{s3_bucket}/ab{endpoint}")) as longer,
        aclosing(open_store(f"s3://{s3_bucket}/a{endpoint}")) as shorter,
    ):
        await longer.put_if_absent("x", b"")
        assert [listed async for listed in shorter.list("")] == []


async def test_the_top_of_a_bucket(s3_server, s3_bucket):
    url = f"s3://{s3_bucket}?endpoint_url={s3_server.endpoint_url}"
    async with aclosing(open_store(url)) as store:
        await store.put_if_absent("x", b"")
        assert [listed.key async for listed in store.list("")] == ["x"]
        assert store.url == url


async def test_many_tasks_open_one_client(s3_url):
    async with aclosing(open_store(s3_url)) as store, asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(store.put_if_absent(f"key-{number}", b""))


async def test_a_missing_bucket_shows_at_the_probe_and_at_reads(s3_server, aws_environment):
    url = f"s3://no-such-bucket?endpoint_url={s3_server.endpoint_url}"
    async with aclosing(open_store(url)) as store:
        with pytest.raises(LogNotFoundError, match="bucket") as caught:
            await probe_conditional_puts(store)
        assert caught.value.location == url
        with pytest.raises(LogNotFoundError):
            await store.get("manifest/MANIFEST")
        assert await store.head("manifest/MANIFEST") is None


async def test_missing_credentials_show_at_the_probe_and_can_be_given_later(s3_url, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with aclosing(open_store(s3_url)) as store:
        with pytest.raises(StorageUnavailableError, match="AWS_ACCESS_KEY_ID") as caught:
            await probe_conditional_puts(store)
        assert not caught.value.retriable
        assert caught.value.outcome == "not_written"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests")
        await probe_conditional_puts(store)


async def test_an_unknown_profile_is_a_matter_of_credentials(s3_url, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    async with aclosing(open_store(s3_url)) as store:
        with pytest.raises(StorageUnavailableError, match="ProfileNotFound") as caught:
            await store.get("x")
    assert not caught.value.retriable


async def test_half_of_the_credentials(s3_url, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with aclosing(open_store(s3_url)) as store:
        with pytest.raises(StorageUnavailableError, match="PartialCredentialsError"):
            await store.get("x")


async def test_credentials_from_a_file(s3_url, monkeypatch, tmp_path):
    """Boto's own order of places; also shows that reading the file does not block the loop."""
    file = tmp_path / "credentials"
    file.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    async with aclosing(open_store(s3_url)) as store:
        await store.put_if_absent("x", b"")


async def test_an_emulator_without_conditional_puts_is_refused(s3_server, s3_url, s3_bucket):
    s3_server.unconditional_buckets.add(s3_bucket)
    async with aclosing(open_store(s3_url)) as store:
        with pytest.raises(UnsupportedStoreError, match="If-None-Match") as caught:
            await probe_conditional_puts(store)
        assert store.url in str(caught.value)
        assert [listed async for listed in store.list("")] == []


async def test_nothing_is_logged_or_shown_of_the_credentials(s3_url, caplog):
    with caplog.at_level(logging.DEBUG, logger="walstore"):
        async with aclosing(open_store(s3_url)) as store:
            await probe_conditional_puts(store)
            assert "secret-of-the-tests" not in caplog.text + repr(store) + store.url


async def test_a_bad_bucket_name_or_region_is_a_matter_of_settings(aws_environment):
    async with aclosing(S3Store("no spaces allowed")) as store:
        with pytest.raises(InvalidSettingsError):
            await store.get("x")
    async with aclosing(S3Store("bucket", region="no such region")) as store:
        with pytest.raises(InvalidSettingsError):
            await store.get("x")


async def test_a_closed_store_says_so(s3_url):
    store = open_store(s3_url)
    await store.put_if_absent("x", b"")
    await store.aclose()
    with pytest.raises(WalClosedError):
        await store.get("x")


async def test_without_the_extra_the_error_says_what_to_install(s3_url, monkeypatch):
    monkeypatch.setitem(sys.modules, "aioboto3", None)
    for name in ("uploader.stores.s3_client", "uploader.stores.s3_client"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    async with aclosing(open_store(s3_url)) as store:
        with pytest.raises(InvalidSettingsError, match=r'pip install "walstore\[cloud\]'):
            await store.get("x")


async def test_stores_on_one_server_share_a_client(s3_server, s3_bucket, monkeypatch):
    """The first one opens it and the last one closes it. Other credentials are another client's."""
    urls = [f"s3://{s3_bucket}/{name}?endpoint_url={s3_server.endpoint_url}" for name in "abc"]
    a, b, c = map(open_store, urls)
    for store in (a, b):
        await store.put_if_absent("x", b"")
    assert a._connection._shared is b._connection._shared
    client = b._connection._shared.client
    await a.aclose()
    assert [listed.key async for listed in b.list("")] == ["x"]
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert [listed.key async for listed in c.list("")] == []
    assert c._connection._shared.client is not client
    await b.aclose()
    await c.aclose()
    assert not _shared[asyncio.get_running_loop()]


@pytest.mark.slow
async def test_a_short_listing_is_one_short_page(s3_url, monkeypatch):
    """Who stops early was not sent a thousand objects."""
    asked = []
    request = Connection.request

    async def noted(self, name, key, **parameters):
        if name == "list_objects_v2":
            asked.append(parameters["MaxKeys"])
        return await request(self, name, key, **parameters)

    monkeypatch.setattr(Connection, "request", noted)
    async with aclosing(open_store(s3_url)) as store:
        for number in range(120):
            await store.put_if_absent(f"a/{number:03}", b"")
        async for listed in store.list("a/"):
            if listed.key == "a/066":
                break
        assert asked == [100]
        assert len([listed async for listed in store.list("a/")]) == 120
        assert asked == [100, 100, 1000]
