"""Transactions: a large one compared with plain groups of the same records, in time and memory."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from walstore import Settings, Wal
from walstore.core.settings import GIB, MIB

VALUE = os.urandom(64 * 1024)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_small(benchmark, run: Run, log_path: Path) -> None:
    """Ten records and a register in one transaction, durable."""
    benchmark.group = "transaction of 10 x 1 KiB and a register"
    wal = run(_open(log_path))

    async def commit() -> None:
        for number in range(100):
            async with wal.transaction(update={"at": str(number)}) as txn:
                for _ in range(10):
                    await txn.append(VALUE[:1024])

    benchmark.pedantic(lambda: run(commit()), rounds=5, warmup_rounds=1)
    run(wal.aclose())
    benchmark.extra_info["ms_each"] = round(10 * benchmark.stats["median"], 3)


@pytest.mark.parametrize("how", ["transaction", "groups"])
def test_large(benchmark, run: Run, log_path: Path, how: str) -> None:
    """One gibibyte: at once, or in groups of 4 MiB; and the longest concurrent append of another producer."""
    benchmark.group = "1 GiB of 64 KiB records"
    wal = run(_open(log_path))
    count = GIB // len(VALUE)
    before = _peak_mib()
    others: list[float] = []
    done = asyncio.Event()

    async def beside() -> None:
        while not done.is_set():
            begin = time.perf_counter()
            await wal.append(b"other")
            others.append(time.perf_counter() - begin)

    async def write() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beside())
            if how == "transaction":
                async with wal.transaction() as txn:
                    for _ in range(count):
                        await txn.append(VALUE)
            else:
                for _ in range(count // 64):
                    await wal.append_many([VALUE] * 64)
            done.set()

    benchmark.pedantic(lambda: run(write()), rounds=1)
    run(wal.aclose())
    others.sort()
    benchmark.extra_info["peak_more_mib"] = round(_peak_mib() - before)
    benchmark.extra_info["other_appends_p50_ms"] = round(1e3 * others[len(others) // 2], 2)
    benchmark.extra_info["other_appends_max_ms"] = round(1e3 * others[-1], 1)


async def _open(path: Path) -> Wal:
    return await Wal.open(path, settings=Settings(cache_bytes=8 * MIB))
