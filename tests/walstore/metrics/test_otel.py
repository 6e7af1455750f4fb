"""The same figures through OpenTelemetry's own SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.observed import COPY, GROUP, SCRUB, UPLOAD, NumbersLog
from uploader import open_store
from uploader.stores import MeteredStore
from walstore import Wal
from walstore.metrics import OpenTelemetryMetrics
from walstore.metrics.definitions import HISTOGRAMS, METRICS
from walstore.testing import ManualClock


class Exported:
    """A provider, and what its reader has."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider(metric_readers=[self.reader]).get_meter("walstore")

    def points(self) -> dict[str, dict[tuple[tuple[str, Any], ...], Any]]:
        found = self.reader.get_metrics_data()
        assert found is not None
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): point
                for point in metric.data.data_points
            }
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


async def test_a_log_has_every_metric(tmp_path: Path) -> None:
    exported = Exported()
    metrics = OpenTelemetryMetrics(exported.meter)
    log = NumbersLog(
        errors={"DiskFullError": 1},
        cursor_lag_records={"billing": 4},
        groups={"workers": GROUP},
        upload=UPLOAD,
        copies=(COPY,),
        replicated_limit=3,
        scrub=SCRUB,
        last_scrub=SCRUB,
    )
    observer = metrics.attach(log, "orders")
    observer.on_commit(10, 4096, 0.003, 0.002)
    observer.on_sync(0.001)
    shown = exported.points()
    assert set(shown) == {metric.name for metric in (*METRICS, *HISTOGRAMS)}
    of_orders = ("log", "orders")
    assert shown["walstore_cursor_lag_records"][("cursor", "billing"), of_orders].value == 4
    assert shown["walstore_group_pending_records"][("group", "workers"), of_orders].value == 2
    times = shown["walstore_append_seconds"][(of_orders,)]
    assert (times.count, times.sum) == (1, 0.003)
    assert tuple(times.explicit_bounds) == tuple(HISTOGRAMS[0].bounds)


async def test_one_export_reads_each_log_once() -> None:
    """An SDK asks for each of some fifty instruments by itself."""
    exported, reads = Exported(), 0

    class Counted(NumbersLog):
        def statistics(self) -> Any:
            nonlocal reads
            reads += 1
            return super().statistics()

    clock = ManualClock()
    log = Counted(commits=1)
    metrics = OpenTelemetryMetrics(exported.meter, clock=clock)
    metrics.attach(log, "orders")
    assert exported.points()["walstore_commits"][(("log", "orders"),)].value == 1
    assert reads == 1
    log.set(commits=2)
    clock.advance(1.0)
    assert exported.points()["walstore_commits"][(("log", "orders"),)].value == 2
    assert reads == 2


async def test_a_real_log_and_a_metered_store(tmp_path: Path) -> None:
    exported = Exported()
    metrics = OpenTelemetryMetrics(exported.meter, log="all")
    store = MeteredStore(open_store("memory://otel"))
    metrics.watch(store, "bucket")
    await store.put_if_absent("key", b"value")
    async with Wal.open(tmp_path / "log", metrics=metrics) as wal:
        await wal.append(b"one")
        shown = exported.points()
        assert shown["walstore_appended_records"][(("log", "all"),)].value == 1
        put = (("kind", "put_if_absent"), ("store", "bucket"))
        assert shown["walstore_store_requests"][put].value == 1
    del store
