"""Beginnings of large messages: they take room as all that is sent does, and go when nobody needs them."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.http.conftest import Served
from tests.walstore.http.test_answers import (
    MIB,
    SMALL_ROOM,
    SWEEPS,
    ask,
    begin,
    pass_time,
    sends,
    with_messages,
)
from tests.walstore.http.test_bodies import slow
from walstore.http import answers
from walstore.serve.outgoing import TAKER_BYTES
from walstore.testing import ManualClock

pytestmark = pytest.mark.timeout(60)


def used(served: Served) -> int:
    return served.server.outgoing.used_bytes


@asynccontextmanager
async def with_a_beginning(path: Path, clock: ManualClock) -> AsyncIterator[tuple[Served, bytes]]:
    """A server that has sent the message of ``s0``, and that message."""
    message = os.urandom(2 * MIB)
    async with with_messages(path, message, clock=clock) as served:
        assert await served.content("s0") == message
        await until(lambda: used(served) == TAKER_BYTES)
        yield served, message


@contextmanager
def others(served: Served) -> Iterator[None]:
    """Others have nearly all room of the server, and wait for more."""
    holder, waiting = (served.server.outgoing.share(lambda: None) for _ in range(2))
    holder.take(5 * MIB)
    waiting.wait(3 * MIB)
    yield
    waiting.close()
    holder.close()


async def test_one_that_nobody_asks_for_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_a_beginning(tmp_path, clock) as (served, message):
        await pass_time(served, clock, 8)
        assert await served.content("s0") == message  # that is a use
        await pass_time(served, clock, 8)
        await until(lambda: clock.sleepers == SWEEPS)
        assert used(served) == TAKER_BYTES
        await pass_time(served, clock, 3)
        await until(lambda: not used(served))


async def test_one_of_a_deleted_stream_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_a_beginning(tmp_path, clock) as (served, _):
        assert await served.status("DELETE", "s0") == 204
        await pass_time(served, clock, 0.5)
        await until(lambda: not used(served))


async def test_one_of_a_stream_that_is_kept_for_its_forks_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_a_beginning(tmp_path, clock) as (served, _):
        fork = {"Content_Type": "text/plain", "Stream_Forked_From": "/v1/stream/s0"}
        assert await served.status("PUT", "fork", **fork) == 201
        assert await served.status("DELETE", "s0") == 204
        await pass_time(served, clock, 0.5)
        await until(lambda: not used(served))


async def test_those_that_nobody_asks_for_go_at_once_if_others_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_a_beginning(tmp_path, clock) as (served, _):
        with others(served):
            await pass_time(served, clock, 1)
            await until(lambda: used(served) == 5 * MIB)


async def test_a_server_that_stops_gives_their_room_back(tmp_path: Path) -> None:
    """The limit may be another server's, too, which goes on."""
    async with with_a_beginning(tmp_path, ManualClock()) as (served, _):
        await served.server.aclose()
        assert not used(served)


@pytest.mark.parametrize("size", [2 * MIB, TAKER_BYTES - 1000])
async def test_clients_that_take_nothing_keep_none(tmp_path: Path, size: int) -> None:
    """Each is at the beginning of another message."""
    messages = [os.urandom(size) for _ in range(12)]
    clock = ManualClock()
    async with (
        with_messages(tmp_path, *messages, clock=clock) as served,
        slow(served.server, 12) as clients,
    ):
        tracemalloc.start()
        try:
            with others(served):
                for at, client in enumerate(clients):
                    await begin(served, client, ask("", f"s{at}"), at + 1)
                    for _ in range(20):  # its answer begins meanwhile
                        await served.status("HEAD", "s0")
                assert used(served) <= 5 * MIB + SMALL_ROOM.answer_bytes // 4
                await pass_time(served, clock, 1)
                await until(lambda: used(served) == 5 * MIB)
                held = tracemalloc.take_snapshot().filter_traces(
                    [tracemalloc.Filter(True, answers.__file__)]
                )
                assert sum(trace.size for trace in held.traces) < TAKER_BYTES
        finally:
            tracemalloc.stop()
        assert [await sends(client, size) for client in clients] == messages
