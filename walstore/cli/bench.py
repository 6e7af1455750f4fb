"""walstore bench: how fast this disk is, and the log on it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from walstore import Wal
from walstore.cli.errors import UsageError
from walstore.cli.location import to_directory
from walstore.cli.options import AsJson
from walstore.cli.output import format_count, print_json, print_table, terminal
from walstore.cli.running import run_async
from walstore.errors import LogNotFoundError
from walstore.files.posix import PosixFileSystem
from walstore.format.checkpoint import FILE_NAME
from walstore.format.segment import SUFFIX

BENCH_EXAMPLES = """\b
Examples:
  walstore bench .
  walstore bench /var/lib/app --seconds 20 --record-bytes 1024
  walstore bench /mnt/disk --producers 256 --json
"""


def bench(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIRECTORY", help="Where to write; on the disk in question."),
    ],
    *,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long to measure in all.")
    ] = 5,
    producers: Annotated[
        int, typer.Option("--producers", min=1, max=10_000, help="Tasks that append at once.")
    ] = 64,
    record_bytes: Annotated[
        int, typer.Option("--record-bytes", min=0, max=1 << 20, help="Size of each value.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Measure a disk and a log on it: write + fdatasync alone, durable appends, catching up.

    Writes below DIRECTORY, which must be there and hold no log, and removes what it wrote. Every append
    waits until it is on disk.
    """
    path = to_directory(directory, "bench")
    _check(path)
    place = path / f"walstore-bench-{os.getpid()}"
    place.mkdir()
    plan = MeasurePlan(place=place, seconds=seconds, producers=producers, record_bytes=record_bytes)
    try:
        with terminal().status("") as status:
            results = run_async(measure_all(plan, lambda name: status.update(f"measuring: {name}")))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if as_json:
        print_json(
            {
                "directory": str(path),
                "seconds": seconds,
                "producers": producers,
                "record_bytes": record_bytes,
                "results": [_bench_json(one) for one in results],
            }
        )
    else:
        print_table(
            ("measured", "records", "records/s", "MB/s", "p50 ms", "p99 ms"),
            [
                (
                    one.name,
                    format_count(one.records),
                    format_count(one.per_second),
                    f"{one.per_second * record_bytes / 1e6:.1f}",
                    _milliseconds(one.p50_ms),
                    _milliseconds(one.p99_ms),
                )
                for one in results
            ],
        )


def _check(path: Path) -> None:
    if not path.is_dir():
        raise LogNotFoundError(f"there is no directory {path}", location=str(path))
    names = {entry.name for entry in path.iterdir()}
    if FILE_NAME in names or any(name.endswith(SUFFIX) for name in names):
        raise UsageError(f"{path} holds a log; give another directory on the same disk")


def _bench_json(one: Measured) -> dict[str, Any]:
    return {
        "name": one.name,
        "records": one.records,
        "seconds": round(one.seconds, 6),
        "records_per_second": round(one.per_second, 1),
        "p50_ms": one.p50_ms,
        "p99_ms": one.p99_ms,
    }


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


GROUP_RECORDS: Final = 1000
"""Records of each ``append_many``."""
_READ_RECORDS: Final = 200_000
_RAW_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """How to measure."""

    place: Path
    """An empty directory."""
    seconds: float
    """For all parts together."""
    producers: int
    record_bytes: int

    @property
    def part_seconds(self) -> float:
        """How long each part runs; catching up is as long as it takes."""
        return self.seconds / 4


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one part."""

    name: str
    records: int
    seconds: float
    p50_ms: float | None = None
    """Latency of a call; None where there is no single call."""
    p99_ms: float | None = None

    @property
    def per_second(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0


async def measure_all(plan: MeasurePlan, on_part: Callable[[str], None]) -> list[Measured]:
    """Run all parts one after another. ``on_part`` is called with the name of each before it begins."""
    on_part("write + fdatasync")
    results = [await asyncio.to_thread(_raw, plan)]
    value = bytes(plan.record_bytes)
    for name, producers in (("1 producer", 1), (f"{plan.producers} producers", plan.producers)):
        on_part(name)
        async with Wal.open(plan.place / f"log-{len(results)}") as wal:
            append = partial(wal.append, value, durability="disk")
            results.append(await _produce(plan, name, producers, append))
    name = f"append_many, {GROUP_RECORDS} records"
    on_part(name)
    async with Wal.open(plan.place / "log-groups") as wal:
        append_group = partial(wal.append_many, [value] * GROUP_RECORDS, durability="disk")
        results.append(await _produce(plan, name, 1, append_group, GROUP_RECORDS))
    on_part("catching up")
    results.append(await _catch_up(plan, value))
    return results


def _raw(plan: MeasurePlan) -> Measured:
    """Write and sync so many bytes again and again, without a log: the speed of the disk itself."""
    file = PosixFileSystem().open(plan.place / "raw", "x")
    samples: list[float] = []
    data = bytes(max(plan.record_bytes, 1))
    try:
        file.allocate(_RAW_BYTES)
        file.datasync()
        begin = now = time.monotonic()
        while now < begin + plan.part_seconds:
            file.pwrite([data], len(samples) * len(data) % (_RAW_BYTES - len(data)))
            file.datasync()
            after = time.monotonic()
            samples.append(after - now)
            now = after
    finally:
        file.close()
    return _measured("write + fdatasync", len(samples), now - begin, samples)


async def _produce(
    plan: MeasurePlan,
    name: str,
    producers: int,
    append: Callable[[], Awaitable[object]],
    rows: int = 1,
) -> Measured:
    """Let tasks append ``rows`` records at a time until the time is over, each waiting for every append."""
    begin = time.monotonic()
    samples: list[float] = []

    async def produce() -> None:
        now = time.monotonic()
        while now < begin + plan.part_seconds:
            await append()
            after = time.monotonic()
            samples.append(after - now)
            now = after

    async with asyncio.TaskGroup() as group:
        for _ in range(producers):
            group.create_task(produce())
    return _measured(name, rows * len(samples), time.monotonic() - begin, samples)


async def _catch_up(plan: MeasurePlan, value: bytes) -> Measured:
    """Read a log from its beginning after it was opened again, so that nothing is in memory."""
    path = plan.place / "log-read"
    async with Wal.open(path) as wal:
        for _ in range(_READ_RECORDS // GROUP_RECORDS):
            await wal.append_many([value] * GROUP_RECORDS, durability="memory")
    async with Wal.open(path) as wal:
        begin = time.monotonic()
        records = 0
        async with wal.reader(follow=False) as reader:
            async for batch in reader.batches():
                records += len(batch.values)
        return Measured("catching up", records, time.monotonic() - begin)


def _measured(name: str, records: int, seconds: float, samples: list[float]) -> Measured:
    ordered = sorted(samples)
    return Measured(
        name,
        records,
        seconds,
        round(1e3 * ordered[len(ordered) // 2], 4) if ordered else None,
        round(1e3 * ordered[len(ordered) * 99 // 100], 4) if ordered else None,
    )
