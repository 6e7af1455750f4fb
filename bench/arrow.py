"""Records as an Arrow table: ``to_arrow``, a dataset, and a loop that makes a row of each record.

Run from the root of the repository::

    python -m bench.arrow

Each line has the seconds for 300 000 records of 100 bytes, and how many times as long the loop takes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from uploader import CloudLog, CloudWriter
from walstore import Wal
from walstore.arrow import SCHEMA, dataset

GROUPS, GROUP = 100, 3000


async def fill(log: Any) -> None:
    for number in range(GROUPS):
        await log.append_many([b"x" * 100] * GROUP, stream=f"s{number % 3}")


async def loop(log: Any) -> pa.Table:
    rows = []
    async for record in log.reader(follow=False):
        row = record._asdict()
        row["timestamp"] = row.pop("timestamp_us")
        row["headers"] = list(record.headers.items()) or None
        rows.append(row)
    return pa.Table.from_pylist(rows, SCHEMA)


async def compare(title: str, log: Any) -> None:
    begin = time.perf_counter()
    expected = await loop(log)
    looped = time.perf_counter()
    assert (await log.to_arrow()).equals(expected)
    made = time.perf_counter()
    print(f"{title}, loop: {looped - begin:.2f} s")
    print(f"{title}, to_arrow: {made - looped:.2f} s, {(looped - begin) / (made - looped):.1f} x")
    if isinstance(log, CloudLog):
        found = dataset(await log.files())
        listed = time.perf_counter()
        assert (await asyncio.to_thread(found.to_table)).equals(expected)
        seconds = time.perf_counter() - listed
        print(f"{title}, dataset: {seconds:.2f} s, {(looped - begin) / seconds:.1f} x")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        async with Wal.open(path / "log") as wal:
            await fill(wal)
            await compare("a local log", wal)
        url = (path / "bucket").as_uri()
        async with CloudWriter.open(url, create=True) as writer:
            await fill(writer)
        async with CloudLog.open(url, cache_bytes=0) as log:
            await compare("a log in a store", log)


if __name__ == "__main__":
    asyncio.run(main())
