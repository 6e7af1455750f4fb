"""Clients with several addresses, of which one accepts connections and never says anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import until
from walstore import Wal, connect
from walstore.net.remote import client
from walstore.serve import Server


class SilentServer:
    """A server that stands still."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self.connections = 0
        self._path = path
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, self._path)
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)


@pytest.fixture
async def silent(tmp_path: Path) -> AsyncIterator[SilentServer]:
    made = SilentServer(tmp_path / "silent.sock")
    async with made.running():
        yield made


@pytest.fixture
async def wal(tmp_path: Path) -> AsyncIterator[Wal]:
    async with Wal.open(tmp_path / "log") as opened:
        yield opened


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SEARCH_SECONDS", 0.05)


async def test_a_server_that_starts_later_is_found(
    tmp_path: Path, silent: SilentServer, wal: Wal
) -> None:
    socket = tmp_path / "later.sock"
    connecting = asyncio.ensure_future(
        connect([silent.address, f"unix://{socket}"], connect_seconds=60)
    )
    await until(lambda: silent.connections > 0, seconds=60)
    async with Server.open(wal, unix=socket), await connecting as remote:
        assert await remote.append(b"1") == 1


async def test_a_server_that_comes_back_is_found(
    tmp_path: Path, silent: SilentServer, wal: Wal
) -> None:
    socket = tmp_path / "back.sock"
    async with Server.open(wal, unix=socket):
        places = [silent.address, f"unix://{socket}"]
        remote = await connect(places, connect_seconds=60, reconnect_seconds=60)
    asked = silent.connections
    appending = asyncio.ensure_future(remote.producer("p").append(b"1"))
    await until(lambda: silent.connections > asked, seconds=60)
    async with Server.open(wal, unix=socket), remote:
        assert await appending == 1
