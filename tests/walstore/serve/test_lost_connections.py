"""Connections that are lost, at any moment: what was sent once is in the log once, or its caller is told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.local import SMALL, read_values, turns
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.serve.served import Proxy, Served, serving
from tests.walstore.serve.test_bad_input import raw
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
from walstore.net.wire.message import Kind
from walstore.serve import Server, ServeSettings
from walstore.testing import ManualClock

T = TypeVar("T")


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


async def test_an_append_of_a_producer_has_its_offset_however_many_later_ones_are_cancelled(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    """They are in the log nevertheless, so the number of the first must not be forgotten there."""
    producer = remote.producer("p")
    assert await producer.append(b"1") == 1
    proxy.holds_answers = True
    waiting = asyncio.ensure_future(producer.append(b"2"))
    await proxy.held.wait()
    for number in range(100):
        later = asyncio.ensure_future(producer.append(b"later %d" % number))
        await asyncio.sleep(0)
        later.cancel()
        await asyncio.wait([later])
    await until(lambda: served.wal.tail > 60)
    proxy.holds_answers = False
    proxy.lose()
    assert await waiting == 2
    assert (await read_values(served.wal)).count(b"2") == 1
    assert await producer.append(b"3") == served.wal.tail - 1


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


async def test_a_first_append_of_a_session_that_the_log_may_have_forgotten_is_not_made_twice(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    producer, mine = remote.producer("p"), remote.producer("mine")
    await until(lambda: remote.is_connected)
    proxy.holds_answers = True
    first = asyncio.ensure_future(producer.append(b"first"))
    await proxy.held.wait()
    for number in range(1024):  # as many as it remembers: max_producers
        await served.wal.producer(f"other {number}").append(b"other", durability="memory")
    proxy.holds_answers = False
    proxy.lose()
    with pytest.raises(OutcomeUnknownError, match="forgotten"):
        await first
    assert (await read_values(served.wal)).count(b"first") == 1
    # What was not sent before is a first sending, and goes on.
    assert await mine.append(b"mine") == 1026
    assert await producer.append(b"second") == 1027


async def test_an_append_that_waited_for_a_connection_was_not_sent_before(tmp_path: Path) -> None:
    small = SMALL.replace(max_producers=1)
    async with (
        serving(tmp_path / "log", small) as served,
        Proxy(served.address) as proxy,
        connect(proxy.address) as remote,
    ):
        producer = remote.producer("p")
        for number in range(2):  # the second time, the log has forgotten the first append
            await served.wal.producer("other").append(b"other")
            await until(lambda: remote.is_connected)
            proxy.lose()
            await until(lambda: not remote.is_connected)
            assert await producer.append(b"%d" % number) == 2 * number + 2


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


@pytest.mark.parametrize("step", ["append", "commit"])
async def test_a_transaction_ends_with_a_server_that_stops_in_order(
    tmp_path: Path, step: str
) -> None:
    """As with a connection that is lost: it can be made again, at the next server."""
    socket = tmp_path / "s.sock"
    async with Wal.open(tmp_path / "log") as wal, contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server.open(wal, unix=socket))
        remote = await stack.enter_async_context(connect(f"unix://{socket}"))
        with pytest.raises(StorageUnavailableError, match="rolled back") as ended:
            async with remote.transaction() as txn:
                await txn.append(b"x" * (1 << 20))
                await server.aclose()
                await stack.enter_async_context(Server.open(wal, unix=socket))
                if step == "append":
                    with pytest.raises(StorageUnavailableError):
                        await txn.append(b"y" * (1 << 20))
        assert (ended.value.outcome, ended.value.retriable) == ("not_written", True)
        async with remote.transaction() as txn:
            await txn.append(b"z")
        assert txn.span == range(1, 2)


async def test_a_reader_reads_on(served: Served, proxy: Proxy, remote: RemoteWal) -> None:
    got: list[bytes] = []

    async def read() -> None:
        async for record in remote.follow(stop=51):
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
            waiting = asyncio.ensure_future(anext(remote.follow("latest")))
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
            await remote.follow().fetch(max_wait_seconds=0)
        async with Server.open(wal, unix=socket):
            assert await remote.append(b"1") == 1  # it tries again by itself
        await remote.aclose()


async def test_another_log_at_the_same_address_is_not_taken_for_the_first(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    async with contextlib.AsyncExitStack() as stack:
        async with Wal.open(tmp_path / "one") as one, Server.open(one, unix=socket):
            remote = await stack.enter_async_context(connect(f"unix://{socket}"))
            await remote.append(b"1")
        async with Wal.open(tmp_path / "two") as two, Server.open(two, unix=socket):
            for _ in range(2):
                with pytest.raises(WalClosedError, match="another log"):
                    await remote.append(b"2")
            assert await read_values(two) == []
        async with Wal.open(tmp_path / "one") as one, Server.open(one, unix=socket):
            await remote.append(b"3")  # what was wrong at the address was mended
            assert await read_values(one) == [b"1", b"3"]


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


async def test_a_connection_made_while_the_server_stops_leaves_no_socket(tmp_path: Path) -> None:
    """At any turn of the event loop between its arrival and the end of the server."""
    async with Wal.open(tmp_path / "log") as wal:
        for turns in range(8):
            server = await Server.open(wal, unix=tmp_path / "s.sock")
            with contextlib.ExitStack() as stack:
                for _ in range(5):
                    made = stack.enter_context(socket.socket(socket.AF_UNIX))
                    made.setblocking(False)
                    made.connect(str(tmp_path / "s.sock"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await server.aclose()
            gc.collect()  # an unclosed socket is a warning, and that an error


# -- connections that die without a word -----------------------------------------------------


async def pass_time(clock: ManualClock, seconds: float, times: int = 1) -> None:
    """Advance the clock once its client sleeps, and let that see it."""
    for _ in range(times):
        await clock.wait_for_sleepers()
        clock.advance(seconds)
    await clock.wait_for_sleepers()


async def test_a_connection_that_dies_silently_is_replaced(
    served: Served, proxy: Proxy, clock: ManualClock
) -> None:
    async with connect(proxy.address, clock=clock) as remote:
        producer = remote.producer("p")
        await producer.append(b"1")
        following = asyncio.ensure_future(anext(remote.follow("latest")))
        await remote.refresh()
        await served.wal.append(b"2")
        proxy.silence()
        unknown = asyncio.ensure_future(remote.append(b"lost"))
        calls = [
            asyncio.ensure_future(call)
            for call in (remote.refresh(), producer.append(b"3"), remote.wait_durable(1))
        ]
        await pass_time(clock, 9.9)
        assert remote.is_connected
        await pass_time(clock, 0.1)
        await pass_time(clock, 9.9)
        assert not any(call.done() for call in (unknown, *calls))
        clock.advance(0.1)
        with pytest.raises(OutcomeUnknownError, match="says nothing any more"):
            await unknown
        await asyncio.gather(*calls)
        assert (await following).value == b"2"
        assert proxy.connections == 2
    assert await read_values(served.wal) == [b"1", b"2", b"3"]


async def test_closing_a_connection_that_is_dead_ends(
    served: Served, proxy: Proxy, clock: ManualClock
) -> None:
    remote = await connect(proxy.address, clock=clock)
    proxy.silence()
    producer = remote.producer("p")
    lost, kept = (asyncio.ensure_future(one.append(b"v")) for one in (remote, producer))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(remote.aclose())
    await pass_time(clock, 10.0)
    assert not closing.done()
    clock.advance(10.0)
    await closing
    with pytest.raises(OutcomeUnknownError):
        await lost
    await kept
    # What waits for nothing but an answer does not hold the closing up at all.
    remote = await connect(proxy.address, clock=clock)
    proxy.silence()
    following = asyncio.ensure_future(anext(remote.follow("latest")))
    await asyncio.sleep(0)
    await remote.aclose()
    with pytest.raises(WalClosedError):
        await following


async def test_when_no_server_can_be_reached_any_more_closing_ends(
    served: Served, proxy: Proxy, clock: ManualClock
) -> None:
    remote = await connect(proxy.address, clock=clock, reconnect_seconds=5)
    proxy.silence()
    proxy.refuses = True
    append = asyncio.ensure_future(remote.producer("p").append(b"v"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(remote.aclose())
    while not closing.done():
        await until(lambda: closing.done() or clock.sleepers > 0)
        clock.advance(1.0)
    with pytest.raises(OutcomeUnknownError):
        await append


async def test_a_client_that_waits_for_nothing_sends_nothing(
    served: Served, proxy: Proxy, clock: ManualClock
) -> None:
    requests = served.server.figures.requests
    async with connect(proxy.address, clock=clock) as remote:
        await remote.append(b"1")
        sent = requests.copy()
        await pass_time(clock, 10.0, times=20)
        assert requests == sent
        # One that waits asks whether the server is there, and stays while it is.
        following = asyncio.ensure_future(anext(remote.follow("latest")))
        await until(lambda: requests["read"] == 1)
        for asked in range(1, 4):
            await pass_time(clock, 10.0)
            await until(lambda asked=asked: requests["limits"] == asked)
            await remote.refresh()
        assert not following.done()
        await served.wal.append(b"2")
        assert (await following).value == b"2"
        assert proxy.connections == 1


async def test_a_long_message_on_a_slow_link_is_not_taken_for_silence(
    tmp_path: Path, clock: ManualClock
) -> None:
    piece, size = 1 << 16, 4 << 20
    async with (
        serving(tmp_path / "log") as served,
        Proxy(served.address) as proxy,
        connect(proxy.address, clock=clock) as remote,
    ):
        figures = served.server.figures
        proxy.pieces = asyncio.Semaphore(0)
        append = asyncio.ensure_future(remote.append_many([bytes(piece)] * (size // piece)))
        before = figures.received_bytes
        for passed in range(size // 4, size, size // 4):
            while figures.received_bytes - before < passed:
                if proxy.pieces.locked():
                    proxy.pieces.release()
                await asyncio.sleep(0)
            await pass_time(clock, 10.0)
            assert not append.done()
            assert proxy.connections == 1
        for _ in range(1000):
            proxy.pieces.release()
        assert await append == range(1, 65)
        # If nothing leaves any more, it is silence as any other.
        proxy.pieces = asyncio.Semaphore(0)
        stuck = asyncio.ensure_future(remote.append_many([bytes(piece)] * (size // piece)))
        await asyncio.sleep(0)
        while not stuck.done():
            await until(lambda: stuck.done() or clock.sleepers > 0)
            clock.advance(1.0)
        with pytest.raises(OutcomeUnknownError):
            await stuck
        for _ in range(1000):
            proxy.pieces.release()
        await remote.refresh()
        assert proxy.connections == 2


async def test_more_appends_of_a_producer_than_the_log_remembers_lose_all_answers(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    """A hundred at once, of which the log remembers the newest 64."""
    producer = remote.producer("p")
    await producer.append(b"0")
    proxy.holds_answers = True
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(producer.append(b"%d" % n)) for n in range(1, 101)]
        await until(lambda: served.wal.tail > 64)
        proxy.holds_answers = False
        proxy.lose()
    assert [task.result() for task in tasks] == list(range(2, 102))
    assert await read_values(served.wal) == [b"%d" % n for n in range(101)]


@pytest.mark.parametrize("waits", ["for room", "for its turn", "for what is in progress"])
async def test_a_server_of_which_requests_wait_is_not_taken_for_dead(
    waits: str, tmp_path: Path
) -> None:
    """It reads nothing meanwhile, so a question of the client waits behind them."""
    clock = ManualClock()
    limits = ServeSettings(credit_bytes=1 << 16)
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock", settings=limits, clock=clock) as server,
        connect(f"unix://{tmp_path}/s.sock", clock=clock, reconnect_seconds=0) as remote,
        asyncio.TaskGroup() as group,
    ):
        taken = server.incoming.share(lambda: None)
        waiting: list[asyncio.Task[Any]] = []
        match waits:
            case "for room":
                taken.take(server.incoming.capacity_bytes)
                asked = remote.append(bytes(1 << 20))
            case "for its turn":
                server.turns.held_bytes += 1 << 30
                asked = remote.append(b"v", headers={"h": bytes(1 << 14)})
            case _:
                readers = [remote.follow() for _ in range(40)]
                waiting = [group.create_task(reader.__anext__()) for reader in readers]
                asked = remote.append(b"v")
        call = group.create_task(asked)
        await turns(100)
        for _ in range(60):
            await clock.wait_for_sleepers(2)
            clock.advance(1)
            await turns(20)
        assert not call.done()
        taken.close()
        server.turns.release(server.turns.held_bytes)
        if waiting:
            await wal.append(b"first")
        await asyncio.wait([call, *waiting])
        assert call.result() == (2 if waiting else 1)
        assert (remote.client.reconnects, server.figures.connected) == (0, 1)


async def test_the_requests_of_a_lost_connection_end_a_part_at_a_time(served: Served) -> None:
    """What others asked for is done in between."""
    left: list[int] = []
    async with raw(served) as client:
        for number in range(2, 2002):
            client.request(Kind.READ, number, [1, None, 1000, 60, "durable"])
        await until(lambda: served.server.requests_in_progress >= 2000)
    while served.server.requests_in_progress:
        left.append(served.server.requests_in_progress)
        await asyncio.sleep(0)
    assert all(before - after <= 256 for before, after in pairwise(left)), left


async def test_a_server_that_ends_each_connection_is_not_asked_without_a_pause(
    tmp_path: Path,
) -> None:
    """It greets, and ends at the first request: that is an attempt, too. Later requests try again."""
    async with (
        serving(tmp_path / "log") as served,
        Proxy(served.address) as proxy,
        await connect(proxy.address, reconnect_seconds=RUNS_OUT_SECONDS) as remote,
    ):
        proxy.greets_only, before = True, proxy.connections
        with pytest.raises(StorageUnavailableError, match="of use"):
            await remote.refresh()
        assert before < proxy.connections < before + 20
        proxy.greets_only = False
        await remote.refresh()
