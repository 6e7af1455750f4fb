"""Damage in the middle of a copy: it never spreads, and the frames of a whole copy take its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.test_damage import fill, segments, start, stop
from tests.walstore.cluster.replication.test_replication import caught_up, forget
from walstore import CorruptionError, Settings, WalError
from walstore.cluster.replication import follower
from walstore.cluster.replication.copies import catch_up
from walstore.cluster.replication.position import Place
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(15)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


def flip(path: Path, place: float = 0.5) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)


async def filled(cluster: Cluster, count: int = 160) -> tuple[list[bytes], dict[str, bytes]]:
    """Make a log whose copies are equal, and stop all machines; return its values and sealed files."""
    wal = await cluster.primary(0)
    before = await fill(wal, count)
    await caught_up(cluster, wal, *range(1, len(cluster.machines)))
    await wal.aclose()
    await stop(cluster)
    files = cluster.files(1)
    return before, {name: files[name] for name in sorted(files)[:-1]}


def sealed_files(cluster: Cluster, number: int, like: dict[str, bytes]) -> dict[str, bytes]:
    files = cluster.files(number)
    return {name: files.get(name, b"") for name in like}


@pytest.mark.parametrize("place", [0.0005, 0.3, 0.9, 0.9999])
async def test_a_new_leader_takes_over_from_copies_with_damage(
    cluster: Cluster, place: float
) -> None:
    """Two copies count, and each has damage where the other one has not."""
    before, sound = await filled(cluster)
    flip(segments(cluster, 0)[0], place if place < 0.9 else 0.5)
    flip(segments(cluster, 2)[1], 0.5)
    forget(cluster.machines[1])
    await start(cluster)
    wal = await cluster.primary(1)
    assert await values(wal) == before
    await wal.aclose()
    assert sealed_files(cluster, 1, sound) == sound


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return why copies were given up, as it goes on."""
    found: list[str] = []

    async def catch_up_and_tell(*arguments: Any, **options: Any) -> Place:
        try:
            return await catch_up(*arguments, **options)
        except WalError as error:
            found.append(str(error))
            raise

    monkeypatch.setattr(follower, "catch_up", catch_up_and_tell)
    return found


async def test_no_damaged_byte_leaves_a_leader(tmp_path: Path, refusals: list[str]) -> None:
    """No other copy has what is damaged."""
    async with Cluster(tmp_path, 2) as cluster:
        _, sound = await filled(cluster)
        damaged = segments(cluster, 0)[1]
        flip(damaged)
        await start(cluster)
        wal = await cluster.primary(0, quorum=1)
        await caught_up(cluster, wal, 1)
        await cluster.machines[1].stop()
        forget(cluster.machines[1])
        await cluster.machines[1].start()
        await until(lambda: any(str(damaged) in one for one in refusals))
        copied = sealed_files(cluster, 1, sound)
        for name, data in sound.items():
            assert data.startswith(copied[name])
        assert copied[segments(cluster, 0)[0].name] == sound[segments(cluster, 0)[0].name]
        with pytest.raises(CorruptionError):
            await values(wal)
        await wal.aclose()


async def test_a_damaged_leader_cuts_nothing_that_another_copy_has(
    tmp_path: Path, refusals: list[str]
) -> None:
    async with Cluster(tmp_path, 2) as cluster:
        wal = await cluster.primary(0, quorum=1)
        await fill(wal, 100)
        await wal.append(b"last")
        await caught_up(cluster, wal, 1)
        await cluster.machines[1].stop()
        last = segments(cluster, 0)[-1]
        whole = {name: data.rstrip(b"\0") for name, data in cluster.files(1).items()}
        place = last.read_bytes().rindex(b"last")
        with last.open("r+b") as file:  # the primary has it open
            file.seek(place)
            file.write(b"lost")
        await cluster.machines[1].start()
        await until(lambda: any(str(last) in one for one in refusals))
        assert {name: data.rstrip(b"\0") for name, data in cluster.files(1).items()} == whole
        await wal.aclose()


