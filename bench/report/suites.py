"""What a report measures: each function is one round of one suite, and notes its figures."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.report.cloud import cloud
from bench.report.crowds import by_producers, tails, watermark
from bench.report.figures import Report, percentile, schedule
from bench.report.served import producers
from bench.report.spark import spark
from bench.report.systems import SYNCED, SYSTEMS, System, fresh
from bench.served import VALUE
from walstore import Settings, Wal

BATCHES: Final = {
    "`append_many`, 256 x 1 KiB": [bytes(1024)] * 256,
    "`append_many`, 1000 x 100 B": [bytes(100)] * 1000,
}
LONE: Final = "a lone `append` of 1 KiB"
TAIL: Final = "append to tail, at so many a second"
RATES: Final = (1_000, 5_000, 10_000, 20_000)
RECORDS: Final = 200_000
LOGS: Final = 500


def there(report: Report) -> list[System]:
    """Return the systems that can be measured; note the others."""
    for one in SYSTEMS:
        if not one.is_there:
            report.skipped[one.name] = f"the module {one.needs} for Python"
    return [one for one in SYSTEMS if one.is_there]


def groups(report: Report, directory: Path, seconds: float) -> None:
    """Durable groups, one after the other."""
    for group, batch in BATCHES.items():
        for system in there(report):
            if system.name == "persist-queue":
                continue
            times = system.measure(fresh(directory, system.name), batch, seconds)
            rate = len(times) * len(batch) / sum(times)
            report.add(group, system.name, "records/s", "/s", rate, system.promise)


def lone(report: Report, directory: Path, seconds: float) -> None:
    """Single records, one after the other."""
    for system in there(report):
        times = sorted(system.measure(fresh(directory, system.name), [VALUE], seconds))
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            report.add(
                LONE, system.name, name, "us", percentile(times, share) * 1e6, system.promise
            )
        step = max(1, len(times) // 200)
        points = [(at * 1e6, number / len(times)) for number, at in enumerate(times)]
        report.curves.setdefault("lone", {})[system.name] = points[::step]


def latency(report: Report, directory: Path, seconds: float) -> None:
    """From the moment an append was due until it is durable, and until a reader has it; an open loop."""
    for rate in RATES:
        appended, read = asyncio.run(_open_loop(fresh(directory, "loop") / "log", rate, seconds))
        for what, times in (("durable", appended), ("in a reader", read)):
            for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                value = percentile(times, share) * 1e6
                report.add(f"{TAIL}: {rate}", f"walstore, {what}", name, "us", value, SYNCED)
                if name != "p99.9":
                    lines = report.curves.setdefault("latency", {})
                    points = lines.setdefault(f"{what}, {name}", [])
                    points[:] = [*(point for point in points if point[0] != rate), (rate, value)]


async def _open_loop(path: Path, rate: float, seconds: float) -> tuple[list[float], list[float]]:
    durable, seen = [], []
    due: list[float] = []
    async with Wal.open(path) as wal, wal.follow() as reader:

        async def follow() -> None:
            async for record in reader:
                seen.append(time.perf_counter() - due[record.offset - 1])
                if len(seen) == math.floor(rate * seconds):
                    return

        async def append(moment: float) -> None:
            await wal.append(VALUE)
            durable.append(time.perf_counter() - moment)

        following = asyncio.ensure_future(follow())
        async with asyncio.TaskGroup() as group:
            begin = time.perf_counter()
            for at in schedule(rate, seconds):
                await _sleep_until(begin + at)
                due.append(begin + at)
                group.create_task(append(begin + at))
        await following
    return sorted(durable), sorted(seen)


async def _sleep_until(moment: float) -> None:
    """Sleep until a moment, or up to a millisecond longer: timers are no more exact.

    Never in a loop that only yields: that takes the interpreter from the log's thread.
    """
    left = moment - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)


def catching_up(report: Report, directory: Path, seconds: float) -> None:
    """Read all that is there, 100 B a record."""
    group, value = "catching up, 100 B a record", bytes(100)
    place = fresh(directory, "read")

    async def by(batches: bool) -> float:
        async with Wal.open(place / "log", settings=Settings(cache_bytes=1 << 16)) as wal:
            if wal.tail == 1:
                for _ in range(RECORDS // 1000):
                    await wal.append_many([value] * 1000)
            begun = time.perf_counter()
            async with wal.reader(follow=False) as reader:
                if batches:
                    count = sum([len(batch) async for batch in reader.batches()])
                else:
                    count = sum([1 async for _ in reader])
            assert count == RECORDS
            return RECORDS / (time.perf_counter() - begun)

    for name, batches in (("walstore, batches", True), ("walstore, records", False)):
        report.add(group, name, "records/s", "/s", asyncio.run(by(batches)), "")
    report.add(
        group, "raw: reading the files", "records/s", "/s", _timed(lambda: _read(place / "log")), ""
    )
    with closing(sqlite3.connect(place / "sqlite")) as database:
        database.execute("create table log (offset integer primary key, value blob)")
        database.executemany(
            "insert into log (value) values (?)", ((value,) for _ in range(RECORDS))
        )
        database.commit()
        rate = _timed(lambda: sum(1 for _ in database.execute("select offset, value from log")))
        report.add(group, "SQLite, rows", "records/s", "/s", rate, "")


def _read(path: Path) -> None:
    for file in path.glob("*.wal"):
        file.read_bytes()


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return RECORDS / (time.perf_counter() - begun)


RECOVERY: Final = (16, 64, 256)


def recovery(report: Report, directory: Path, _: float) -> None:
    """Open a log whose program was killed, by the size of what it wrote."""

    async def write(path: Path, mebibytes: int) -> None:
        wal = await Wal.open(path)
        for _ in range(4 * mebibytes):
            await wal.append_many([VALUE] * 256, durability="disk")
        shutil.copytree(path, path.with_name("killed"))
        await wal.aclose()

    async def reopen(path: Path) -> float:
        begun = time.perf_counter()
        async with Wal.open(path):
            return time.perf_counter() - begun

    for size in RECOVERY:
        place = fresh(directory, "recovery")
        asyncio.run(write(place / "log", size))
        taken = asyncio.run(reopen(place / "killed"))
        report.add(f"opening after a kill, {size} MiB", "walstore", "time", "us", taken * 1e6, "")
        report.curves.setdefault("recovery", {}).setdefault("walstore", []).append(
            (size, taken * 1e3)
        )


MEMORY = """
import asyncio, json, os, resource, sys
from walstore import WalStore
def kib():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1024
async def main(path, count):
    points = []
    async with WalStore.open(path) as store:
        logs, before = [], kib()
        for number in range(count + 1):
            if number % (count // 5) == 0:
                points.append((number, kib() - before))
            log = await store.wal(f"l{number}")
            await log.append(b"v")
            logs.append(log)
    print(json.dumps(points))
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def memory(report: Report, directory: Path, _: float) -> None:
    """Resident memory by the number of open logs that had an append; Linux only."""
    if not os.path.exists("/proc/self/statm"):
        report.skipped["memory"] = "Linux"
        return
    command = [sys.executable, "-c", MEMORY, str(fresh(directory, "memory")), str(LOGS)]
    points = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    report.curves.setdefault("memory", {})["walstore"] = [
        (count, kib / 1024) for count, kib in points
    ]
    report.add(f"memory of {LOGS} open logs", "walstore", "each", "KiB", points[-1][1] / LOGS, "")


SUITES: Final = (
    groups,
    lone,
    producers,
    by_producers,
    watermark,
    tails,
    latency,
    catching_up,
    recovery,
    memory,
    cloud,
    spark,
)
