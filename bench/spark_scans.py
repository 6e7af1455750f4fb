"""Scans of one log by Spark, in a JVM of its own: count and total length of all values.

``python -m bench.spark_scans DIRECTORY --records 1000000 --times 3`` makes the log and the tables in the
directory unless they are there, and prints the seconds of each scan as JSON. A first scan of each kind warms
the JVM. Before each scan its files leave the page cache, so it plans again and reads from the disk. Delta is
skipped unless its jars for the running Spark are at hand (see ``tests/lakes.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.spark_log import VALUE_BYTES, make_log
from tests.lakes import Lake, open_lake
from walstore.spark import local_session, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA: Final = "Delta table"
THREADS: Final = 2


class Scan(NamedTuple):
    """A way to read all values."""

    place: Path
    """Directory of the files that it reads."""
    value: str
    """Name of the column."""
    opened: Callable[[], DataFrame]


def all_scans(spark: SparkSession, store: Path, lake: Lake | None) -> dict[str, Scan]:
    """Return the scans by the names of their systems, walstore's first."""
    url = f"file://{store}"
    files = sorted(str(path) for path in store.glob("log/*/*.parquet"))
    scans = {
        "walstore, fast path": Scan(store, "value", lambda: read(spark, url, fast_path="always")),
        "walstore, Python source, all columns": Scan(
            store, "value", lambda: spark.read.format("walstore").load(url)
        ),
        "Spark's own scan of the same Parquet files": Scan(
            store, "body", lambda: spark.read.parquet(*files)
        ),
    }
    if lake is not None:
        scans[DELTA] = Scan(
            Path(lake.table), "value", lambda: spark.read.format("delta").load(lake.table)
        )
    return scans


def seconds_of(scan: Scan, records: int) -> float:
    """Plan and run a scan of files that are not in the page cache; return how long both take."""
    for path in scan.place.rglob("*"):
        if path.is_file():
            forget(path)
    begun = time.perf_counter()
    frame = scan.opened().selectExpr("count(*)", f"sum(length({scan.value}))")
    found = tuple(frame.collect()[0])
    taken = time.perf_counter() - begun
    assert found == (records, records * VALUE_BYTES), found
    return taken


def forget(path: Path) -> None:
    """Let the page cache forget a file that was synced; a system that cannot be asked keeps it."""
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main(directory: Path, records: int, times: int) -> None:
    """Measure, and print the medians, and what is needed for scans that are missing."""
    skipped, lake = {}, None
    try:
        lake = open_lake("delta", directory)
    except LookupError as error:
        skipped[DELTA] = str(error)
    store = directory / "store"
    if not store.exists():
        make_log(directory, records)
    spark = local_session(threads=THREADS) if lake is None else lake.session()
    spark.sparkContext.setLogLevel("ERROR")
    if lake is not None and not Path(lake.table).exists():
        read(spark, f"file://{store}").write.format("delta").save(lake.table)
    os.sync()
    scans = all_scans(spark, store, lake)
    rounds = [
        {name: seconds_of(scan, records) for name, scan in scans.items()} for _ in range(1 + times)
    ]
    medians = {name: statistics.median(one[name] for one in rounds[1:]) for name in scans}
    print(json.dumps({"seconds": medians, "skipped": skipped}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    main(given.directory, given.records, given.times)
