"""walstore bench: how fast this disk is, and the log on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_directory
from walstore.cli.measure import Measured, MeasurePlan, measure_all
from walstore.cli.options import AsJson
from walstore.cli.output import format_count, print_json, print_table, terminal
from walstore.cli.running import run_async
from walstore.errors import LogNotFoundError
from walstore.format.checkpoint import FILE_NAME
from walstore.format.segment import SUFFIX

EXAMPLES = """\b
Examples:
  walstore bench .
  walstore bench /var/lib/app --seconds 20 --record-bytes 1024
  walstore bench /mnt/disk --producers 256 --json
"""


def bench(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY", help="Where to write; on the disk in question.", show_default=False
        ),
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
                "results": [_to_json(one) for one in results],
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


def _to_json(one: Measured) -> dict[str, Any]:
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
