"""What cannot be read at a copy, or is not there at all: it comes from a whole copy, too, to stay."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.test_damage import segments, start
from tests.walstore.cluster.replication.test_healing import PLACES, filled, flip, sealed_files
from tests.walstore.cluster.replication.test_replication import caught_up
from walstore import CorruptionError, Settings, Wal, WalError
from walstore.core.format.segment import SEAL, parse_seal
from walstore.core.runtime.tasks import start_task
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call, failure

pytestmark = pytest.mark.timeout(60)

COLD = Settings(segment_bytes=65536, cache_bytes=0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


def break_sector(disk: FaultyFileSystem, path: Path, place: float) -> None:
    """Let a byte of a sealed segment be unreadable until it is written, as a sector of a disk.

    One that is not sealed ends with blocks that are reserved, which nobody reads.
    """
    data = path.read_bytes()
    assert parse_seal(data[-SEAL.size :]) is not None
    at, is_bad = int(len(data) * place), True

    def look(call: Call) -> None:
        nonlocal is_bad
        if call.path.name != path.name or call.kind not in {"pread", "pwrite"}:
            return
        assert call.position is not None
        assert call.size_bytes is not None
        if call.position <= at < call.position + call.size_bytes:
            is_bad &= call.kind == "pread"
            if is_bad:
                raise failure(errno.EIO, call.path)

    disk.before_each(look)


async def led_with_times(cluster: Cluster) -> tuple[Wal, list[int]]:
    """Open a log whose records have times; return it, and the times. Segments are sealed, copies equal."""
    wal = await cluster.primary(0, settings=COLD)
    times = [1_700_000_000_000_000 + at * 1000 for at in range(160)]
    for at in times:
        await wal.append(b"." * 900, timestamp_us=at)
    await caught_up(cluster, wal, 1, 2)
    return wal, times


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
async def test_a_search_for_a_time_repairs_what_it_meets(cluster: Cluster, place: float) -> None:
    wal, times = await led_with_times(cluster)
    damaged = segments(cluster, 0)[1]
    whole = damaged.read_bytes()
    flip(damaged, place)
    first = int(damaged.stem)
    found = [await wal.offset_at(at) for at in times[first - 1 :]]
    assert found == sorted(found)
    assert await values(wal) == [b"." * 900] * len(times)
    assert damaged.read_bytes() == whole
    assert wal.statistics().mended_bytes == 1
    await wal.aclose()


async def test_a_search_for_a_time_finds_a_segment_that_is_gone(cluster: Cluster) -> None:
    wal, times = await led_with_times(cluster)
    lost = segments(cluster, 0)[1]
    whole = lost.read_bytes()
    middle = int(lost.stem) + 5
    expected = await wal.offset_at(times[middle])
    lost.unlink()
    assert await wal.offset_at(times[middle]) == expected
    assert lost.read_bytes() == whole
    assert wal.statistics().mended_bytes == len(whole)
    await wal.aclose()


@pytest.mark.parametrize("place", PLACES)
async def test_a_byte_that_cannot_be_read_is_written_again(cluster: Cluster, place: float) -> None:
    before, sound = await filled(cluster)
    disk = cluster.machines[0].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    break_sector(disk, segments(cluster, 0)[1], place)
    assert await values(wal) == before
    assert await wal._engine.replicator.heal(int(segments(cluster, 0)[1].stem))  # type: ignore[union-attr]
    assert wal.statistics().mended_bytes > 0
    assert sealed_files(cluster, 0, sound) == sound
    await wal.aclose()


async def test_a_disk_that_never_reads_a_byte_is_given_up(cluster: Cluster) -> None:
    """It is written a few times, and not for ever."""
    await filled(cluster)
    disk = cluster.machines[0].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    disk.fail("pread", name=segments(cluster, 0)[1].name, times=None)
    with pytest.raises(WalError):
        await values(wal)
    disk.heal()
    await values(wal)
    await wal.aclose()


async def test_a_segment_that_is_gone_is_made_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    before, sound = await filled(cluster)
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    lost = segments(cluster, 0)[1]
    lost.unlink()
    assert await values(wal) == before
    assert sealed_files(cluster, 0, sound) == sound
    assert wal.statistics().mended_bytes == len(sound[lost.name])
    assert str(lost) in caplog.text
    assert "unix://" in caplog.text
    await wal.aclose()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace", "sync_directory"])
async def test_making_it_may_fail_at_any_call(cluster: Cluster, kind: str, happened: bool) -> None:
    """It is there whole, or not at all; the next read makes it."""
    before, sound = await filled(cluster)
    disk = cluster.machines[0].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    lost = segments(cluster, 0)[1]
    lost.unlink()
    disk.fail(
        kind, name="*.tmp" if kind in {"open", "pwrite", "datasync"} else "*", happened=happened
    )
    with suppress(WalError):
        await values(wal)
    assert not lost.exists() or lost.read_bytes() == sound[lost.name]
    disk.heal()
    assert await values(wal) == before
    assert sealed_files(cluster, 0, sound) == sound
    assert not list(lost.parent.glob("mended*"))
    await wal.aclose()


@pytest.mark.parametrize("number", [0, 1])
async def test_the_scrub_finds_what_is_gone_and_what_cannot_be_read(
    cluster: Cluster, number: int
) -> None:
    """At the leader, and at another copy."""
    _, sound = await filled(cluster)
    disk = cluster.machines[number].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await caught_up(cluster, wal, 1, 2)
    bad, lost = segments(cluster, number)[:2]
    lost.unlink()
    await until(lambda: wal.statistics().mended_bytes == len(sound[lost.name]))
    assert sealed_files(cluster, number, sound) == sound
    break_sector(disk, bad, 0.5)
    await until(lambda: wal.statistics().mended_bytes > len(sound[lost.name]))
    assert sealed_files(cluster, number, sound) == sound
    await wal.aclose()


async def test_a_repair_leaves_the_threads_to_readers_again_and_again(cluster: Cluster) -> None:
    """It reads a file in pieces, each with a call of its own."""
    disk = cluster.machines[0].fs = FaultyFileSystem()
    wal = await cluster.primary(0, settings=Settings(segment_bytes=8 << 20, cache_bytes=0))
    for at in range(8):
        await wal.append(bytes([at]) * (1 << 20))
    await caught_up(cluster, wal, 1, 2)
    damaged = segments(cluster, 0)[0]
    with damaged.open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"damage")
    before = len(disk.calls)
    assert await wal._engine.replicator.heal(int(damaged.stem))  # type: ignore[union-attr]
    read_bytes = 0
    for call in disk.calls[before:]:
        if call.matches("open", damaged.name):
            read_bytes = 0
        elif call.matches("pread", damaged.name):
            read_bytes += call.size_bytes or 0
            assert read_bytes <= 3 << 20
    assert wal.statistics().mended_bytes == len(b"damage")
    await wal.aclose()


async def test_damage_that_stays_is_told_once_for_each_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(tmp_path, 2) as cluster:
        await filled(cluster)
        await start(cluster)
        wal = await cluster.primary(0, quorum=1)
        await cluster.machines[1].stop()
        damaged = segments(cluster, 0)[1]
        flip(damaged, 0.9)
        flip(damaged, 0.5)
        for _ in range(3):
            with pytest.raises(CorruptionError):
                await values(wal)
        assert len([text for text in caplog.messages if "can help" in text]) == 1
        await wal.aclose()


async def test_retention_beside_a_repair_brings_nothing_back(cluster: Cluster) -> None:
    """A segment that is deleted while it is made again stays deleted."""
    await filled(cluster)
    disk = cluster.machines[0].fs = FaultyFileSystem()
    await start(cluster)
    wal = await cluster.primary(0)
    await caught_up(cluster, wal, 1, 2)
    lost, following = segments(cluster, 0)[:2]
    lost.unlink()
    with disk.hold("replace", name=lost.name) as held:
        repair = wal._engine.replicator.heal(int(lost.stem))  # type: ignore[union-attr]
        task = start_task(repair)
        await held.wait_entered()
        await wal.trim(int(following.stem))
        held.release()
        assert not await task
    assert not lost.exists()
    assert wal.head == int(following.stem)
    await wal.aclose()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_copy_that_lost_its_oldest_segments_gets_them_again(
    cluster: Cluster, lost: int
) -> None:
    """Its node opened it without them, so it does not know that they were there."""
    before, sound = await filled(cluster)
    for path in segments(cluster, 1)[:lost]:
        path.unlink()
    await start(cluster)
    wal = await cluster.primary(0)
    await until(lambda: sealed_files(cluster, 1, sound) == sound)
    await wal.append(b"more")
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    await cluster.machines[0].start()
    wal = await cluster.primary(1)
    assert await values(wal) == [*before, b"more"]
    await wal.aclose()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace", "sync_directory"])
async def test_oldest_segments_come_again_though_a_call_fails(
    cluster: Cluster, kind: str, happened: bool
) -> None:
    """There never is a gap: what failed the scrub tries again."""
    before, sound = await filled(cluster)
    for path in segments(cluster, 1)[:2]:
        path.unlink()
    disk = cluster.machines[1].fs = FaultyFileSystem()
    await start(cluster)
    disk.fail(
        kind,
        name="mended.tmp" if kind in {"open", "pwrite", "datasync"} else "*",
        happened=happened,
    )
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await until(lambda: sealed_files(cluster, 1, sound) == sound)
    assert await values(wal) == before
    await wal.aclose()


async def test_oldest_segments_that_cannot_be_written_are_told(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy counts all the same."""
    await filled(cluster)
    for path in segments(cluster, 1)[:2]:
        path.unlink()
    disk = cluster.machines[1].fs = FaultyFileSystem()
    await start(cluster)
    disk.fail("open", name="mended.tmp", times=None)
    wal = await cluster.primary(0)
    lacks = f"the copy at {cluster.machines[1].address} lacks older segments"
    await until(lambda: lacks in caplog.text)
    assert all(copy.is_present for copy in wal.statistics().copies if copy.address in lacks)
    disk.heal()
    await wal.aclose()


