"""Damage in the middle of a copy: it never spreads, and the frames of a whole copy take its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.replication.cluster import Cluster, values
from tests.walstore.replication.test_damage import fill, segments, start, stop
from tests.walstore.replication.test_replication import caught_up, forget
from walstore import CorruptionError, WalError
from walstore.replication import follower
from walstore.replication.copies import catch_up
from walstore.replication.position import Place

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


async def filled(cluster: Cluster) -> tuple[list[bytes], dict[str, bytes]]:
    """Make a log whose copies are equal, and stop all machines; return its values and sealed files."""
    wal = await cluster.primary(0)
    before = await fill(wal)
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
