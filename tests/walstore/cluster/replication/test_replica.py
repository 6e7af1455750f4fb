"""The copy of a log on another machine: what it takes, what it refuses, and what survives its crash."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.effort import first_seed
from walstore import Settings, Wal
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.cluster.replication.copies import LocalCopy, catch_up
from walstore.cluster.replication.position import NOTHING, Place, SegmentExtent
from walstore.cluster.replication.promise import Promise
from walstore.cluster.replication.replica import Replica
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.files.floor import load_note
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.segment import HEADER_BYTES
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    CorruptionError,
    FencedError,
    StorageUnavailableError,
    WalLockedError,
)
from walstore.testing import FaultyFileSystem, PowerLossFileSystem

FS = PosixFileSystem()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker("replica")
    yield made
    made.close()


async def fill(path: Path, seed: int = 1) -> None:
    """Make a log of several segments, with a large transaction and marks."""
    chance = random.Random(seed)
    async with Wal.open(path, settings=Settings(segment_bytes=65536)) as wal:
        for _ in range(150):
            await wal.append(b"v" * chance.randrange(2000), durability="memory")
        async with wal.transaction() as transaction:
            for _ in range(8):
                await transaction.append(b"t" * 10_000)
        await wal.open_stream("s")
        await wal.append(b"last")


async def copy(worker: Worker, source: Path, target: Path, fs: Any = FS) -> None:
    """Make a copy equal to a log that nobody writes."""
    from_ = await worker.run(Replica.open, FS, source)
    to = await worker.run(Replica.open, fs, target)
    one, two = LocalCopy(from_, worker), LocalCopy(to, worker)
    try:
        end = await two.obey(to.promise.epoch + 1, "p")
        reached = await catch_up(one, two, end, log_id=from_.end.log_id)
        assert reached == from_.end.place
        ours, theirs = list(await one.extents()), list(await two.extents())
        both = min(len(ours), len(theirs))  # older ones may have been trimmed on either side
        assert ours[-both:] == theirs[-both:]
    finally:
        for made, replica in ((one, from_), (two, to)):
            await made.aclose()
            await worker.run(replica.release)


async def records(path: Path) -> list[Any]:
    (path / PROMISE_NAME).unlink(missing_ok=True)  # it is no copy any more
    async with Wal.open(path) as wal, wal.reader(follow=False) as reader:
        return [record async for record in reader]


async def test_a_copy_is_the_log(tmp_path: Path, worker: Worker) -> None:
    await fill(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


@pytest.mark.parametrize("seed", range(8))
async def test_a_copy_that_went_another_way_is_cut_to_what_is_common(
    seed: int, tmp_path: Path, worker: Worker
) -> None:
    """Both logs go on by themselves from the same bytes; the target ends as the source."""
    seed += first_seed("another way")
    chance = random.Random(seed)
    await fill(tmp_path / "a", seed)
    await copy(worker, tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        (tmp_path / name / PROMISE_NAME).unlink(missing_ok=True)
        settings = Settings(segment_bytes=65536)
        async with Wal.open(tmp_path / name, settings=settings) as wal:
            for _ in range(chance.randrange(1, 120)):
                await wal.append(name.encode() * chance.randrange(1500), durability="memory")
            await wal.flush()
            if chance.random() < 0.3:
                await wal.trim(chance.randrange(1, wal.tail))
    await copy(worker, tmp_path / "a", tmp_path / "b")
    expected = await records(tmp_path / "a")
    found = await records(tmp_path / "b")
    both = min(len(found), len(expected))
    assert found[-both:] == expected[-both:]


def test_promises_survive_and_only_grow(tmp_path: Path) -> None:
    replica = Replica.open(FS, tmp_path / "log")
    assert replica.obey(3, "one") == NOTHING
    assert replica.obey(3, "one") == NOTHING
    for epoch, primary in ((3, "two"), (2, "one"), (1, "three")):
        with pytest.raises(FencedError, match="follows the primary of epoch 3"):
            replica.obey(epoch, primary)
    replica.close()
    with pytest.raises(WalLockedError):
        Replica.open(FS, tmp_path / "log")
    replica.release()
    again = Replica.open(FS, tmp_path / "log")
    assert again.promise == Promise(3, "one")
    with pytest.raises(FencedError):
        again.promise.check_same(3, "two")
    again.obey(4, "two")
    again.close()
    again.release()


def test_an_older_list_of_copies_is_refused(tmp_path: Path) -> None:
    """Its quorum may have nothing in common with one of the newer list, whatever its epoch."""
    replica = Replica.open(FS, tmp_path / "log")
    replica.obey(3, "new", generation=7)
    for epoch in (2, 3, 4, 1000):
        with pytest.raises(FencedError, match="has generation 6, and this copy knows 7") as caught:
            replica.obey(epoch, "old", generation=6)
        assert caught.value.epoch == 3
    replica.close()
    replica.release()
    again = Replica.open(FS, tmp_path / "log")
    assert again.promise == Promise(3, "new", generation=7)
    with pytest.raises(FencedError):
        again.obey(5, "old")
    again.obey(5, "next", generation=7)
    again.close()
    again.release()


def test_a_copy_that_was_out_of_the_list_is_not_whole(tmp_path: Path) -> None:
    """It may lack what the others acknowledged meanwhile, and looks as if it had all."""
    replica = Replica.open(FS, tmp_path / "log")
    replica.obey(3, "p", generation=7, joined=2)
    replica.make_whole()
    replica.obey(4, "q", generation=8, joined=2)
    assert replica.promise.is_whole
    replica.obey(9, "r", generation=12, joined=11)
    replica.close()
    replica.release()
    again = Replica.open(FS, tmp_path / "log")
    assert again.promise == Promise(9, "r", is_whole=False, generation=12)
    again.obey(10, "s", generation=12, joined=11)
    assert not again.promise.is_whole
    again.make_whole()
    again.obey(11, "t", generation=13, joined=11)
    assert again.promise.is_whole
    again.close()
    again.release()


async def test_bytes_continue_the_copy_to_the_byte(tmp_path: Path, worker: Worker) -> None:
    await fill(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    await worker.run(check_places, tmp_path / "b")


def check_places(path: Path) -> None:
    replica = Replica.open(FS, path)
    end = replica.end.place
    for place in (
        end._replace(position=end.position + 8),
        end._replace(position=end.position - 8),
        end._replace(created_us=end.created_us + 1),
        Place(end.segment + 5, end.created_us, 100),
    ):
        with pytest.raises(ContentionError, match="do not continue"):
            replica.write(place, [b"x" * 8])
    with pytest.raises(CorruptionError):
        replica.write(Place(end.segment + 50, 1, 0), [b"x" * 128])
    assert replica.end.place == end
    replica.close()
    replica.release()


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory", "open"])
@pytest.mark.parametrize("nth", [1, 2, 5, 9])
async def test_any_call_may_fail_and_the_copy_is_continued(
    kind: str, nth: int, tmp_path: Path, worker: Worker
) -> None:
    await fill(tmp_path / "a")
    fs = FaultyFileSystem(FS)
    fs.fail(kind, errno.ENOSPC, nth=nth)
    for _ in range(3):
        with contextlib.suppress(StorageUnavailableError, OSError):
            await copy(worker, tmp_path / "a", tmp_path / "b", fs)
            break
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


async def test_a_write_of_another_primary_is_refused_alone(tmp_path: Path, worker: Worker) -> None:
    """One that stood still sends what it had, in the moment in which its successor writes."""
    await fill(tmp_path / "a")
    source = await worker.run(Replica.open, FS, tmp_path / "a")
    target = await worker.run(Replica.open, FS, tmp_path / "b")
    one, local = LocalCopy(source, worker), LocalCopy(target, worker)
    await local.obey(2, "new")
    extent = (await one.extents())[0]
    head = Place(extent.start, extent.created_us, 0)
    body = head._replace(position=HEADER_BYTES)
    pieces = [await one.read(head, HEADER_BYTES), await one.read(body, extent.size - HEADER_BYTES)]
    old, new = Promise(1, "old"), Promise(2, "new")
    answers = await asyncio.gather(
        local.write(head, [pieces[0]], seals=False, by=old),
        local.write(head, [pieces[0]], seals=False, by=new),
        local.write(body, [pieces[1]], seals=False, by=old),
        local.write(body, [pieces[1]], seals=False, by=new),
        return_exceptions=True,
    )
    reached = head._replace(position=extent.size)
    assert [type(answer) for answer in answers[::2]] == [FencedError, FencedError]
    assert answers[1::2] == [reached, reached]
    for made, replica in ((one, source), (local, target)):
        await made.aclose()
        await worker.run(replica.release)


async def test_nothing_is_taken_after_a_sync_that_failed(tmp_path: Path, worker: Worker) -> None:
    """What was sent behind it must not be called durable: some of what comes before is not there."""
    await fill(tmp_path / "a")
    await worker.run(fail_a_sync, tmp_path)
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


def fail_a_sync(path: Path) -> None:
    fs = FaultyFileSystem(FS)
    source, target = Replica.open(FS, path / "a"), Replica.open(fs, path / "b")
    first = source.extents()[0]
    ends = [end for end, _ in source.frames(first.start)][:3]
    place = Place(first.start, first.created_us, 0)
    target.obey(1, "p")
    target.write(place, [source.read(place, ends[0])])
    durable = target.sync()
    fs.fail("datasync", errno.EIO)
    for at, end in pairwise(ends):
        place = place._replace(position=at)
        target.write(place, [source.read(place, end - at)])
        if at == ends[0]:
            with pytest.raises(OSError, match="Input/output"):
                target.sync()
            break
    behind = place._replace(position=ends[1])
    with pytest.raises(ContentionError, match="failed"):
        target.write(behind, [source.read(behind, ends[2] - ends[1])])
    with pytest.raises(ContentionError, match="failed"):
        target.sync()
    assert target.obey(1, "p").place == durable
    for replica in (source, target):
        replica.close()
        replica.release()


async def test_sealed_with_other_frames_of_the_same_size(tmp_path: Path, worker: Worker) -> None:
    await fill(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    for name in "ab":
        (tmp_path / name / PROMISE_NAME).unlink(missing_ok=True)
        async with Wal.open(tmp_path / name) as wal:
            await wal.append(name.encode() * 100, timestamp_us=1)
            await wal.rotate()
            await wal.append(b"behind it")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


@pytest.mark.parametrize("seed", range(16))
async def test_what_was_synced_survives_a_power_failure(
    seed: int, tmp_path: Path, worker: Worker
) -> None:
    """The machine of a copy loses power: what it said is durable is there, and the copy is continued."""
    seed += first_seed("power failures of a copy")
    await fill(tmp_path / "a", seed)
    chance = random.Random(seed)
    machine = tmp_path / "machine"
    machine.mkdir()
    fs = PowerLossFileSystem(machine)
    source = await worker.run(Replica.open, FS, tmp_path / "a")
    target = await worker.run(Replica.open, fs, machine / "b")
    one, two = LocalCopy(source, worker), LocalCopy(target, worker)
    end = await two.obey(7, "p")
    stop = chance.choice(list(await one.extents()))
    until = Place(stop.start, stop.created_us, chance.randrange(200, stop.size))
    extents = [extent for extent in await one.extents() if extent.start <= stop.start]
    await catch_up(Until(one, extents, until), two, end, log_id=source.end.log_id)

    def fail() -> Place:
        """Write more, and lose power before anybody said that this is durable."""
        durable = target.sync()
        more = source.read(durable, chance.randrange(1, 50_000))
        if more and durable.position < stop.size:
            target.write(durable, [more])
        fs.crash(seed, tmp_path / "after")
        target.release()
        return durable

    durable = await worker.run(fail)

    def look() -> None:
        again = Replica.open(FS, tmp_path / "after" / "b")
        assert again.promise == Promise(7, "p")
        ends = [HEADER_BYTES, *(at for at, _ in source.frames(durable.segment))]
        whole = max(at for at in ends if at <= durable.position)
        assert again.end.place[:2] == durable[:2]
        assert again.end.place.position >= whole
        again.close()
        again.release()

    await worker.run(look)
    await one.aclose()
    await worker.run(source.release)
    await copy(worker, tmp_path / "a", tmp_path / "after" / "b")
    assert await records(tmp_path / "after" / "b") == await records(tmp_path / "a")


class Until:
    """A source that has not been told of its end yet."""

    def __init__(self, copy: LocalCopy, extents: list[SegmentExtent], until: Place) -> None:
        self._copy = copy
        last = extents[-1]._replace(size=until.position, is_sealed=False)
        self._extents = [*extents[:-1], last]

    async def extents(self) -> list[SegmentExtent]:
        return self._extents

    async def frames(self, start: int, begin: int = 0) -> Any:
        return await self._copy.frames(start, begin)

    async def read(self, place: Place, size: int) -> bytes:
        return await self._copy.read(place, size)


async def test_a_piece_that_ends_within_a_frame_is_no_damage(
    tmp_path: Path, worker: Worker
) -> None:
    """A machine may die between two pieces of what it copies; only whole frames are noted as synced."""
    await fill(tmp_path / "a")
    await worker.run(die_at_each_byte, tmp_path)


def die_at_each_byte(path: Path) -> None:
    source = Replica.open(FS, path / "a")
    first = source.extents()[0]
    ends = [HEADER_BYTES, *(end for end, _ in source.frames(first.start))][:4]
    target = Replica.open(FS, path / "b")
    target.obey(1, "p")
    place = Place(first.start, first.created_us, 0)
    target.write(place, [source.read(place, HEADER_BYTES)])
    chance = random.Random(1)
    for position in sorted(chance.sample(range(HEADER_BYTES + 1, ends[-1] + 1), 40)):
        at = target.sync()
        target.write(at, [source.read(at, position - at.position)])
        target.sync()
        target.release()  # as if the process had died
        noted = load_note(FS, path / "b")
        assert noted.tail_position == max(end for end in ends if end <= position)
        target = Replica.open(FS, path / "b")
        assert target.end.place.position == noted.tail_position
    for replica in (source, target):
        replica.close()
        replica.release()


@pytest.mark.parametrize("kind", ["remove", "sync_directory", "truncate", "datasync", "open"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("position", [0, 4096])
async def test_a_cut_that_ends_anywhere_leaves_a_copy_that_can_be_continued(
    kind: str, nth: int, position: int, tmp_path: Path, worker: Worker
) -> None:
    """What was cut is not called damage, whatever was done of it."""
    await fill(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    fs = FaultyFileSystem(FS)

    def cut() -> None:
        target = Replica.open(fs, tmp_path / "b")
        target.obey(2, "p")
        fs.fail(kind, nth=nth)
        with contextlib.suppress(OSError):
            target.cut(target.end.place.segment, position)
        target.release()  # as if the process had died

    await worker.run(cut)
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


async def test_a_repaired_copy_is_new(tmp_path: Path, worker: Worker) -> None:
    await fill(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    last = max((tmp_path / "b").glob("*.wal"))
    last.write_bytes(last.read_bytes().rstrip(bytes(1))[:-20])

    def repair() -> None:
        with pytest.raises(CorruptionError, match="synced here"):
            Replica.open(FS, tmp_path / "b")
        plan = plan_repair(tmp_path / "b", keep="before", fs=FS)
        apply_repair(plan, fs=FS)
        again = Replica.open(FS, tmp_path / "b")
        assert again.promise == Promise()
        again.close()
        again.release()

    await worker.run(repair)
    await copy(worker, tmp_path / "a", tmp_path / "b")
    assert await records(tmp_path / "b") == await records(tmp_path / "a")


async def test_a_whole_segment_is_read_once_for_all_primaries(
    tmp_path: Path, worker: Worker
) -> None:
    """Else a new copy of a large log never counts: each opening gives up after a while, and begins again."""
    await fill(tmp_path / "log")
    await copy(worker, tmp_path / "log", tmp_path / "copy")
    await worker.run(read_once, tmp_path / "copy")


def read_once(path: Path) -> None:
    disk = FaultyFileSystem()
    with contextlib.closing(Replica.open(disk, path)) as made:
        first = made.extents()[0]

        def read_bytes(epoch: int, most_bytes: int | None = None) -> int:
            made.obey(epoch, f"p{epoch}")
            before = len(disk.calls)
            assert made.check(first.start, 0, most_bytes) == first.size
            reads = [call for call in disk.calls[before:] if call.matches("pread", "0*.wal")]
            return sum(call.size_bytes or 0 for call in reads)

        assert read_bytes(2) > first.size
        assert read_bytes(3) < 1000  # its header
        assert read_bytes(4, first.size) > first.size  # a scrub looks at the disk
        assert read_bytes(5) < 1000
    made.release()
