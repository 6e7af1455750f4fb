"""What an operator looks at when too few copies are there: it says which are missing, and works meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.walstore.cli.conftest import Cli, cli  # noqa: F401 - a fixture
from tests.walstore.cluster.replication.cluster import Cluster
from walstore import StorageUnavailableError, Wal
from walstore.http import HttpServer
from walstore.serve import Server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Wal]:
    """A log with a record and a cursor whose other copies are gone."""
    async with Cluster(tmp_path) as cluster:
        wal = await cluster.primary(0)
        await wal.append(b"v")
        await wal.cursor("report")
        for number in (1, 2):
            await cluster.machines[number].stop()
        async with wal, cluster.losing_patience(wal):
            with pytest.raises(StorageUnavailableError):
                await wal.append(b"w")
            with pytest.raises(StorageUnavailableError, match="confirm"):
                await wal.cursors()
            yield wal


async def test_the_page(alone: Wal) -> None:
    async with (
        HttpServer.open(alone, "127.0.0.1:0") as server,
        aiohttp.ClientSession(server.addresses[0]) as client,
        client.get("/v1/look/orders") as answer,
    ):
        assert answer.status == 200
        found = await answer.json()
    assert [one["is_present"] for one in found["statistics"]["copies"]] == [False, False]
    assert "1 of 3 copies" in found["statistics"]["replication_trouble"]
    assert "confirm" in found["cursors_trouble"]
    assert (found["cursors"], found["deletable_limit"]) == ([], 0)


async def test_top(alone: Wal, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    address = f"unix://{tmp_path / 'top.sock'}"
    async with Server.open(alone, unix=tmp_path / "top.sock"):
        done = await asyncio.to_thread(cli, "top", address, "--count", "1")
    assert done.code == 0, done.err
    for text in ("1 of 3 copies", "not there", "cursors", "confirm"):
        assert text in done.out.decode(), text
