"""Spark's part of the demo: records and bytes by stream, counted in a process of its own.

Spark and its JVM write to stdout and stderr, and the parent may have to stop them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys

from walstore import WalError
from walstore.cli.child_process import start_child
from walstore.cli.demo.checks import SparkTotals

RUN_SECONDS = 180.0
_MARK = "walstore-demo-result "


async def count_by_stream(url: str) -> SparkTotals:
    """Let Spark read the log at ``url``. WalError with Spark's last line if it fails."""
    process = await start_child("walstore.cli.demo.spark_part", url)
    try:
        async with asyncio.timeout(RUN_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        raise WalError(f"Spark did not finish within {RUN_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the JVM is in its group
            await process.wait()
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            version, rows, head, limit = json.loads(line.removeprefix(_MARK))
            return SparkTotals(version, {row[0]: (row[1], row[2]) for row in rows}, head, limit)
    lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it wrote nothing to stderr"
    raise WalError(f"Spark failed with exit code {process.returncode}: {last}")


def _count(url: str) -> None:
    from pyspark.sql import functions as f

    from walstore.spark import local_session

    config = {
        # Enough for a few streams; Spark's default of 200 would take longer than the reading.
        "spark.sql.shuffle.partitions": "2",
        # The run is too short for Java's optimising compiler to pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = local_session(app_name="walstore demo", config=config)
    try:
        log = spark.read.format("walstore").schema("offset long, stream string, value binary")
        totals = (
            log.load(url)
            .groupBy("stream")
            .agg(f.count("*"), f.sum(f.length("value")), f.min("offset"), f.max("offset"))
            .collect()
        )
        rows = sorted([stream or "", records, size] for stream, records, size, _, _ in totals)
        head = min((row[3] for row in totals), default=1)
        limit = max((row[4] for row in totals), default=0) + 1
        version = spark.version
    finally:
        spark.stop()
    print(_MARK + json.dumps([version, rows, head, limit]), flush=True)


if __name__ == "__main__":
    _count(sys.argv[1])
