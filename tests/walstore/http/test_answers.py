"""Answers: what clients do not take of theirs has a limit over all, and keeps nobody waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.http.conftest import serving
from tests.walstore.http.test_bodies import slow
from walstore import Settings
from walstore.http import HttpSettings

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20
TEXT = {"Content_Type": "text/plain"}


def ask(query: str = "") -> bytes:
    return f"GET /v1/stream/s{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


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
