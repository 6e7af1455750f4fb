"""Many logs with a cloud tier in one process: they share threads, and the client of their server."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.cloud_logs import rss_bytes
from tests.cloud import URL, cloud_values
from uploader import CloudTier, CloudWriter, UploadSettings
from uploader.runtime.shared_worker import SharedWorker
from uploader.stores import LocalStore, MemoryStore
from walstore import WalClosedError, WalStore

MOST_THREADS = 40
MOST_KIB = 200
"""For each of many logs."""


def threads() -> int:
    return sum(thread.name.startswith("walstore-") for thread in threading.enumerate())


@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_tiers_of_a_store_share_their_threads(tmp_path: Path, count: int) -> None:
    """With all of them shipping at the same time."""

    def make_tier(name: str) -> CloudTier:
        at_once = UploadSettings(fragment_age_seconds=0)
        return CloudTier(f"file://{tmp_path}/tier/{name}", settings=at_once)

    gc.collect()
    before = rss_bytes()
    async with WalStore.open(tmp_path / "logs", tier=make_tier) as store:
        logs = [await store.wal(f"log-{number}") for number in range(count)]
        await asyncio.gather(*(wal.append(b"1", durability="cloud") for wal in logs))
        assert threads() <= MOST_THREADS
        await asyncio.gather(*(wal.append(b"2", durability="cloud") for wal in logs))
        assert threads() <= MOST_THREADS
        gc.collect()
        # Of a few, most is what the threads take.
        assert count < 100 or (rss_bytes() - before) / count / 1024 <= MOST_KIB
    assert await cloud_values(LocalStore(tmp_path / "tier/log-7")) == [b"1", b"2"]


FORKED = """
import asyncio, os, pathlib, sys
from uploader.stores import LocalStore
from walstore import WalClosedError

root = pathlib.Path(sys.argv[1])
before = LocalStore(root)
asyncio.run(before.put_if_absent("parent", b""))
child = os.fork()
if not child:
    async def go_on():
        try:
            await before.get("parent")
        except WalClosedError:
            await LocalStore(root).put_if_absent("child", b"")
    asyncio.run(go_on())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(before.get("child"))
print("read")
"""


@pytest.mark.slow
async def test_a_child_process_has_threads_of_its_own(tmp_path: Path) -> None:
    """A store of the parent's says so instead of waiting for threads that are not there."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKED, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await running.communicate()
    assert said.strip() == b"read"


@pytest.mark.slow
async def test_writers_share_their_threads() -> None:
    async with AsyncExitStack() as stack:
        for _ in range(100):
            log = await stack.enter_async_context(CloudWriter.open(URL, store=MemoryStore()))
            await log.append(b"1")
        assert threads() <= MOST_THREADS


async def test_one_that_is_closed_leaves_the_others_their_threads() -> None:
    one, other = SharedWorker("cloud", 2), SharedWorker("cloud", 2)
    pending = one.begin(lambda: 7)
    one.close()
    assert await pending == 7
    with pytest.raises(WalClosedError):
        await one.run(int)
    assert await other.run(int) == 0
    other.close()


async def test_a_busy_one_does_not_hold_up_the_others() -> None:
    """It has no more threads at a time than its width."""
    busy, other = SharedWorker("store", 2), SharedWorker("store", 2)
    release = threading.Event()
    waiting = [busy.begin(lambda: release.wait(60)) for _ in range(50)]
    try:
        assert await asyncio.wait_for(other.run(int), 60) == 0
    finally:
        release.set()
    assert all(await asyncio.gather(*waiting))


async def test_a_lock_that_another_process_holds_stops_no_reading(tmp_path: Path) -> None:
    """However many stores wait for it."""
    stores = [LocalStore(tmp_path / str(number)) for number in range(20)]
    etags = [await store.put_if_absent("a", b"1") for store in stores]
    held = []
    for number in range(20):
        held.append(os.open(tmp_path / str(number) / ".tmp/lock", os.O_RDWR | os.O_CREAT))
        await asyncio.to_thread(fcntl.flock, held[-1], fcntl.LOCK_EX)
    async with asyncio.TaskGroup() as group:
        pairs = zip(stores, etags, strict=True)
        swaps = [group.create_task(store.put_if_match("a", b"2", etag)) for store, etag in pairs]
        for store in stores:
            assert (await store.get("a")).data == b"1"
            await store.put_if_absent("b", b"")
        assert not any(swap.done() for swap in swaps)
        for lock in held:
            os.close(lock)
    assert [(await store.get("a")).data for store in stores] == [b"2"] * 20
    for store in stores:
        await store.aclose()


async def test_a_closed_local_store_waits_for_what_was_abandoned(tmp_path: Path) -> None:
    """A cancelled put goes on in its thread, and closing does not return before it is done."""
    store = LocalStore(tmp_path)
    puts = [asyncio.create_task(store.put_if_absent(f"{number}", b"x")) for number in range(20)]
    await asyncio.sleep(0)
    for put in puts:
        put.cancel()
    await store.aclose()
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == sorted(map(str, range(20)))
