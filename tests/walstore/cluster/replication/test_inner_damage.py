"""Damage inside a copy when it is opened: a segment before the last is missing, cut short, or not to be read.

The last segment says where the copy ends. The others come from another copy, in place.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.test_damage import fill, segments, start, stop
from tests.walstore.cluster.replication.test_healing import filled, flip, sealed_files
from tests.walstore.cluster.replication.test_lost_segments import break_sector
from tests.walstore.cluster.replication.test_replica import copy, worker
from tests.walstore.cluster.replication.test_replica import fill as fill_log
from tests.walstore.cluster.replication.test_replication import caught_up
from walstore import CorruptionError, StorageUnavailableError, Wal, WalError
from walstore.cluster.replication.position import Place
from walstore.cluster.replication.replica import Replica
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import CELL_FILE_NAME
from walstore.core.format.segment import FOOTER_MAGIC
from walstore.core.format.segment import file_name as segment_name
from walstore.core.runtime.tasks import start_task
from walstore.core.runtime.threads import Worker
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call, failure

__all__ = ["worker"]

pytestmark = pytest.mark.timeout(60)

Damage = Callable[[Path], None]


def flip_header(path: Path) -> None:
    flip(path, 0.0005)


def flip_footer(path: Path) -> None:
    flip(path, 0.9999)


def flip_footer_body(path: Path) -> None:
    """A checkpoint knows this footer by its seal, which is whole."""
    data = bytearray(path.read_bytes())
    data[data.rindex(FOOTER_MAGIC) + 9] ^= 1
    path.write_bytes(data)


def cut_a_frame(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_the_seal(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_all(path: Path) -> None:
    path.write_bytes(b"")


def add_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"behind the footer")


DAMAGES = [
    Path.unlink,
    flip_header,
    flip_footer,
    flip_footer_body,
    cut_a_frame,
    cut_the_seal,
    cut_all,
    add_bytes,
]


def forget_checkpoint(cluster: Cluster, number: int) -> None:
    """Without it, opening reads the footers of all segments."""
    (cluster.machines[number].path / "orders" / "CHECKPOINT").unlink(missing_ok=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_copy_follows_and_is_repaired_in_place(
    cluster: Cluster, damage: Damage, has_checkpoint: bool
) -> None:
    """It counts meanwhile: its last segment says where it ends, and the third copy is away."""
    before, sound = await filled(cluster, 300)
    damage(segments(cluster, 1)[1])
    if not has_checkpoint:
        forget_checkpoint(cluster, 1)
    for number in (0, 1):
        await cluster.machines[number].start()
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await wal.append(b"more")
    await until(lambda: sealed_files(cluster, 1, sound) == sound)
    assert await values(wal) == [*before, b"more"]
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    await cluster.machines[0].start()
    wal = await cluster.primary(1)
    assert await values(wal) == [*before, b"more"]
    await wal.aclose()


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_copy_that_is_to_lead_gets_them_first(
    cluster: Cluster, damage: Damage, has_checkpoint: bool
) -> None:
    before, sound = await filled(cluster, 300)
    for path in segments(cluster, 1)[1:3]:
        damage(path)
    if not has_checkpoint:
        forget_checkpoint(cluster, 1)
    await start(cluster)
    wal = await cluster.primary(1)
    assert await values(wal) == before
    await wal.append(b"more")
    for path in segments(cluster, 1):  # what nobody read may be as it was
        assert await wal._engine.replicator.heal(int(path.stem))  # type: ignore[union-attr]
    assert sealed_files(cluster, 1, sound) == sound
    await wal.aclose()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_it_gets_all_of_them_whatever_else_is_missing(
    cluster: Cluster, damage: Damage
) -> None:
    """What is put back makes the checkpoint one of another state, so it is not used again."""
    before, sound = await filled(cluster, 300)
    oldest, _, other = segments(cluster, 1)[:3]
    oldest.unlink()
    damage(other)
    await start(cluster)
    wal = await cluster.primary(1)
    assert await values(wal) == before
    await wal.aclose()
    assert sealed_files(cluster, 1, sound) == sound


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_copy_that_has_most_is_the_log(cluster: Cluster, damage: Damage) -> None:
    """The one that is to lead lacks the last records; what is damaged in the best one comes from a third."""
    wal = await cluster.primary(0)
    await fill(wal, 60)
    await caught_up(cluster, wal, 1, 2)
    await cluster.machines[2].stop()
    before = await fill(wal, 160)
    await caught_up(cluster, wal, 1)
    await wal.aclose()
    await stop(cluster)
    sound = cluster.files(0)
    late = [path for path in segments(cluster, 1)[:-1] if path.name not in cluster.files(2)]
    damage(late[1])
    forget_checkpoint(cluster, 1)
    await start(cluster)
    await cluster.machines[0].stop()
    with pytest.raises((CorruptionError, StorageUnavailableError)):  # nobody has it
        await cluster.primary(2, patience_seconds=RUNS_OUT_SECONDS)
    assert all(sound[name] == data for name, data in sorted(cluster.files(2).items())[:-1])
    for number in (0, 2):
        await cluster.machines[number].start()
    wal = await cluster.primary(2, quorum=3)
    assert await values(wal) == before
    await wal.aclose()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_two_copies_help_each_other(cluster: Cluster, damage: Damage) -> None:
    before, sound = await filled(cluster, 300)
    damage(segments(cluster, 0)[1])
    damage(segments(cluster, 1)[2])
    for number in (0, 1):
        forget_checkpoint(cluster, number)
        await cluster.machines[number].start()
    wal = await cluster.primary(0, scrub_seconds=0.01)
    assert await values(wal) == before
    await until(lambda: sealed_files(cluster, 1, sound) == sound)
    await until(lambda: sealed_files(cluster, 0, sound) == sound)
    await wal.aclose()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_no_copy_has_is_refused_by_name(tmp_path: Path, damage: Damage) -> None:
    """Nothing is changed, and the copy is not given to readers as if it was whole."""
    async with Cluster(tmp_path, 2) as cluster:
        _, sound = await filled(cluster, 300)
        for number in (0, 1):
            damage(segments(cluster, number)[1])
            forget_checkpoint(cluster, number)
        kept = [sealed_files(cluster, number, sound) for number in (0, 1)]
        await start(cluster)
        with pytest.raises(CorruptionError, match="missing or damaged"):
            await cluster.primary(0)
        await cluster.machines[0].start()
        assert [sealed_files(cluster, number, sound) for number in (0, 1)] == kept


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_local_log_goes_on_refusing(tmp_path: Path, damage: Damage) -> None:
    async with Cluster(tmp_path) as cluster:
        wal = await cluster.primary(0)
        await fill(wal, 300)
        await wal.aclose()
        await stop(cluster)
        forget_checkpoint(cluster, 0)
        for name in ("PROMISE", "SYNCED"):
            (cluster.machines[0].path / "orders" / name).unlink()
        damage(segments(cluster, 0)[1])
        kept = cluster.files(0)
        with pytest.raises(CorruptionError):
            await Wal.open(cluster.machines[0].path / "orders")
        assert cluster.files(0) == kept


@pytest.mark.parametrize("damage", [Path.unlink, flip_header, cut_a_frame])
async def test_readers_of_a_copy_get_an_error_for_what_is_damaged(
    cluster: Cluster, damage: Damage
) -> None:
    """Until it is repaired; before and behind it they read on."""
    before, sound = await filled(cluster, 300)
    lost, following = segments(cluster, 1)[1:3]
    whole = lost.read_bytes()
    damage(lost)
    forget_checkpoint(cluster, 1)
    disk = cluster.machines[1].fs = FaultyFileSystem()
    for number in (0, 1):
        await cluster.machines[number].start()
    disk.fail("open", name="mended.tmp", times=None)
    disk.fail("pwrite", name=lost.name, times=None)
    wal = await cluster.primary(0)
    await wal.append(b"more")
    await caught_up(cluster, wal, 1)
    node = cluster.machines[1].node
    assert node is not None
    log = await node.log("orders")
    await until(lambda: log.limit == wal.tail)
    first, end = int(lost.stem), int(following.stem)
    assert log.head == 1
    assert (await log.read(1, log.limit, 1 << 20))[-1].limit <= end
    for position in (end - 1, first + 5) if damage is not cut_a_frame else (end - 1,):
        with pytest.raises(CorruptionError):
            await log.read(position, log.limit, 1 << 20)
    assert (await log.read(end, log.limit, 1 << 20))[0].start == end
    time_us = await wal.timestamp_at(end - 1)
    if await wal.timestamp_at(end) > time_us:
        with pytest.raises(CorruptionError):
            await log.offset_at(time_us)
    with pytest.raises(CorruptionError):
        async with log.reader(follow=False) as reader:
            [record async for record in reader]
    disk.heal()
    wal.begin_scrub()
    await until(lambda: lost.exists() and lost.read_bytes() == whole)
    async with log.reader(follow=False) as reader:
        assert [record.value async for record in reader] == [*before, b"more"]
    assert sealed_files(cluster, 1, sound) == sound
    await wal.aclose()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace", "sync_directory"])
@pytest.mark.parametrize("damage", [Path.unlink, flip_header, cut_a_frame])
async def test_getting_them_may_fail_at_any_call(
    cluster: Cluster, damage: Damage, kind: str, happened: bool
) -> None:
    """The machine that is to lead tries again; a file is there as it was, in part, or whole."""
    before, sound = await filled(cluster, 300)
    damaged = segments(cluster, 1)[1]
    damage(damaged)
    forget_checkpoint(cluster, 1)
    for number in (0, 2):
        await cluster.machines[number].start()
    disk = cluster.machines[1].fs = FaultyFileSystem()
    disk.fail(kind, name="mended.tmp" if damage is Path.unlink else damaged.name, happened=happened)
    wal: Wal | None = None
    for _ in range(3):
        with suppress(WalError):
            wal = await cluster.primary(1)
            break
    assert wal is not None
    assert await values(wal) == before
    await wal.aclose()
    assert sealed_files(cluster, 1, sound) == sound


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace", "sync_directory"])
@pytest.mark.parametrize("damage", [Path.unlink, flip_footer, cut_a_frame])
async def test_a_copy_that_fails_while_it_gets_them_gets_them_later(
    cluster: Cluster, damage: Damage, kind: str, happened: bool
) -> None:
    before, sound = await filled(cluster, 300)
    damaged = segments(cluster, 1)[1]
    damage(damaged)
    forget_checkpoint(cluster, 1)
    disk = cluster.machines[1].fs = FaultyFileSystem()
    await start(cluster)
    disk.fail(kind, name="mended.tmp" if damage is Path.unlink else damaged.name, happened=happened)
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await until(lambda: sealed_files(cluster, 1, sound) == sound)
    assert await values(wal) == before
    await wal.aclose()


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_process_that_ends_meanwhile_leaves_a_copy(
    cluster: Cluster, tmp_path: Path, damage: Damage, kind: str
) -> None:
    """Before and after each call: its end is what it was, and what is damaged is so still, or whole."""
    _, sound = await filled(cluster, 300)
    directory, image = cluster.machines[1].path / "orders", tmp_path / "image"
    damaged = segments(cluster, 1)[1]
    damage(damaged)
    forget_checkpoint(cluster, 1)
    disk = cluster.machines[1].fs = FaultyFileSystem()
    await start(cluster)
    is_made = damage is Path.unlink
    if not is_made and kind in {"replace", "sync_directory"}:
        return  # no file gets another name
    if damage is add_bytes and kind == "pwrite":
        kind = "truncate"
    name = {"replace": "*", "sync_directory": "*"}.get(
        kind, "mended.tmp" if is_made else damaged.name
    )
    with disk.hold(kind, name=name, times=1) as held:
        opening = start_task(cluster.primary(1))
        await held.wait_entered()
        await asyncio.to_thread(shutil.copytree, directory, image, ignore=no_sockets)
        held.release()
        wal = await opening
    files = {path.name: path.read_bytes() for path in image.glob("*.wal")}
    assert all(files.get(name) == data for name, data in sound.items() if name != damaged.name)
    found = await asyncio.to_thread(Replica.open, PosixFileSystem(), image)
    try:
        assert list(found.damaged) in ([], [int(damaged.stem)])
        assert found.damaged or files[damaged.name] == sound[damaged.name]
        assert found.end.limit == 301
        assert not (image / "mended.tmp").exists()
    finally:
        await asyncio.to_thread(found.close)
        await asyncio.to_thread(found.release)
    await wal.aclose()


def no_sockets(_: object, names: list[str]) -> list[str]:
    return [name for name in names if name == "LOCK"]


async def test_a_third_copy_helps_two_that_lack_the_same(cluster: Cluster) -> None:
    """Its promise is not needed, and comes late."""
    before, sound = await filled(cluster, 300)
    for number in (0, 1):
        segments(cluster, number)[1].unlink()
        forget_checkpoint(cluster, number)
    await start(cluster)
    wal = await cluster.primary(0, scrub_seconds=0.01)
    assert await values(wal) == before
    for number in (0, 1):
        await until(lambda number=number: sealed_files(cluster, number, sound) == sound)
    await wal.aclose()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_new_copy_does_not_count_with_a_gap(tmp_path: Path, damage: Damage) -> None:
    """It forgot its promise, so it is new. The leader has no such segment either, until the third comes."""
    async with Cluster(tmp_path) as cluster:
        before, sound = await filled(cluster, 300)
        for number in (0, 1):
            damage(segments(cluster, number)[1])
            forget_checkpoint(cluster, number)
        (cluster.machines[1].path / "orders" / "PROMISE").unlink()
        for number in (0, 1):
            await cluster.machines[number].start()
        with pytest.raises(WalError):
            await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)
        await cluster.machines[0].start()
        await cluster.machines[2].start()
        wal = await cluster.primary(0)
        await caught_up(cluster, wal, 1)
        assert sealed_files(cluster, 1, sound) == sound
        assert await values(wal) == before
        await wal.aclose()


async def test_files_that_contradict_each_other_are_refused(cluster: Cluster) -> None:
    await filled(cluster, 300)
    first, second, third = segments(cluster, 1)[:3]
    kept = second.read_bytes()
    second.write_bytes(third.read_bytes())
    forget_checkpoint(cluster, 1)
    with pytest.raises(CorruptionError, match="not the one its name says"):
        await asyncio.to_thread(Replica.open, PosixFileSystem(), first.parent)
    assert second.read_bytes() == third.read_bytes() != kept


@pytest.mark.parametrize("damage", [Path.unlink, flip_header, flip_footer])
async def test_a_tail_of_its_own_behind_a_gap_is_not_cut(
    tmp_path: Path, worker: Worker, damage: Damage
) -> None:
    """A cut to what comes before the gap would take what is replicated with it."""
    await fill_log(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    directory = tmp_path / "b"
    *_, lost, last = sorted(directory.glob("*.wal"))
    for path in (last, *(directory / name for name in ("PROMISE", "SYNCED"))):
        path.unlink()
    async with Wal.open(directory) as wal:  # it begins another last segment
        await wal.append(b"other")
    damage(lost)
    for name in ("CHECKPOINT", CELL_FILE_NAME):
        (directory / name).unlink(missing_ok=True)
    kept = {path.name: path.read_bytes() for path in directory.glob("*.wal")}
    with pytest.raises(CorruptionError, match="cannot be compared"):
        await copy(worker, tmp_path / "a", directory)
    assert {path.name: path.read_bytes() for path in directory.glob("*.wal")} == kept


async def test_a_copy_is_never_made_with_a_gap(tmp_path: Path, worker: Worker) -> None:
    """Its source has one: it gets what comes before."""
    await fill_log(tmp_path / "a")
    sound = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.wal")}
    lost = sorted(sound)[1]
    (tmp_path / "a" / lost).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        await copy(worker, tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").glob("*.wal")} == {
        name: data for name, data in sound.items() if name < lost
    }


async def test_a_header_that_cannot_be_read_is_damage_as_another(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy counts, and the header is written again. What its node logs says no other thing."""
    before, sound = await filled(cluster, 300)
    damaged = segments(cluster, 1)[1]
    disk = cluster.machines[1].fs = FaultyFileSystem()
    break_sector(disk, damaged, 0.0005)
    await start(cluster)
    wal = await cluster.primary(0, scrub_seconds=0.01)
    await until(lambda: wal.statistics().mended_bytes > 0)
    await caught_up(cluster, wal, 1)
    assert await values(wal) == before
    await wal.aclose()
    assert sealed_files(cluster, 1, sound) == sound
    assert "lacks whole segments: " in caplog.text
    assert "the copy of orders here does not count" not in caplog.text