async def test_what_retention_deleted_does_not_come_back_at_a_copy(cluster: Cluster) -> None:
    await filled(cluster)
    await start(cluster)
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await caught_up(cluster, wal, 1, 2)
    first, following = segments(cluster, 1)[:2]
    await wal.trim(int(following.stem))
    await until(lambda: not first.exists())
    before = wal.statistics().scrub
    await wal.append(b"more")
    await caught_up(cluster, wal, 1, 2)
    await until(lambda: wal.statistics().scrub != before)
    assert not first.exists()
    await wal.aclose()


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_copy_gets_a_segment_of_many_parts_again(cluster: Cluster, is_known: bool) -> None:
    """It was removed while its node had the copy, or before."""
    wal = await cluster.primary(
        0, settings=Settings(segment_bytes=4 << 20, cache_bytes=0), scrub_seconds=0.01
    )
    for at in range(10):
        await wal.append(bytes([at]) * (900 << 10))
    await caught_up(cluster, wal, 1, 2)
    lost = segments(cluster, 1)[0]
    whole = lost.read_bytes()
    if not is_known:
        await cluster.machines[1].stop()
    lost.unlink()
    if not is_known:
        await cluster.machines[1].start()
    await until(lambda: lost.exists())
    assert lost.read_bytes() == whole
    await wal.aclose()
