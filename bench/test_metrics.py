"""The cost of metrics: appends alternately with and without them, and a scrape of many logs.

`pytest bench/test_metrics.py`. The column ``ratio`` is the time with metrics by the time without: the median
over rounds in which both do the same work, one after the other. Without syncs nothing hides the work of the
log itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench.conftest import Run
from tests.local import UnsyncedFileSystem
from tests.observed import NumbersLog
from walstore import Settings, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.metrics import PrometheusMetrics

FILE_SYSTEMS = {"synced": PosixFileSystem, "unsynced": UnsyncedFileSystem}
ROUNDS = 25
APPENDS = {1: 200, 64: 30}
"""Appends of each producer in a round."""
LOGS = 1000


@pytest.mark.parametrize("producers", [1, 64])
@pytest.mark.parametrize("disk", ["synced", "unsynced"])
def test_append_with_metrics(
    benchmark, run: Run, tmp_path: Path, producers: int, disk: str
) -> None:
    """Every commit is observed, without a scrape meanwhile."""
    benchmark.group = f"append of 100 B, {producers} producers, {disk}"
    metrics = PrometheusMetrics(CollectorRegistry())
    plain = run(_open(tmp_path / "plain", disk, None))
    observed = run(_open(tmp_path / "observed", disk, metrics))
    count = APPENDS[producers]
    value = bytes(100)

    async def produce(wal: Wal) -> None:
        for _ in range(count):
            await wal.append(value)

    async def work(wal: Wal) -> float:
        before = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(producers):
                group.create_task(produce(wal))
        return time.perf_counter() - before

    without: list[float] = []
    spent: list[float] = []

    def both() -> None:
        for wal, times in ((plain, without), (observed, spent))[:: 1 - 2 * (len(spent) % 2)]:
            times.append(run(work(wal)))

    benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=1)
    run(plain.aclose())
    run(observed.aclose())
    ratios = [more / less for more, less in zip(spent, without, strict=True)]
    benchmark.extra_info["ratio"] = round(statistics.median(ratios), 3)
    benchmark.extra_info["appends_per_second"] = round(producers * count / statistics.median(spent))


def test_answer(benchmark) -> None:
    """A scrape of 1000 logs with a label each."""
    benchmark.group = f"answer about {LOGS} logs"
    registry = CollectorRegistry()
    for at in range(LOGS):
        PrometheusMetrics(registry, log=f"log-{at}").attach(NumbersLog(), "a name")
    text = benchmark.pedantic(generate_latest, args=(registry,), rounds=5, warmup_rounds=1)
    benchmark.extra_info["bytes_per_log"] = len(text) // LOGS
    benchmark.extra_info["us_per_log"] = round(1e6 * benchmark.stats["median"] / LOGS)


def test_answer_for_one_label(benchmark) -> None:
    """A scrape of 1000 logs that share a label."""
    benchmark.group = f"answer about {LOGS} logs"
    registry = CollectorRegistry()
    for _ in range(LOGS):
        PrometheusMetrics(registry, log="all").attach(NumbersLog(), "a name")
    text = benchmark.pedantic(generate_latest, args=(registry,), rounds=5, warmup_rounds=1)
    benchmark.extra_info["bytes_per_log"] = len(text) // LOGS
    benchmark.extra_info["us_per_log"] = round(1e6 * benchmark.stats["median"] / LOGS)


async def _open(path: Path, disk: str, metrics: PrometheusMetrics | None) -> Wal:
    settings = Settings(cache_bytes=0)
    return await Wal.open(path, settings=settings, fs=FILE_SYSTEMS[disk](), metrics=metrics)
