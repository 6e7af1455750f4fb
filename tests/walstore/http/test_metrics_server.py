"""Figures at a place of their own: what is there, for whom, and what a watcher cannot do."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from walstore import StorageUnavailableError, Wal
from walstore.http.metrics_server import serve_metrics
from walstore.metrics import PrometheusMetrics
from walstore.store.log_catalog import catalog_of


async def test_figures_and_health_and_no_record(tmp_path: Path) -> None:
    registry, is_stopping = CollectorRegistry(), False
    async with (
        Wal.open(tmp_path / "orders", metrics=PrometheusMetrics(registry)) as wal,
        serve_metrics(
            catalog_of(wal), "127.0.0.1:0", registry=registry, is_stopping=lambda: is_stopping
        ) as url,
        aiohttp.ClientSession() as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(url + path, headers={"Host": "any.example"}) as answer:
                assert answer.headers["Connection"] == "close"
                return answer.status, await answer.text()

        await wal.append(b"v")
        status, text = await get("/metrics")
        assert status == 200
        assert 'walstore_durable_limit_offset{log="orders"} 2.0' in text
        assert (await get("/ready"))[0] == (await get("/health"))[0] == 200
        assert (await get("/v1/stream/orders"))[0] == (await get("/"))[0] == 404
        async with session.post(url + "/metrics", data=b"x" * 100_000) as answer:
            assert answer.status == 405
        is_stopping = True
        assert await get("/ready") == (
            503,
            '{"status": "not ready", "reason": "the server stops"}\n',
        )
        await wal.aclose()
        assert (await get("/health"))[0] == 200


async def test_a_place_that_is_taken() -> None:
    async with serve_metrics(None, "127.0.0.1:0", registry=None, is_stopping=bool) as url:
        place = url.removeprefix("http://")
        with pytest.raises(StorageUnavailableError, match="cannot listen"):
            async with serve_metrics(None, place, registry=None, is_stopping=bool):
                pass
        async with aiohttp.ClientSession() as session, session.get(url + "/ready") as answer:
            assert answer.status == 200


async def test_silent_clients_are_few(tmp_path: Path) -> None:
    """256 connections at a time; a further one ends at once, and there is room when one of them ends."""
    async with serve_metrics(None, "127.0.0.1:0", registry=None, is_stopping=bool) as url:
        host, port = url.removeprefix("http://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(256)]
        reader, refused = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        refused.close()
        for _, one in silent:
            one.close()
            await one.wait_closed()

        async def answers() -> bool:
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(url + "/health") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    return False

        while not await answers():
            pass


async def test_what_is_no_http_is_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serve_metrics(None, "127.0.0.1:0", registry=None, is_stopping=bool) as url:
        host, port = url.removeprefix("http://").split(":")
        for sent in (
            b"GET / HTTP/1.1\r\nX: " + b"0" * 60_000 + b"\r\n\r\n",
            b"\x16\x03\x01\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            assert b" 400 " in await reader.read()
            writer.close()
            await writer.wait_closed()
    assert [one for one in caplog.records if one.exc_info or one.levelname == "ERROR"] == []
