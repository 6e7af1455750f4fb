"""Calls of a client that are cancelled: nobody else on the connection notices, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.local import turns
from tests.waiting import until
from tests.walstore.serve.served import Proxy, Served, serving
from tests.walstore.serve.test_bad_input import Raw, raw
from walstore import Job, OutcomeUnknownError, RemoteWal, WalError, connect, connect_readonly
from walstore.net.wire.errors import unpack_error
from walstore.net.wire.message import HEADER, Kind, encode
from walstore.net.wire.records import pack_options
from walstore.serve import Server, ServeSettings

TIMES: Final = 10


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """With large answers."""
    async with serving(tmp_path / "log") as found:
        yield found


async def cancelled(call: Coroutine[Any, Any, Any]) -> None:
    """Begin a call, and cancel it once it waits for the server."""
    begun = asyncio.ensure_future(call)
    for _ in range(5):
        await asyncio.sleep(0)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


async def impatient(
    proxy: Proxy, call: Callable[[], Coroutine[Any, Any, Any]], *, most: int
) -> Any:
    """Call with a time-out that is over just before the answer arrives, again and again, ``most`` times."""
    for _ in range(most):
        proxy.keeps_answers = True
        begun = asyncio.ensure_future(call())
        kept = asyncio.ensure_future(proxy.kept.wait())
        async with asyncio.timeout(60):
            await asyncio.wait((begun, kept), return_when=asyncio.FIRST_COMPLETED)
        kept.cancel()
        if begun.done():
            proxy.keeps_answers = False
            proxy.release()
            return await begun
        begun.cancel()
        await asyncio.wait((begun,))
        proxy.keeps_answers = False
        proxy.release()
        for _ in range(5):
            await asyncio.sleep(0)
    pytest.fail(f"no progress in {most} calls")


async def test_cancelled_reads_and_fetches_keep_the_connection(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    """What other tasks have under way goes on: a transaction, a reader, an append."""
    reader, following = remote.follow("latest"), remote.follow("latest")
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    async with remote.group("g", start="latest") as group, remote.transaction() as txn:
        await txn.append(b"1" * (1 << 21))
        for _ in range(TIMES):
            await cancelled(anext(reader))
            await cancelled(group.fetch())
            await cancelled(remote.wait_durable(1))
        await txn.append(b"2")
    assert txn.span == range(1, 3)
    assert (await waiting).offset == 1
    assert (await anext(reader)).offset == 1
    assert (proxy.connections, remote.client.reconnects) == (1, 0)
    assert served.server.figures.connected == 1


async def test_cancelled_reads_of_a_client_that_only_reads(served: Served, proxy: Proxy) -> None:
    async with connect_readonly(proxy.address) as log:
        reader = log.follow("latest")
        for _ in range(TIMES):
            await cancelled(anext(reader))
        await served.wal.append(b"v")
        assert (await anext(reader)).value == b"v"
        assert proxy.connections == 1


async def test_a_read_is_kept_whose_answer_comes_as_it_is_cancelled(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    await served.wal.append_many([b"%d" % n for n in range(100)])
    reader = remote.follow()
    for number in range(100):
        record = await impatient(proxy, reader.__anext__, most=3)
        assert (record.offset, record.value) == (number + 1, b"%d" % number)


async def test_batches_are_kept_that_a_cancelled_fetch_had_gathered(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    for number in range(4):
        await served.wal.append(b"%d" % number * (1 << 19))
    found: list[bytes] = []
    reader = remote.reader(follow=False)
    while len(found) < 4:
        batch = await impatient(proxy, lambda: reader.fetch(max_bytes=1 << 22), most=8)
        found += [value[:1] for value in batch.values]
    assert found == [b"0", b"1", b"2", b"3"]
    assert reader.position == 5


async def test_a_start_by_time_is_found_by_calls_that_are_cancelled(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    now = datetime.now(UTC)
    for second in range(10):
        at = now - timedelta(seconds=60 - second)
        await served.wal.append(b"%d" % second, timestamp_us=int(at.timestamp() * 1e6))
    reader = remote.follow(now - timedelta(seconds=55.5))
    assert (await impatient(proxy, reader.__anext__, most=5)).value == b"5"


async def test_a_reader_that_is_collected_leaves_nothing_at_the_server(
    served: Served, remote: RemoteWal
) -> None:
    for _ in range(TIMES):
        reader = remote.follow("latest")
        await cancelled(anext(reader))
        del reader
    await remote.refresh()  # the server has had the cancellations before this
    await asyncio.sleep(0)
    assert served.server.requests_in_progress == 0


async def test_after_a_seek_the_answer_for_the_former_place_is_not_used(
    served: Served, remote: RemoteWal
) -> None:
    await served.wal.append_many([b"1", b"2"])
    await remote.refresh()
    reader = remote.follow(1)
    await cancelled(anext(reader))
    reader.seek(2)
    assert (await anext(reader)).value == b"2"


async def test_jobs_of_a_fetch_whose_answer_came_as_it_was_cancelled_are_for_the_next(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    await served.wal.append_many([b"%d" % n for n in range(6)])
    async with remote.group("g", max_deliver=1) as group:
        for number in range(3):
            jobs = await impatient(proxy, lambda: group.fetch(2), most=3)
            assert [(job.value, job.deliveries) for job in jobs] == [
                (b"%d" % (2 * number), 1),
                (b"%d" % (2 * number + 1), 1),
            ]
            await group.ack(jobs)
        assert (await group.statistics()).dead == 0
    assert proxy.connections == 1


async def late(proxy: Proxy, fetch: Callable[[], Coroutine[Any, Any, list[Job]]]) -> None:
    """Cancel a fetch whose answer is under way; then it arrives."""
    proxy.keeps_answers = True
    fetching = asyncio.ensure_future(fetch())
    await proxy.kept.wait()
    fetching.cancel()
    await asyncio.wait((fetching,))
    proxy.keeps_answers = False
    proxy.release()


async def test_more_jobs_than_the_next_fetch_wants_are_for_the_one_after_it(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    await served.wal.append_many([b"1", b"2", b"3"])
    async with remote.group("g") as group:
        await late(proxy, lambda: group.fetch(3))
        assert [(await group.fetch())[0].value for _ in range(3)] == [b"1", b"2", b"3"]


async def test_jobs_that_nobody_fetched_are_given_back_and_were_no_delivery(
    served: Served, proxy: Proxy, remote: RemoteWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walstore.net.remote.group._KEEP_SECONDS", 0.0)
    await served.wal.append(b"v")
    options: dict[str, Any] = {"ack_wait_seconds": 3600, "max_deliver": 1}
    async with remote.group("g", **options) as group, served.wal.group("g", **options) as other:
        await late(proxy, group.fetch)
        (job,) = await asyncio.wait_for(other.fetch(), 60)
        assert (job.value, job.deliveries) == (b"v", 1)
        await job.ack()
        statistics = await other.statistics()
        assert (statistics.delivered, statistics.redelivered, statistics.dead) == (1, 0, 0)


async def test_a_member_that_leaves_gives_back_what_came_too_late(
    served: Served, proxy: Proxy, remote: RemoteWal
) -> None:
    await served.wal.append(b"v")
    options: dict[str, Any] = {"ack_wait_seconds": 3600, "max_deliver": 1}
    async with served.wal.group("g", **options) as other:
        async with remote.group("g", **options) as group:
            await late(proxy, group.fetch)
        (job,) = await asyncio.wait_for(other.fetch(), 60)
        assert (job.value, job.deliveries) == (b"v", 1)


async def test_many_neighbours_that_are_cancelled_cost_no_connection(tmp_path: Path) -> None:
    limits = ServeSettings(connections=2)
    async with serving(tmp_path / "log", serve=limits) as served, served.connect() as remote:
        readers = [remote.follow("latest") for _ in range(TIMES)]
        for _ in range(TIMES):
            await asyncio.gather(*(cancelled(anext(reader)) for reader in readers))
        offset = await remote.append(b"v")
        found = await asyncio.gather(*(anext(reader) for reader in readers))
        assert {record.offset for record in found} == {offset}
        assert remote.client.reconnects == 0


async def test_a_server_that_stops_is_left_in_spite_of_what_was_cancelled(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "log") as served,
        contextlib.AsyncExitStack() as next_server,
        served.connect() as remote,
        remote.group("g", start="latest") as group,
    ):
        reader = remote.follow("latest")
        await cancelled(anext(reader))
        await cancelled(group.fetch())
        await served.server.aclose()
        second = Server.open(served.wal, unix=tmp_path / "s.sock")
        await next_server.enter_async_context(second)
        assert await remote.append(b"v") == 1
        assert (await anext(reader)).value == b"v"
        assert (await group.fetch())[0].value == b"v"


async def test_a_cancelled_commit_waits_for_its_answer_until_it_is_cancelled_again(
    served: Served, proxy: Proxy
) -> None:
    async with connect(proxy.address) as remote:
        for is_answered in (True, False):
            transaction = remote.transaction()

            async def write(transaction: Any = transaction) -> None:
                async with transaction:
                    await transaction.append(bytes(1 << 20))  # so that it is begun
                    proxy.keeps_answers = True

            writing = asyncio.ensure_future(write())
            await asyncio.wait_for(proxy.kept.wait(), 60)
            writing.cancel()
            await turns()
            assert not writing.done()
            proxy.keeps_answers = False
            if is_answered:
                proxy.release()
            else:
                writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert (transaction.span is not None) == is_answered
            with pytest.raises(RuntimeError if is_answered else OutcomeUnknownError):
                await transaction.append(b"more")
            proxy.release()
        assert await remote.append(b"v") == 3


async def test_a_cancelled_commit_whose_connection_is_lost_ends(
    served: Served, proxy: Proxy
) -> None:
    async with connect(proxy.address) as remote:
        transaction = remote.transaction()

        async def write() -> None:
            async with transaction:
                await transaction.append(bytes(1 << 20))
                proxy.keeps_answers = True

        writing = asyncio.ensure_future(write())
        await asyncio.wait_for(proxy.kept.wait(), 60)
        writing.cancel()
        await turns()
        proxy.keeps_answers = False
        proxy.lose()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert transaction.span is None
        with pytest.raises(OutcomeUnknownError):
            await transaction.append(b"more")


LONG_HEAD: Final = b"\xc1" * 5000
"""No msgpack: whoever looks into it ends the connection."""


def append_of(number: int, head: bytes) -> bytes:
    return HEADER.pack(HEADER.size - 4 + len(head), number, len(head), Kind.APPEND) + head


def good_append(number: int) -> bytes:
    count = 4096
    options = pack_options([(b"k", None, None, None)] * count)
    head = ["memory", (1).to_bytes(4, "little") * count, options]
    return b"".join(encode(Kind.APPEND, number, head, [b"v" * count]))


def cancel_of(number: int) -> bytes:
    return b"".join(encode(Kind.CANCEL, number, None))


@contextlib.asynccontextmanager
async def waiting_client(served: Served, *sent: bytes) -> AsyncIterator[Raw]:
    """A client whose long appends wait for those of others, which hold all that there is."""
    async with raw(served) as client:
        served.server.turns.held_bytes += 1 << 30
        await received(served, client, *sent)
        yield client


async def received(served: Served, client: Raw, *sent: bytes) -> None:
    """Send, and return when the server has all of it."""
    figures = served.server.figures
    before = figures.received_bytes
    client.send(*sent)
    await until(lambda: figures.received_bytes == before + sum(map(len, sent)))


async def not_written(client: Raw, number: int) -> None:
    answer = await asyncio.wait_for(client.answer(), 60)
    assert (answer.kind, answer.id) == (Kind.FAILED, number)
    error = unpack_error(answer.head)
    assert isinstance(error, WalError)
    assert (error.outcome, "cancelled" in str(error)) == ("not_written", True)


async def test_an_append_that_waits_for_its_turn_is_cancelled_at_once(served: Served) -> None:
    async with waiting_client(served, append_of(2, LONG_HEAD)) as client:
        client.send(cancel_of(2))
        await not_written(client, 2)
        client.send(good_append(2))  # its number is free again
        served.server.turns.release(1 << 30)
        answer = await asyncio.wait_for(client.answer(), 60)
        assert (answer.kind, answer.head) == (Kind.DONE, [1, 4096, None])
    await until(lambda: served.server.incoming.used_bytes == 0)
    assert served.server.turns.held_bytes == 0


async def test_an_append_behind_a_long_one_is_cancelled_before_it_begins(served: Served) -> None:
    sent = (good_append(2), append_of(3, LONG_HEAD), append_of(4, LONG_HEAD), good_append(5))
    async with waiting_client(served, *sent) as client:
        await received(served, client, cancel_of(4), cancel_of(3))
        served.server.turns.release(1 << 30)
        await not_written(client, 3)
        await not_written(client, 4)
        found = [await asyncio.wait_for(client.answer(), 60) for _ in range(2)]
    assert [(one.kind, one.id, one.head) for one in found] == [
        (Kind.DONE, 2, [1, 4096, None]),
        (Kind.DONE, 5, [4097, 4096, None]),
    ]


async def test_a_cancelled_append_keeps_no_room_and_keeps_nobody_waiting(served: Served) -> None:
    large = append_of(2, LONG_HEAD + bytes(1 << 20))
    async with waiting_client(served, large) as client, served.connect() as other:
        assert served.server.incoming.used_bytes >= len(large)
        late = asyncio.ensure_future(other.append_many([b"v"] * 5000))
        client.send(cancel_of(2))
        await not_written(client, 2)
        served.server.turns.release(1 << 30)
        assert await asyncio.wait_for(late, 60) == range(1, 5001)
        await until(lambda: served.server.incoming.used_bytes == 0)


async def test_an_append_that_has_begun_is_done_though_it_is_cancelled(served: Served) -> None:
    async with raw(served) as client:
        client.send(good_append(2))
        await until(lambda: served.wal.tail == 4097)
        client.send(cancel_of(2), good_append(3))
        found = [await asyncio.wait_for(client.answer(), 60) for _ in range(2)]
    assert [(one.kind, one.id) for one in found] == [(Kind.DONE, 2), (Kind.DONE, 3)]


async def test_a_client_that_waits_for_its_turn_is_not_read_without_end(served: Served) -> None:
    async with waiting_client(served, good_append(2)) as client:
        before = served.server.figures.received_bytes
        client.send(append_of(3, bytes(16 << 20)))
        await turns(200)
        assert served.server.figures.received_bytes - before < 1 << 19
        served.server.turns.release(1 << 30)
        answer = await asyncio.wait_for(client.answer(), 60)
        assert (answer.kind, answer.id) == (Kind.DONE, 2)
