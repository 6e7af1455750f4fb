"""Logs that a cluster reads from a store: at every machine, of no machine, and never written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud import FAST
from tests.waiting import until
from tests.walstore.cluster.machines import Machines
from uploader import CloudLog, CloudTier, CloudWriter, destroy, seal
from walstore import (
    AccessDeniedError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSuspendedError,
    OffsetNotWrittenError,
    RemoteReadonlyWal,
    Wal,
    connect,
    connect_readonly,
    list_logs,
)
from walstore.topology.documents import PREFIX

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where another program ships its log."""
    return (tmp_path / "store" / "theirs").as_uri()


@pytest.fixture
async def theirs(tmp_path: Path, url: str) -> AsyncIterator[Wal]:
    async with Wal.open(tmp_path / "theirs", tier=CloudTier(url)) as wal:
        for number in range(1, 11):
            await wal.append(b"%d" % number, timestamp_us=number)
        await wal.wait_durable(10, "cloud")
        yield wal


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(
        tmp_path, stored=lambda place: CloudLog.open(place, retry=FAST)
    ) as machines:
        yield machines


def places(machines: Machines) -> list[str]:
    return [machine.address for machine in machines.all]


def opened(machines: Machines) -> list[list[str]]:
    return [one.member.stored.names for one in machines.all if one.member is not None]


async def values(log: RemoteReadonlyWal) -> list[bytes]:
    async with log.reader(follow=False) as reader:
        return [record.value async for record in reader]


async def known(machines: Machines, name: str = "orders") -> None:
    """Wait until every machine has heard of a log."""
    members = [one.member for one in machines.all if one.member is not None]
    await until(lambda: all(name in one.view.specs for one in members))


async def test_every_machine_serves_it_and_none_leads_it(
    cluster: Machines, theirs: Wal, url: str
) -> None:
    await cluster.apply(source=url)
    await known(cluster)
    expected = [b"%d" % number for number in range(1, 11)]
    for place in places(cluster):
        async with connect_readonly(place, log="orders") as log:
            assert (log.head, log.limit, log.replicated_limit) == (1, 11, None)
            assert await values(log) == expected
            assert await log.offset_at(5) == 5
            assert await log.timestamp_at(7) == 7
            with pytest.raises(OffsetNotWrittenError):
                await log.timestamp_at(11)
            with pytest.raises(OffsetNotWrittenError):  # a store says where its log ends
                await anext(log.follow(99))
    assert cluster.spec().copies == ()
    assert cluster.leader() is None
    await until(lambda: opened(cluster) == [[], [], []])  # nobody reads it


async def test_its_streams_are_those_of_the_store(cluster: Machines, theirs: Wal, url: str) -> None:
    await theirs.append(b"11", stream="late", durability="cloud")
    await cluster.apply(source=url)
    await known(cluster)
    async with (
        connect_readonly(places(cluster)[0], log="orders") as log,
        CloudLog.open(url) as there,
    ):
        assert list(await log.streams()) == list(await there.streams()) == ["late"]


async def test_readers_follow_what_others_append(cluster: Machines, theirs: Wal, url: str) -> None:
    await cluster.apply(source=url)
    await known(cluster)
    got: list[bytes] = []

    async def follow(log: RemoteReadonlyWal) -> None:
        async with log.follow("latest") as reader:
            async for record in reader:
                got.append(record.value)

    async with (
        connect_readonly(places(cluster)[0], log="orders") as one,
        connect_readonly(places(cluster)[0], log="orders") as other,
    ):
        readers = [asyncio.ensure_future(follow(log)) for log in (one, other)]
        assert opened(cluster)[0] == ["orders"]  # they share one
        await theirs.append(b"new", durability="cloud")
        await until(lambda: got == [b"new", b"new"])
        # What is read to its end, without following, is as it is now.
        await theirs.append(b"newer", durability="cloud")
        assert (await values(one))[-1] == b"newer"
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


async def test_a_reader_goes_on_at_another_machine(
    cluster: Machines, theirs: Wal, url: str
) -> None:
    await cluster.apply(source=url)
    await known(cluster)
    async with (
        connect_readonly(places(cluster), log="orders") as log,
        log.follow() as reader,
    ):
        assert (await anext(reader)).value == b"1"
        used = next(one for one in cluster.all if one.address == log.address)
        await used.stop()
        await theirs.append(b"new", durability="cloud")
        async for record in reader:
            if record.value == b"new":
                break
        assert log.address != used.address
        assert record.offset == 11


