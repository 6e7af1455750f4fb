"""Cursors of a log that becomes replicated, and plain again: they go from files to registers and back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cases import case
from tests.effort import every
from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.cluster.replication.cluster import (
    SMALL,
    Cluster,
    change_primary,
    cursor_files,
    positions,
)
from walstore import (
    InvalidSettingsError,
    LimitExceededError,
    Settings,
    Wal,
    WalError,
)
from walstore.cli.cursors import open_cursors
from walstore.core.files.directory import PROMISE_NAME
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors import kept
from walstore.positions.cursors.directory import DIRECTORY_NAME, encode_cursor
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


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


async def test_a_plain_log_refuses_the_names_too(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log", settings=Settings()) as wal:
        await wal.append(b"v")
        with pytest.raises(InvalidSettingsError, match="reserved"):
            await wal.append_many([b"v"], update={"\0cursor.c": "1"})
        await (await wal.cursor("c")).commit(2)
        assert (tmp_path / "log" / DIRECTORY_NAME / "c").exists()
        assert wal._engine.channel.ledger.registers == {}
