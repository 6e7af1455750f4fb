"""Shipping a log to a directory store, beside a plain copy of the same segments."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from bench.conftest import Run
from uploader import CloudLog, CloudTier, open_store
from uploader.testing import FaultyStore
from walstore import Wal
from walstore.segment import SUFFIX

RECORDS = 64 * 1024
VALUE_BYTES = 1024
MEGABYTES = RECORDS * VALUE_BYTES / 1e6


def values(count: int) -> list[bytes]:
    """Return distinct values, each half compressible, as text is."""
    return [os.urandom(VALUE_BYTES // 2) * 2 for _ in range(count)]


@pytest.fixture(scope="module")
def full_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 64 MiB in records of 1 KiB."""
    path = tmp_path_factory.mktemp("upload") / "log"

    async def fill() -> None:
        async with Wal.open(path) as wal:
            for _ in range(RECORDS // 256):
                await wal.append_many(values(256), durability="memory")

    asyncio.run(fill())
    return path


def test_upload(benchmark, run: Run, full_log: Path, tmp_path: Path) -> None:
    """Open the log with a tier and close it again: everything is shipped in between.

    Also told: megabytes of values per second of processor time (of both cores together), and what the
    store was asked for, per megabyte of values.
    """
    benchmark.group = "ship 64 MiB of 1 KiB records"
    rounds = iter(range(100))
    processor_seconds: list[float] = []
    usage: dict[str, float] = {}

    async def ship(target: Path) -> None:
        began = time.process_time()
        store = FaultyStore(open_store(f"file://{target}"))
        async with Wal.open(full_log, tier=CloudTier(store.url, store=store)) as wal:
            await wal.wait_durable(wal.tail - 1, "cloud")
        processor_seconds.append(time.process_time() - began)
        usage["requests_per_megabyte"] = round(store.requests / MEGABYTES, 3)
        usage["bytes_per_byte"] = round(
            sum(count.bytes for count in store.counts.values()) / MEGABYTES / 1e6, 3
        )

    def setup() -> tuple[tuple[Path], dict[str, object]]:
        return (tmp_path / f"store{next(rounds)}",), {}

    benchmark.pedantic(lambda target: run(ship(target)), setup=setup, rounds=5)
    benchmark.extra_info["megabytes_per_second"] = round(MEGABYTES / benchmark.stats["median"], 1)
    benchmark.extra_info["megabytes_per_processor_second"] = round(
        MEGABYTES / min(processor_seconds), 1
    )
    benchmark.extra_info |= usage


def test_upload_raw(benchmark, full_log: Path, tmp_path: Path) -> None:
    """Copy the segments and sync the copies: the disk's share."""
    benchmark.group = "ship 64 MiB of 1 KiB records"
    rounds = iter(range(100))

    def copy(target: Path) -> None:
        target.mkdir()
        for path in full_log.glob(f"*{SUFFIX}"):
            shutil.copyfile(path, target / path.name)
            with (target / path.name).open("rb") as file:
                os.fsync(file.fileno())

    def setup() -> tuple[tuple[Path], dict[str, object]]:
        return (tmp_path / f"copy{next(rounds)}",), {}

    benchmark.pedantic(copy, setup=setup, rounds=3)
    benchmark.extra_info["megabytes_per_second"] = round(MEGABYTES / benchmark.stats["median"], 1)


def test_hash_alone(benchmark) -> None:
    """SHA3-256 of the values and nothing else, on one core: no upload with a setsum costs less."""
    benchmark.group = "ship 64 MiB of 1 KiB records"
    found = values(RECORDS)

    def hash_all() -> None:
        for value in found:
            hashlib.sha3_256(value).digest()

    benchmark.pedantic(hash_all, rounds=5)
    benchmark.extra_info["megabytes_per_second"] = round(MEGABYTES / benchmark.stats["min"], 1)


def test_read_cloud(benchmark, run: Run, full_log: Path, tmp_path: Path) -> None:
    """Read all values back from the prefix alone."""
    benchmark.group = "read 64 MiB from the cloud tier"
    url = f"file://{tmp_path / 'store'}"

    async def ship() -> None:
        async with Wal.open(full_log, tier=CloudTier(url)) as wal:
            await wal.wait_durable(wal.tail - 1, "cloud")

    async def read() -> int:
        count = 0
        async with CloudLog.open(url) as log:
            async for batch in log.reader().batches():
                count += len(batch.values)
        return count

    run(ship())
    assert benchmark.pedantic(lambda: run(read()), rounds=3) == RECORDS
    benchmark.extra_info["records_per_second"] = round(RECORDS / benchmark.stats["median"])
