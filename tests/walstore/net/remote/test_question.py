"""Question: an answer that is late, behind what is still on its way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.serve.certificates import make_certificate
from walstore.net.remote.question import ANSWER_SECONDS, Question
from walstore.net.remote.server_connection import ServerConnection

BYTES = 16 << 20


class Peer(asyncio.Protocol):
    """A server that reads only when it is told, and then all there is."""

    def __init__(self) -> None:
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.transport.pause_reading()


@asynccontextmanager
async def connected(path: Path, *, is_tls: bool) -> AsyncIterator[tuple[ServerConnection, Peer]]:
    loop = asyncio.get_running_loop()
    peers: list[Peer] = []
    server_tls = client_tls = None
    if is_tls:
        certificate, key = make_certificate(path)
        server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_tls.load_cert_chain(certificate, key)
        client_tls = ssl.create_default_context(cafile=str(certificate))

    def make() -> Peer:
        peers.append(Peer())
        return peers[-1]

    server = await loop.create_server(make, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    _, link = await loop.create_connection(
        lambda: ServerConnection(lambda _: None, lambda _: None, lambda: 0.0),
        "127.0.0.1",
        port,
        ssl=client_tls,
    )
    await until(lambda: bool(peers and peers[0].transport))
    try:
        yield link, peers[0]
    finally:
        link.abort()
        peers[0].transport.abort()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_what_leaves_slowly_is_no_silence(tmp_path: Path, is_tls: bool) -> None:
    async with connected(tmp_path, is_tls=is_tls) as (link, peer):
        link.send([bytes(BYTES)])
        link.send([b"question"])
        question = Question(link, asyncio.get_running_loop().create_future(), 0.0)
        assert not question.has_left
        now = 0.0
        while not question.has_left:
            assert now < 10_000
            before = link.moved
            while link.moved == before:
                peer.transport.resume_reading()
                await asyncio.sleep(0)
            now += ANSWER_SECONDS
            assert question.seconds_left(now) == ANSWER_SECONDS
            assert not question.is_settled(link)
        assert now > 5 * ANSWER_SECONDS, "it is seen to move on its way"
        # What is sent later does not count: it is behind the question.
        link.send([bytes(1000)])
        assert question.seconds_left(now + 4) == ANSWER_SECONDS - 4
        assert question.seconds_left(now + ANSWER_SECONDS) == 0


async def test_nothing_that_leaves_is_silence(tmp_path: Path) -> None:
    async with connected(tmp_path, is_tls=False) as (link, _):
        link.send([bytes(BYTES)])
        still = 0
        while still < 1000:  # turns of the event loop, until nothing leaves any more
            last = link.moved
            await asyncio.sleep(0)
            still = still + 1 if link.moved == last else 0
        question = Question(link, asyncio.get_running_loop().create_future(), 5.0)
        assert question.seconds_left(6.0) == ANSWER_SECONDS - 1
        assert question.seconds_left(5.0 + ANSWER_SECONDS) == 0
        assert not question.is_settled(link)
        assert question.is_settled(None)
        link.data_received(b"\x93")
        assert question.is_settled(link)
