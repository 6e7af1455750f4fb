"""Groups of a replicated log: what is acknowledged is in the log, and survives its primary."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import (
    Cluster,
    change_primary,
    leading,
    positions,
    take,
)
from tests.walstore.cluster.replication.test_cursors import cluster
from walstore import (
    LimitExceededError,
    Record,
    Settings,
    StorageUnavailableError,
    Wal,
    WalError,
    connect,
)
from walstore.core.batches import conditions
from walstore.core.files.directory import PROMISE_NAME
from walstore.positions.groups.group import Group
from walstore.positions.groups.journal import HEADER, MAGIC, VERSION, EntryKind, entry
from walstore.positions.groups.kept_journal import MOST_KEPT_CHARS, KeptJournal, pages_of

__all__ = ["cluster"]
pytestmark = pytest.mark.timeout(60)


async def test_a_group_goes_on_where_it_was(cluster: Cluster) -> None:
    """Nothing that was acknowledged above its floor comes again, and counts of deliveries go on."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 6)
    async with wal.group("g") as group:
        jobs = await take(group, 5)
        await group.ack([jobs[0], jobs[1], jobs[3]])
    await wal.aclose()
    second = await cluster.primary(1)
    assert [(one.name, one.floor) for one in await second.groups()] == [("g", 3)]
    async with second.group("g") as group:
        jobs = await take(group, 3)
        assert [(job.offset, job.deliveries) for job in jobs] == [(3, 2), (5, 1), (6, 1)]
        await group.ack(jobs)
    assert await second.trim(7) == 3  # its floor is saved when it is closed
    await second.aclose()
    third = await change_primary(cluster, 1, 2)
    assert [(one.name, one.floor) for one in await third.groups()] == [("g", 7)]
    assert await third.delete_group("g")
    assert await third.groups() == []
    assert pages(third) == {}
    assert not await third.delete_group("g")
    await third.aclose()


def pages(wal: Wal) -> dict[str, dict[int, str]]:
    """Return the pages that a log keeps of its groups."""
    return pages_of(wal._engine.registers)


async def test_a_group_that_is_deleted_in_part_leaves_nothing_to_one_made_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its primary dies between the two changes: the group is still found, and deleted again."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 4)
    async with wal.group("g") as group:
        jobs = await take(group, 4)
        await group.ack(jobs[1:])

    async def dies(_: str) -> bool:
        raise StorageUnavailableError("the primary is gone")

    with monkeypatch.context() as patch:
        patch.setattr(wal, "delete_cursor", dies)
        with pytest.raises(StorageUnavailableError):
            await wal.delete_group("g")
    assert pages(wal) == {}
    assert [one.name for one in await wal.groups()] == ["g"]
    assert await wal.delete_group("g")
    async with wal.group("g") as group:
        assert [job.offset for job in await take(group, 4)] == [1, 2, 3, 4]
    await wal.aclose()


async def test_acknowledgements_at_several_machines_add_up(cluster: Cluster) -> None:
    """Acknowledged on one machine, then on another one, then on the first again."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    async with wal.group("g") as group:
        jobs = await take(group, 5)
        await group.ack([jobs[0], jobs[4]])
    await wal.aclose()
    second = await change_primary(cluster, 0, 1)
    async with second.group("g") as group:
        jobs = await take(group, 8)
        assert sorted(job.offset for job in jobs) == [2, 3, 4, 6, 7, 8, 9, 10]
        await group.ack([job for job in jobs if job.offset in (2, 6, 7)])
    await second.aclose()
    third = await change_primary(cluster, 1, 0)
    async with third.group("g") as group:
        jobs = await take(group, 5)
        counts = sorted((job.offset, job.deliveries) for job in jobs)
        assert counts == [(3, 2), (4, 1), (8, 1), (9, 1), (10, 1)]
        await group.ack(jobs)
    await third.aclose()


async def test_a_stuck_job_keeps_little(cluster: Cluster) -> None:
    """What is settled behind it is one range, however it came about."""
    wal = await cluster.primary(0, settings=Settings(segment_bytes=1 << 22))
    count = 20_000
    await wal.append_many([b"v"] * count)
    async with wal.group("g", max_ack_pending=2000) as group:
        (stuck,) = await take(group, 1)
        done = 1
        while done < count:
            jobs = await group.fetch(997)
            await group.ack(list(reversed(jobs)))
            done += len(jobs)
        size = sum(map(len, pages(wal)["g"].values()))
        assert size <= MOST_KEPT_CHARS + 4 * 24 * 1024 * 3
        await stuck.ack()
    await wal.aclose()
    second = await change_primary(cluster, 0, 1)
    assert [(one.name, one.floor) for one in await second.groups()] == [("g", count + 1)]
    await second.aclose()


async def test_a_kill_loses_no_acknowledgement(cluster: Cluster) -> None:
    """The primary is gone without having saved the floor, in the midst of acknowledgements."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 200)
    done: set[int] = set()
    async with wal.group("g") as group:
        jobs = await take(group, 200)

        async def acknowledge(number: int) -> None:
            for job in jobs[number::7]:
                with suppress(WalError):
                    await job.ack()
                    done.add(job.offset)

        tasks = [asyncio.ensure_future(acknowledge(number)) for number in range(7)]
        await until(lambda: len(done) > 40)
        for machine in cluster.machines[1:]:
            await machine.stop()  # the primary is cut off
        before = set(done)
        for machine in cluster.machines[1:]:
            await machine.start()
        for task in tasks:
            task.cancel()
        second = await cluster.primary(1)  # it takes over while the first one is open
        async with second.group("g", ack_wait_seconds=600) as later:
            found = await take(later, 1)
            while more := await later.fetch(max_wait_seconds=0.2):
                found += more
            assert not before & {job.offset for job in found}
        await second.aclose()
    with suppress(WalError):
        await wal.aclose()


