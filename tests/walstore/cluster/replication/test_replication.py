"""A replicated log on several machines: what is acknowledged, what survives, and who may write."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.local import open_descriptors, segments
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import SMALL, Cluster, Machine, values
from tests.walstore.serve.served import Proxy
from walstore import (
    CorruptionError,
    FencedError,
    InvalidSettingsError,
    Replication,
    Settings,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.cluster.replication.replica import Replica
from walstore.core.files import unlinked_file
from walstore.core.files.directory import LOCK_NAME, PROMISE_NAME
from walstore.core.files.posix import PosixFileSystem
from walstore.core.runtime.statistics import unpack_statistics
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)
DELETED = re.compile(r"\(deleted\)$").search


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def caught_up(cluster: Cluster, wal: Wal, *numbers: int) -> None:
    """Wait until copies have all that the primary has."""
    for number in numbers:
        node = cluster.machines[number].node
        assert node is not None
        await until(lambda node=node: bool(node.logs))
        replica, tail = node._held["orders"].replica, wal._engine.opened.tail

        def is_there(replica: Any = replica, tail: Any = tail) -> bool:
            place = replica.end.place
            is_equal = (place.segment, place.position) == (tail.active.start, tail.written_position)
            return is_equal and replica.promise.is_whole

        await until(is_there)


def forget(machine: Machine) -> None:
    """Give a machine a new, empty disk."""
    for path in (machine.path / "orders").iterdir():
        path.unlink()


async def test_copies_are_the_same_files(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    assert wal.level(None) == "replicated"
    await wal.append(b"one", key=b"k")
    await asyncio.gather(*(wal.append(b"v" * 1000) for _ in range(300)))
    await wal.append_many([b"a", b"b"])
    async with wal.transaction() as transaction:
        for _ in range(20):
            await transaction.append(b"t" * 10_000)
    await wal.append(b"last")
    assert wal.replicated_limit == wal.tail == wal.visible_limit
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    for machine in cluster.machines:
        await machine.stop()
    assert len(cluster.files(0)) > 3
    ours = {name: data.rstrip(b"\0") for name, data in cluster.files(0).items()}
    for number in (1, 2):
        assert {name: data.rstrip(b"\0") for name, data in cluster.files(number).items()} == ours


async def test_what_was_acknowledged_survives_the_primary(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await asyncio.gather(*(wal.append(b"%d" % number) for number in range(100)))
    async with wal.transaction() as transaction:
        await transaction.append(b"in a transaction")
    before = await values(wal)
    await wal.aclose()  # and it stays down

    second = await cluster.primary(1)
    assert await values(second) == before
    assert second.statistics().epoch > 1
    await second.append(b"more")
    await second.aclose()
    await cluster.machines[0].start()
    await cluster.machines[1].start()
    third = await cluster.primary(2)
    assert await values(third) == [*before, b"more"]
    await third.aclose()


async def test_a_primary_that_was_passed_over_acknowledges_nothing(cluster: Cluster) -> None:
    old = await cluster.primary(0)
    await old.append(b"first")
    new = await cluster.primary(1)
    with pytest.raises((FencedError, WalClosedError)) as caught:
        for _ in range(1000):
            await old.append(b"of the old one")
    # It may know before it is asked: what it holds back for a follower is answered, too.
    fenced = isinstance(caught.value, FencedError)
    assert caught.value.outcome == ("unknown" if fenced else "not_written")
    with pytest.raises(WalClosedError, match="taken over"):
        await old.append(b"again")
    await new.append(b"second")
    assert await values(new) == [b"first", b"second"]
    with pytest.raises(WalClosedError, match="taken over"):
        await old.aclose()
    await new.aclose()


async def test_an_idle_primary_learns_that_it_was_passed_over(cluster: Cluster) -> None:
    """Nothing is under way that a copy could refuse, so it asks."""
    old = await cluster.primary(0)
    await old.append(b"first")
    new = await cluster.primary(1)
    await asyncio.wait_for(old.wait_closing(), 60)
    with pytest.raises(WalClosedError, match=r"taken over|is over"):
        await old.aclose()
    await new.append(b"second")
    assert await values(new) == [b"first", b"second"]
    await new.aclose()


async def test_what_no_quorum_has_is_cut(cluster: Cluster) -> None:
    """The old primary's own records that nobody acknowledged are not in the log of its successor."""
    wal = await cluster.primary(0)
    await wal.append(b"kept")
    for number in (1, 2):
        await cluster.machines[number].stop()
    await wal.append(b"lost", durability="disk")
    assert wal.replicated_limit == 2
    assert wal.durable_limit == 3
    async with cluster.losing_patience(wal):
        with pytest.raises(StorageUnavailableError, match="2 are needed") as caught:
            await wal.append(b"lost, too")
    assert caught.value.outcome == "unknown"
    with pytest.raises(StorageUnavailableError, match="2 are needed") as caught:
        await wal.append(b"refused")
    assert caught.value.outcome == "not_written"
    assert await values(wal) == [b"kept"]
    await wal.aclose()

    for number in (1, 2):
        await cluster.machines[number].start()
    second = await cluster.primary(1)
    await second.append(b"new")
    await cluster.machines[0].start()
    await caught_up(cluster, second, 0, 2)
    await second.aclose()
    await cluster.machines[1].start()
    third = await cluster.primary(0)
    assert await values(third) == [b"kept", b"new"]
    await third.aclose()


