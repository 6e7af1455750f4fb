"""walstore bench: how fast this disk is, and the log on it."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from walstore.cli.bench_page import COLUMNS, bench_page, result_rows
from walstore.cli.errors import UsageError
from walstore.cli.location import to_directory
from walstore.cli.machine import describe_machine
from walstore.cli.measurement import BenchResults, Measured, MeasurePlan, measure_all
from walstore.cli.options import argument, option
from walstore.cli.output import format_time, replaced_file, terminal
from walstore.cli.report import Listing, Report
from walstore.cli.running import run_async
from walstore.core.format.checkpoint import FILE_NAME
from walstore.core.format.segment import SUFFIX
from walstore.core.runtime.clock import SystemClock
from walstore.errors import LogNotFoundError

BENCH_EXAMPLES = """\
  walstore bench .
  walstore bench /var/lib/app --seconds 20 --record-bytes 1024
  walstore bench /mnt/disk --producers 256 --json
  walstore bench /mnt/disk --html bench.html
"""


def bench(
    directory: Annotated[str, argument("DIRECTORY", "Where to write; on the disk to measure.")],
    *,
    seconds: Annotated[float, option("--seconds", "Total time to measure.", min=0.1, max=3600)] = 5,
    producers: Annotated[
        int, option("--producers", "Tasks that append at once.", min=1, max=10_000)
    ] = 64,
    record_bytes: Annotated[
        int, option("--record-bytes", "Size of each value.", min=0, max=1 << 20)
    ] = 100,
    html: Annotated[
        str | None, option("--html FILE", "Also write a page with plots to FILE.")
    ] = None,
) -> Report:
    """Measure a disk and a log on it: write + fdatasync alone, durable appends, catching up.

    Writes below DIRECTORY, which must exist and contain no log, and removes its files afterwards. Every
    append waits until it is on disk. --html also measures other numbers of producers and record sizes,
    within the same time.
    """
    path = to_directory(directory, "bench")
    _check(path)
    plan = MeasurePlan(
        place=path / f"walstore-bench-{os.getpid()}",
        seconds=seconds,
        producers=producers,
        record_bytes=record_bytes,
        has_steps=html is not None,
    )
    with nullcontext() if html is None else replaced_file(Path(html)) as file:
        results = _measure(plan)
        if file is not None:
            page = bench_page(plan, results, _facts(path))
            file.write(page.encode(errors="backslashreplace"))
    found = {
        "directory": str(path),
        "seconds": seconds,
        "producers": producers,
        "record_bytes": record_bytes,
        "results": [_bench_json(one) for one in results.rows],
    }
    return Report(found, Listing(COLUMNS, result_rows(plan, results)))


def _measure(plan: MeasurePlan) -> BenchResults:
    plan.place.mkdir()
    try:
        with terminal().status("") as status:
            return run_async(measure_all(plan, lambda name: status.update(f"measuring: {name}")))
    finally:
        shutil.rmtree(plan.place, ignore_errors=True)


def _facts(path: Path) -> dict[str, str]:
    now = format_time(SystemClock().now_us())
    return {"time": f"{now} UTC", "directory": str(path.resolve()), **describe_machine(path)}


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
