"""Checkpoints that a primary sends to its copies: they save reading, and never say more than is there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.effort import first_seed
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.test_replica import FS, copy, fill, records, worker
from walstore import OutcomeUnknownError, Settings, Wal
from walstore.cluster.replication.position import CopyEnd, Place
from walstore.cluster.replication.replica import Replica
from walstore.core.append import upkeep
from walstore.core.files.directory import load_checkpoint, read_segment_header
from walstore.core.format import checkpoint
from walstore.core.runtime.threads import Worker
from walstore.testing import FaultyFileSystem, PowerLossFileSystem

__all__ = ["worker"]
pytestmark = pytest.mark.timeout(60)


class Hint(NamedTuple):
    """A checkpoint as a primary sends it."""

    place: Place
    data: bytes


def hint_of(path: Path) -> Hint:
    """Return the checkpoint that a log wrote when it was closed."""
    data = (path / checkpoint.FILE_NAME).read_bytes()
    found = checkpoint.decode_checkpoint(data, "")
    assert found is not None
    header = read_segment_header(FS, path, found.tail_start)
    return Hint(Place(found.tail_start, header.created_us, found.tail_position), data)


async def grow(path: Path, count: int = 40) -> None:
    """Append to a log."""
    async with Wal.open(path, settings=Settings(segment_bytes=65536)) as wal:
        for number in range(count):
            await wal.append(b"%d" % number * 50, durability="memory")


def end_of(path: Path) -> CopyEnd:
    replica = Replica.open(FS, path)
    end = replica.end
    replica.close()
    replica.release()
    return end


def keep(path: Path, hint: Hint, fs: object = FS) -> bool:
    """Let a copy keep a hint; return whether it did."""
    replica = Replica.open(fs, path)  # type: ignore[arg-type]
    try:
        replica.keep_hint(*hint)
        replica.close()
    finally:
        replica.release()
    found = load_checkpoint(FS, path)
    return found is not None and found.is_of_copy


@pytest.fixture
async def logs(tmp_path: Path, worker: Worker) -> tuple[Path, Path, Hint]:
    """A log, its copy, and a checkpoint of an earlier time."""
    await fill(tmp_path / "a")
    hint = await worker.run(hint_of, tmp_path / "a")
    await grow(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b", hint


async def test_a_copy_with_a_checkpoint_ends_where_it_did(
    logs: tuple[Path, Path, Hint],
    worker: Worker,
) -> None:
    a, b, hint = logs
    before = await worker.run(end_of, b)
    assert await worker.run(keep, b, hint)
    assert await worker.run(end_of, b) == before
    assert await records(b) == await records(a)


async def test_more_than_is_there_is_not_kept(
    logs: tuple[Path, Path, Hint],
    tmp_path: Path,
    worker: Worker,
) -> None:
    a, b, _ = logs
    await grow(a)
    newer = await worker.run(hint_of, a)
    assert not await worker.run(keep, b, newer)
    await fill(tmp_path / "other", 2)
    foreign = await worker.run(hint_of, tmp_path / "other")
    assert not await worker.run(keep, b, foreign)
    place, data = newer
    for forged in (data[:100], b"", data[:60] + b"x" + data[61:]):
        assert not await worker.run(keep, b, Hint(place, forged))


async def test_it_is_gone_before_what_it_speaks_of(
    logs: tuple[Path, Path, Hint],
    worker: Worker,
) -> None:
    """Cut below it, trimmed, or written over by another history."""
    a, b, hint = logs
    assert await worker.run(keep, b, hint)

    def cut() -> None:
        replica = Replica.open(FS, b)
        ends = [end for end, _ in replica.frames(hint.place.segment)]
        replica.cut(hint.place.segment, ends[0])
        assert load_checkpoint(FS, b) is None
        replica.close()
        replica.release()

    await worker.run(cut)
    await copy(worker, a, b)
    assert await worker.run(keep, b, hint)

    def trim() -> None:
        replica = Replica.open(FS, b)
        replica.trim(replica.extents()[1].start)
        assert load_checkpoint(FS, b) is None
        replica.close()
        replica.release()

    await worker.run(trim)
    found = await records(b)
    assert found == (await records(a))[-len(found) :]


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory", "remove"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_any_call_may_fail(
    kind: str,
    nth: int,
    logs: tuple[Path, Path, Hint],
    worker: Worker,
) -> None:
    a, b, hint = logs
    cell = b / checkpoint.CELL_FILE_NAME
    await worker.run(cell.write_bytes, b"of an earlier time as primary")
    fs = FaultyFileSystem(FS)
    fs.fail(kind, errno.EIO, nth=nth)
    with contextlib.suppress(OSError):
        await worker.run(keep, b, hint, fs)
    await copy(worker, a, b)
    assert await records(b) == await records(a)


async def test_one_that_reports_failure_and_is_there_is_cut_as_well(
    logs: tuple[Path, Path, Hint],
    worker: Worker,
) -> None:
    _, b, hint = logs

    def keep_and_cut() -> None:
        fs = FaultyFileSystem(FS)
        replica = Replica.open(fs, b)
        fs.fail("replace", errno.EIO, happened=True)
        with pytest.raises(OSError, match="Input/output"):
            replica.keep_hint(*hint)
        assert load_checkpoint(FS, b) is not None
        replica.cut(hint.place.segment, replica.frames(hint.place.segment)[0][0])
        assert load_checkpoint(FS, b) is None
        replica.close()
        replica.release()

    await worker.run(keep_and_cut)


@pytest.mark.parametrize("seed", range(12))
async def test_a_power_failure_while_it_is_kept(
    seed: int,
    logs: tuple[Path, Path, Hint],
    tmp_path: Path,
    worker: Worker,
) -> None:
    a, b, hint = logs
    machine = tmp_path / "machine"
    await worker.run(shutil.copytree, b, machine)
    fs = PowerLossFileSystem(machine)

    def lose_power() -> None:
        replica = Replica.open(fs, machine)
        replica.keep_hint(*hint)
        fs.crash(seed if seed < 2 else seed + first_seed("a hint"), tmp_path / "after")
        replica.release()

    await worker.run(lose_power)
    await copy(worker, a, tmp_path / "after")
    assert await records(tmp_path / "after") == await records(a)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(upkeep, "_REPLICATED_CHECKPOINT_WRITES", 16)
    async with Cluster(tmp_path) as machines:
        yield machines


async def test_a_takeover_reads_what_follows_the_last_checkpoint(cluster: Cluster) -> None:
    big = Settings(segment_bytes=1 << 24)
    wal = await cluster.primary(0, settings=big)
    for number in range(100):
        await wal.append(b"%d" % number)
    kept = [machine.path / "orders" for machine in cluster.machines[1:]]

    def are_new() -> bool:
        found = [load_checkpoint(FS, path) for path in kept]
        return all(one is not None and one.is_of_copy and one.next_offset > 80 for one in found)

    while not await asyncio.to_thread(are_new):
        await wal.flush()
    await wal.aclose()
    await cluster.machines[0].start()
    new = await cluster.primary(1, settings=big)
    assert new.recovery.scanned_bytes < 20 * 200
    assert await values(new) == [b"%d" % number for number in range(100)]
    await new.append(b"on")
    found = await asyncio.to_thread(load_checkpoint, FS, kept[0])
    assert found is not None
    assert not found.is_of_copy
    # And back: what it kept as a copy is not older than what it wrote as primary.
    for _ in range(40):
        await new.append(b"more")
    await new.aclose()
    await cluster.machines[1].start()
    last = await cluster.primary(0, settings=big)
    assert len(await values(last)) == 141
    await last.aclose()


async def test_a_primary_s_own_checkpoint_saves_reading_as_a_copy(cluster: Cluster) -> None:
    big = Settings(segment_bytes=1 << 24)
    wal = await cluster.primary(0, settings=big)
    for _ in range(50):
        await wal.append(b"v" * 10_000)
    await wal.aclose()
    path = cluster.machines[0].path / "orders"

    def look() -> tuple[CopyEnd, int]:
        fs = FaultyFileSystem(FS)
        replica = Replica.open(fs, path)
        read = sum(call.size_bytes or 0 for call in fs.calls if call.matches("pread", "*.wal"))
        end = replica.end
        replica.close()
        replica.release()
        return end, read

    end, read = await asyncio.to_thread(look)
    assert read < 100_000
    (path / checkpoint.FILE_NAME).unlink()
    walked, read = await asyncio.to_thread(look)
    assert read > 500_000
    assert end == walked
    assert end.epoch == 1


async def test_no_copy_speaks_of_an_epoch_without_a_frame(cluster: Cluster) -> None:
    """The primary of the second epoch makes it durable, and dies before its first frame."""
    wal = await cluster.primary(0)
    await wal.append(b"v")
    await wal.aclose()
    await cluster.machines[0].start()
    fs = cluster.machines[1].fs = FaultyFileSystem(FS)
    fs.fail("pwrite", errno.EIO, name="*.wal", times=None)
    with pytest.raises(OutcomeUnknownError):
        await cluster.primary(1)
    path = cluster.machines[1].path / "orders"
    found = await asyncio.to_thread(load_checkpoint, FS, path)
    assert found is not None
    assert (found.epoch, found.is_epoch_written) == (2, False)
    end = await asyncio.to_thread(end_of, path)
    assert end.epoch == 1


async def test_one_that_fails_is_not_tried_at_each_commit(cluster: Cluster) -> None:
    fs = FaultyFileSystem(FS)
    cluster.machines[0].fs = fs
    wal = await cluster.primary(0)
    before = fs.count("replace", name=checkpoint.FILE_NAME)
    fs.fail("replace", errno.EIO, name=checkpoint.FILE_NAME, times=None)
    for number in range(64):
        await wal.append(b"%d" % number)
    assert 1 < fs.count("replace", name=checkpoint.FILE_NAME) - before <= 64 // 2
    fs.heal()
    await wal.aclose()


async def test_a_primary_that_closes_leaves_nothing_to_read(tmp_path: Path) -> None:
    """Its last checkpoint goes to the copies that are there."""
    async with Cluster(tmp_path) as cluster:
        wal = await cluster.primary(0)
        await asyncio.gather(*(wal.append(b"%d" % number) for number in range(300)))
        await wal.aclose()
        await cluster.machines[0].start()
        following = await cluster.primary(1)
        assert following.recovery.scanned_bytes == 0
        assert len(await values(following)) == 300
        await following.aclose()
