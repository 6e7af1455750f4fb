"""The whole path over a real HTTP connection to an S3 server, and what is said if it cannot work."""

# ruff: noqa: F811 - fixtures

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cloud import SEGMENTS, values
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.waiting import until
from uploader import CloudLog, CloudTier, UploadSettings
from uploader.stores import open_store
from uploader.stores.s3 import S3Store
from walstore import Wal
from walstore.errors import (
    ContentionError,
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalError,
)

if TYPE_CHECKING:
    from tests.uploader.s3_server import S3Server

pytestmark = [pytest.mark.s3, pytest.mark.slow]

SMALL = UploadSettings(fragment_bytes=4096, fragment_age_seconds=0.01)


async def test_append_ship_lose_the_disk_and_go_on(tmp_path: Path, s3_url: str) -> None:
    """Everything is read back from the URL alone, and a new directory continues it."""
    expected = values(80)
    async with Wal.open(
        tmp_path / "a", settings=SEGMENTS, tier=CloudTier(s3_url, settings=SMALL)
    ) as wal:
        for value in expected[:40]:
            await wal.append(value)
        assert await wal.append(expected[40], durability="cloud") == 41
        assert wal.uploaded_limit == 42
    async with Wal.open(
        tmp_path / "b", settings=SEGMENTS, tier=CloudTier(s3_url, settings=SMALL)
    ) as wal:
        assert (wal.head, wal.tail) == (1, 42)
        await wal.append_many(expected[41:])
        assert [record.value async for record in wal.reader(follow=False)] == expected
    async with CloudLog.open(s3_url) as log:
        assert (log.head, log.tail) == (1, 81)
        assert [record.value async for record in log.reader()] == expected
        verified = await log.verify()
        assert verified.records == 80
        assert verified.setsum == log.manifest.setsum.hexdigest()


async def test_following_a_log_in_a_bucket(tmp_path: Path, s3_url: str) -> None:
    async with Wal.open(tmp_path / "a", tier=CloudTier(s3_url, settings=SMALL)) as wal:
        await wal.append(b"1", durability="cloud")
        async with CloudLog.open(s3_url) as log, asyncio.timeout(60):
            reader = log.follow()
            assert (await anext(reader)).value == b"1"
            following = asyncio.create_task(anext(reader))
            await wal.append(b"2", durability="cloud")
            assert (await following).value == b"2"


async def test_local_files_go_and_come_back_from_the_bucket(
    tmp_path: Path,
    s3_url: str,
) -> None:
    settings = SEGMENTS.replace(retention_bytes=0, cache_bytes=0)
    expected = values(400)
    tier = CloudTier(s3_url, settings=UploadSettings(fragment_bytes=65536))
    async with Wal.open(tmp_path / "a", settings=settings, tier=tier) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
        await wal.rotate()
        await wal.wait_durable(400, "cloud")
        await until(lambda: wal.statistics().local_head == 401)
        assert [record.value async for record in wal.reader(follow=False)] == expected


async def test_two_logs_at_one_place(tmp_path: Path, s3_url: str) -> None:
    async with Wal.open(tmp_path / "a", tier=CloudTier(s3_url, settings=SMALL)) as wal:
        await wal.append(b"a", durability="cloud")
        async with Wal.open(tmp_path / "b") as other:
            await other.append(b"b")
        with pytest.raises(ContentionError, match="belongs to another log"):
            await Wal.open(tmp_path / "b", tier=CloudTier(s3_url))


async def told(opening) -> WalError:
    """Return the error of an opening, whose text must fit a line and hold no secret."""
    with pytest.raises(WalError) as found:
        await opening
    text = str(found.value)
    assert "\n" not in text
    assert "secret" not in text
    assert len(text) < 300
    return found.value


@pytest.fixture(params=["log", "view"])
def open_at(request, tmp_path: Path):
    """Open a URL in both ways."""
    if request.param == "view":
        return CloudLog.open
    return lambda url: Wal.open(tmp_path / "log", tier=CloudTier(url))


async def test_a_bucket_that_does_not_exist(open_at, s3_url: str) -> None:
    error = await told(open_at(s3_url.replace("s3://bucket-", "s3://no-such-bucket-")))
    assert isinstance(error, LogNotFoundError)
    assert "there is no such bucket" in str(error)
    assert "create it first" in str(error)
    assert not error.retriable


async def test_no_log_at_the_place(s3_url: str) -> None:
    error = await told(CloudLog.open(s3_url))
    assert isinstance(error, LogNotFoundError)
    assert "there is no log at s3://" in str(error)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_missing_credentials(
    open_at,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.delenv(name)
    error = await told(open_at(s3_url))
    assert isinstance(error, StorageUnavailableError)
    assert "credentials" in str(error)
    assert "AWS_ACCESS_KEY_ID" in str(error)
    assert not error.retriable


async def test_an_endpoint_where_nobody_listens(open_at, s3_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = s3_url.partition("?")[0] + f"?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"
    error = await told(open_at(url))
    assert isinstance(error, StorageUnavailableError)
    assert "no connection to s3://bucket-" in str(error)
    assert error.retriable


async def test_an_endpoint_that_is_none(open_at) -> None:
    with pytest.raises(InvalidSettingsError, match="endpoint_url"):
        await open_at("s3://bucket/log?endpoint_url=localhost:9000")


async def test_an_emulator_without_conditional_puts(
    tmp_path: Path,
    s3_url: str,
    s3_bucket: str,
    s3_server: S3Server,
) -> None:
    s3_server.unconditional_buckets.add(s3_bucket)
    error = await told(Wal.open(tmp_path / "log", tier=CloudTier(s3_url)))
    assert isinstance(error, UnsupportedStoreError)
    assert "ignores the conditions of puts" in str(error)


async def test_an_outage_in_mid_flight(
    tmp_path: Path,
    s3_url: str,
    s3_server: S3Server,
) -> None:
    """Connections are refused for a while; nobody but those who wait for the cloud notices."""
    store = open_store(s3_url)
    assert isinstance(store, S3Store)
    good = store._endpoint_url
    tier = CloudTier(s3_url, store=store, settings=SMALL)
    async with Wal.open(tmp_path / "log", tier=tier) as wal:
        await wal.append(b"1", durability="cloud")
        assert good == s3_server.endpoint_url
        connection = await store._open()
        original = connection.request
        failures = 0

        async def refuse(name: str, key: str, **parameters: object) -> dict[str, object]:
            nonlocal failures
            if failures < 12:
                failures += 1
                raise StorageUnavailableError("no connection (injected)", outcome="not_written")
            return await original(name, key, **parameters)

        connection.request = refuse
        assert await wal.append(b"2", durability="cloud") == 2
        assert failures == 12
        assert wal.statistics().tier_failure is None


async def test_keys_in_the_bucket(tmp_path: Path, s3_url: str, s3_bucket: str, s3_admin) -> None:
    """As wal3 has them; nothing else is left there but the mark of the probe, if this log was the first."""
    async with Wal.open(tmp_path / "log", tier=CloudTier(s3_url, settings=SMALL)) as wal:
        await wal.append(b"1")
    found = s3_admin.list_objects_v2(Bucket=s3_bucket)["Contents"]
    keys = sorted(item["Key"] for item in found)
    assert [key for key in keys if not key.startswith("logs/orders/walstore-mark/")] == [
        "logs/orders/log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet",
        "logs/orders/manifest/MANIFEST",
    ]
