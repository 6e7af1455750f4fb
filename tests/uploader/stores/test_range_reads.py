"""Ranges that are requested in one turn of the event loop are read in few calls, each with its own result."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.uploader.versioned.collections import SCHEMA, content, rows
from uploader import Collection
from uploader.runtime.shared_worker import SharedWorker
from uploader.stores import LocalStore, ObjectNotFoundError
from walstore.errors import InvalidSettingsError, StorageUnavailableError, WalClosedError

MIB = 1 << 20


@pytest.fixture
async def store(tmp_path):
    async with aclosing(LocalStore(tmp_path)) as store:
        yield store


class Hops:
    """Counts the calls that stores make on threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.refusal: Exception | None = None
        begin = SharedWorker.begin

        def counted(worker, call, *args):
            if self.refusal is not None:
                raise self.refusal
            self.made += 1
            return begin(worker, call, *args)

        monkeypatch.setattr(SharedWorker, "begin", counted)


@pytest.fixture
def hops(monkeypatch) -> Hops:
    return Hops(monkeypatch)


def put(root: Path, key: str, data: bytes) -> None:
    (root / key).parent.mkdir(exist_ok=True)
    (root / key).write_bytes(data)


async def test_reads_of_one_turn_share_calls_and_have_results_of_their_own(store, tmp_path, hops):
    chance = random.Random(1)
    contents = {f"{number % 3}/{number}": chance.randbytes(100) for number in range(40)}
    for key, data in contents.items():
        put(tmp_path, key, data)
    (tmp_path / "link").symlink_to(tmp_path / "0")
    wanted = [(key, *sorted(chance.sample(range(120), 2))) for key in contents]
    wanted += [("0/none", 0, 1), ("link/0", 0, 1), ("top", 0, 1), ("0", 0, 1)]
    chance.shuffle(wanted)
    found = await asyncio.gather(*(store.get_range(*one) for one in wanted), return_exceptions=True)
    for (key, start, limit), one in zip(wanted, found, strict=True):
        if key in contents:
            assert one == contents[key][start:limit]
        else:
            expected = InvalidSettingsError if key == "link/0" else ObjectNotFoundError
            assert type(one) is expected, key
    assert hops.made == 3
    await store.get_range("0/0", 0, 1)
    assert hops.made == 4


async def test_long_reads_have_calls_of_their_own(store, tmp_path, hops):
    """What a call has read is held until it ends."""
    for name in "abcd":
        put(tmp_path, name, bytes(MIB // 2))
    limits = (MIB, MIB // 2, MIB // 2, 1, 5 << 30)
    found = await asyncio.gather(
        *(store.get_range(name, 0, limit) for name, limit in zip("abcda", limits, strict=True))
    )
    assert [len(one) for one in found] == [MIB // 2, MIB // 2, MIB // 2, 1, MIB // 2]
    assert hops.made == 4


async def test_a_cancelled_read_leaves_the_others_alone(store, tmp_path, hops):
    put(tmp_path, "a", b"1")
    tasks = [asyncio.create_task(store.get_range("a", 0, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert (tasks[0].result(), tasks[2].result()) == (b"1", b"1")
    assert hops.made == 1


async def test_reads_that_are_all_cancelled_in_their_turn_are_not_made(store, hops):
    reading = asyncio.create_task(store.get_range("a", 0, 1))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait((reading,))
    assert hops.made == 0


async def test_closing_lets_the_reads_of_its_turn_finish(store, tmp_path):
    put(tmp_path, "a", b"1")
    reading = asyncio.create_task(store.get_range("a", 0, 1))
    await asyncio.sleep(0)
    await store.aclose()
    assert await reading == b"1"
    with pytest.raises(WalClosedError):
        await store.get_range("a", 0, 1)


async def test_each_read_gets_the_error_when_no_thread_can_be_started(store, tmp_path, hops):
    put(tmp_path, "a", b"1")
    hops.refusal = StorageUnavailableError("no thread can be started")
    found = await asyncio.gather(
        *(store.get_range("a", 0, 1) for _ in range(2)), return_exceptions=True
    )
    assert [type(one) for one in found] == [StorageUnavailableError] * 2
    assert found[0] is not found[1]
    hops.refusal = None
    assert await store.get_range("a", 0, 1) == b"1"


async def test_nothing_is_returned_of_a_directory_that_could_not_be_synced(
    store, tmp_path, monkeypatch
):
    put(tmp_path, "good/a", b"1")
    put(tmp_path, "bad/a", b"1")
    assert await store.get_range("good/a", 0, 1) == b"1"
    real = os.fsync

    def failing(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name == "bad":
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    found = await asyncio.gather(
        *(store.get_range(key, 0, 1) for key in ("bad/a", "bad/none", "bad/a")),
        return_exceptions=True,
    )
    assert [type(one) for one in found] == [
        StorageUnavailableError,
        ObjectNotFoundError,
        StorageUnavailableError,
    ]
    with pytest.raises(StorageUnavailableError, match="could not be synced"):
        await store.get_range("good/a", 0, 1)


def test_a_turn_that_ended_with_its_event_loop_holds_nothing_up(tmp_path):
    put(tmp_path, "a", b"1")
    store = LocalStore(tmp_path)

    async def begin() -> None:
        asyncio.get_running_loop().create_task(store.get_range("a", 0, 1))

    async def read() -> bytes:
        try:
            return await asyncio.wait_for(store.get_range("a", 0, 1), 60)
        finally:
            await store.aclose()

    asyncio.run(begin())
    assert asyncio.run(read()) == b"1"


async def test_a_directory_is_synced_once_for_the_reads_of_a_call(store, tmp_path, monkeypatch):
    for number in range(16):
        put(tmp_path, f"a/{number}", b"1")
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    await asyncio.gather(*(store.get_range(f"a/{number}", 0, 1) for number in range(16)))
    assert len(synced) == 2  # it and the root


async def test_pending_batches_are_read_with_far_fewer_calls_than_objects(tmp_path, hops):
    url = f"file://{tmp_path}/collection"
    async with await Collection.open(url, create=True, schema=SCHEMA, key=("k",)) as collection:
        for lower in range(130):
            await collection.writer().append(rows((lower, "a")), lower=lower, upper=lower + 1)
    async with await Collection.open(url) as collection, await collection.reader() as reader:
        before = hops.made
        found = await reader.snapshot()
        made = hops.made - before
    assert content(found) == [(lower, "a", 1) for lower in range(130)]
    assert made < 30


async def test_a_disk_may_give_a_part_at_a_time(store, tmp_path, monkeypatch):
    """As a network file system may; the end of a file is where it gives nothing."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: pread(file, min(count, 7), at))
    data = random.Random(2).randbytes(100)
    put(tmp_path, "a/b", data)
    assert await store.get_range("a/b", 10, 99) == data[10:99]
    assert await store.get_range("a/b", 90, 300) == data[90:]
    assert await store.get_range("a/b", 100, 300) == b""
