"""Shipping a log to a directory store, compared with a plain copy of the same segments."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.conftest import Run
from bench.report.figures import percentile
from uploader import CloudLog, CloudTier, UploadSettings, open_store
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore
from walstore import Wal
from walstore.core.format.segment import SUFFIX

RECORDS = 64 * 1024
VALUE_BYTES = 1024
MEGABYTES = RECORDS * VALUE_BYTES / 1e6
GROUPS = 6000
"""Groups of 256 records that are appended in a round."""


def values(count: int) -> list[bytes]:
    """Return distinct values, each half compressible, as text is."""
    return [os.urandom(VALUE_BYTES // 2) * 2 for _ in range(count)]


def make_log(path: Path, records: int) -> Path:
    """Return a closed log of records of 1 KiB."""

    async def fill() -> None:
        async with Wal.open(path) as wal:
            for _ in range(records // 256):
                await wal.append_many(values(256), durability="memory")

    asyncio.run(fill())
    return path


async def ship(log: Path, store: ObjectStore, *, processes: int = 0) -> None:
    """Open a log with a tier, and close it once all of it is shipped."""
    settings = UploadSettings(encoder_processes=processes)
    async with Wal.open(log, tier=CloudTier(store.url, settings=settings, store=store)) as wal:
        await wal.wait_durable(wal.tail - 1, "cloud")


@pytest.fixture(scope="module")
def full_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 64 MiB in records of 1 KiB."""
    return make_log(tmp_path_factory.mktemp("upload") / "log", RECORDS)


@pytest.fixture
def one_core() -> Iterator[None]:
    """Let this thread, and those that it starts, run on one core only."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot keep a thread on one core")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


def test_upload(benchmark, run: Run, full_log: Path, tmp_path: Path) -> None:
    """Open the log with a tier and close it again: everything is shipped in between.

    Also told: megabytes of values per second of processor time (of both cores together), and what the
    store was asked for, per megabyte of values.
    """
    benchmark.group = "ship 64 MiB of 1 KiB records"
    rounds = iter(range(100))
    processor_seconds: list[float] = []
    usage: dict[str, float] = {}

    async def ship_and_count(target: Path) -> None:
        began = time.process_time()
        store = FaultyStore(open_store(f"file://{target}"))
        await ship(full_log, store)
        processor_seconds.append(time.process_time() - began)
        usage["requests_per_megabyte"] = round(store.requests / MEGABYTES, 3)
        usage["bytes_per_byte"] = round(
            sum(count.bytes for count in store.counts.values()) / MEGABYTES / 1e6, 3
        )

    def setup() -> tuple[tuple[Path], dict[str, object]]:
        return (tmp_path / f"store{next(rounds)}",), {}

    benchmark.pedantic(lambda target: run(ship_and_count(target)), setup=setup, rounds=5)
    benchmark.extra_info["megabytes_per_second"] = round(MEGABYTES / benchmark.stats["median"], 1)
    benchmark.extra_info["megabytes_per_processor_second"] = round(
        MEGABYTES / min(processor_seconds), 1
    )
    benchmark.extra_info |= usage


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_upload_of_a_longer_log(benchmark, run: Run, tmp_path: Path, *, processes: int) -> None:
    """A longer log into memory, so that opening it and starting processes hardly count, nor does a disk."""
    benchmark.group = "ship 1 GiB of 1 KiB records"
    log = make_log(tmp_path / "log", 16 * RECORDS)

    def upload() -> None:
        run(ship(log, MemoryStore(), processes=processes))

    benchmark.pedantic(upload, rounds=3)
    benchmark.extra_info["megabytes_per_second"] = round(
        16 * MEGABYTES / benchmark.stats["median"], 1
    )
    shutil.rmtree(log)


def test_upload_on_one_core(benchmark, run: Run, one_core: None, tmp_path: Path) -> None:
    """A longer log, so that opening and closing it hardly count."""
    benchmark.group = "ship 256 MiB of 1 KiB records on one core"
    log = make_log(tmp_path / "log", 4 * RECORDS)

    def setup() -> tuple[tuple[()], dict[str, object]]:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        return (), {}

    def upload() -> None:
        run(ship(log, open_store(f"file://{tmp_path / 'store'}")))

    benchmark.pedantic(upload, setup=setup, rounds=5)
    benchmark.extra_info["megabytes_per_second"] = round(
        4 * MEGABYTES / benchmark.stats["median"], 1
    )


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


@pytest.mark.parametrize("processes", [None, 0, 1], ids=["alone", "threads", "process"])
def test_appends_while_they_are_shipped(
    benchmark, run: Run, tmp_path: Path, *, processes: int | None
) -> None:
    """Groups of 256 x 1 KiB, one after the other, in a log without a tier and in one that ships them."""
    benchmark.group = "append_many, 256 x 1 KiB, while it is shipped"
    group = values(256)
    times: list[float] = []
    rounds = iter(range(100))

    async def append_some() -> None:
        path = tmp_path / f"log{next(rounds)}"
        tier = None
        if processes is not None:
            settings = UploadSettings(encoder_processes=processes)
            tier = CloudTier("memory://ignored", settings=settings, store=MemoryStore())
        async with Wal.open(path, tier=tier) as wal:
            for _ in range(GROUPS):
                begun = time.perf_counter()
                await wal.append_many(group, durability="disk")
                times.append(time.perf_counter() - begun)
            behind = wal.tail - wal.uploaded_limit if tier else 0
            benchmark.extra_info["megabytes_behind"] = round(behind * VALUE_BYTES / 1e6)
        shutil.rmtree(path)

    benchmark.pedantic(lambda: run(append_some()), rounds=3, warmup_rounds=1)
    ordered = sorted(times)
    benchmark.extra_info["megabytes_per_second"] = round(
        len(times) * 256 * VALUE_BYTES / sum(times) / 1e6, 1
    )
    benchmark.extra_info["p99_ms"] = round(1e3 * percentile(ordered, 0.99), 2)


def test_hash_alone(benchmark) -> None:
    """SHA3-256 of the values only, on one core: the minimum of an upload with a setsum."""
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

    async def read() -> int:
        count = 0
        async with CloudLog.open(url) as log:
            async for batch in log.reader().batches():
                count += len(batch.values)
        return count

    run(ship(full_log, open_store(url)))
    assert benchmark.pedantic(lambda: run(read()), rounds=3) == RECORDS
    benchmark.extra_info["records_per_second"] = round(RECORDS / benchmark.stats["median"])
