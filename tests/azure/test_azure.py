"""Stores and logs at az://, against Azurite. Only for ``make test-azure``."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tests.azure.account import ACCOUNT, ENDPOINT, KEY, create_container
from uploader import CloudLog, CloudWriter
from uploader.stores import ObjectStore, open_store, probe_conditional_puts
from uploader.testing.suite import ObjectStoreLoadSuite, ObjectStoreSuite
from walstore.errors import InvalidSettingsError, LogNotFoundError, StorageUnavailableError

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(ENDPOINT not in os.environ, reason="make test-azure starts Azurite"),
]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)


@pytest.fixture
def url(credentials: None) -> str:
    """A place in a new container."""
    container = f"c{uuid.uuid4().hex[:16]}"
    create_container(os.environ[ENDPOINT], container)
    return f"az://{container}/logs/orders?endpoint_url={os.environ[ENDPOINT]}"


class OverHttp:
    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[ObjectStore]:
        async with aclosing(open_store(url)) as store:
            yield store

    @pytest.fixture
    async def peer(self, url: str) -> AsyncIterator[ObjectStore]:
        async with aclosing(open_store(url)) as peer:
            yield peer


class TestAzure(OverHttp, ObjectStoreSuite):
    @pytest.mark.skip("the emulator orders keys as UTF-16, and logs need no order")
    async def test_list_order_beyond_ascii(self) -> None: ...

    @pytest.mark.skip("Azure takes a backslash for a slash; see below")
    async def test_unusual_keys(self) -> None: ...


async def test_a_backslash_is_refused(url: str) -> None:
    """Else the object would have another key than the one it was put under."""
    async with aclosing(open_store(url)) as store:
        for call in (store.put_if_absent("a\\b", b""), store.get("a\\b"), store.delete(["a\\b"])):
            with pytest.raises(InvalidSettingsError, match="backslash"):
                await call


@pytest.mark.slow
class TestAzureUnderLoad(OverHttp, ObjectStoreLoadSuite):
    objects = 1_020


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_a_log_of_two_writers(url: str, layout: str) -> None:
    async with (
        CloudWriter.open(url, layout=layout) as one,
        CloudWriter.open(url, layout=layout) as other,
        asyncio.TaskGroup() as group,
    ):
        for number in range(20):
            group.create_task((one, other)[number % 2].append(b"%d" % number))
    async with CloudLog.open(url) as log:
        await log.verify()
        found = [record.value async for record in log.reader()]
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]


async def test_a_missing_container(credentials: None) -> None:
    missing = f"az://nowhere?endpoint_url={os.environ[ENDPOINT]}"
    async with aclosing(open_store(missing)) as store:
        with pytest.raises(LogNotFoundError, match="no such bucket"):
            await probe_conditional_puts(store)


async def test_a_wrong_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY.replace("E", "F"))
    async with aclosing(open_store(url)) as store:
        with pytest.raises(StorageUnavailableError, match="credentials") as caught:
            await store.get("key")
    assert not caught.value.retriable
