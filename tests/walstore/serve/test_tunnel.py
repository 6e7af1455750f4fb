"""Clients of a log that another machine leads: their bytes are passed on, with back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.serve.test_bad_input import Raw
from walstore import AccessDeniedError, StorageUnavailableError, connect
from walstore.net.wire.message import PREAMBLE, VERSION, Kind, encode
from walstore.serve import Server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as machines:
        await machines.apply()
        await machines.led()
        yield machines


def other(cluster: Machines) -> Machine:
    """Return a machine that does not lead."""
    return next(machine for machine in cluster.all if machine is not cluster.leader())


def hello(**more: object) -> bytes:
    greeting = {"version": VERSION, "token": None, "log": "orders", **more}
    return b"".join(encode(Kind.HELLO, 0, greeting))


async def test_large_records_and_slow_readers(cluster: Machines) -> None:
    """What the client does not take stays with the machine that leads."""
    way_in = other(cluster)
    value = bytes(1 << 20)
    async with connect(way_in.address, log="orders") as remote:
        for _ in range(16):
            await remote.append(value)
        async with remote.follow() as reader:
            first = await reader.fetch(max_records=1)
            assert len(first) == 1
            rest = [record.value async for record in remote.reader(2, follow=False)]
    assert rest == [value] * 15


async def test_what_comes_in_one_packet_with_the_greeting(cluster: Machines) -> None:
    """Whole requests, and a half one whose rest comes later, in every way to cut them."""
    request = b"".join(encode(Kind.CALL, 5, ["refresh", []]))
    more = b"".join(encode(Kind.CALL, 6, ["refresh", []]))
    for cut in (0, 1, 5, 13, len(more) - 1, len(more)):
        reader, writer = await asyncio.open_unix_connection(f"{other(cluster).path}/s.sock")
        client = Raw(reader, writer)
        client.send(PREAMBLE, hello(), request, more[:cut])
        assert (await client.answer()).kind == Kind.DONE
        assert (await client.answer()).id == 5
        client.send(more[cut:])
        assert (await client.answer()).id == 6
        writer.transport.abort()
    await until(lambda: not _connections(cluster))


async def test_a_direct_client_is_told_where_the_log_is(cluster: Machines) -> None:
    reader, writer = await asyncio.open_unix_connection(f"{other(cluster).path}/s.sock")
    client = Raw(reader, writer)
    client.send(PREAMBLE, hello(direct=True))
    answer = await client.answer()
    leader = cluster.leader()
    assert leader is not None
    assert (answer.kind, leader.address in str(answer.head)) == (Kind.FAILED, True)
    writer.transport.abort()


async def test_a_client_goes_on_through_the_same_machine(cluster: Machines) -> None:
    """Its leader goes, and the machine that it knows passes it on to the next one."""
    way_in = other(cluster)
    async with connect(way_in.address, log="orders") as remote:
        producer = remote.producer("p")
        await producer.append(b"one")
        leader = cluster.leader()
        assert leader is not None
        await leader.stop()
        await producer.append(b"two")
        async with remote.reader(follow=False) as reader:
            assert [record.value async for record in reader] == [b"one", b"two"]


async def test_a_machine_that_stops_ends_what_it_passes_on(cluster: Machines) -> None:
    way_in = other(cluster)
    async with connect(way_in.address, log="orders", reconnect_seconds=0) as remote:
        await remote.append(b"v")
        await way_in.stop()
        with pytest.raises(StorageUnavailableError):
            await remote.append(b"w")
    leader = cluster.leader()
    assert leader is not None
    assert leader.server is not None
    await until(lambda: not _tunnels(cluster))


async def test_a_leader_that_does_not_answer(cluster: Machines) -> None:
    """The view says that somebody leads who is gone: the client hears it, and tries again."""
    way_in, leader = other(cluster), cluster.leader()
    assert leader is not None
    assert leader.server is not None
    assert way_in.member is not None
    view = way_in.member.view
    await until(lambda: "orders" in view.leaders and view.leaders["orders"].epoch > 0)
    way_in.keys.hangs = True  # it learns nothing new
    await leader.server.aclose()
    reader, writer = await asyncio.open_unix_connection(f"{way_in.path}/s.sock")
    client = Raw(reader, writer)
    client.send(PREAMBLE, hello())
    answer = await client.answer()
    assert (answer.kind, "which does not answer" in str(answer.head)) == (Kind.FAILED, True)
    writer.transport.abort()
    way_in.keys.hangs = False


async def test_tokens_are_checked_at_each_machine(cluster: Machines, tmp_path: Path) -> None:
    way_in = other(cluster)
    server = await Server.open(
        None, cluster=way_in.member, unix=tmp_path / "t.sock", token="secret"
    )
    with pytest.raises(AccessDeniedError):
        await connect(f"unix://{tmp_path}/t.sock", log="orders", token="guess")
    async with connect(f"unix://{tmp_path}/t.sock", log="orders", token="secret") as remote:
        await remote.append(b"v")
    await server.aclose()


async def test_a_client_that_leaves_while_it_is_passed_on(cluster: Machines) -> None:
    for turns in range(30):
        reader, writer = await asyncio.open_unix_connection(f"{other(cluster).path}/s.sock")
        writer.writelines([PREAMBLE, hello()])
        for _ in range(turns):
            await asyncio.sleep(0)
        writer.transport.abort()
        with suppress(ConnectionError):
            await reader.read()
    await until(lambda: not _connections(cluster))


def _connections(cluster: Machines) -> int:
    """Return how many clients are connected, without the machines themselves."""
    return _tunnels(cluster)


def _tunnels(cluster: Machines) -> int:
    leader = cluster.leader()
    servers = [machine.server for machine in cluster.all if machine.server is not None]
    ways_in = [server for server in servers if leader is None or server is not leader.server]
    # A machine that follows has one connection: of the machine that leads.
    return sum(max(0, server.connections - 1) for server in ways_in)
