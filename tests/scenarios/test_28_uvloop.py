"""Another event loop than asyncio's own: uvloop, which many services run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from uploader import CloudLog, CloudTier, CloudWriter
from walstore import Wal, WalClosedError, WalStore


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop; no task is left."""

    async def watched() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        await asyncio.wait_for(work, 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())


def test_a_local_log(log_directory: Path) -> None:
    async def work() -> None:
        async with Wal.open(log_directory) as wal:
            following = asyncio.create_task(anext(wal.reader("latest")))
            await asyncio.sleep(0)
            assert await wal.append(b"first") == 1
            assert (await following).value == b"first"
            await wal.append_many([b"more"] * 100, durability="memory")
            async with wal.transaction(update={"a": "b"}) as transaction:
                for number in range(1000):
                    await transaction.append(b"%d" % number)
            waiting = asyncio.create_task(anext(wal.reader("latest")))
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


def test_many_logs(tmp_path: Path) -> None:
    async def work() -> None:
        async with WalStore.open(tmp_path / "store") as store:
            for number in range(20):
                log = await store.wal(f"log-{number}")
                await log.append(b"value")

    run(work())


@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_the_cloud(layout: str, tmp_path: Path) -> None:
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
