"""Cursors, consumers and groups of a replicated log: they are in the log, and survive its primary."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from tests.effort import every
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import SMALL, Cluster, values
from walstore import (
    CorruptionError,
    FencedError,
    InvalidSettingsError,
    LimitExceededError,
    OffsetTrimmedError,
    RegisterMismatchError,
    Settings,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
    connect,
)
from walstore.cli.cursors import open_cursors
from walstore.cluster.replication import follower
from walstore.core.batches.conditions import AppendConditions
from walstore.core.files.directory import PROMISE_NAME
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors import kept
from walstore.positions.cursors.directory import DIRECTORY_NAME, encode_cursor
from walstore.positions.cursors.kept import decode_register, encode_register
from walstore.positions.groups.group import Group
from walstore.serve import Server
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def positions(wal: Any) -> dict[str, int]:
    return {one.name: one.position for one in await wal.cursors()}


async def take(group: Group, count: int) -> list[Any]:
    """Take so many jobs."""
    jobs: list[Any] = []
    async with asyncio.timeout(60):
        while len(jobs) < count:
            jobs += await group.fetch(max_jobs=count - len(jobs))
    return jobs


async def change_primary(cluster: Cluster, old: int, new: int) -> Wal:
    """Bring back the machine of a primary that is closed, as a node, and open the log on another."""
    await cluster.machines[old].start()
    return await cluster.primary(new)


def cursor_files(cluster: Cluster, number: int) -> list[str]:
    directory = cluster.machines[number].path / "orders" / DIRECTORY_NAME
    if not directory.exists():
        return []
    return sorted(path.name for path in directory.iterdir() if path.name[0] != ".")


# -- cursors ---------------------------------------------------------------------------------


async def test_cursors_survive_a_takeover(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    cursor = await wal.cursor("billing")
    assert cursor.position == 1
    await cursor.commit(4)
    leased = await wal.cursor("dashboard", start="latest", lease_seconds=3600)
    await wal.cursor("gone")
    assert await wal.delete_cursor("gone")
    assert not await wal.delete_cursor("gone")
    assert not cursor_files(cluster, 0)
    before = await wal.cursors()
    await wal.aclose()

    second = await cluster.primary(1)
    assert await second.cursors() == before
    again = await second.cursor("billing")
    assert (again.position, again.lease_seconds) == (4, None)
    assert (await second.cursor("dashboard")).lease_seconds == leased.lease_seconds == 3600
    await again.commit(7)
    await again.delete()
    assert list(await positions(second)) == ["dashboard"]
    await second.aclose()


async def test_consumers_go_on_after_a_takeover(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"%d" % number for number in range(6)])
    async with wal.consumer("c", follow=False) as consumer:
        async for record in consumer:
            if record.offset == 3:
                break
    await wal.aclose()
    second = await cluster.primary(2)
    async with second.consumer("c", follow=False) as consumer:
        assert [record.value async for record in consumer] == [b"3", b"4", b"5"]
    assert await positions(second) == {"c": 7}
    await second.aclose()


async def test_pins_hold_after_a_takeover(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    await (await wal.cursor("c")).commit(4)
    assert await wal.trim(8) == 4
    await wal.aclose()
    second = await cluster.primary(1)
    assert await second.trim(8) == 4
    cursor = await second.cursor("c")
    with pytest.raises(OffsetTrimmedError):
        await cursor.rewind(3)
    await cursor.commit(6)
    assert await second.trim(8) == 6
    await second.delete_cursor("c")
    assert await second.trim(8) == 8
    assert (await second.cursor("new")).position == 8
    await second.aclose()


async def test_an_expired_lease_does_not_pin(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    state = CursorState(3, 1, b"t" * 8, 1, 1, 2, "somebody")
    await wal._engine.change(kept.setting({"old": state}))
    await wal.aclose()
    second = await cluster.primary(1)
    (found,) = await second.cursors()
    assert (found.is_expired, found.state) == (True, state)
    assert await second.trim(8) == 8
    with pytest.raises(OffsetTrimmedError):
        await second.cursor("old")
    await second.aclose()


async def test_retention_waits_for_a_commit_to_be_replicated(cluster: Cluster) -> None:
    """A commit that too few machines have may be taken back by a takeover: its old place stays pinned."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    cursor = await wal.cursor("c", start=2)
    for number in (1, 2):
        await cluster.machines[number].stop()
    async with cluster.losing_patience(wal):
        with pytest.raises(StorageUnavailableError, match="2 are needed") as caught:
            await cursor.commit(9)
    assert caught.value.outcome == "unknown"
    with pytest.raises(StorageUnavailableError, match="2 are needed") as caught:
        await wal.cursor("another")
    assert caught.value.outcome == "not_written"
    assert await wal.trim(9) == 2
    with pytest.raises(StorageUnavailableError, match="another machine may lead"):
        await wal.cursors()
    for number in (1, 2):
        await cluster.machines[number].start()
    await until(lambda: wal.statistics().replication_trouble is None)
    await cursor.commit(10)  # whatever became of the one before
    assert cursor.position == 10
    assert await wal.trim(10) == 10
    await wal.aclose()