async def test_appends_are_refused(cluster: Machines, theirs: Wal, url: str) -> None:
    await cluster.apply(source=url)
    await known(cluster)
    for asked in (places(cluster)[0], places(cluster)):
        with pytest.raises(AccessDeniedError, match="takes no appends here") as caught:
            await connect(asked, log="orders")
        assert (caught.value.outcome, caught.value.retriable) == ("not_written", False)
    (log,) = await list_logs(places(cluster))
    assert (log.readonly, log.leader) == (True, None)
    assert theirs.tail == 11


async def test_it_is_suspended_and_taken_out_under_its_readers(
    cluster: Machines, theirs: Wal, url: str
) -> None:
    await cluster.apply(source=url)
    await known(cluster)

    async def follow(log: RemoteReadonlyWal) -> None:
        async with log.follow("latest") as reader:
            await anext(reader)

    async with connect_readonly(places(cluster), log="orders") as log:
        assert len(await values(log)) == 10
        reading = asyncio.ensure_future(follow(log))
        await cluster.apply(suspended=True)
        with pytest.raises(LogSuspendedError):
            await reading
        await until(lambda: opened(cluster) == [[], [], []])
        await cluster.apply(suspended=False)
        assert len(await values(log)) == 10
    found = cluster.store.get(f"{PREFIX}logs/orders")
    assert found is not None
    async with connect_readonly(places(cluster)[0], log="orders", reconnect_seconds=0.1) as log:
        reading = asyncio.ensure_future(follow(log))
        cluster.store.swap(found.key, None, found.revision, 0)
        with pytest.raises(LogNotFoundError):
            await reading
    await until(lambda: opened(cluster) == [[], [], []])


async def test_a_sealed_log_keeps_nobody_busy(cluster: Machines, url: str) -> None:
    async with CloudWriter.open(url) as writer:
        await writer.append(b"1")
    await seal(url)
    await cluster.apply(source=url)
    await known(cluster)
    async with connect_readonly(places(cluster)[0], log="orders") as log:
        assert await values(log) == [b"1"]
        server = cluster.all[0].server
        assert server is not None
        async with log.follow("latest") as reader:
            waiting = asyncio.ensure_future(anext(reader))
            await until(lambda: server.requests_in_progress > 0)
            asked = server.figures.requests["read"]
            await log.refresh()
            await log.refresh()
            assert server.figures.requests["read"] == asked
            waiting.cancel()
            await asyncio.wait([waiting])


async def test_a_store_that_has_no_such_log(cluster: Machines, theirs: Wal, url: str) -> None:
    """Its clients are told what is wrong, and machines keep nothing open."""
    await cluster.apply(source=f"{url}-none")
    await known(cluster)
    with pytest.raises(LogNotFoundError):
        await connect_readonly(places(cluster)[0], log="orders", connect_seconds=10)
    await cluster.apply("other", source=url)
    await known(cluster, "other")
    async with connect_readonly(places(cluster)[0], log="other", reconnect_seconds=0.1) as log:
        await theirs.aclose()
        await destroy(url, confirm=True)
        with pytest.raises(LogNotFoundError):
            await values(log)
    with pytest.raises(LogNotFoundError):
        await connect_readonly(places(cluster)[0], log="other", connect_seconds=10)
    await until(lambda: opened(cluster) == [[], [], []])


async def test_a_machine_without_stores_reads_none(tmp_path: Path, url: str) -> None:
    async with Machines(tmp_path) as machines:
        await machines.apply(source=url)
        await known(machines)
        with pytest.raises(InvalidSettingsError, match="has no stored="):
            await connect_readonly(places(machines)[0], log="orders")


async def test_a_program_that_opens_no_log_is_told_why(tmp_path: Path, url: str) -> None:
    async def broken(_: str) -> CloudLog:
        raise KeyError("no credentials")

    async with Machines(tmp_path, stored=broken) as machines:
        await machines.apply(source=url)
        await known(machines)
        with pytest.raises(InvalidSettingsError, match="no credentials"):
            await connect_readonly(places(machines)[0], log="orders")