async def test_a_group_that_was_made_anew_elsewhere_begins_anew(cluster: Cluster) -> None:
    """The first machine's journal is of the group before, which had settled all."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    async with wal.group("g") as group:
        await group.ack(await take(group, 5))
    await wal.aclose()
    second = await cluster.primary(1)  # the first machine stays down
    await second.delete_group("g")
    async with second.group("g") as group:
        await group.ack(await take(group, 1))
    await second.aclose()
    third = await change_primary(cluster, 1, 0)
    async with third.group("g") as group:
        assert [job.offset for job in await take(group, 4)] == [2, 3, 4, 5]
    await third.aclose()


async def test_the_same_primary_again_knows_all_acknowledgements(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    async with wal.group("g") as group:
        jobs = await take(group, 5)
        await group.ack([jobs[1], jobs[2]])
    await wal.aclose()
    again = await cluster.primary(0)
    async with again.group("g") as group:
        jobs = await take(group, 3)
        assert sorted((job.offset, job.deliveries) for job in jobs) == [(1, 2), (4, 1), (5, 1)]
    await again.aclose()


async def letters(wal: Wal) -> list[bytes]:
    async with wal.reader(stream="g.dead", follow=False) as reader:
        return [record.value async for record in reader]


async def bury_one(wal: Wal) -> None:
    """Let the only job die that is there."""
    async with wal.group("g", max_deliver=1) as group:
        (job,) = await take(group, 1)
        await job.nak()
        async with asyncio.timeout(60):
            while not await letters_of(group):
                await group.fetch(max_wait_seconds=0.05)


async def letters_of(group: Group) -> int:
    return (await group.statistics()).dead


async def test_dead_letters_after_takeovers(cluster: Cluster) -> None:
    """Each machine's letters have numbers, which must not be taken for those of another's."""
    wal = await cluster.primary(0)
    await wal.append(b"1")
    await bury_one(wal)
    await wal.aclose()
    second = await change_primary(cluster, 0, 1)
    await second.append(b"2")
    await bury_one(second)
    assert await letters(second) == [b"1", b"2"]
    await second.aclose()
    third = await change_primary(cluster, 1, 0)
    await third.append(b"3")
    await bury_one(third)
    assert await letters(third) == [b"1", b"2", b"3"]
    await third.aclose()


def journal_file(wal: Wal, *entries: bytes) -> Path:
    """Write the file of a journal, as earlier versions did for replicated logs, too."""
    path = wal.path / "groups" / "g"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(HEADER.pack(MAGIC, VERSION) + b"".join(entries))
    return path


async def test_a_letter_that_was_begun_is_written_once(cluster: Cluster) -> None:
    """The primary dies between the letter and the settlement of its job, or before the letter."""
    wal = await cluster.primary(0)
    await wal.append_many([b"1", b"2"])
    async with wal.group("g", max_deliver=1):
        pass
    begun = entry(EntryKind.DELIVERED, 1, count=1) + entry(EntryKind.BURIED, 1, 1)
    begun += entry(EntryKind.DELIVERED, 2, count=1) + entry(EntryKind.BURIED, 2, 2)
    await KeptJournal(wal._engine, "g").append(begun, syncs=True)
    await wal.append_letter("group.g", 1, Record(0, b"1"), "g.dead")
    await wal.aclose()
    second = await change_primary(cluster, 0, 1)
    async with second.group("g", max_deliver=1) as group:
        assert await group.fetch(max_wait_seconds=0) == []
    assert await letters(second) == [b"1", b"2"]
    await second.aclose()


async def test_a_file_of_an_earlier_version_is_adopted(cluster: Cluster) -> None:
    """By the machine that wrote it, if no other one has led the log since."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 4)
    async with wal.group("g"):
        pass
    await wal.aclose()
    settled = entry(EntryKind.SETTLED, 2, 4)
    path = await asyncio.to_thread(journal_file, wal, settled)
    again = await cluster.primary(0)
    async with again.group("g") as group:
        assert [job.offset for job in await take(group, 2)] == [1, 4]
    assert not await asyncio.to_thread(path.exists)
    await again.aclose()
    await asyncio.to_thread(journal_file, wal, entry(EntryKind.SETTLED, 4, 5))
    second = await change_primary(cluster, 0, 1)
    await second.aclose()
    third = await change_primary(cluster, 1, 0)
    assert not await asyncio.to_thread(path.exists)
    async with third.group("g") as group:
        assert [job.offset for job in await take(group, 2)] == [1, 4]
    await third.aclose()


