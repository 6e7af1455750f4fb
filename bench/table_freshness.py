"""How soon a record of a stored log can be read in an Iceberg table that follows it, and how many a second.

Run from the root of the repository; needs the extra ``iceberg`` with ``pyiceberg[sql-sqlite]``::

    python -m bench.table_freshness [--records 60] [--bulk 200000]

Freshness: a record is appended to the log every second, and is durable in the store; from then on the time
counts until the commit that has it. Both ways are measured: the log's fragments as they are, and copies with
typed columns. Bulk: how many records of 1 KiB of JSON a second are copied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from uploader import CloudWriter, IcebergTarget, LogTable

COLUMNS = ("id:long", "price:decimal(12,2)", "city:string:/address/city", "at:timestamptz")


def target(place: Path, name: str) -> IcebergTarget:
    """Return a table in a catalog of SQLite."""
    catalog = {"uri": f"sqlite:///{place}/{name}.db", "warehouse": f"file://{place}/{name}"}
    return IcebergTarget(table=f"bench.{name}", properties=catalog)


def order(number: int) -> bytes:
    """Return a record of 1 KiB."""
    row = {
        "id": number,
        "price": f"{number % 1000}.25",
        "address": {"city": f"city {number % 97}", "street": "x" * 850},
        "at": "2025-06-01T12:00:00Z",
    }
    return json.dumps(row).encode()


async def freshness(place: Path, name: str, count: int, columns: tuple[str, ...] | None) -> None:
    """Print how long records take from the acknowledgement of their append to the commit."""
    url = f"file://{place}/log-{name}"
    appended: dict[int, float] = {}
    lags: list[float] = []
    async with CloudWriter.open(url, create=True) as log:
        appended[await log.append(order(0))] = time.perf_counter()

        async def append() -> None:
            for number in range(1, count):
                await asyncio.sleep(1.0)
                appended[await log.append(order(number))] = time.perf_counter()

        appending = asyncio.create_task(append())
        async with (
            LogTable.open(url, target(place, name), columns=columns) as table,
            aclosing(table.follow()) as commits,
        ):
            async for done in commits:
                now = time.perf_counter()
                while len(lags) < count and 1 + len(lags) < done.limit:
                    lags.append(now - appended[1 + len(lags)])
                if len(lags) == count:
                    break
        await appending
    lags.sort()
    print(
        f"{name:10} p50 {statistics.median(lags):.2f} s, p99 {lags[int(0.99 * (count - 1))]:.2f} s, "
        f"longest {lags[-1]:.2f} s"
    )


async def bulk(place: Path, count: int) -> None:
    """Print how many records a second are copied."""
    url = f"file://{place}/log-bulk"
    async with CloudWriter.open(url, create=True) as log:
        for start in range(0, count, 10_000):
            await log.append_many(
                [order(number) for number in range(start, min(start + 10_000, count))]
            )
    began = time.perf_counter()
    async with LogTable.open(url, target(place, "bulk"), columns=COLUMNS) as table:
        while (done := await table.step()).records:
            assert not done.misfits
    print(
        f"{'bulk':10} {count / (time.perf_counter() - began):,.0f} records/s with {len(COLUMNS)} columns"
    )


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--bulk", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walstore-freshness-") as place:
        asyncio.run(freshness(Path(place), "fragments", options.records, None))
        asyncio.run(freshness(Path(place), "typed", options.records, COLUMNS))
        asyncio.run(bulk(Path(place), options.bulk))


if __name__ == "__main__":
    main()
