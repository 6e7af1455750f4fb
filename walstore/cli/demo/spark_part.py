"""The Spark part of the demo: an aggregation by stream, in a process of its own.

Of its own, because Spark and its JVM write to stdout and stderr as they like, and so that it can be
given up. Started by :func:`aggregate` as ``python -m walstore.cli.demo.spark_part URL``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass

from walstore.errors import WalError

RUN_SECONDS = 180.0
_MARK = "walstore-demo-result "


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What Spark counted."""

    version: str
    by_stream: dict[str, tuple[int, int]]
    """Records and bytes of values by stream."""
    head: int
    limit: int


async def aggregate(url: str) -> Aggregate:
    """Let Spark read the log at ``url`` and count. WalError with Spark's last word if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "walstore.cli.demo.spark_part",
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
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
            found = json.loads(line.removeprefix(_MARK))
            rows = {stream: (records, size) for stream, records, size in found["rows"]}
            return Aggregate(found["version"], rows, found["head"], found["limit"])
    words = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    last = words[-1].strip() if words else "it said nothing"
    raise WalError(f"Spark failed with exit code {process.returncode}: {last}")


def run(url: str) -> None:
    """Aggregate and print the result, in the process that :func:`aggregate` started."""
    from pyspark.sql import functions as f

    from walstore.spark import local_session

    config = {
        # A handful of streams need no more; Spark's default of 200 would take longer than the reading.
        "spark.sql.shuffle.partitions": "2",
        # Nothing runs long enough for Java's optimising compiler to earn what it takes.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = local_session(app_name="walstore demo", config=config)
    try:
        totals = (
            spark.read.format("walstore")
            .schema("offset long, stream string, value binary")
            .load(url)
            .groupBy("stream")
            .agg(
                f.count("*").alias("records"),
                f.sum(f.length("value")).alias("size_bytes"),
                f.min("offset").alias("first"),
                f.max("offset").alias("last"),
            )
            .collect()
        )
        result = {
            "version": spark.version,
            "rows": sorted([row.stream or "", row.records, row.size_bytes] for row in totals),
            "head": min((row.first for row in totals), default=1),
            "limit": max((row.last for row in totals), default=0) + 1,
        }
    finally:
        spark.stop()
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