@pytest.mark.parametrize("at", [0.0005, 0.9999])
async def test_what_the_disk_does_not_read_may_be_read_the_next_time(
    tmp_path: Path, at: float
) -> None:
    """No other copy helps, so the log is not available; it is not called damaged, and goes on afterwards."""
    async with Cluster(tmp_path, 2) as cluster:
        before, sound = await filled(cluster, 300)
        unread = segments(cluster, 0)[1]
        flip_header(segments(cluster, 1)[1])
        disk = cluster.machines[0].fs = FaultyFileSystem()
        break_sector(disk, unread, at)
        await start(cluster)
        with pytest.raises(StorageUnavailableError):
            await cluster.primary(0, patience_seconds=RUNS_OUT_SECONDS)

        def look_twice() -> None:
            with closing(Replica.open(disk, unread.parent)) as copy:
                with pytest.raises(StorageUnavailableError, match=f"does not read .*{unread.name}"):
                    copy.check_inside()
                disk.heal()
                copy.check_inside()
                assert not copy.damaged
                copy.release()

        await asyncio.to_thread(look_twice)
        wal = await cluster.primary(0)
        assert await values(wal) == before
        await wal.aclose()
        assert sealed_files(cluster, 0, sound) == sound


async def test_a_segment_that_is_damaged_is_named_before_one_that_is_not_read(
    tmp_path: Path,
) -> None:
    """Whatever the disk reads the next time, that one stays lost."""
    async with Cluster(tmp_path, 2) as cluster:
        await filled(cluster, 300)
        for number in (0, 1):
            flip_header(segments(cluster, number)[2])
        flip_header(segments(cluster, 1)[1])
        disk = cluster.machines[0].fs = FaultyFileSystem()
        break_sector(disk, segments(cluster, 0)[1], 0.9999)
        await start(cluster)
        with pytest.raises(CorruptionError, match=segments(cluster, 0)[2].name):
            await cluster.primary(0)


