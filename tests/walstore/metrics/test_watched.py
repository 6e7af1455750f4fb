"""Objects with figures of their own: servers, metered stores, writers."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from tests.waiting import until
from uploader import CloudTier, CloudWriter, open_store
from uploader.stores import MeteredStore
from walstore import OffsetNotWrittenError, Wal, connect
from walstore.http import HttpServer
from walstore.metrics import PrometheusMetrics
from walstore.serve import Server


async def test_a_server_shows_its_clients_requests_and_errors(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    get = registry.get_sample_value
    label = {"server": "orders"}
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock") as server,
    ):
        metrics.watch(server, "orders")
        async with connect(f"unix://{tmp_path / 's.sock'}") as remote:
            await remote.append(b"x" * 1000)
            await remote.statistics()
            with pytest.raises(OffsetNotWrittenError):
                await remote.trim(10**6)
            assert get("walstore_server_connections", label) == 1
            assert get("walstore_server_requests_total", {**label, "kind": "append"}) == 1
            assert get("walstore_server_requests_total", {**label, "kind": "statistics"}) == 1
            assert (
                get("walstore_server_errors_total", {**label, "type": "OffsetNotWrittenError"}) == 1
            )
            received = get("walstore_server_received_bytes_total", label)
            assert received is not None
            assert received > 1000
            assert get("walstore_server_sent_bytes_total", label)
        await until(lambda: get("walstore_server_connections", label) == 0)
        assert get("walstore_server_connections_accepted_total", label) == 1


async def test_an_http_server_shows_what_was_answered(tmp_path: Path) -> None:
    import aiohttp

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    async with (
        Wal.open(tmp_path / "log") as wal,
        HttpServer.open(wal, "127.0.0.1:0", registry=registry) as server,
        aiohttp.ClientSession(server.addresses[0]) as client,
    ):
        metrics.watch(server, "orders")
        async with client.get("/health"):
            pass
        async with client.request("PROPFIND", "/health"):
            pass
        async with client.get("/metrics") as answer:
            text = await answer.text()
    line = 'walstore_http_requests_total{http="orders",method="GET",status="200"} 1.0'
    assert line in text
    assert 'method="other"' in text


async def test_a_store_and_a_writer_show_requests_and_cost() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    get = registry.get_sample_value
    store = MeteredStore(open_store("memory://watched"))
    metrics.watch(store, "watched")
    async with CloudWriter.open("memory://watched", store=store) as writer:
        metrics.watch(writer, "watched")
        await writer.append(b"one")
        assert get("walstore_writer_committed_records_total", {"writer": "watched"}) == 1
        assert get("walstore_writer_tail", {"writer": "watched"}) == 2
        puts = {"store": "watched", "kind": "put_if_absent"}
        assert get("walstore_store_requests_total", puts)
        assert get("walstore_store_request_seconds_count", puts) == get(
            "walstore_store_requests_total", puts
        )
        assert get("walstore_store_cost_total", {"store": "watched"})
    text: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    assert text.endswith(b"# EOF\n")


async def test_a_log_shows_its_shipping_and_its_groups(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    get = registry.get_sample_value
    async with Wal.open(
        tmp_path / "log",
        tier=CloudTier("memory://shipped"),
        metrics=PrometheusMetrics(registry),
    ) as wal:
        await wal.append(b"one", durability="cloud")
        assert get("walstore_upload_fragments_total", {"log": "log"}) == 1
        assert get("walstore_upload_bytes_total", {"log": "log"})
        assert get("walstore_upload_retries_total", {"log": "log"}) == 0
        async with wal.group("workers") as group:
            (job,) = await group.fetch()
            label = {"log": "log", "group": "workers"}
            assert get("walstore_group_pending_records", label) == 1
            assert get("walstore_group_deliveries_total", label) == 1
            await job.ack()
            assert get("walstore_group_unsettled_records", label) == 0


async def test_what_is_gone_is_not_shown() -> None:
    registry = CollectorRegistry()
    store = MeteredStore(open_store("memory://gone"))
    PrometheusMetrics(registry).watch(store, "gone")
    assert b"walstore_store_" in generate_latest(registry)
    del store
    gc.collect()
    assert b"walstore_store_" not in generate_latest(registry)
