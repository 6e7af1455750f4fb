"""Answers: what clients do not take of theirs has a limit over all, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.http.conftest import Served, serving
from tests.walstore.http.test_bodies import Slow, slow
from walstore import Settings
from walstore.http import HttpSettings
from walstore.testing import ManualClock

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20
TEXT = {"Content_Type": "text/plain"}


SMALL_ROOM = HttpSettings(
    answer_bytes=6 * MIB, read_bytes=MIB // 4, body_seconds=60, drain_seconds=0, idle_seconds=86_400
)


SWEEPS = 3
"""Of a server: streams, connections, answers."""


def ask(query: str = "", name: str = "s") -> bytes:
    return f"GET /v1/stream/{name}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize("query", ["", "?offset=-1&live=sse", "?offset=-1&live=long-poll"])
async def test_answers_that_nobody_takes_have_a_limit_and_others_are_answered(
    tmp_path: Path, query: str
) -> None:
    limits = HttpSettings(answer_bytes=8 * MIB, body_seconds=60, drain_seconds=0)
    async with serving(tmp_path, settings=limits, logs=Settings()) as served:
        await served.send("PUT", "s", **TEXT)
        await (await served.store.wal("s")).append_many([bytes(50_000)] * 80)
        async with slow(served.server, 60) as clients:
            for client in clients:
                client.writer.transport.pause_reading()
                client.send(ask(query))
            await until(lambda: served.server.outgoing.used_bytes > 2 * MIB)
            most = limits.answer_bytes + 60 * 4 * (64 << 10)
            assert served.server.outgoing.used_bytes < most
            assert len(await served.content("s")) >= 50_000
            assert served.server.outgoing.used_bytes < most
            for client in clients:
                client.writer.transport.abort()
        await until(lambda: served.server.outgoing.used_bytes == 0)


async def test_who_takes_nothing_goes_if_there_is_no_room_for_others(tmp_path: Path) -> None:
    limits = HttpSettings(answer_bytes=MIB, body_seconds=RUNS_OUT_SECONDS, drain_seconds=0)
    async with serving(tmp_path, settings=limits, logs=Settings()) as served:
        await served.send("PUT", "s", **TEXT)
        await (await served.store.wal("s")).append(bytes(8 * MIB))
        async with slow(served.server, 1) as (stuck,):
            stuck.writer.transport.pause_reading()
            stuck.send(ask())
            await until(lambda: served.server.requests == 1)
            await until(lambda: served.server.requests == 0)
        assert len(await served.content("s")) == 8 * MIB


async def test_a_slow_client_gets_all_of_a_large_message(tmp_path: Path) -> None:
    limits = HttpSettings(body_seconds=RUNS_OUT_SECONDS, drain_seconds=0)
    async with serving(tmp_path, settings=limits, logs=Settings()) as served:
        await served.send("PUT", "s", **TEXT)
        await (await served.store.wal("s")).append(bytes(8 * MIB))
        async with slow(served.server, 1) as (client,):
            client.writer.transport.pause_reading()
            client.send(ask())
            await until(lambda: served.server.requests == 1)
            client.writer.transport.resume_reading()
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            assert await client.reader.readexactly(8 * MIB) == bytes(8 * MIB)


async def sends(client: Slow, size: int) -> bytes:
    """Return a body of that size."""
    client.writer.transport.resume_reading()
    assert b"200 OK" in await client.reader.readuntil(b"\r\n\r\n")
    return await client.reader.readexactly(size)


@asynccontextmanager
async def with_messages(
    path: Path, *messages: bytes, clock: ManualClock | None = None
) -> AsyncIterator[Served]:
    """A server with little room, and a stream ``sN`` for each message; it looks at its clients as the clock
    is advanced."""
    async with serving(path, settings=SMALL_ROOM, logs=Settings(), clock=clock) as served:
        for number, message in enumerate(messages):
            await served.send("PUT", f"s{number}", **TEXT)
            await (await served.store.wal(f"s{number}")).append(message)
        yield served


async def pass_time(served: Served, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(2 * seconds)):
        await until(lambda: clock.sleepers == SWEEPS)
        clock.advance(0.5)


async def begin(served: Served, client: Slow, asked: bytes, count: int) -> None:
    """Ask, take nothing, and return when the server has answered ``count`` requests with a beginning."""
    client.writer.transport.pause_reading()
    client.send(asked)
    await until(lambda: served.server.requests == count)


@pytest.mark.parametrize("query", ["", "?offset=-1&live=sse", "?offset=-1&live=long-poll"])
async def test_who_takes_nothing_of_large_messages_keeps_nobody_waiting(
    tmp_path: Path, query: str
) -> None:
    """Less time passes than that after which they are disconnected."""
    messages = [os.urandom(2 * MIB) for _ in range(4)]
    clock = ManualClock()
    async with (
        with_messages(tmp_path, *messages, clock=clock) as served,
        slow(served.server, 20) as clients,
    ):
        for count, client in enumerate(clients, 1):
            await begin(served, client, ask(query, f"s{count % 4}"), count)
        others = [asyncio.ensure_future(served.content(f"s{at % 4}")) for at in range(8)]
        for _ in range(12):
            for _ in range(20):  # whoever has room uses it meanwhile
                await served.status("HEAD", "s0")
            await pass_time(served, clock, 0.5)
        assert [await other for other in others] == messages * 2
        assert served.server.requests == 20
        # Beginnings, of whatever number of clients.
        assert served.server.outgoing.used_bytes <= SMALL_ROOM.answer_bytes // 4
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: served.server.requests == 0)
        await pass_time(served, clock, 11)
        await until(lambda: served.server.outgoing.used_bytes == 0)


async def test_who_stops_taking_lets_others_have_its_room_and_gets_all_in_the_end(
    tmp_path: Path,
) -> None:
    messages = [os.urandom(4 * MIB) for _ in range(2)]
    clock = ManualClock()
    async with (
        with_messages(tmp_path, *messages, clock=clock) as served,
        slow(served.server, 1) as (client,),
    ):
        client.send(ask("", "s0"))
        assert b"200 OK" in await client.reader.readuntil(b"\r\n\r\n")
        got = await client.reader.readexactly(MIB)
        client.writer.transport.pause_reading()
        await until(lambda: served.server.outgoing.used_bytes >= 4 * MIB)
        other = asyncio.ensure_future(served.content("s1"))
        await until(lambda: served.server.outgoing.waiting == 1)
        await pass_time(served, clock, 2)
        assert await other == messages[1]
        client.writer.transport.resume_reading()
        assert got + await client.reader.readexactly(3 * MIB) == messages[0]


async def test_all_that_are_sent_the_same_large_message_share_it(tmp_path: Path) -> None:
    message = os.urandom(4 * MIB)
    clock = ManualClock()
    async with (
        with_messages(tmp_path, message, clock=clock) as served,
        slow(served.server, 10) as clients,
    ):
        for client in clients:
            client.send(ask("", "s0"))
            assert b"200 OK" in await client.reader.readuntil(b"\r\n\r\n")
            assert await client.reader.readexactly(MIB) == message[:MIB]
            client.writer.transport.pause_reading()
        await until(lambda: served.server.outgoing.used_bytes >= 4 * MIB)
        assert served.server.outgoing.used_bytes < 6 * MIB
        for client in clients:
            client.writer.transport.resume_reading()
            assert await client.reader.readexactly(3 * MIB) == message[MIB:]
        await until(lambda: served.server.requests == 0)
        await pass_time(served, clock, 11)
        await until(lambda: served.server.outgoing.used_bytes == 0)


async def test_what_is_appended_meanwhile_is_no_part_of_an_answer(tmp_path: Path) -> None:
    """Its length was said before: what is made again is what was begun."""
    message = b"x" + os.urandom(2 * MIB)
    async with (
        with_messages(tmp_path, message, clock=ManualClock()) as served,
        slow(served.server, 2) as (holder, client),
    ):
        await begin(served, holder, ask("", "s0"), 1)
        await begin(served, client, ask("", "s0"), 2)
        wal = await served.store.wal("s0")
        await wal.append_many([b"more"] * 1000)
        assert await sends(client, len(message)) == message
        assert await sends(holder, len(message)) == message
        client.send(ask("", "s0"))
        assert await sends(client, len(message)) == message


async def test_a_stream_that_is_deleted_cuts_off_what_is_sent_of_it(tmp_path: Path) -> None:
    """Never a body that is whole and another one."""
    messages = [os.urandom(4 * MIB) for _ in range(2)]
    async with (
        with_messages(tmp_path, *messages, clock=ManualClock()) as served,
        slow(served.server, 2) as (holder, client),
    ):
        await begin(served, holder, ask("", "s0"), 1)
        await begin(served, client, ask("", "s1"), 2)
        assert await served.status("DELETE", "s1") == 204
        holder.writer.transport.abort()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await sends(client, 4 * MIB)


async def test_who_takes_nothing_for_long_is_disconnected_though_nobody_waits(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        with_messages(tmp_path, os.urandom(2 * MIB), clock=clock) as served,
        slow(served.server, 1) as (client,),
    ):
        await begin(served, client, ask("", "s0"), 1)
        await pass_time(served, clock, SMALL_ROOM.body_seconds - 5)
        assert served.server.requests == 1
        await pass_time(served, clock, 10)
        await until(lambda: served.server.requests == 0)


async def test_a_live_reader_that_takes_nothing_for_a_moment_stays_while_others_wait(
    tmp_path: Path,
) -> None:
    """Its answer was let go of, so others had its room; what it is sent next waits for the same socket."""
    clock = ManualClock()
    async with serving(tmp_path, settings=SMALL_ROOM, logs=Settings(), clock=clock) as served:
        await served.send("PUT", "s", **TEXT)
        wal = await served.store.wal("s")
        async with slow(served.server, 1) as (client,):
            client.writer.transport.pause_reading()
            client.send(ask("?offset=-1&live=sse"))
            await until(lambda: served.server.requests == 1)
            for _ in range(7):
                await wal.append(bytes(100_000))
            for _ in range(50):  # what has room is sent meanwhile
                await served.status("HEAD", "s")
                if served.server.outgoing.used_bytes > 100_000:
                    break
            others = served.server.outgoing.share(lambda: None)
            others.take(6 * MIB)
            waiting = served.server.outgoing.share(lambda: None)
            waiting.wait(5 * MIB)
            for _ in range(8):
                await pass_time(served, clock, 0.5)
                await served.status("HEAD", "s")
                assert served.server.requests == 1
            await pass_time(served, clock, 10)
            for share in (waiting, others):
                share.close()
            await until(lambda: served.server.requests == 0)
