"""Collections over HTTP at an S3 server: programs that race and are killed, compaction, gc, listening."""

# ruff: noqa: F811 - fixtures

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, aclosing

import pyarrow as pa
import pytest

from tests.scenarios.test_67_collections_killed import (
    SCHEMA,
    kill,
    kill_again_and_again,
    next_number,
    started,
)
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from tests.uploader.versioned.collections import HOUR, Clock
from uploader import Collection, Controller
from walstore.errors import CollectionNotFoundError

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(300)]
APPENDS = 15
RACER = f"""
import asyncio, os, sys
import pyarrow as pa
from uploader import Collection
from walstore.errors import UpperMismatchError

async def main():
    async with await Collection.open(sys.argv[1]) as collection:
        writer = collection.writer()
        print(0, flush=True)
        lower = done = lost = 0
        while done < {APPENDS}:
            rows = pa.table({{"k": [os.getpid()], "v": [done]}})
            try:
                await writer.append(rows, lower=lower, upper=lower + 1)
            except UpperMismatchError as error:
                lower, lost = error.actual, lost + 1
                continue
            lower, done = lower + 1, done + 1
        print(lost, flush=True)

asyncio.run(main())
"""


async def test_two_processes_race_for_each_place(s3_url: str) -> None:
    """Every append that was acknowledged is there once, in the place that it was given."""
    async with Collection.open(s3_url, create=True, schema=SCHEMA, key=("k",)) as collection:
        with started(RACER, s3_url) as one, started(RACER, s3_url) as other:
            for process in (one, other):
                assert await asyncio.to_thread(next_number, process) == 0
            lost = [await asyncio.to_thread(next_number, process) for process in (one, other)]
            pids = {one.pid, other.pid}
        assert sum(lost) > 0
        async with await collection.reader() as reader:
            assert await reader.upper() == 2 * APPENDS
            rows = (await reader.snapshot()).to_pylist()
        assert Counter((row["k"], row["v"]) for row in rows) == Counter(
            (pid, number) for pid in pids for number in range(APPENDS)
        )
        assert {row["_d"] for row in rows} == {1}


@pytest.mark.kill
async def test_writers_and_controllers_are_killed(s3_url: str) -> None:
    await kill_again_and_again(s3_url, 3)


@pytest.mark.kill
async def test_a_listener_is_killed_and_goes_on(s3_url: str) -> None:
    """Its hold ends with its lease; a new one begins where the old one was."""
    listener = """
import asyncio, sys
from uploader import Collection

async def main():
    async with await Collection.open(sys.argv[1]) as collection:
        reader = await collection.critical("tail")
        async for table, frontier in reader.listen(after=reader.frontier if reader.token else -1):
            await reader.compare_and_downgrade(reader.token, f"seen {frontier}", frontier - 1)
            print(frontier, flush=True)

asyncio.run(main())
"""
    async with Collection.open(s3_url, create=True, schema=SCHEMA, key=("k",)) as collection:
        writer = collection.writer()
        at = 0
        for _ in range(3):
            with started(listener, s3_url) as process:
                for _ in range(3):
                    await writer.append(pa.table({"k": [at], "v": [at]}), lower=at, upper=at + 1)
                    at += 1
                while await asyncio.to_thread(next_number, process) < at:
                    pass
                kill(process)
            async with Controller.open(s3_url, take_over=True) as controller:
                assert (await controller.compact(full=True)).upper == at
        tail = await collection.critical("tail")
        assert (tail.token, tail.frontier) == (f"seen {at}", at - 1)
        assert (await tail.snapshot(as_of=at - 1)).num_rows == at


async def test_it_is_compacted_collected_followed_and_deleted(s3_url: str) -> None:
    clock = Clock()
    async with AsyncExitStack() as stack:
        opened = Collection.open(
            s3_url, create=True, schema=SCHEMA, key=("k",), kind="upsert", clock=clock
        )
        collection = await stack.enter_async_context(opened)
        writer = collection.writer()
        reader = await stack.enter_async_context(
            await collection.reader("tail", lease_seconds=10 * 86400.0)
        )
        steps = await stack.enter_async_context(aclosing(reader.listen(after=-1)))
        seen = []
        for lower in range(12):
            rows = pa.table({"k": [lower % 3], "v": [lower]})
            await writer.append(rows, lower=lower, upper=lower + 1)
            table, frontier = await anext(steps)
            seen += table["v"].to_pylist()
            assert frontier == lower + 1
            if lower % 4 == 3:
                async with Controller.open(s3_url, take_over=True, clock=clock) as controller:
                    await controller.compact(full=True)
        assert seen == list(range(12))
        found = (await reader.snapshot(as_of=11)).to_pylist()
        assert found == [{"k": 0, "v": 9}, {"k": 1, "v": 10}, {"k": 2, "v": 11}]
        await clock.advance(2 * HOUR)
        await reader.downgrade_since(11)
        async with Controller.open(s3_url, take_over=True, clock=clock) as controller:
            assert (await controller.gc()).pending == 12
            assert (await controller.compact(full=True)).rows_written == 3
        assert (await reader.snapshot(as_of=11)).to_pylist() == found
        await steps.aclose()
        await reader.aclose()
        assert await collection.delete() > 0
        with pytest.raises(CollectionNotFoundError):
            await writer.append(None, lower=12, upper=13)
