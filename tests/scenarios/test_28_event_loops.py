"""Event loops that services run: uvloop, and asyncio's own with tasks that begin at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from uploader import CloudLog, CloudTier, CloudWriter
from walstore import StorageUnavailableError, Wal, WalClosedError, WalStore
from walstore.log.readonly import ReadonlyWal
from walstore.testing import ManualClock

Run = Callable[[Coroutine[Any, Any, None]], None]


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


LOOPS = {"uvloop": uvloop.new_event_loop, "eager-tasks": _eager_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Run on one of the loops; no task is left."""
    if request.param == "eager-tasks" and sys.version_info < (3, 12):
        pytest.skip("asyncio.eager_task_factory is of Python 3.12")

    async def watched(work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wait_for(work, 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def act(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(watched(work))

    return act


def test_a_local_log(run: Run, log_directory: Path) -> None:
    async def work() -> None:
        async with Wal.open(log_directory) as wal:
            following = asyncio.create_task(anext(wal.follow("latest")))
            await asyncio.sleep(0)
            assert await wal.append(b"first") == 1
            assert (await following).value == b"first"
            await wal.append_many([b"more"] * 100, durability="memory")
            async with wal.transaction(update={"a": "b"}) as transaction:
                for number in range(1000):
                    await transaction.append(b"%d" % number)
            waiting = asyncio.create_task(anext(wal.follow("latest")))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with Wal.open_readonly(log_directory) as log:
                assert log.limit == 1102
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(wal.append(b"%d" % number))
        with pytest.raises(WalClosedError):
            await wal.append(b"late")

    run(work())


def test_many_logs(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with WalStore.open(tmp_path / "store") as store:
            for number in range(20):
                log = await store.wal(f"log-{number}")
                await log.append(b"value")

    run(work())


@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_the_cloud(run: Run, layout: str, tmp_path: Path) -> None:
    direct, shipped = f"file://{tmp_path}/direct", f"file://{tmp_path}/shipped"

    async def work() -> None:
        async with CloudWriter.open(direct, layout=layout) as log:
            await asyncio.gather(*(log.append(b"%d" % number) for number in range(100)))
        tier = CloudTier(shipped, layout=layout)
        async with Wal.open(tmp_path / "log", tier=tier) as wal:
            await wal.append_many([b"x"] * 100, durability="cloud")
        for url in (direct, shipped):
            async with CloudLog.open(url) as log:
                batches = [batch async for batch in log.reader().batches()]
                assert sum(map(len, batches)) == 100

    run(work())


def test_cursors_and_groups(run: Run, log_directory: Path) -> None:
    async def work() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append_many([b"%d" % number for number in range(20)])
            handles = [await wal.cursor(f"cursor-{number}") for number in range(5)]
            await asyncio.gather(*(handle.commit(9) for handle in handles))
            async with wal.group("workers") as first, wal.group("workers") as second:
                jobs = [*await first.fetch(5), *await second.fetch(5)]
                await asyncio.gather(*(job.ack() for job in jobs[:7]))
                await asyncio.gather(*(job.nak() for job in jobs[7:]))
                again = await second.fetch(20)
                assert [job.offset for job in again] == list(range(8, 21))
                await second.ack(again)
            async with wal.group("workers") as third:
                assert await third.fetch(1, max_wait_seconds=0) == []

    run(work())


def test_a_reader_that_cannot_go_on_says_so(run: Run, log_directory: Path) -> None:
    class BrokenClock(ManualClock):
        async def sleep(self, seconds: float) -> None:
            raise ZeroDivisionError

    async def work() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append(b"one")
        async with ReadonlyWal.open(log_directory, clock=BrokenClock()) as log:
            with pytest.raises(StorageUnavailableError, match="cannot be followed"):
                await log.wait_limit(9)

    run(work())
