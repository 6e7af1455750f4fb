"""The suite of object storage: how long an append takes, and what a gigabyte of records costs in requests.

The store is in memory, and every request to it takes 100 ms, about what one to S3 takes from another region.
Costs are Amazon's list prices for requests (``uploader.stores.metering.Prices``), without storage.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from bench.cloud_append import EvenClock, drive
from bench.report.figures import Report, percentile
from uploader import ChainSettings, CloudWriter
from uploader.layouts.log_session import Layout
from uploader.stores.memory import MemoryStore
from uploader.stores.metering import MeteredStore
from uploader.testing.latency import LatencyStore, fixed

INLINE: Final = ChainSettings(inline_bytes=1 << 20)
WAYS: Final[dict[str, tuple[Layout, ChainSettings | None]]] = {
    "layout chain, fragments in manifests": ("chain", INLINE),
    "layout chain": ("chain", None),
    "layout swap": ("swap", None),
}
REQUEST_SECONDS: Final = 0.1
RATES: Final = (10, 100, 1000)
"""Appends a second."""
SHOWN_RATE: Final = 1000
RECORD_BYTES: Final = 1024
GROUP: Final = (
    f"an append to object storage, {SHOWN_RATE}/s, {REQUEST_SECONDS * 1000:.0f} ms a request"
)
_IN_STORE: Final = "in the store, named by a manifest"
_GB: Final = 1e9


def cloud(report: Report, _: Path, seconds: float) -> None:
    """Open loop, by way and rate; compared with one request to the same store."""
    for way, (layout, chain) in WAYS.items():
        for rate in RATES:
            times, dollars = asyncio.run(_append(layout, chain, rate, seconds))
            points = report.curves.setdefault("cost", {}).setdefault(way, [])
            gigabytes = len(times) * RECORD_BYTES / _GB
            points[:] = [
                *(point for point in points if point[0] != rate),
                (rate, dollars / gigabytes),
            ]
            if rate == SHOWN_RATE:
                _note(report, f"walstore, {way}", times, _IN_STORE)
    _note(report, "raw: one put", asyncio.run(_put(seconds)), "in the store")


def _note(report: Report, system: str, times: list[float], promise: str) -> None:
    times = sorted(times)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(GROUP, system, name, "us", percentile(times, share) * 1e6, promise)


def _store() -> MeteredStore:
    return MeteredStore(LatencyStore(MemoryStore(), fixed(REQUEST_SECONDS), clock=EvenClock()))


async def _append(
    layout: Layout, chain: ChainSettings | None, rate: int, seconds: float
) -> tuple[list[float], float]:
    """Return how long each append took, and what the requests of all cost in dollars."""
    store = _store()
    async with CloudWriter.open("memory://ignored", store=store, layout=layout, chain=chain) as log:
        before = store.usage().cost()
        asked = Namespace(rate=rate, seconds=seconds, record_bytes=RECORD_BYTES)
        times = await drive(log.append, asked)
        return times, store.usage().cost() - before


async def _put(seconds: float) -> list[float]:
    store, times = _store(), []
    ending = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < ending:
        await store.put_if_absent(f"{len(times)}", bytes(RECORD_BYTES))
        times.append(time.perf_counter() - begun)
    return times
