"""Shipping a log to a directory store, beside a plain copy of the same segments."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bench.conftest import Run
from uploader import CloudLog, CloudTier
from walstore import Wal
from walstore.segment import SUFFIX

RECORDS = 64 * 1024
VALUE = os.urandom(512) * 2  # half compressible


@pytest.fixture(scope="module")
def full_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 64 MiB in records of 1 KiB."""
    path = tmp_path_factory.mktemp("upload") / "log"

    async def fill() -> None:
        async with Wal.open(path) as wal:
            for _ in range(RECORDS // 256):
                await wal.append_many([VALUE] * 256, durability="memory")

    asyncio.run(fill())
    return path


def test_upload(benchmark, run: Run, full_log: Path, tmp_path: Path) -> None:
    """Open the log with a tier and close it again: everything is shipped in between."""
    benchmark.group = "ship 64 MiB of 1 KiB records"
    rounds = iter(range(100))

    async def ship(target: Path) -> None:
        async with Wal.open(full_log, tier=CloudTier(f"file://{target}")) as wal:
            await wal.wait_durable(wal.tail - 1, "cloud")

    def setup() -> tuple[tuple[Path], dict[str, object]]:
        return (tmp_path / f"store{next(rounds)}",), {}

    benchmark.pedantic(lambda target: run(ship(target)), setup=setup, rounds=3)
    benchmark.extra_info["megabytes_per_second"] = round(
        RECORDS * len(VALUE) / 1e6 / benchmark.stats["median"], 1
    )


def test_upload_raw(benchmark, full_log: Path, tmp_path: Path) -> None:
    """Copy the segments and sync the copies."""
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
    benchmark.extra_info["megabytes_per_second"] = round(
        RECORDS * len(VALUE) / 1e6 / benchmark.stats["median"], 1
    )


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