async def test_known_cursors_are_read_without_other_copies(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 3)
    await (await wal.cursor("c")).commit(3)
    for number in (1, 2):
        await cluster.machines[number].stop()
    async with cluster.losing_patience(wal):
        pass
    cursor = await wal.cursor("c")
    assert cursor.position == 3
    with pytest.raises(StorageUnavailableError, match="another machine may lead"):
        await cursor.refresh()  # nobody confirms that it is still there
    await wal.aclose()


async def test_a_primary_that_was_passed_over_commits_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_BEAT_SECONDS", 60)  # it does not learn of it by itself
    old = await cluster.primary(0, patience_seconds=400)
    await old.append_many([b"v"] * 2000)
    cursor = await old.cursor("c")
    new = await cluster.primary(1)
    with pytest.raises(FencedError) as caught:
        for offset in range(1, 2000):
            await cursor.commit(offset)
    assert caught.value.outcome == "unknown"
    with pytest.raises(WalClosedError) as refused:
        await cursor.commit(2000)
    assert refused.value.outcome == "not_written"
    assert (await positions(new))["c"] < 2000
    with pytest.raises(WalClosedError, match="taken over"):
        await old.aclose()
    await new.aclose()


async def test_commits_of_one_moment_are_one_change(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 100)
    cursors = [await wal.cursor(f"c{number}") for number in range(50)]
    commits = wal.statistics().commits
    await asyncio.gather(*(cursor.commit(50) for cursor in cursors))
    assert wal.statistics().commits - commits <= 2
    await asyncio.gather(*(cursors[0].commit(offset) for offset in range(51, 101)))
    assert cursors[0].position == 100
    assert wal.statistics().commits - commits <= 4
    await wal.aclose()


async def test_a_commit_does_not_wait_for_another_one(cluster: Cluster) -> None:
    """While one waits for the copies, the next is written, as appends are."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 3)
    cursors = [await wal.cursor(name) for name in ("a", "b")]
    for number in (1, 2):
        await cluster.machines[number].stop()
    commits = wal.statistics().commits
    first = asyncio.ensure_future(cursors[0].commit(2))
    await until(lambda: wal.statistics().commits > commits)
    second = asyncio.ensure_future(cursors[1].commit(3))
    await until(lambda: wal.statistics().commits > commits + 1)
    assert not first.done()
    assert not second.done()
    await cluster.machines[1].start()
    await asyncio.gather(first, second)
    await wal.aclose()


async def test_commits_go_on_when_appends_are_refused(cluster: Cluster) -> None:
    """Without that nothing could be deleted on a full disk, since cursors could not move."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    cursor = await wal.cursor("c")
    wal._engine.channel.refuse(StorageUnavailableError("too little space"))
    with pytest.raises(StorageUnavailableError, match="too little"):
        await wal.append(b"v")
    await cursor.commit(4)
    assert await wal.trim(6) == 4
    assert await wal.delete_cursor("c")
    await wal.aclose()