async def test_groups_of_a_plain_log_become_replicated_and_plain_again(cluster: Cluster) -> None:
    path = cluster.machines[0].path / "orders"
    async with Wal.open(path) as plain:
        await plain.append_many([b"v"] * 5)
        async with plain.group("g") as group:
            jobs = await take(group, 4)
            await group.ack([jobs[1], jobs[3]])
    wal = await cluster.primary(0)
    async with wal.group("g") as group:
        jobs = await take(group, 3)
        assert sorted((job.offset, job.deliveries) for job in jobs) == [(1, 2), (3, 1), (5, 1)]
        await group.ack([job for job in jobs if job.offset == 3])
    async with wal.group("all") as group:
        await group.ack(await take(group, 5))
    await wal.aclose()
    await asyncio.to_thread((path / PROMISE_NAME).unlink)
    async with Wal.open(path) as plain:
        assert [one.name for one in await plain.groups()] == ["all", "g"]
        assert pages(plain) == {}
        async with plain.group("g") as group:
            jobs = await take(group, 2)
            assert sorted((job.offset, job.deliveries) for job in jobs) == [(1, 3), (5, 1)]
        async with plain.group("all") as group:
            assert await group.fetch(max_wait_seconds=0) == []


async def test_a_group_survives_a_time_without_other_copies(cluster: Cluster) -> None:
    """Nothing is acknowledged meanwhile; later all is."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 4)
    async with wal.group("g") as group:
        jobs = await take(group, 4)
        await jobs[3].ack()
        for number in (1, 2):
            await cluster.machines[number].stop()
        async with cluster.losing_patience(wal):
            for _ in range(2):
                with pytest.raises(StorageUnavailableError) as caught:
                    await group.ack(jobs[:2])
                assert caught.value.retriable
        with pytest.raises(StorageUnavailableError, match="another machine may lead"):
            await wal.groups()
        await cluster.machines[1].start()
        await until(lambda: wal.statistics().replication_trouble is None)
        await group.ack(jobs[:3])
    await wal.aclose()
    await cluster.machines[2].start()
    second = await cluster.primary(1)
    assert await positions(second) == {"group.g": 5}
    await second.aclose()


async def test_a_group_survives_a_time_without_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registers of the log are full: nothing is acknowledged, until there is room; then all is."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 400)
    async with wal.group("g") as group:
        jobs = await take(group, 400)
        await group.ack(jobs[1:200:2])
        with monkeypatch.context() as patch:
            patch.setattr(conditions, "MAX_LEDGER_BYTES", 1)
            for _ in range(2):
                with pytest.raises(LimitExceededError, match="nothing was written"):
                    await jobs[201].ack()
            await group.ack(jobs[2:200:2])  # the present state takes less room than what was noted
        await group.ack(jobs)
    await wal.aclose()
    second = await change_primary(cluster, 0, 1)
    assert [(one.name, one.floor) for one in await second.groups()] == [("g", 401)]
    await second.aclose()


async def test_a_lease_of_another_process_holds_after_a_takeover(cluster: Cluster) -> None:
    places = [machine.address for machine in cluster.machines]
    async with leading(cluster, 0) as wal:
        await wal.append_many([b"v"] * 3)
        remote = await connect(places)
        member = await remote.group("g", ack_wait_seconds=600).__aenter__()
        (held,) = await take(member, 1)
    await cluster.machines[0].start()
    async with leading(cluster, 1) as later:
        async with later.group("g", ack_wait_seconds=600) as group:
            assert [job.offset for job in await take(group, 2)] == [2, 3]
            assert await group.fetch(max_wait_seconds=0) == []
        await held.ack()
        await member.__aexit__(None, None, None)
        await remote.aclose()