def mend_counting(directory: Path, source: Path, gone: list[Path]) -> list[int]:
    """Put segments of a whole copy where they are missing or damaged, the newest first; return what calls
    each of them made."""
    disk = FaultyFileSystem()
    with closing(Replica.open(PosixFileSystem(), source)) as sound:
        extents = {segment_name(one.start): one for one in sound.extents()}
        first = sound.end.first
        sound.release()
    with closing(Replica.open(disk, directory)) as copy:
        calls = []
        for path in reversed(gone):
            start, _, created_us, *_ = extents[path.name]
            before = len(disk.calls)
            copy.mend(Place(start, created_us, 0), (source / path.name).read_bytes())
            calls.append(len(disk.calls) - before)
        assert not copy.damaged
        assert copy.end.first == first
        copy.release()
    return calls


@pytest.mark.parametrize("lost", ["inner", "oldest", "headers"])
async def test_what_a_segment_costs_does_not_grow_with_how_many_are_lost(
    tmp_path: Path, worker: Worker, lost: str
) -> None:
    """Each is looked at once it is complete, and no other one: else the disk is read again and again."""
    for _ in range(8):
        await fill_log(tmp_path / "a")
    await copy(worker, tmp_path / "a", tmp_path / "b")
    files = sorted((tmp_path / "b").glob("*.wal"))
    assert len(files) > 25
    gone = files[:20] if lost == "oldest" else files[1:21]
    for path in gone:
        if lost == "headers":
            flip_header(path)
        else:
            path.unlink()
    (tmp_path / "b" / "CHECKPOINT").unlink(missing_ok=True)
    calls = await worker.run(mend_counting, tmp_path / "b", tmp_path / "a", gone)
    assert len(calls) == 20
    assert max(calls) <= min(calls) + 4


@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace", "sync_directory"])
async def test_a_copy_of_which_all_is_too_old_is_replaced_whatever_fails_once(
    cluster: Cluster, kind: str
) -> None:
    """Its files are gone by then; what it had still counts for the machine that is to lead."""
    wal = await cluster.primary(0)
    await fill(wal, 100)
    await cluster.machines[1].stop()
    await fill(wal, 400)
    await wal.trim(wal.tail)
    await caught_up(cluster, wal, 2)
    tail = wal.tail
    await wal.aclose()
    assert max(int(path.stem) for path in segments(cluster, 1)) < min(
        int(path.stem) for path in segments(cluster, 2)
    )
    disk = cluster.machines[1].fs = FaultyFileSystem()
    failed = False

    def fail_once(call: Call) -> None:
        nonlocal failed
        if not failed and not segments(cluster, 1) and call.kind == kind:
            failed = True
            raise failure(errno.EIO, call.path)

    disk.before_each(fail_once)
    wal = await cluster.primary(1)
    assert failed
    assert wal.tail == tail
    await wal.append(b"more")
    await wal.aclose()
