"""Bodies: what those of all clients take together has a limit, and all come to their end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.http.conftest import Served, serving
from walstore import Settings, Wal
from walstore.core.append.budgets import ChannelBudget
from walstore.http import HttpServer, HttpSettings
from walstore.http.bodies import Bodies
from walstore.serve import Server

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20
LIMITS = HttpSettings(request_bytes=MIB, body_bytes=400_000, body_seconds=60, drain_seconds=60)
TEXT = {"Content_Type": "text/plain"}


class Slow:
    """A request that is sent in parts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    async def status(self) -> int:
        line = await self.reader.readline()
        return int(line.split()[1])


@asynccontextmanager
async def slow(server: HttpServer, count: int) -> AsyncIterator[list[Slow]]:
    """Connect so many clients. Their system takes little ahead of them, however fast they were before."""
    host, port = server.addresses[0].removeprefix("http://").split(":")
    found: list[Slow] = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, (host, int(port)))
        found.append(Slow(*await asyncio.open_connection(sock=one)))
    yield found
    for one in found:
        one.writer.close()
        with contextlib.suppress(ConnectionError):
            await one.writer.wait_closed()


def head(*named: str) -> bytes:
    lines = ["POST /v1/stream/s HTTP/1.1", "Host: localhost", "Content-Type: text/plain", *named]
    return "\r\n".join([*lines, "", ""]).encode()


async def is_fine(served: Served) -> None:
    assert await served.status("POST", "s", b"well", **TEXT) == 204


@pytest.mark.parametrize("named", ["Content-Length: 99000", "Transfer-Encoding: chunked"])
async def test_large_bodies_wait_for_room_and_small_ones_do_not(tmp_path: Path, named: str) -> None:
    async with (
        serving(tmp_path, settings=LIMITS, logs=Settings()) as served,
        slow(served.server, 20) as clients,
    ):
        await served.send("PUT", "s", **TEXT)
        begin = b"" if "Length" in named else b"182b8\r\n"  # of one chunk of 99 000 bytes
        for client in clients:
            client.send(head(named), begin, bytes(98_999))
        await until(lambda: served.server.incoming.waiting > 8)
        assert served.server.incoming.used_bytes <= LIMITS.request_bytes
        for _ in range(5):
            await is_fine(served)
        for client in clients:
            client.send(b"x", b"" if "Length" in named else b"\r\n0\r\n\r\n")
        assert [await client.status() for client in clients] == [204] * 20
        assert len(await served.content("s")) >= LIMITS.read_bytes // 2
        await until(lambda: served.server.incoming.used_bytes == 0)


async def test_a_small_body_that_becomes_a_large_one_counts_as_that(tmp_path: Path) -> None:
    body = gzip.compress(bytes(99_000))
    assert len(body) < 1000
    async with (
        serving(tmp_path, settings=LIMITS, logs=Settings()) as served,
        slow(served.server, 20) as clients,
    ):
        await served.send("PUT", "s", **TEXT)
        for client in clients:
            client.send(head(f"Content-Length: {len(body)}", "Content-Encoding: gzip"), body[:-1])
        await until(lambda: served.server.incoming.waiting > 8)
        for client in clients:
            client.send(body[-1:])
        assert [await client.status() for client in clients] == [204] * 20


async def test_who_is_gone_holds_no_room(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=LIMITS, logs=Settings()) as served:
        await served.send("PUT", "s", **TEXT)
        async with slow(served.server, 20) as clients:
            for client in clients:
                client.send(head("Content-Length: 99000"), bytes(50_000))
            await until(lambda: served.server.incoming.waiting > 8)
            for client in clients:
                client.writer.transport.abort()
        await until(lambda: served.server.incoming.used_bytes == 0)
        assert served.server.incoming.waiting == 0
        assert await served.status("POST", "s", bytes(99_000), **TEXT) == 204


async def test_who_waits_too_long_is_told_to_come_again(tmp_path: Path) -> None:
    limits = HttpSettings(request_bytes=MIB, body_bytes=400_000, body_seconds=RUNS_OUT_SECONDS)
    async with serving(tmp_path, settings=limits) as served, slow(served.server, 5) as clients:
        await served.send("PUT", "s", **TEXT)
        for client in clients:
            client.send(head("Transfer-Encoding: chunked"), b"5\r\nhalf")
        assert {await client.status() for client in clients} <= {408, 503}
        await is_fine(served)


async def test_two_servers_of_one_process_have_one_limit(tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock") as server,
        HttpServer.open(wal, "127.0.0.1:0", beside=server) as web,
    ):
        assert web.incoming is server.incoming


async def test_what_short_messages_take_beside_their_bytes_has_a_limit_over_all_bodies() -> None:
    budget = ChannelBudget(128 * MIB)
    bodies = Bodies(HttpSettings(body_seconds=60), budget)
    body = b"[" + b",".join([b"1"] * 16_384) + b"]"
    inside, may_end = 0, asyncio.Event()

    async def hold() -> None:
        nonlocal inside
        async with bodies.messages("application/json", body) as messages:
            assert len(messages) == 16_384
            inside += 1
            await may_end.wait()
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(hold())
        await until(lambda: inside == 4)
        async with bodies.messages("application/json", b"[1,2]") as few:
            assert few == [b"1", b"2"]  # little never waits
        assert inside == 4
        may_end.set()
    assert inside == 0
