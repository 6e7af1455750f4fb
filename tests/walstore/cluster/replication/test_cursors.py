"""Cursors of a replicated log: they are in the log, and survive its primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cases import case
from tests.waiting import until
from tests.walstore.cluster.replication.cluster import (
    Cluster,
    cursor_files,
    positions,
)
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
    connect,
)
from walstore.cluster.replication import follower
from walstore.core.batches.conditions import AppendConditions
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors import kept
from walstore.positions.cursors.kept import decode_register, encode_register
from walstore.serve import Server
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


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