PLACES = [0.0005, 0.3, 0.6, 0.9, 0.9999]


@pytest.mark.parametrize("place", PLACES)
async def test_a_reader_at_a_damaged_leader_gets_its_records(
    cluster: Cluster, place: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The damage is replaced in place, from another copy; the message says what and whence."""
    before, sound = await filled(cluster)
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    damaged = segments(cluster, 0)[1]
    flip(damaged, place)
    assert await wal._engine.replicator.heal(int(damaged.stem))  # type: ignore[union-attr]
    assert await values(wal) == before
    assert sealed_files(cluster, 0, sound) == sound
    assert wal.statistics().mended_bytes == 1
    assert str(damaged) in caplog.text
    assert "unix://" in caplog.text
    await wal.aclose()


async def test_records_are_whole_somewhere(cluster: Cluster) -> None:
    """Each copy has damage, each elsewhere; the reader and the leader's file lack nothing."""
    before, sound = await filled(cluster)
    flip(segments(cluster, 0)[0], 0.2)
    flip(segments(cluster, 0)[1], 0.2)
    flip(segments(cluster, 1)[0], 0.8)
    flip(segments(cluster, 2)[1], 0.8)
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    assert await values(wal) == before
    assert sealed_files(cluster, 0, sound) == sound
    await wal.aclose()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["open", "pread", "pwrite", "datasync"])
async def test_a_repair_may_fail_at_any_call(cluster: Cluster, kind: str, happened: bool) -> None:
    """The file is the old one or the new one; the next read repairs it."""
    before, sound = await filled(cluster)
    disk = cluster.machines[0].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    damaged = segments(cluster, 0)[1]
    flip(damaged)
    old = damaged.read_bytes()
    disk.fail(kind, name=damaged.name, nth=2 if kind in {"open", "pread"} else 1, happened=happened)
    with suppress(WalError):
        await values(wal)
    assert damaged.read_bytes() in {old, sound[damaged.name]}
    disk.heal()
    assert await values(wal) == before
    assert sealed_files(cluster, 0, sound) == sound
    await wal.aclose()


async def test_the_active_segment_is_repaired_while_it_is_written(cluster: Cluster) -> None:
    wal = await cluster.primary(0, settings=Settings(segment_bytes=65536, cache_bytes=0))
    for at in range(20):
        await wal.append(b"%d" % at * 100)
    await caught_up(cluster, wal, 1, 2)
    active = segments(cluster, 0)[-1]
    with active.open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    await wal.append(b"more")
    assert await values(wal) == [*(b"%d" % at * 100 for at in range(20)), b"more"]
    assert wal.statistics().mended_bytes > 0
    await wal.append(b"again")
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    contents = [cluster.files(number)[active.name].rstrip(b"\0") for number in (0, 1, 2)]
    assert len(set(contents)) == 1


@pytest.mark.parametrize("size", [2, 3])
async def test_a_copy_that_comes_back_repairs_the_leader(tmp_path: Path, size: int) -> None:
    """Nobody else is there. What is behind the damage proves that it is the same log."""
    async with Cluster(tmp_path, size) as cluster:
        wal = await cluster.primary(
            0, quorum=1, settings=Settings(segment_bytes=1 << 20, cache_bytes=0)
        )
        for at in range(20):
            await wal.append(b"%d" % at * 100)
        await caught_up(cluster, wal, *range(1, size))
        for machine in cluster.machines[1:]:
            await machine.stop()
        with segments(cluster, 0)[-1].open("r+b") as file:
            file.seek(2500)
            file.write(b"damage")
        await cluster.machines[1].start()
        await caught_up(cluster, wal, 1)
        await wal.append(b"more")
        await until(lambda: wal.statistics().copies[0].lag == 0)
        assert await values(wal) == [*(b"%d" % at * 100 for at in range(20)), b"more"]
        assert wal.statistics().mended_bytes > 0
        await wal.aclose()
