"""Several logs at one place, for tests: in a bucket, some of them partitioned, and in a WalStore."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.walstore.spark.reading import START_US
from uploader import CloudWriter, open_store
from uploader.partitioned import create_partitions, partition_url
from uploader.stores.retry import RetryPolicy
from walstore import WalStore
from walstore.testing import ManualClock


def write(url: str, values: Sequence[bytes], *, stream: str | None = None) -> None:
    """Append values to a log in a store, one fragment for each call, a second later for each record."""

    async def append() -> None:
        clock = ManualClock(now_us=START_US)
        async with CloudWriter.open(url, clock=clock) as log:
            clock.advance(log.tail)
            await log.append_many(values, stream=stream)

    asyncio.run(append())


def write_partitioned(url: str, count: int, logs: Mapping[int, Sequence[bytes]]) -> None:
    """Make a partitioned log of ``count`` logs, of which only some are written to."""

    async def create() -> None:
        store = open_store(url)
        await create_partitions(store, count, retry=RetryPolicy())
        await store.aclose()

    asyncio.run(create())
    for partition, values in logs.items():
        write(partition_url(url, partition), values)


def write_directory(path: Path, logs: Mapping[str, Sequence[bytes]]) -> None:
    """Fill a WalStore."""

    async def append() -> None:
        async with WalStore.open(path, clock=ManualClock(now_us=START_US)) as store:
            for name, values in logs.items():
                wal = await store.wal(name)
                await wal.append_many(values)

    asyncio.run(append())
