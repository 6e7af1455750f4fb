"""Damage at one copy, by a disk or by hand: it does not spread, and does not decide what was acknowledged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, Cluster, values
from tests.walstore.cluster.replication.test_replication import caught_up, forget
from walstore import CorruptionError, StorageUnavailableError, Wal, WalError
from walstore.cluster.replication.held_replica import LOOK_SECONDS
from walstore.core.files import spare_segment
from walstore.core.files.directory import PROMISE_NAME
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def fill(wal: Wal, count: int = 160) -> list[bytes]:
    """Append records of several segments; return all values."""
    await asyncio.gather(*(wal.append(b"%d" % at + b"." * 900) for at in range(count)))
    return await values(wal)


async def stop(cluster: Cluster) -> None:
    for machine in cluster.machines:
        await machine.stop()


async def start(cluster: Cluster) -> None:
    for machine in cluster.machines:
        await machine.start()


def segments(cluster: Cluster, number: int) -> list[Path]:
    return sorted((cluster.machines[number].path / "orders").glob("*.wal"))


@pytest.mark.parametrize("lost", [1, 2])
async def test_first_segments_that_one_copy_lost_come_from_another(
    cluster: Cluster, lost: int
) -> None:
    wal = await cluster.primary(0)
    before = await fill(wal)
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    await stop(cluster)
    for path in segments(cluster, 1)[:lost]:
        path.unlink()
    await start(cluster)
    damaged = await cluster.primary(1)
    assert damaged.head == 1
    assert await values(damaged) == before
    await damaged.append(b"more")
    await damaged.aclose()
    await cluster.machines[1].start()
    assert cluster.files(1).keys() >= cluster.files(0).keys()
    sound = await cluster.primary(0)
    assert await values(sound) == [*before, b"more"]
    await sound.aclose()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory", "remove"])
async def test_copying_first_segments_may_fail_at_any_call(
    cluster: Cluster, kind: str, happened: bool
) -> None:
    """Also by an error of what was done: it is tried again, and nothing is missing or twice."""
    wal = await cluster.primary(0)
    before = await fill(wal)
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    await stop(cluster)
    for path in segments(cluster, 1)[:2]:
        path.unlink()
    for number in (0, 2):
        await cluster.machines[number].start()
    disk = cluster.machines[1].fs = FaultyFileSystem()
    disk.fail(kind, nth=2, happened=happened)
    damaged: Wal | None = None
    while damaged is None:
        with suppress(StorageUnavailableError):
            damaged = await cluster.primary(1)
    assert await values(damaged) == before
    await damaged.aclose()
    assert [path.name for path in segments(cluster, 1)] >= [
        path.name for path in segments(cluster, 0)
    ]


async def test_what_no_other_copy_has_is_not_called_durable(cluster: Cluster) -> None:
    disk = cluster.machines[0].fs = FaultyFileSystem()
    wal = await cluster.primary(0)
    await wal.append(b"one")
    for number in (1, 2):
        await cluster.machines[number].stop()
    async with asyncio.TaskGroup() as group:
        levels = [group.create_task(_failed(wal, level)) for level in ("replicated", None)]
        changing = group.create_task(_failed_change(wal))
        await until(lambda: wal.durable_limit == 4)  # on this disk alone
        disk.fail("*", times=None)
        with suppress(WalError):
            await wal.append(b"three", durability="disk")

        def are_over() -> bool:
            cluster.clock.skip(PATIENCE_SECONDS)
            return all(task.done() for task in (*levels, changing))

        await until(are_over)
    assert [task.result() for task in (*levels, changing)] == ["unknown"] * 3
    with suppress(WalError):
        await wal.aclose()
    for number in (1, 2):
        await cluster.machines[number].start()
    following = await cluster.primary(1)
    assert await values(following) == [b"one"]
    await following.aclose()


async def _failed(wal: Wal, level: str | None) -> str | None:
    with pytest.raises(WalError) as caught:
        await wal.append(b"two", durability=level)  # type: ignore[arg-type]
    return caught.value.outcome


async def _failed_change(wal: Wal) -> str | None:
    with pytest.raises(WalError) as caught:
        async with wal.transaction(update={"a": "1"}):
            pass
    return caught.value.outcome


async def test_a_new_disk_does_not_count_with_damage(cluster: Cluster) -> None:
    """All copies that could help are away. Nor does a sound copy become less."""
    wal = await cluster.primary(0)
    before = await fill(wal)
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    await stop(cluster)
    for number in (0, 2):
        first = segments(cluster, number)[0]
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 1
        first.write_bytes(data)
    sound = segments(cluster, 1)[0].read_bytes()
    kept = {path: path.read_bytes() for path in (cluster.machines[1].path / "orders").iterdir()}
    forget(cluster.machines[1])
    await start(cluster)
    wal = await cluster.primary(0)
    await wal.append(b"more")  # with machine 2
    for _ in range(3):
        await wal.append(b"more")
    assert not next(one for one in wal.statistics().copies if "m1" in one.address).is_present
    await wal.aclose()
    await cluster.machines[0].stop()
    with pytest.raises(StorageUnavailableError, match="1 more are new"):
        await cluster.primary(1, patience_seconds=RUNS_OUT_SECONDS)  # it does not count
    await cluster.machines[1].stop()
    forget(cluster.machines[1])
    for path, content in kept.items():  # the old disk is back
        path.write_bytes(content)
    await cluster.machines[1].start()
    await cluster.machines[0].start()
    again = await cluster.primary(0)
    await caught_up(cluster, again, 1)
    assert (await values(again))[: len(before)] == before
    assert segments(cluster, 0)[0].read_bytes() == sound
    await again.aclose()


@pytest.mark.parametrize("has_promise", [True, False])
async def test_a_copy_without_files_does_not_decide(cluster: Cluster, has_promise: bool) -> None:
    """The leader is down, and the third machine was away: nobody knows what was acknowledged."""
    wal = await cluster.primary(0)
    await wal.append(b"first")
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[2].stop()
    before = await fill(wal, 30)
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    await cluster.machines[1].stop()
    for path in segments(cluster, 1):
        path.unlink()
    if not has_promise:
        forget(cluster.machines[1])
    await cluster.machines[1].start()
    await cluster.machines[2].start()
    with pytest.raises((StorageUnavailableError, CorruptionError)):
        await cluster.primary(2, patience_seconds=RUNS_OUT_SECONDS)
    await cluster.machines[2].start()
    await cluster.machines[0].start()  # it is back
    sound = await cluster.primary(0)
    assert await values(sound) == before
    await sound.aclose()


def flip_a_bit(path: Path) -> None:
    data = bytearray(used(path))
    data[-500] ^= 1
    path.write_bytes(data)


def cut_off_the_end(path: Path) -> None:
    path.write_bytes(used(path)[:-500])


def zero_the_end(path: Path) -> None:
    path.write_bytes(used(path)[:-500] + bytes(1000))


def used(path: Path) -> bytes:
    """Return the bytes of a segment without the blocks that are reserved behind them."""
    return path.read_bytes().rstrip(bytes(1))


DAMAGES = [flip_a_bit, cut_off_the_end, zero_the_end, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("leads", [False, True])
async def test_a_copy_that_lost_what_it_synced_takes_part_in_nothing(
    cluster: Cluster, damage: Callable[[Path], None], leads: bool
) -> None:
    """The leader is gone and the third copy lacks the last records: only the damaged one had them."""
    wal = await cluster.primary(0)
    await fill(wal, 100)
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[2].stop()
    before = await fill(wal, 20)
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    await cluster.machines[1].stop()
    directory = cluster.machines[1].path / "orders"
    (directory / "CHECKPOINT").unlink(missing_ok=True)
    damage(segments(cluster, 1)[-1])
    for number in (1, 2):
        await cluster.machines[number].start()
    with pytest.raises((StorageUnavailableError, CorruptionError), match=r"copies|synced|gone"):
        await cluster.primary(1 if leads else 2, patience_seconds=RUNS_OUT_SECONDS)
    for number in (0, 1 if leads else 2):
        await cluster.machines[number].start()
    sound = await cluster.primary(2)  # with the old leader
    assert await values(sound) == before
    assert not next(one for one in sound.statistics().copies if "m1" in one.address).is_present
    await cluster.machines[1].stop()
    for path in directory.iterdir():  # as the error says
        path.unlink()
    await cluster.machines[1].start()
    await sound.append(b"more")
    await caught_up(cluster, sound, 1)
    await sound.aclose()
    await cluster.machines[2].start()
    again = await cluster.primary(1)
    assert await values(again) == [*before, b"more"]
    await again.aclose()


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("orders.old"))


def remove(directory: Path) -> None:
    """Its copy may write there meanwhile."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("take", [remove, move_away, empty])
