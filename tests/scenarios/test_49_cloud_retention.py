"""Local files go once they are uploaded, never before, and a reader never notices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
from itertools import count
from pathlib import Path

import pytest

from tests.cloud import SMALL, RecordingStore, cloud_values, copy_store, tier, values
from tests.effort import every
from tests.local import SMALL as SMALL_LOG
from tests.local import UnsyncedFileSystem, crashes, read_values, segments, turns
from tests.waiting import until
from uploader import UploadSettings
from uploader.stores.memory import MemoryStore
from uploader.testing import faults
from walstore import OffsetTrimmedError, Wal, WalClosedError
from walstore.core.files.spare_segment import NAME as SPARE_NAME
from walstore.errors import WalError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

NOTHING_KEPT = SMALL_LOG.replace(cache_bytes=0, retention_bytes=0)
EXPECTED = values(600)


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore(MemoryStore())


async def fill(wal: Wal, content: list[bytes] = EXPECTED) -> None:
    for value in content:
        await wal.append(value, durability="memory")
    await wal.flush()


async def test_nothing_goes_before_it_is_uploaded(log_directory: Path, store) -> None:
    """However far over its budget the log is. And when the store is back, only the active one stays."""
    away = asyncio.Event()
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store)) as wal:
        await wal.append(b"0" * 500, durability="cloud")
        store.on("any", faults.hang(away), times=99)
        await fill(wal)
        before = segments(log_directory)
        assert len(before) > 4
        await turns(200)
        assert segments(log_directory) == before
        assert wal.uploaded_limit == 2
        away.set()
        await wal.wait_durable(601, "cloud")
        await until(lambda: len(segments(log_directory)) == 1)
        assert wal.head == 1
        assert await read_values(wal) == [b"0" * 500, *EXPECTED]
        assert wal.statistics().local_head > 300


async def test_only_whole_segments_below_the_uploaded_limit_go(log_directory: Path, store) -> None:
    """At every moment each offset can be read from somewhere, whatever was deleted up to then."""
    seen: list[tuple[int, int]] = []
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store)) as wal:

        async def watch() -> None:
            first = 1
            while wal.uploaded_limit < 601 or first <= 300:
                first = int(segments(log_directory)[0].stem)
                seen.append((first, wal.uploaded_limit))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            await fill(wal)
    assert len({first for first, _ in seen}) > 1
    assert all(first <= uploaded for first, uploaded in seen)
    assert await cloud_values(store.inner) == EXPECTED


async def test_a_budget_keeps_the_newest_files(log_directory: Path, store) -> None:
    settings = SMALL_LOG.replace(retention_bytes=150 << 10)
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        await fill(wal)
        await wal.wait_durable(600, "cloud")
        await until(lambda: _sealed_bytes(log_directory) < 160 << 10)
        assert _sealed_bytes(log_directory) > 64 << 10


def _sealed_bytes(directory: Path) -> float:
    """Return what the files take but for the last, or infinity while one is being deleted."""
    try:
        return sum(path.stat().st_size for path in segments(directory)[:-1])
    except FileNotFoundError:
        return math.inf


async def test_killed_between_the_head_and_the_deletion(log_directory: Path, store, faulty) -> None:
    """The head is durable first; the next opening finishes the deletion and reads from the cloud."""
    faulty.fail("remove", errno.EIO, name="0*.wal", times=None)
    # Nor is one kept for the next segment, under this name.
    faulty.fail("replace", errno.EIO, name=SPARE_NAME, times=None)
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store), fs=faulty) as wal:
        await fill(wal)
        await until(lambda: wal._state.head > 1)
    before = segments(log_directory)
    faulty.heal()
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store)) as wal:
        assert segments(log_directory)[0] > before[0]
        assert wal.head == 1
        assert await read_values(wal) == EXPECTED[: wal.tail - 1]
        await wal.append_many(EXPECTED[wal.tail - 1 :] or [b"x"])
    assert (await cloud_values(store.inner))[:600] == EXPECTED


async def test_the_power_goes_while_files_are_deleted(scratch: Path) -> None:
    """Before any call on the disk; whatever it keeps of it, every record is in a file or in the cloud."""
    content = values(40, 6000)
    for nth in count(1, every(5)):
        root = scratch / str(nth) / "before"
        root.mkdir(parents=True)
        inner = MemoryStore()
        power = PowerLossFileSystem(root, UnsyncedFileSystem())
        fs = FaultyFileSystem(power)
        fs.before_each(lambda _, fs=fs, power=power, nth=nth: fs.count("*") >= nth and power.cut())
        acknowledged = 0
        with contextlib.suppress(WalError):
            async with Wal.open(
                root / "log", settings=NOTHING_KEPT, tier=tier(inner), fs=fs
            ) as wal:
                for value in content:
                    acknowledged = await wal.append(value)
        for crashed in crashes(power, (LOSE_ALL, KEEP_ALL, nth + 2), root.parent):
            again = tier(await copy_store(inner))
            async with Wal.open(crashed / "log", settings=NOTHING_KEPT, tier=again) as wal:
                found = await read_values(wal)
                assert wal.head == 1
                assert found == content[: len(found)]
                assert len(found) >= acknowledged
                assert wal.statistics().tier_failure is None
        if len(fs.calls) < nth:
            break
    assert nth > 100


async def test_without_its_tier_the_rest_is_still_a_log(log_directory: Path, store) -> None:
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store)) as wal:
        await fill(wal)
        await wal.wait_durable(600, "cloud")
        await until(lambda: len(segments(log_directory)) == 1)
        head = wal.statistics().local_head
    async with Wal.open(log_directory, settings=SMALL_LOG) as wal:
        assert wal.head == head
        assert await read_values(wal) == EXPECTED[head - 1 :]
        with pytest.raises(OffsetTrimmedError):
            await anext(wal.follow(1))
        await wal.append(b"more")
    async with Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store)) as wal:
        assert wal.head == 1
        assert await read_values(wal) == [*EXPECTED, b"more"]


async def test_a_trimmed_log_and_an_empty_prefix(log_directory: Path, store) -> None:
    """Nothing is shipped to where the beginning would be missing, and nothing more is deleted."""
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store)) as wal:
        await fill(wal)
        await wal.wait_durable(600, "cloud")
        await until(lambda: wal.statistics().local_head > 300)
    other = RecordingStore(MemoryStore())
    async with Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(other)) as wal:
        with pytest.raises(OffsetTrimmedError, match="ship this log to the prefix that has them"):
            await wal.append(b"x", durability="cloud")
        before = segments(log_directory)
        await fill(wal)
        await wal.rotate()
        assert segments(log_directory)[: len(before)] == before
    assert [listed.key async for listed in other.inner.list("")] == []


# -- readers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["open", "pread"])
async def test_the_file_goes_in_the_middle_of_a_read(
    log_directory: Path, store, faulty, kind
) -> None:
    """Before it is opened: the records come from the cloud. Later: it is read to its end."""
    whole = UploadSettings(fragment_age_seconds=3600.0)
    wal = await Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store, whole), fs=faulty)
    publish, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_match", faults.hang(publish, reached), key_prefix="manifest/")
    await fill(wal)
    waiting = asyncio.create_task(wal.wait_durable(600, "cloud"))
    await reached.wait()
    with faulty.hold(kind, name="00000000000000000001.wal") as hold:
        reading = asyncio.create_task(read_values(wal))
        await hold.wait_entered()
        publish.set()
        await until(lambda: wal.statistics().local_head > 300)
    assert await reading == EXPECTED
    assert wal.statistics().tier_reads > 0
    await waiting
    await wal.aclose()


async def test_slow_and_fast_readers_while_everything_moves(log_directory: Path, store) -> None:
    """Rotation, upload and deletion go on under readers at all speeds; each sees every record once."""
    settings = SMALL_LOG.replace(retention_bytes=64 << 10)
    total = 700
    content = values(total)
    async with Wal.open(log_directory, settings=settings, tier=tier(store, SMALL)) as wal:

        async def produce() -> None:
            for value in content:
                await wal.append(value)

        async def by_record(pause: int) -> list[bytes]:
            found = []
            async for record in wal.follow(stop=total + 1):
                found.append(record.value)
                if record.offset % 50 == 0:
                    await turns(pause)
            return found

        async def by_batch() -> list[bytes]:
            found: list[bytes] = []
            async for batch in wal.follow(stop=total + 1).batches():
                found += batch.values
                await turns(20)
            return found

        async def backwards() -> list[bytes]:
            """Seek to older and older places, wherever they lie by now."""
            await until(lambda: wal.durable_limit > 300)
            reader, found = wal.follow(), []
            for start in range(291, 0, -10):
                reader.seek(start)
                found[:0] = [(await anext(reader)).value for _ in range(10)]
                await turns(20)
            return found

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            all_readers = [
                group.create_task(by_record(0)),
                group.create_task(by_record(100)),
                group.create_task(by_batch()),
            ]
            back = group.create_task(backwards())
        for task in all_readers:
            assert task.result() == content
        assert back.result() == content[:300]
        assert wal.statistics().tier_failure is None
    assert await cloud_values(store.inner) == content


async def test_a_start_by_time_in_any_tier(log_directory: Path, store) -> None:
    """Cloud, file, cache: the first record at or after the moment, wherever it lies."""
    settings = SMALL_LOG.replace(retention_bytes=64 << 10)
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        for number, value in enumerate(EXPECTED):
            await wal.append(value, durability="memory", timestamp_us=1_000_000 * (number // 3))
        await wal.wait_durable(600, "cloud")
        await until(lambda: wal.statistics().local_head > 1)
        local_head = wal.statistics().local_head
        records = [record async for record in wal.reader(follow=False)]
        for at in [*range(0, 600, 17), local_head - 2, local_head - 1, local_head, 598, 599]:
            first = at // 3 * 3
            async with wal.reader(records[at].timestamp, follow=False) as reader:
                assert reader.position == first + 1
                assert (await anext(reader)).value == EXPECTED[first]
        assert wal.statistics().tier_reads > 0


async def test_the_log_closes_under_a_reader_of_the_cloud(log_directory: Path, store) -> None:
    """A reader between two calls is told by a typed error, in whichever tier it is."""
    wal = await Wal.open(log_directory, settings=NOTHING_KEPT, tier=tier(store))
    await fill(wal)
    await wal.wait_durable(600, "cloud")
    await until(lambda: wal.statistics().local_head > 300)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.happen_then_hang(release, reached))
    reading = asyncio.create_task(read_values(wal))
    await reached.wait()
    await wal.aclose()
    release.set()
    with pytest.raises(WalClosedError):
        await reading
    with pytest.raises(WalClosedError):
        await read_values(wal)
