"""Clients of a replicated log: they go on with its next primary."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.connecting import try_once
from tests.local import turns
from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.serve.served import Proxy
from walstore import (
    AccessDeniedError,
    FencedError,
    InvalidSettingsError,
    OutcomeUnknownError,
    RemoteWal,
    Replication,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
    connect,
)
from walstore.cli.samples import open_samples
from walstore.cluster.replication import follower
from walstore.core.files.posix import PosixFileSystem
from walstore.serve import Server
from walstore.testing import FaultyFileSystem, ManualClock

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


@asynccontextmanager
async def leading(cluster: Cluster, number: int) -> AsyncIterator[tuple[Wal, Server]]:
    """Make a machine the primary, which clients reach at the address that its copy had."""
    wal = await cluster.primary(number)
    try:
        async with Server.open(wal, unix=cluster.machines[number].socket) as server:
            yield wal, server
    finally:
        with suppress(WalClosedError):  # if it was passed over
            await wal.aclose()


def places(cluster: Cluster) -> list[str]:
    return [machine.address for machine in cluster.machines]


async def test_a_client_goes_on_with_the_next_primary(cluster: Cluster) -> None:
    async with leading(cluster, 1):
        remote = await connect(places(cluster))
        assert str(remote.address) == cluster.machines[1].address
        producer = remote.producer("p")
        await producer.append(b"0")
        assert remote.replicated_limit == remote.visible_limit == remote.tail == 2
        reader = remote.follow()
        first = await reader.fetch()
    appends = [asyncio.ensure_future(producer.append(b"%d" % number)) for number in range(1, 20)]
    following = asyncio.ensure_future(reader.fetch(max_records=1))
    await cluster.machines[1].start()
    async with leading(cluster, 2) as (wal, _):
        await asyncio.gather(*appends)
        assert str(remote.address) == cluster.machines[2].address
        assert [record.value for record in (*first, *await following)] == [b"0", b"1"]
        assert await values(wal) == [b"%d" % number for number in range(20)]
        await remote.aclose()


async def test_what_a_look_at_a_primary_shows(cluster: Cluster) -> None:
    """As ``walstore top ADDRESS`` does."""
    async with leading(cluster, 0) as (wal, server):
        await wal.append(b"v")
        await cluster.machines[2].stop()
        await until(lambda: [one.is_present for one in wal.statistics().copies] == [True, False])
        async with open_samples(str(server.addresses[0]), "top") as look:
            (sample,) = await look()
        notes = dict(sample.notes)
        _, there, away = places(cluster)
        assert notes[f"copy at {there}"].startswith("there, 0 records")
        assert notes[f"copy at {away}"].startswith("not there, ")


async def test_a_primary_that_was_passed_over_sends_its_clients_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_BEAT_SECONDS", 60)  # it does not learn of it by itself
    async with leading(cluster, 0), leading(cluster, 1) as (wal, _):
        # It still answers, and does not know yet; whoever saw the new one does not go back.
        remote = await connect(places(cluster)[:1])
        newer = await connect([*places(cluster)[1:], places(cluster)[0]])
        both = await connect(places(cluster)[:2])
        await newer.append(b"new")
        with pytest.raises(OutcomeUnknownError):
            await remote.append(b"old")
        with pytest.raises(WalClosedError, match="taken over"):
            await remote.append(b"again")
        await both.producer("p").append(b"in either case")
        assert str(both.address) == cluster.machines[1].address
        assert await values(wal) == [b"new", b"in either case"]
        for one in (remote, newer, both):
            await one.aclose()


async def test_what_was_not_begun_is_sent_to_the_next_primary(cluster: Cluster) -> None:
    """The old one knows that it is over, so nothing that arrives there has an unknown outcome."""
    async with leading(cluster, 0) as (old, _):
        remote = await connect(places(cluster)[:2])
        async with leading(cluster, 1) as (wal, _):
            with suppress(FencedError, WalClosedError):
                while True:
                    await old.append(b"finds out")
            await remote.append(b"v")
            assert await values(wal) == [b"v"]
            await remote.aclose()


async def test_a_primary_that_stands_still_is_left(cluster: Cluster) -> None:
    clock = ManualClock()
    async with leading(cluster, 0), Proxy(cluster.machines[0].address) as proxy:
        addresses = [proxy.address, *places(cluster)[1:]]
        remote = await connect(addresses, clock=clock)
        producer = remote.producer("p")
        await producer.append(b"one")
        proxy.holds_answers = True
        append = asyncio.ensure_future(producer.append(b"two"))
        await proxy.held.wait()
        # Nobody else has the log: the client stays.
        for _ in range(4):
            await clock.wait_for_sleepers()
            clock.advance(1.0)
        assert remote.is_connected
        async with leading(cluster, 2) as (wal, _):
            while not append.done():
                await asyncio.wait_for(clock.wait_for_sleepers(), 60)
                clock.advance(1.0)
                await turns()
            await append
            assert str(remote.address) == cluster.machines[2].address
            assert await values(wal) == [b"one", b"two"]
            await remote.aclose()


async def test_a_dead_connection_to_a_primary_that_nobody_took_over_is_replaced(
    cluster: Cluster,
) -> None:
    clock = ManualClock()
    async with leading(cluster, 0) as (wal, _), Proxy(cluster.machines[0].address) as proxy:
        remote = await connect([proxy.address, *places(cluster)[1:]], clock=clock)
        producer = remote.producer("p")
        await producer.append(b"one")
        proxy.silence()
        append = asyncio.ensure_future(producer.append(b"two"))
        await asyncio.sleep(0)
        begun = clock.monotonic()
        while remote.is_connected and proxy.connections == 1:
            await clock.wait_for_sleepers()
            clock.advance(1.0)
            await asyncio.sleep(0)
        assert 10 <= clock.monotonic() - begun <= 14
        await append
        assert str(remote.address) == proxy.address
        assert await values(wal) == [b"one", b"two"]
        await remote.aclose()


async def test_a_primary_that_is_cut_off_from_its_copies_is_left(cluster: Cluster) -> None:
    """It answers, but acknowledges nothing, and never learns of the new one."""
    clock, machine = ManualClock(), cluster.machines[0]
    await machine.stop()
    async with (
        Proxy(cluster.machines[1].address) as one,
        Proxy(cluster.machines[2].address) as two,
        Wal.open(
            machine.path / "orders",
            replication=Replication(nodes=[one.address, two.address], patience_seconds=60),
            clock=cluster.clock,
        ) as old,
        Server.open(old, unix=machine.socket),
        connect(places(cluster), clock=clock) as remote,
    ):
        producer = remote.producer("p")
        await producer.append(b"one", sequence=1)
        for proxy in (one, two):
            proxy.refuses = True
            proxy.lose()
        async with leading(cluster, 1) as (wal, _):
            async with cluster.losing_patience(old):
                with pytest.raises(StorageUnavailableError, match="of 3 copies") as caught:
                    await producer.append(b"two", sequence=2)
            assert caught.value.outcome == "unknown"
            assert str(remote.address) == machine.address
            while str(remote.address) == machine.address:
                await clock.wait_for_sleepers()
                clock.advance(1.0)
                await asyncio.sleep(0)
            await producer.append(b"two", sequence=2)
            assert await values(wal) == [b"one", b"two"]
        with suppress(WalClosedError):
            await old.aclose()


async def test_an_idle_client_asks_now_and_then_and_stays(cluster: Cluster) -> None:
    clock = ManualClock()
    async with leading(cluster, 0) as (_, server), connect(places(cluster), clock=clock) as remote:
        for _ in range(10):
            await clock.wait_for_sleepers()
            clock.advance(1.0)
            await until(lambda: server.requests_in_progress == 0)
        assert remote.is_connected
        assert server.connections == 1
        assert server.figures.connected == 1


async def test_what_each_place_said_is_told(cluster: Cluster) -> None:
    with pytest.raises(StorageUnavailableError) as caught:
        await try_once(connect, [*places(cluster), "unix:///nowhere/s.sock"])
    assert str(caught.value).count("this server serves copies only") == 3
    assert "no server at unix:///nowhere/s.sock" in str(caught.value)
    assert caught.value.retriable


@pytest.fixture
async def two_servers(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """Servers of two logs that want a token."""
    async with (
        Wal.open(tmp_path / "a") as one,
        Wal.open(tmp_path / "b") as two,
        Server.open(one, unix=tmp_path / "a.sock", token="secret") as first,
        Server.open(two, unix=tmp_path / "b.sock", token="secret") as second,
    ):
        yield first, second


async def test_a_wrong_token_at_all_places_is_final(two_servers: tuple[Server, Server]) -> None:
    addresses = [str(server.addresses[0]) for server in two_servers]
    with pytest.raises(AccessDeniedError, match="refused the token") as caught:
        await connect(addresses, token="guess", connect_seconds=60)
    assert not caught.value.retriable


async def test_places_that_refuse_differently_are_all_named(
    two_servers: tuple[Server, Server], tmp_path: Path
) -> None:
    async with (
        Wal.open(tmp_path / "c") as log,
        Server.open(log, unix=tmp_path / "c.sock", token="guess") as other,
    ):
        addresses = [str(two_servers[0].addresses[0]), str(other.addresses[0])]
        with pytest.raises(StorageUnavailableError) as caught:
            await try_once(connect, addresses, token="guess", log="no such log")
        assert all(address in str(caught.value) for address in addresses)


async def test_a_cancelled_search_leaves_no_connection(two_servers: tuple[Server, Server]) -> None:
    addresses = [str(server.addresses[0]) for server in two_servers]
    opened = 0
    for count in range(60):
        search = asyncio.ensure_future(_connected(addresses))
        for _ in range(count):
            await asyncio.sleep(0)
        search.cancel()
        with suppress(asyncio.CancelledError):
            await (await search).aclose()
            opened += 1
    assert 0 < opened < 60
    await until(lambda: not any(server.connections for server in two_servers))


async def _connected(addresses: list[str]) -> RemoteWal:
    return await connect(addresses, token="secret")


async def test_an_older_epoch_is_not_gone_back_to(tmp_path: Path) -> None:
    """Two directories of one log, as after a copy: whoever saw the newer epoch stays with it."""
    async with Wal.open(tmp_path / "a") as wal:
        await wal.append(b"v")
    await asyncio.to_thread(shutil.copytree, tmp_path / "a", tmp_path / "b")
    async with Wal.open(tmp_path / "b"):
        pass
    async with Wal.open(tmp_path / "a") as older, Wal.open(tmp_path / "b") as newer:
        assert older.log_id == newer.log_id
        async with (
            Server.open(older, unix=tmp_path / "a.sock"),
            Server.open(newer, unix=tmp_path / "b.sock") as second,
        ):
            addresses = [f"unix://{tmp_path}/{name}.sock" for name in ("c", "b")]
            async with connect(addresses, reconnect_seconds=0) as remote:
                await remote.append(b"w")
                (tmp_path / "c.sock").symlink_to(tmp_path / "a.sock")
                await second.aclose()
                with pytest.raises(StorageUnavailableError, match="of epoch 2, and epoch 3 was"):
                    await remote.append(b"x")
        assert (older.tail, newer.tail) == (2, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "one address, or several"),
        (["unix:///a", "unix:///a"], "several different"),
        (["unix:///a?log=x", "unix:///b?log=y"], "two logs"),
        (["unix:///a", "tcp://10.0.0.1:7"], "readable on the way to tcp://10.0.0.1:7"),
        (["unix:///a", "http://b"], "not an address"),
    ],
)
def test_bad_places(given: list[str], said: str) -> None:
    with pytest.raises(InvalidSettingsError, match=said):
        connect(given, token="t")


@pytest.mark.parametrize("given", [7, None, b"unix:///a", ["unix:///a", 7], {"unix:///a"}])
def test_places_of_another_type(given: object) -> None:
    with pytest.raises(TypeError, match="an address must be text"):
        connect(given)


async def test_waiting_for_the_end_of_a_log(tmp_path: Path) -> None:
    wal = await Wal.open(tmp_path / "plain")
    waiting, cancelled = (asyncio.ensure_future(wal.wait_closing()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await wal.append(b"v")
    assert not waiting.done()
    await wal.aclose()
    await waiting
    await wal.wait_closing()  # at once


async def test_a_log_that_failed_begins_to_close(tmp_path: Path) -> None:
    faulty = FaultyFileSystem(PosixFileSystem())
    wal = await Wal.open(tmp_path / "log", fs=faulty)
    faulty.fail("*sync*", times=None)
    waiting = asyncio.ensure_future(wal.wait_closing())
    with pytest.raises(WalError):
        await wal.append(b"v")
    await waiting
    with pytest.raises(WalClosedError, match="failed"):
        await wal.aclose()


async def test_a_primary_that_was_passed_over_begins_to_close(cluster: Cluster) -> None:
    old = await cluster.primary(0)
    waiting = asyncio.ensure_future(old.wait_closing())
    new = await cluster.primary(1)
    with suppress(WalError):
        await old.append(b"v")
    await waiting
    await new.aclose()
    with pytest.raises(WalClosedError, match="taken over"):
        await old.aclose()