async def test_a_copy_whose_directory_goes_is_made_again_meanwhile(
    tmp_path: Path, size: int, take: Callable[[Path], None]
) -> None:
    """Also if nothing is appended. It counts once it has everything, and survives its machine."""
    async with Cluster(tmp_path, size) as cluster:
        wal = await cluster.primary(0)
        await fill(wal)
        await caught_up(cluster, wal, *range(1, size))
        directory = cluster.machines[1].path / "orders"
        take(directory)
        cluster.clock.skip(LOOK_SECONDS)
        await until(lambda: b'"whole": true' in promise_in(directory))
        for machine in cluster.machines[2:]:
            await machine.stop()
        assert await wal.append(b"last") > 0
        kept = await values(wal)
        await wal.aclose()
        await cluster.machines[0].start()
        second = await cluster.primary(1)
        assert await values(second) == kept
        await second.aclose()


def promise_in(directory: Path) -> bytes:
    path = directory / PROMISE_NAME
    return path.read_bytes() if path.exists() else b""


async def test_a_copy_that_was_emptied_while_it_was_used_does_not_vote(cluster: Cluster) -> None:
    """Two copies have a record. One is emptied and half filled: with the third alone nobody can take over."""
    fs = cluster.machines[1].fs = FaultyFileSystem()
    await cluster.machines[1].stop()
    await cluster.machines[1].start()
    wal = await cluster.primary(0)
    await wal.append(b"first")
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[2].stop()
    await fill(wal)
    kept = await values(wal)
    await caught_up(cluster, wal, 1)
    directory = cluster.machines[1].path / "orders"
    fs.fail("open", name=spare_segment.NAME, nth=2, times=None)
    await asyncio.to_thread(empty, directory)
    cluster.clock.skip(LOOK_SECONDS)
    async with cluster.losing_patience(wal):
        with pytest.raises(WalError):
            await wal.append(b"lost")
    await wal.aclose()
    fs.heal()
    await cluster.machines[2].start()
    with pytest.raises(StorageUnavailableError, match=r"of 3 copies .* 2 are needed"):
        await cluster.primary(2, patience_seconds=RUNS_OUT_SECONDS)
    await cluster.machines[2].start()
    await cluster.machines[0].start()
    third = await cluster.primary(2)
    assert (await values(third))[: len(kept)] == kept
    await third.aclose()


async def test_a_new_copy_without_the_first_segments_gets_them(cluster: Cluster) -> None:
    """What an emptied copy was sent before that was noticed, or what is left of one by hand."""
    wal = await cluster.primary(0)
    await fill(wal)
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[1].stop()
    for path in segments(cluster, 1)[:2]:
        path.unlink()
    (cluster.machines[1].path / "orders" / PROMISE_NAME).unlink()
    await cluster.machines[1].start()
    await caught_up(cluster, wal, 1)
    assert set(cluster.files(1)) == set(cluster.files(0))
    await wal.aclose()
