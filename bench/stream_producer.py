"""A program that appends at a constant rate; test_spark_stream.py runs it next to a query.

Values begin with the time of their append, in 19 digits of nanoseconds. It says ``ready`` when the log is
open and begins when it is told to.
"""

from __future__ import annotations

import asyncio
import sys
import time

from uploader import CloudTier, CloudWriter
from walstore import Wal

STEP_SECONDS = 0.01
VALUE_BYTES = 100


async def produce(kind: str, location: str, url: str, rate: int, seconds: float) -> None:
    opening = CloudWriter.open(url) if kind == "cloud" else Wal.open(location, tier=CloudTier(url))
    async with opening as log:
        await log.append_many([stamp()])
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.perf_counter()
        each = round(rate * STEP_SECONDS)
        async with asyncio.TaskGroup() as group:
            for step in range(round(seconds / STEP_SECONDS)):
                await asyncio.sleep(began + step * STEP_SECONDS - time.perf_counter())
                group.create_task(log.append_many([stamp()] * each))
        print(f"{(time.perf_counter() - began):.3f}", flush=True)


def stamp() -> bytes:
    return (b"%019d" % time.time_ns()).ljust(VALUE_BYTES, b".")


if __name__ == "__main__":
    kind, location, url, rate, seconds = sys.argv[1:]
    asyncio.run(produce(kind, location, url, int(rate), float(seconds)))
