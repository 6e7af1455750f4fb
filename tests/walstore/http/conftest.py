"""A store served over HTTP, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.local import SMALL
from walstore import Settings, WalStore
from walstore.http import HttpServer, HttpSettings
from walstore.http.protocol import PREFIX

QUICK = HttpSettings(poll_seconds=0.2, event_seconds=5, drain_seconds=60)


@dataclass
class Served:
    """A server, its store, and a client of it."""

    store: WalStore
    server: HttpServer
    session: aiohttp.ClientSession

    def url(self, name: str) -> str:
        return f"{self.server.addresses[0].replace('0.0.0.0', '127.0.0.1')}{PREFIX}{name}"

    async def send(
        self, method: str, name: str, body: bytes = b"", query: str = "", **headers: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; header names are written with underscores. Return status, headers and body."""
        named = {key.replace("_", "-"): str(value) for key, value in headers.items()}
        async with self.session.request(
            method, self.url(name) + query, data=body or None, headers=named
        ) as answer:
            return answer.status, answer.headers, await answer.read()

    async def status(self, method: str, name: str, body: bytes = b"", **headers: Any) -> int:
        return (await self.send(method, name, body, **headers))[0]

    async def content(self, name: str, query: str = "") -> bytes:
        status, _, body = await self.send("GET", name, query=query)
        assert status == 200, body
        return body


@asynccontextmanager
async def serving(
    path: Path,
    *,
    settings: HttpSettings = QUICK,
    logs: Settings = SMALL,
    listen: str = "127.0.0.1:0",
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve a store until the block ends."""
    async with (
        WalStore.open(path, settings=logs) as store,
        HttpServer.open(store, listen, settings=settings, **options) as server,
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
    ):
        yield Served(store, server, session)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "store") as found:
        yield found