async def test_appends_go_on_without_a_minority_and_it_catches_up(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append(b"1")
    await cluster.machines[2].stop()
    for number in range(200):
        await wal.append(b"%d" % number + b"v" * 1000)
    await cluster.machines[2].start()
    await caught_up(cluster, wal, 2)
    await cluster.machines[1].stop()
    await wal.append(b"with the other one")
    await wal.aclose()


async def test_a_copy_that_was_lost_is_made_anew(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    for number in range(200):
        await wal.append(b"%d" % number + b"v" * 1000)
    await cluster.machines[2].stop()
    forget(cluster.machines[2])
    await wal.trim(100)
    await cluster.machines[2].start()
    await caught_up(cluster, wal, 2)
    await wal.aclose()
    await cluster.machines[1].stop()
    await cluster.machines[0].start()
    second = await cluster.primary(2)
    assert second.head <= 100
    assert (await values(second))[-1].startswith(b"199")
    await second.aclose()


async def test_appends_do_not_wait_until_copies_have_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy deletes what the primary deleted, its blocks in parts between writes."""
    monkeypatch.setattr(unlinked_file, "PART_BYTES", 8 * KIB)
    wal = await cluster.primary(0)
    for number in range(600):
        await wal.append(b"%d" % number + b"v" * 1000)
    paths = [machine.path / "orders" for machine in cluster.machines]
    before = [len(segments(path)) for path in paths]
    assert min(before) > unlinked_file.OPEN_AT_ONCE + 2
    trimming = asyncio.create_task(wal.trim(wal.tail))
    for number in range(20):
        await wal.append(b"%d" % number)
    await trimming
    for path in paths:
        await until(lambda path=path: len(segments(path)) <= 2)
        await until(lambda path=path: not any(map(DELETED, open_descriptors(path))))
    await wal.append(b"last")
    await wal.aclose()
    await cluster.machines[1].stop()
    await cluster.machines[0].start()
    second = await cluster.primary(2)
    assert (await values(second))[-1] == b"last"
    await second.aclose()


async def test_segments_that_go_while_a_copy_asks_for_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that comes back is told what is left; the log goes on."""
    wal = await cluster.primary(0)
    for number in range(300):
        await wal.append(b"%d" % number + b"v" * 1000)
    primary = wal._engine.replicator
    assert primary is not None
    known = primary.written.extents
    for start, extent in known.items():
        known[start] = extent._replace(salt=0)  # as if only the files said it
    oldest, following, *_ = sorted(known)
    read = primary.source.own.read

    async def read_late(place: Any, size: int) -> bytes:
        if place.segment == following:
            await wal.trim(before=place.segment + 1)
            known.pop(oldest, None)
            known.pop(following, None)
        return await read(place, size)

    own = primary.source.own
    monkeypatch.setattr(own, "read", read_late)
    found = [extent.start for extent in await own.extents()]
    assert following not in found
    assert found[-2:] == sorted(known)[-2:]
    await wal.append(b"last")
    await wal.aclose()


async def test_too_few_copies_to_take_over(cluster: Cluster) -> None:
    await cluster.machines[2].stop()
    with pytest.raises(StorageUnavailableError, match="a new log needs all of them once"):
        await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
    await cluster.machines[2].start()
    await (await cluster.primary(0)).aclose()
    for number in (1, 2):
        await cluster.machines[number].stop()
    with pytest.raises(StorageUnavailableError, match="1 of 3 copies") as caught:
        await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
    assert caught.value.retriable
    await cluster.machines[1].start()
    wal = await cluster.primary(0)
    await wal.append(b"v")
    await wal.aclose()


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_start_where_nobody_answers_leaves_nothing(tmp_path: Path, is_there: bool) -> None:
    """No file, and no promise, is made in a directory that never had a log."""
    path = tmp_path / "parent" / "orders"
    if is_there:
        path.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    nodes = [f"unix://{tmp_path}/none.sock", f"unix://{tmp_path}/nobody.sock"]
    replication = Replication(nodes=nodes, patience_seconds=RUNS_OUT_SECONDS)
    with pytest.raises(StorageUnavailableError, match="0 of 3 copies of 'orders' answer"):
        await Wal.open(path, replication=replication)
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_start_where_one_of_two_answers_keeps_its_promise(cluster: Cluster) -> None:
    """The other machine knows of it."""
    await cluster.machines[2].stop()
    with pytest.raises(StorageUnavailableError, match="a new log needs all of them once"):
        await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
    for machine in cluster.machines[:2]:
        assert (machine.path / "orders" / PROMISE_NAME).exists()


async def test_a_copy_of_another_log_is_not_touched(cluster: Cluster) -> None:
    await (await cluster.primary(0)).aclose()
    await cluster.machines[1].stop()
    forget(cluster.machines[1])
    async with Wal.open(cluster.machines[1].path / "orders") as other:
        await other.append(b"of another log")
    await cluster.machines[1].start()
    wal = await cluster.primary(0)
    await wal.append(b"v")
    node = cluster.machines[1].node
    assert node is not None
    await until(lambda: bool(node.logs))
    await wal.append(b"v")
    await wal.aclose()
    await cluster.machines[1].stop()
    (cluster.machines[1].path / "orders" / PROMISE_NAME).unlink()
    async with Wal.open(cluster.machines[1].path / "orders") as other:
        assert await values(other) == [b"of another log"]


async def test_a_damaged_promise_is_told(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append(b"v")
    await wal.aclose()
    (cluster.machines[0].path / "orders" / PROMISE_NAME).write_bytes(b"{}")
    with pytest.raises(CorruptionError, match="the promise of this copy is damaged"):
        await cluster.primary(0)


async def test_registers_and_producers_are_replicated(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    producer = wal.producer("p")
    await producer.append(b"once", sequence=1)
    await wal.open_stream("s", metadata={"a": "b"})
    await wal.aclose()
    second = await cluster.primary(1)
    assert await second.producer("p").last_sequence() == 1
    assert second.streams()["s"].metadata == {"a": "b"}
    await second.producer("p").append(b"once", sequence=1)
    assert await values(second) == [b"once"]
    await second.aclose()


async def test_bad_input(tmp_path: Path) -> None:
    for options, kind in [
        ({"nodes": []}, InvalidSettingsError),
        ({"nodes": "unix:///a"}, TypeError),
        ({"nodes": ["unix:///a", "unix:///a"]}, InvalidSettingsError),
        ({"nodes": ["http://a"]}, InvalidSettingsError),
        ({"nodes": ["unix:///a"], "replicas": 3}, InvalidSettingsError),
        ({"nodes": ["unix:///a"], "quorum": 3}, ValueError),
        ({"nodes": ["unix:///a"], "quorum": 0}, ValueError),
        ({"nodes": ["unix:///a"], "name": "../x"}, ValueError),
        ({"nodes": ["unix:///a"], "patience_seconds": 0}, InvalidSettingsError),
    ]:
        with pytest.raises(kind):
            Replication(**options)
    async with Wal.open(tmp_path / "plain") as wal:
        assert wal.replicated_limit is None
        with pytest.raises(InvalidSettingsError, match="replication="):
            await wal.append(b"v", durability="replicated")
    assert SMALL.durability == "disk"


async def test_a_new_disk_does_not_vote(cluster: Cluster) -> None:
    """Two copies have a record. One loses its disk: with the third alone nobody can take over."""
    wal = await cluster.primary(0)
    await wal.append(b"first")
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[2].stop()
    await wal.append(b"on two machines")
    await wal.aclose()
    await cluster.machines[1].stop()
    forget(cluster.machines[1])
    await cluster.machines[1].start()
    await cluster.machines[2].start()
    for number in (1, 2):
        with pytest.raises(StorageUnavailableError, match=r"of 3 copies .* 2 are needed"):
            await cluster.primary(number, patience_seconds=RUNS_OUT_SECONDS)
        await cluster.machines[number].start()
    await cluster.machines[0].start()
    third = await cluster.primary(2)
    assert await values(third) == [b"first", b"on two machines"]
    await caught_up(cluster, third, 0, 1)
    await third.aclose()


async def test_a_candidate_that_failed_is_heard_where_all_copies_are_needed(
    cluster: Cluster,
) -> None:
    """Two promises would do to take over; the third copy has obeyed a later epoch, and is needed to open."""
    wal = await cluster.primary(0, quorum=3)
    await wal.append(b"first")
    await wal.aclose()
    await cluster.machines[2].stop()

    def obey_another() -> None:
        copy = Replica.open(PosixFileSystem(), cluster.machines[2].path / "orders")
        copy.obey(36, "candidate")
        copy.close()
        copy.release()

    await asyncio.to_thread(obey_another)
    opening = asyncio.create_task(cluster.primary(0, quorum=3))
    node = cluster.machines[1].node
    assert node is not None
    await until(lambda: node._held["orders"].replica.promise.epoch > 1)
    await cluster.machines[2].start()  # it answers last
    second = await opening
    assert second.statistics().epoch > 36
    await second.append(b"second")
    assert await values(second) == [b"first", b"second"]
    await second.aclose()


async def test_an_opening_that_is_cancelled_while_its_own_copy_promises_ends(
    cluster: Cluster,
) -> None:
    """Nobody else answers, and it does not wait for them."""
    for number in (1, 2):
        await cluster.machines[number].stop()
    used = cluster.machines[0].path / "orders"
    used.mkdir()
    (used / LOCK_NAME).touch()  # else it waits for one of them before it promises
    fs = cluster.machines[0].fs = FaultyFileSystem()
    with fs.hold("replace") as promising:
        opening = asyncio.ensure_future(cluster.primary(0, patience_seconds=10))
        await promising.wait_entered()
        opening.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_attempts_to_take_over_share_an_epoch(cluster: Cluster) -> None:
    """Promises of an attempt that had too few still hold; only a refusal needs a later epoch."""
    wal = await cluster.primary(0)
    epoch = wal.statistics().epoch
    await wal.aclose()
    for number in (1, 2):
        await cluster.machines[number].stop()
    with pytest.raises(StorageUnavailableError, match="2 are needed"):
        await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
    for number in (1, 2):
        await cluster.machines[number].start()
    second = await cluster.primary(0)
    assert second.statistics().epoch == epoch + 2
    await second.aclose()


async def test_a_plain_log_becomes_a_replicated_one(cluster: Cluster) -> None:
    async with Wal.open(cluster.machines[0].path / "orders") as plain:
        await plain.append(b"before")
    wal = await cluster.primary(0)
    await wal.append(b"after")
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    second = await cluster.primary(1)
    assert await values(second) == [b"before", b"after"]
    await second.aclose()


async def test_a_copy_is_not_written_by_itself(cluster: Cluster) -> None:
    """What is appended to one copy alone would be the newest of all."""
    wal = await cluster.primary(0)
    await wal.append(b"v")
    await wal.aclose()
    path = cluster.machines[0].path / "orders"
    with pytest.raises(InvalidSettingsError, match="is a copy of a replicated log"):
        await Wal.open(path)
    async with Wal.open_readonly(path) as readonly, readonly.reader(follow=False) as reader:
        assert [record.value async for record in reader] == [b"v"]
    (path / PROMISE_NAME).unlink()
    async with Wal.open(path) as plain:
        await plain.append(b"of its own")


@pytest.mark.parametrize("sync", ["batch", "os", 60.0])
async def test_every_policy_of_syncing_replicates(cluster: Cluster, sync: Any) -> None:
    settings = Settings(segment_bytes=65536, sync=sync)
    wal = await cluster.primary(0, settings=settings)
    async with asyncio.timeout(60):
        await wal.append(b"one")
        await wal.append_many([b"two", b"three"])
        await wal.append(b"four", durability="memory")
        await wal.wait_durable(4, "replicated")
        await wal.open_stream("s")
    assert wal.replicated_limit == 5
    await wal.aclose()


async def test_statistics_tell_of_the_copies(cluster: Cluster) -> None:
    """Who is there, who is how far behind, and why nothing is acknowledged."""
    wal = await cluster.primary(0)
    plain = [machine.address for machine in cluster.machines[1:]]
    await wal.append_many([b"v"] * 5)

    def copies() -> list[tuple[str, bool, int, int]]:
        return [dataclasses.astuple(copy)[:4] for copy in wal.statistics().copies]

    await until(lambda: copies() == [(address, True, 6, 0) for address in plain])
    await cluster.machines[1].stop()
    await wal.append_many([b"w"] * 10)
    await until(lambda: copies() == [(plain[0], False, 6, 10), (plain[1], True, 16, 0)])
    assert wal.statistics().replication_trouble is None
    await cluster.machines[2].stop()
    async with cluster.losing_patience(wal):
        with pytest.raises(StorageUnavailableError):
            await wal.append(b"x")
    now = wal.statistics()
    assert (now.replicated_limit, now.durable_limit) == (16, 17)
    assert "1 of 3 copies" in (now.replication_trouble or "")
    assert unpack_statistics(dataclasses.asdict(now)) == now
    assert [copy.lag for copy in now.copies] == [11, 1]
    # One that comes back with an empty disk has nothing.
    await asyncio.to_thread(forget, cluster.machines[1])
    await cluster.machines[1].start()
    await cluster.machines[2].start()
    await until(lambda: copies() == [(address, True, 17, 0) for address in plain])
    await until(lambda: wal.statistics().replication_trouble is None)
    await wal.aclose()


async def test_a_node_that_is_silent_is_missed_while_there_is_always_more_to_send(
    cluster: Cluster,
) -> None:
    """Its connection is dead without a word; each write woke the task that would have noticed."""
    machine = cluster.machines[0]
    await machine.stop()
    async with (
        Proxy(cluster.machines[1].address) as one,
        Proxy(cluster.machines[2].address) as two,
    ):
        replication = Replication(nodes=[one.address, two.address], patience_seconds=60)
        wal = await Wal.open(machine.path / "orders", replication=replication, clock=cluster.clock)
        await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
        one.holds_answers = two.holds_answers = True

        async def write() -> None:
            while True:
                await wal.append(b"v", durability="disk")

        writing = asyncio.ensure_future(write())
        async with cluster.losing_patience(wal):
            with pytest.raises(StorageUnavailableError, match="of 3 copies") as caught:
                await wal.append(b"w")
        assert caught.value.outcome == "unknown"
        assert not any(copy.is_present for copy in wal.statistics().copies)
        writing.cancel()
        for proxy in (one, two):
            proxy.lose()
        with suppress(WalError):
            await wal.aclose()


async def test_what_is_acknowledged_can_be_read_at_once(cluster: Cluster) -> None:
    """Copies may be faster than the commit of the primary: its segments and registers come first."""
    async with await cluster.primary(0) as wal:

        async def append(number: int) -> None:
            for at in range(60):
                value = b"%d %d " % (number, at) + b"." * 3000
                span = await wal.append_many([value], update={f"r{number}": str(at)})
                assert wal.registers[f"r{number}"] >= str(at) or len(str(at)) < 2
                assert wal.durable_limit >= span.stop
                async with wal.reader(span.start, stop=span.stop, follow=False) as reader:
                    assert [record.value async for record in reader] == [value]

        async def follow() -> None:
            async with wal.follow() as reader:
                for _ in range(8 * 60):
                    await anext(reader)

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            for number in range(8):
                group.create_task(append(number))