async def test_commits_wait_for_room(cluster: Cluster) -> None:
    """In the order in which they came, as appends do."""
    fs = cluster.machines[0].fs = FaultyFileSystem()
    settings = Settings(segment_bytes=65536, channel_records=4)
    wal = await cluster.primary(0, settings=settings)
    await wal.append_many([b"v"] * 3)
    one, two = await wal.cursor("a"), await wal.cursor("b")
    with fs.hold("datasync") as hold:
        appends = [asyncio.ensure_future(wal.append(b"v")) for _ in range(9)]
        await hold.wait_entered()
        await asyncio.sleep(0)
        assert wal.statistics().blocked_appends > 0
        commits = [asyncio.ensure_future(one.commit(2)), asyncio.ensure_future(two.commit(3))]
        doomed = asyncio.ensure_future(wal.cursor("c", start="latest"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(one.done() for one in commits)
        doomed.cancel()
    await asyncio.gather(*appends, *commits)
    await asyncio.wait([doomed])
    assert {"a": 2, "b": 3}.items() <= (await positions(wal)).items()
    await wal.aclose()


async def test_closing_ends_commits(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    cursor = await wal.cursor("c")
    commit = asyncio.ensure_future(cursor.commit(5))
    await asyncio.sleep(0)
    await wal.aclose()
    with suppress(WalClosedError):
        await commit
    with pytest.raises(WalClosedError):
        await cursor.commit(5)
    second = await cluster.primary(1)
    assert (await positions(second))["c"] == (5 if commit.exception() is None else 1)
    await second.aclose()


# -- registers -------------------------------------------------------------------------------


async def test_registers_of_cursors_are_not_shown(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    async with Server.open(wal, unix=cluster.machines[0].socket) as server:
        async with wal.transaction(update={"mine": "1"}):
            pass
        await wal.cursor("c")
        assert wal.registers == {"mine": "1"}
        with pytest.raises(RegisterMismatchError) as caught:
            await wal.append_many([b"v"], expect={"mine": "2"})
        assert caught.value.actual == {"mine": "1"}
        async with connect(str(server.addresses[0])) as remote:
            await remote.refresh()
            assert remote.registers == {"mine": "1"}
            await remote.append_many([b"v"], update={"mine": "3"})
            assert remote.registers == {"mine": "3"}
            for log in (wal, remote):
                for options in ({"expect": {"\0cursor.c": None}}, {"update": {"\0x": "1"}}):
                    with pytest.raises(InvalidSettingsError, match="reserved"):
                        await log.append_many([b"v"], **options)
                with pytest.raises(InvalidSettingsError, match="reserved"):
                    await log.fence("me", register="\0cursor.c")
                async with log.transaction() as transaction:
                    with pytest.raises(InvalidSettingsError, match="reserved"):
                        transaction.set_registers({"\0cursor.c": "1"})
    async with Wal.open_readonly(wal.path) as readonly:
        assert await readonly.registers() == {"mine": "3"}
    await wal.aclose()


async def test_cursors_and_registers_have_limits_of_their_own(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"v"], update={f"r{number}": "1" for number in range(1024)})
    monkeypatch.setattr(kept, "MOST_CURSORS", 3)
    for number in range(3):
        await wal.cursor(f"c{number}")
    with pytest.raises(LimitExceededError, match="at most 3 cursors") as caught:
        await wal.cursor("c3")
    assert caught.value.outcome == "not_written"
    assert (await wal.cursor("c2")).position == 1
    with pytest.raises(LimitExceededError, match="1024 registers"):
        await wal.append_many([b"v"], update={"another": "1"})
    await wal.delete_cursor("c0")
    await wal.cursor("c3")
    await wal.aclose()


def test_registers_say_what_files_say() -> None:
    for state in (
        CursorState(1, 1, b"\0" * 8, 0, 0, 0, ""),
        CursorState(7, 9, b"12345678", 3, 4, 5, "process 7 of a b\n"),
    ):
        assert decode_register(encode_register(state), "c") == state
    long = CursorState(1, 1, b"\0" * 8, 0, 0, 0, "ö" * 1000)
    assert decode_register(encode_register(long), "c").owner == "ö" * 128
    for value in ("", "1 1 zz 0 0 0 me", "0 1 0000000000000000 0 0 0 x", "1 1 00 0 0 0 x", "1 1"):
        with case(value), pytest.raises(CorruptionError):
            decode_register(value, "c")


async def test_a_register_that_is_no_cursor_pins_all(cluster: Cluster) -> None:
    """As a file that cannot be read."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    await wal._engine.change(AppendConditions(update={f"{kept.PREFIX}bad": "nonsense"}))
    await wal.aclose()
    second = await cluster.primary(1)
    (found,) = await second.cursors()
    assert isinstance(found.problem, CorruptionError)
    with pytest.raises(CorruptionError):
        await second.cursor("bad")
    assert await second.trim(4) == 1
    assert await second.delete_cursor("bad")
    assert await second.trim(4) == 4
    await second.aclose()


# -- becoming replicated, and plain again ----------------------------------------------------


async def plain_with_cursors(path: Path) -> None:
    async with Wal.open(path, settings=SMALL) as plain:
        await plain.append_many([b"v"] * 10)
        await (await plain.cursor("c")).commit(5)
        await plain.cursor("leased", start=7, lease_seconds=3600)


async def test_cursors_of_a_plain_log_are_adopted(cluster: Cluster) -> None:
    path = cluster.machines[0].path / "orders"
    await plain_with_cursors(path)
    (path / DIRECTORY_NAME / "damaged").write_bytes(b"no cursor")
    wal = await cluster.primary(0)
    assert await positions(wal) == {"c": 5, "damaged": 0, "leased": 7}
    assert not cursor_files(cluster, 0)
    assert await wal.trim(8) == 1  # one that cannot be read pins everything
    await wal.delete_cursor("damaged")
    assert await wal.trim(8) == 5
    await wal.aclose()
    second = await cluster.primary(1)
    assert await positions(second) == {"c": 5, "leased": 7}
    assert (await second.cursor("leased")).lease_seconds == 3600
    await second.aclose()


async def test_too_many_cursors_to_adopt(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await plain_with_cursors(cluster.machines[0].path / "orders")
    monkeypatch.setattr(kept, "MOST_CURSORS", 1)
    with pytest.raises(LimitExceededError, match="at most 1 cursors"):
        await cluster.primary(0)
    assert cursor_files(cluster, 0) == ["c", "leased"]
    async with Wal.open(cluster.machines[0].path / "orders") as plain:  # it is no copy yet
        await plain.delete_cursor("c")
    wal = await cluster.primary(0)
    assert await positions(wal) == {"leased": 7}
    await wal.aclose()


async def test_files_of_an_earlier_time_are_not_adopted(cluster: Cluster) -> None:
    """Not where the log was made replicated, nor on a machine that had it before."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 10)
    await (await wal.cursor("c")).commit(5)
    await wal.aclose()
    stale = encode_cursor(CursorState(2, 1, b"t" * 8, 1, 0, 0, "old"))
    for number in (0, 1):
        directory = cluster.machines[number].path / "orders" / DIRECTORY_NAME
        directory.mkdir()
        for name in ("c", "other"):
            (directory / name).write_bytes(stale)
    second = await cluster.primary(1)
    assert await positions(second) == {"c": 5}
    assert not cursor_files(cluster, 1)
    assert await second.trim(9) == 5
    await second.aclose()
    third = await change_primary(cluster, 1, 0)
    assert await positions(third) == {"c": 5}
    assert not cursor_files(cluster, 0)
    await third.aclose()


async def test_a_log_that_is_plain_again_goes_on_from_its_cursors(cluster: Cluster) -> None:
    path = cluster.machines[0].path / "orders"
    await plain_with_cursors(path)
    stale = (path / DIRECTORY_NAME / "c").read_bytes()
    wal = await cluster.primary(0)
    await (await wal.cursor("c")).commit(8)
    await wal.delete_cursor("leased")
    await wal.cursor("new", start=3)
    before = await wal.cursors()
    await wal.aclose()
    for name in ("c", "leased"):  # as if they had not been removed
        (path / DIRECTORY_NAME / name).write_bytes(stale)
    (path / PROMISE_NAME).unlink()
    for _ in range(2):
        async with Wal.open(path, settings=SMALL) as plain:
            assert await plain.cursors() == before
            assert cursor_files(cluster, 0) == ["c", "new"]
            assert await plain.trim(9) == 3
            assert not [one for one in plain._engine.channel.ledger.registers if one[0] == "\0"]
    async with Wal.open(path, settings=SMALL) as plain:
        await (await plain.cursor("new")).commit(9)
    for machine in cluster.machines[1:]:  # else their copies count, and this one is none any more
        await machine.stop()
        await asyncio.to_thread(shutil.rmtree, machine.path / "orders")
        await machine.start()
    third = await cluster.primary(0)
    assert await positions(third) == {"c": 8, "new": 9}
    await third.aclose()


async def crashed(cluster: Cluster, nth: int) -> bool:
    """Open the log on the first machine while its n-th call, and each after it, fails; whether any did."""
    fs = cluster.machines[0].fs = FaultyFileSystem()
    fs.fail("*", nth=nth, times=None)
    try:
        # Its own copy may fail, which it tries again as long as its patience lasts.
        wal = await cluster.primary(0, patience_seconds=10 * RUNS_OUT_SECONDS)
    except (WalError, OSError):
        return True
    finally:
        cluster.machines[0].fs = None
    with suppress(WalError, OSError):
        await wal.aclose()
    return False


async def test_cursors_are_adopted_without_a_checkpoint(cluster: Cluster) -> None:
    path = cluster.machines[0].path / "orders"
    await plain_with_cursors(path)
    (path / "CHECKPOINT").unlink()
    wal = await cluster.primary(0)
    assert await positions(wal) == {"c": 5, "leased": 7}
    await wal.aclose()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_adoption_may_end_at_any_call(scratch: Path) -> None:
    plain = scratch / "plain"
    await plain_with_cursors(plain)
    nth = 0
    is_broken = True
    while is_broken:
        nth += every()
        path = scratch / f"{nth}"
        path.mkdir()
        async with Cluster(path, 2) as cluster:
            orders = cluster.machines[0].path / "orders"
            await asyncio.to_thread(shutil.copytree, plain, orders)
            is_broken = await crashed(cluster, nth)
            wal = await cluster.primary(0)
            with case(f"call {nth}"):
                assert await positions(wal) == {"c": 5, "leased": 7}
                assert not cursor_files(cluster, 0)
            await (await wal.cursor("c")).commit(6)
            await wal.aclose()
            again = await change_primary(cluster, 0, 1)
            with case(f"call {nth}"):
                assert await positions(again) == {"c": 6, "leased": 7}
            await again.aclose()
        await asyncio.to_thread(shutil.rmtree, path)
    assert nth > 30


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_becoming_plain_may_end_at_any_call(cluster: Cluster, scratch: Path) -> None:
    path = cluster.machines[0].path / "orders"
    await plain_with_cursors(path)
    wal = await cluster.primary(0)
    await (await wal.cursor("c")).commit(8)
    await wal.aclose()
    (path / PROMISE_NAME).unlink()
    (path / DIRECTORY_NAME / "stale").write_bytes(b"stale")
    nth = 0
    is_broken = True
    while is_broken:
        nth += 1
        twin = scratch / f"{nth}"
        await asyncio.to_thread(shutil.copytree, path, twin)
        fs = FaultyFileSystem()
        fs.fail("*", nth=nth, times=None)
        is_broken = False
        try:
            opened = await Wal.open(twin, settings=SMALL, fs=fs)
            with suppress(WalError, OSError):
                await opened.aclose()
        except (WalError, OSError):
            is_broken = True
        async with Wal.open(twin, settings=SMALL) as plain:
            with case(f"call {nth}"):
                assert await positions(plain) == {"c": 8, "leased": 7}
        await asyncio.to_thread(shutil.rmtree, twin)
    assert nth > 30


async def test_other_processes_see_the_cursors_and_move_none(cluster: Cluster) -> None:
    """They would write files, which nothing heeds."""
    wal = await cluster.primary(0)
    await wal.append_many([b"v"] * 5)
    await (await wal.cursor("c")).commit(4)
    path = wal.path
    async with Wal.open_readonly(path) as readonly:
        assert await positions(readonly) == {"c": 4}
        with pytest.raises(InvalidSettingsError, match="replicated log are kept in the log"):
            await readonly.cursor("mine")
        with pytest.raises(InvalidSettingsError, match="replicated log are kept in the log"):
            await readonly.delete_cursor("c")
    async with open_cursors(str(path)) as cursors:
        found = await cursors.to_json()
        assert [(one["name"], one["position"]) for one in found["cursors"]] == [("c", 4)]
        with pytest.raises(InvalidSettingsError, match="replicated log are kept in the log"):
            await cursors.change("c", 2)
    await wal.aclose()


# -- over a connection -----------------------------------------------------------------------


@asynccontextmanager
async def leading(cluster: Cluster, number: int) -> AsyncIterator[Wal]:
    wal = await cluster.primary(number)
    try:
        async with Server.open(wal, unix=cluster.machines[number].socket):
            yield wal
    finally:
        await wal.aclose()


async def test_handles_of_clients_go_on_after_a_takeover(cluster: Cluster) -> None:
    places = [machine.address for machine in cluster.machines]
    async with leading(cluster, 0) as wal:
        await wal.append_many([b"v"] * 10)
        remote = await connect(places)
        cursor = await remote.cursor("c")
        await cursor.commit(4)
    await cluster.machines[0].start()
    async with leading(cluster, 1) as second:
        await cursor.commit(6)
        assert await positions(remote) == await positions(second) == {"c": 6}
        assert await remote.delete_cursor("c")
        await remote.aclose()


async def test_members_at_clients_go_on_after_a_takeover(cluster: Cluster) -> None:
    places = [machine.address for machine in cluster.machines]
    async with leading(cluster, 0) as wal:
        await wal.append_many([b"v"] * 4)
        remote = await connect(places)
        group = await remote.group("g", ack_wait_seconds=600).__aenter__()
        first, second = await take(group, 2)
        await first.ack()
    await cluster.machines[0].start()
    async with leading(cluster, 1) as later:
        assert [one.name for one in await later.groups()] == ["g"]
        await second.ack()  # of a lease that the first primary gave
        jobs = await take(group, 2)
        assert [job.offset for job in jobs] == [3, 4]
        await group.ack(jobs)
        await group.__aexit__(None, None, None)
        await remote.aclose()


# -- with outputs ----------------------------------------------------------------------------


async def test_an_output_may_be_replicated(cluster: Cluster, tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "input") as source:
        await source.append_many([b"%d" % number for number in range(4)])
        wal = await cluster.primary(0)

        async def copy(output: Wal, records: int) -> None:
            async with source.consumer("copy", follow=False, output=output) as consumer:
                batch = await consumer.fetch(max_records=records)
                async with consumer.transaction() as transaction:
                    for record in batch:
                        await transaction.append(record.value)

        await copy(wal, 2)
        await wal.aclose()
        second = await cluster.primary(1)
        await copy(second, 2)
        assert await values(second) == [b"0", b"1", b"2", b"3"]
        assert await positions(source) == {"copy": 5}
        await second.aclose()


async def test_the_input_follows_what_is_replicated_of_the_output(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What a takeover of the output would undo has to be read from the input again."""
    async with Wal.open(tmp_path / "input") as source:
        await source.append_many([b"v"] * 4)
        wal = await cluster.primary(0)
        consumer = source.consumer("copy", follow=False, output=wal, auto_commit_seconds=None)
        async with consumer:
            await consumer.fetch(max_records=1)
            async with consumer.transaction() as transaction:
                await transaction.append(b"first")
            assert consumer.committed == 2
            for number in (1, 2):
                await cluster.machines[number].stop()
            await consumer.fetch(max_records=2)
            async with cluster.losing_patience(wal):
                with pytest.raises(StorageUnavailableError) as caught:
                    async with consumer.transaction() as transaction:
                        await transaction.append(b"second")
            assert caught.value.outcome == "unknown"
            assert wal.registers[f"cursor.{source.log_id}.copy"] == "4 1"
            assert consumer.committed == 2
        assert await positions(source) == {"copy": 2}
        await wal.aclose()


async def test_exactly_once_within_a_replicated_log(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append_many([b"a", b"b"], stream="in")
    async with wal.consumer("c", stream="in", follow=False, output=wal) as consumer:
        async for record in consumer:
            async with consumer.transaction() as transaction:
                await transaction.append(b"out " + record.value, stream="out")
    await wal.aclose()
    second = await cluster.primary(1)
    async with second.consumer("c", stream="in", follow=False, output=second) as consumer:
        assert [record async for record in consumer] == []
    assert await values(second) == [b"a", b"b", b"out a", b"out b"]
    await second.aclose()


async def test_readers_wait_for_more_copies(cluster: Cluster) -> None:
    wal = await cluster.primary(0)
    await wal.append(b"1")
    async with wal.follow("latest") as reader:
        following = asyncio.ensure_future(reader.fetch())
        for number in (1, 2):
            await cluster.machines[number].stop()
        async with cluster.losing_patience(wal):
            with pytest.raises(StorageUnavailableError):
                await wal.append(b"2")
        assert not following.done()
        await cluster.machines[1].start()
        assert [record.value for record in await following] == [b"2"]
    await wal.aclose()


async def test_a_plain_log_refuses_the_names_too(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=Settings()) as wal:
        await wal.append(b"v")
        with pytest.raises(InvalidSettingsError, match="reserved"):
            await wal.append_many([b"v"], update={"\0cursor.c": "1"})
        await (await wal.cursor("c")).commit(2)
        assert (tmp_path / "log" / DIRECTORY_NAME / "c").exists()
        assert wal._engine.channel.ledger.registers == {}
