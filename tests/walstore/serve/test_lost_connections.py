"""Connections that are lost, at any moment: what was sent once is in the log once, or its caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.local import SMALL, read_values
from tests.waiting import until
from tests.walstore.serve.served import Proxy, Served, serving
from walstore import (
    CursorMovedError,
    OutcomeUnknownError,
    RemoteWal,
    StorageUnavailableError,
    StreamClosedError,
    Wal,
    WalClosedError,
    connect,
)
from walstore.serve import Server

T = TypeVar("T")


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[Proxy]:
    async with Proxy(served.address) as found:
        yield found


@pytest.fixture
async def remote(proxy: Proxy) -> AsyncIterator[RemoteWal]:
    async with connect(proxy.address) as found:
        yield found


async def lose_the_answer_of(
    call: Callable[[], Coroutine[Any, Any, T]], proxy: Proxy, remote: RemoteWal
) -> asyncio.Future[T]:
    """Begin a call, and lose the connection once the server has answered it."""
    await until(lambda: remote.is_connected)
    proxy.holds_answers = True
    begun = asyncio.ensure_future(call())
    await proxy.held.wait()
    proxy.holds_answers = False
    proxy.lose()
    return begun


async def test_an_append_whose_answer_is_lost_has_an_unknown_outcome(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    for append in (
        lambda: remote.append(b"v"),
        lambda: remote.append_many([b"v"]),
        lambda: remote.append(b"v", key=b"k", durability="memory"),
    ):
        call = await lose_the_answer_of(append, proxy, remote)
        with pytest.raises(OutcomeUnknownError, match="read before") as lost:
            await call
        assert lost.value.outcome == "unknown"
    assert await remote.append(b"next") == 4
    assert await read_values(served.wal) == [b"v", b"v", b"v", b"next"]
    assert proxy.connections == 4


async def test_a_producer_appends_once_however_often_the_answer_is_lost(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    producer = remote.producer("p")
    for number in range(1, 6):
        append = partial(producer.append, b"%d" % number)
        call = await lose_the_answer_of(append, proxy, remote)
        assert await call == number
    call = await lose_the_answer_of(lambda: producer.append(b"6", sequence=1), proxy, remote)
    assert await call == 6
    assert await read_values(served.wal) == [b"%d" % n for n in range(1, 7)]


async def test_appends_of_a_producer_side_by_side_survive_losses_in_order(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    producer = remote.producer("p")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(producer.append(b"%d" % n)) for n in range(200)]
        for _ in range(5):
            proxy.lose()
            await until(lambda: remote.is_connected)
            await asyncio.sleep(0)
    assert [task.result() for task in tasks] == list(range(1, 201))
    assert await read_values(served.wal) == [b"%d" % n for n in range(200)]


async def test_a_refused_append_of_a_producer_leaves_no_gap(
    remote: RemoteWal, served: Served
) -> None:
    await remote.open_stream("s")
    await remote.close_stream("s")
    producer = remote.producer("p")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(producer.append(b"1"))
        refused = group.create_task(expect_refusal(producer.append(b"no", stream="s")))
        later = [group.create_task(producer.append(b"%d" % n)) for n in range(2, 50)]
    assert await first == 1
    await refused
    assert [task.result() for task in later] == list(range(2, 50))
    assert await read_values(served.wal) == [b"%d" % n for n in range(1, 50)]
    with pytest.raises(StreamClosedError):
        await producer.append(b"no", stream="s")
    assert await producer.append(b"50") == 50


async def expect_refusal(call: Coroutine[Any, Any, int]) -> None:
    with pytest.raises(StreamClosedError):
        await call


async def test_a_session_that_the_log_forgot_begins_anew(tmp_path: Path) -> None:
    small = SMALL.replace(max_producers=2)
    async with serving(tmp_path / "log", small) as served, served.connect() as remote:
        mine = remote.producer("p")
        assert [await mine.append(b"1"), await mine.append(b"2")] == [1, 2]
        for other in ("q", "r"):
            await remote.producer(other).append(b"x")
        assert [await mine.append(b"3"), await mine.append(b"4")] == [5, 6]


async def test_two_clients_with_the_same_producer_lose_nothing(served: Served) -> None:
    async with served.connect() as one, served.connect() as two:
        mine, yours = one.producer("p"), two.producer("p")
        for number in range(3):
            await mine.append(b"a%d" % number)
            await yours.append(b"b%d" % number)
    assert await read_values(served.wal) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


async def test_a_transaction_ends_with_its_connection(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    with pytest.raises((StorageUnavailableError, WalClosedError)):
        async with remote.transaction() as txn:
            await txn.append(b"x" * 60_000)
            for _ in range(20):
                await txn.append(b"x" * 60_000)  # parts of it are at the server
            proxy.lose()
            await until(lambda: not remote.is_connected or proxy.connections > 1)
            for _ in range(40):
                await txn.append(b"y" * 60_000)
    assert await read_values(served.wal) == []
    await until(lambda: served.wal.statistics().transactions_rolled_back == 1)

    async def commit() -> None:
        async with remote.transaction(update={"r": "1"}) as txn:
            await txn.append(b"v")

    call = await lose_the_answer_of(commit, proxy, remote)
    with pytest.raises((OutcomeUnknownError, StorageUnavailableError)):
        await call
    async with remote.transaction() as txn:
        await txn.append(b"w")
    assert txn.span is not None


async def test_a_reader_reads_on(served: Served, proxy: Proxy, remote: RemoteWal) -> None:
    got: list[bytes] = []

    async def read() -> None:
        async for record in remote.reader(stop=51):
            got.append(record.value)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        for number in range(50):
            await served.wal.append(b"%d" % number)
            if number % 10 == 5:
                proxy.lose()
    assert got == [b"%d" % n for n in range(50)]


async def test_a_cursor_moves_once(served: Served, proxy: Proxy, remote: RemoteWal) -> None:
    await served.wal.append_many([b"a", b"b", b"c"])
    cursor = await remote.cursor("c")
    call = await lose_the_answer_of(lambda: cursor.commit(2), proxy, remote)
    await call
    assert cursor.position == 2
    await cursor.commit(3)
    other = await served.wal.cursor("c")
    await other.commit(4)
    with pytest.raises(CursorMovedError):
        await cursor.commit(4)
    assert (await served.wal.cursor("c")).position == 4


async def test_a_consumer_goes_on(served: Served, proxy: Proxy, remote: RemoteWal) -> None:
    await served.wal.append_many([b"%d" % n for n in range(30)])
    got = []
    async with remote.consumer("c", follow=False, auto_commit_seconds=None) as consumer:
        async for record in consumer:
            got.append(record.value)
            if len(got) % 7 == 0:
                proxy.lose()
                await consumer.commit()
    assert got == [b"%d" % n for n in range(30)]
    assert (await served.wal.cursor("c")).position == 29  # what was committed after 28 records


async def test_requests_wait_for_a_server_that_comes_back(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    async with Wal.open(tmp_path / "log") as wal:
        async with Server.open(wal, unix=socket):
            remote = await connect(f"unix://{socket}", reconnect_seconds=30)
            await remote.append(b"1")
            waiting = asyncio.ensure_future(anext(remote.reader("latest")))
            await asyncio.sleep(0)
        await until(lambda: not remote.is_connected)
        call = asyncio.ensure_future(remote.append(b"2"))
        await asyncio.sleep(0)
        assert not call.done()
        async with Server.open(wal, unix=socket):
            assert await call == 2
            assert (await waiting).value == b"2"
            await remote.aclose()


async def test_a_client_may_start_before_its_server(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    async with Wal.open(tmp_path / "log") as wal:
        connecting = asyncio.ensure_future(client(f"unix://{socket}"))
        await asyncio.sleep(0)
        async with Server.open(wal, unix=socket):
            assert await connecting == 1


async def client(address: str) -> int:
    async with connect(address, connect_seconds=20) as remote:
        return await remote.append(b"v")


async def test_requests_fail_when_no_server_comes_back(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    async with Wal.open(tmp_path / "log") as wal:
        async with Server.open(wal, unix=socket):
            remote = await connect(f"unix://{socket}", reconnect_seconds=0)
        await until(lambda: not remote.is_connected)
        with pytest.raises(StorageUnavailableError, match="nothing was written") as gone:
            await remote.append(b"1")
        assert gone.value.retriable
        assert gone.value.outcome == "not_written"
        with pytest.raises(StorageUnavailableError):
            await remote.reader().fetch(max_wait=0)
        async with Server.open(wal, unix=socket):
            assert await remote.append(b"1") == 1  # it tries again by itself
        await remote.aclose()


async def test_another_log_at_the_same_address_is_not_taken_for_the_first(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    async with Wal.open(tmp_path / "one") as one, Server.open(one, unix=socket):
        remote = await connect(f"unix://{socket}")
        await remote.append(b"1")
    async with Wal.open(tmp_path / "two") as two, Server.open(two, unix=socket):
        with pytest.raises(WalClosedError, match="another log"):
            await remote.append(b"2")
        assert remote.is_closing
        assert await read_values(two) == []
    await remote.aclose()


async def test_closing_waits_for_appends_on_their_way(served: Served) -> None:
    remote = await served.connect()
    calls = [asyncio.ensure_future(remote.append(b"%d" % n)) for n in range(10)]
    await asyncio.sleep(0)
    await remote.aclose()
    assert [await call for call in calls] == list(range(1, 11))


async def test_a_cancelled_append_is_written_nevertheless(
    served: Served, remote: RemoteWal
) -> None:
    call = asyncio.ensure_future(remote.append(b"v"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await remote.append(b"w") == 2
    assert await read_values(served.wal) == [b"v", b"w"]
