"""The scrub: what nobody reads is read at all copies, and damage replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.test_damage import segments, start, stop
from tests.walstore.cluster.replication.test_healing import PLACES, filled, flip, sealed_files
from tests.walstore.cluster.replication.test_replication import caught_up, forget
from walstore import InvalidSettingsError, Replication

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_damage_that_nobody_reads_is_replaced(
    tmp_path: Path, number: int, place: float, caplog: pytest.LogCaptureFixture
) -> None:
    """At the leader from another copy, and at another copy from the leader."""
    async with Cluster(tmp_path) as cluster:
        _, sound = await filled(cluster)
        await start(cluster)
        wal = await cluster.primary(0, scrub_seconds=0.01)
        await caught_up(cluster, wal, 1, 2)
        damaged = segments(cluster, number)[1]
        flip(damaged, place)
        await until(lambda: damaged.read_bytes() == sound[damaged.name])
        await until(lambda: wal.statistics().mended_bytes == 1)
        assert str(damaged) in caplog.text
        await wal.aclose()


async def test_copies_with_damage_everywhere_become_whole(tmp_path: Path) -> None:
    """Each byte is whole at one copy at least. Writing goes on meanwhile."""
    async with Cluster(tmp_path) as cluster:
        before, sound = await filled(cluster)
        for number, place in ((0, 0.1), (1, 0.5), (2, 0.9)):
            flip(segments(cluster, number)[0], place)
            flip(segments(cluster, number)[1], 1 - place)
        await start(cluster)
        wal = await cluster.primary(0, scrub_seconds=0.01)

        async def are_whole() -> bool:
            await wal.append(b"more")
            return all(sealed_files(cluster, number, sound) == sound for number in range(3))

        while not await are_whole():
            pass
        assert (await values(wal))[: len(before)] == before
        await wal.aclose()


async def filled_with_small_frames(cluster: Cluster) -> tuple[list[bytes], dict[str, bytes]]:
    """As :func:`filled`, with a frame for each record."""
    wal = await cluster.primary(0)
    for at in range(80):
        await wal.append(b"%d" % at + b"." * 900)
    before = await values(wal)
    await caught_up(cluster, wal, *range(1, len(cluster.machines)))
    await wal.aclose()
    await stop(cluster)
    files = cluster.files(1)
    return before, {name: files[name] for name in sorted(files)[:-1]}


async def test_two_copies_help_each_other_frame_by_frame(tmp_path: Path) -> None:
    """Whatever one can help with, it has damage behind that, too."""
    async with Cluster(tmp_path, 2) as cluster:
        before, sound = await filled_with_small_frames(cluster)
        for number, place in ((0, 0.2), (1, 0.4), (0, 0.6), (1, 0.8)):
            flip(segments(cluster, number)[0], place)
        await start(cluster)
        wal = await cluster.primary(0, scrub_seconds=0.01)
        await until(lambda: wal.statistics().mended_bytes == 4)
        assert [sealed_files(cluster, number, sound) for number in range(2)] == [sound] * 2
        assert await values(wal) == before
        await wal.aclose()


async def test_a_new_leader_takes_each_frame_from_a_copy_that_has_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        before, sound = await filled_with_small_frames(cluster)
        for number, place in ((0, 0.2), (2, 0.4), (0, 0.6), (2, 0.8)):
            flip(segments(cluster, number)[0], place)
        forget(cluster.machines[1])
        await start(cluster)
        wal = await cluster.primary(1)
        assert await values(wal) == before
        await wal.aclose()
        assert sealed_files(cluster, 1, sound) == sound


def test_the_time_of_a_round_is_a_time() -> None:
    with pytest.raises(InvalidSettingsError, match="scrub_seconds"):
        Replication(nodes=["tcp://127.0.0.1:1"], scrub_seconds=-1)
