"""Stores that are away, logs that fail or close meanwhile, callers that lose patience."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.cloud import (
    GIVES_UP,
    SEGMENTS,
    RecordingStore,
    cloud_values,
    snapshot,
    tier,
    unreferenced,
    values,
)
from tests.local import SMALL as SMALL_LOG
from tests.local import contents
from tests.waiting import until
from uploader import UploadSettings
from uploader.format import layout
from uploader.stores.memory import MemoryStore
from uploader.testing import faults
from uploader.testing.faults import fail, timeout
from walstore import Settings, StorageUnavailableError, Wal
from walstore.errors import (
    ContentionError,
    CorruptionError,
    DiskFullError,
    InvalidSettingsError,
    LogNotFoundError,
    WalClosedError,
    WalError,
)

LAZY = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore(MemoryStore())


# -- at opening ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (timeout("not_written"), True),
        (StorageUnavailableError("forbidden", retriable=False), False),
        (LogNotFoundError("there is no such bucket", location="s3://b"), False),
        (InvalidSettingsError("the bucket is in another region"), False),
        (DiskFullError("no space is left"), False),
    ],
)
async def test_unusable_when_it_opens(log_directory: Path, store, error, retriable) -> None:
    """The store's own error; the lock is free again, and without the tier the log opens."""
    async with Wal.open(log_directory) as wal:
        await wal.append(b"v")
    store.on("any", fail(error), times=99)
    for _ in range(2):
        with pytest.raises(type(error)) as told:
            await Wal.open(log_directory, tier=tier(store))
        assert told.value.retriable == retriable
    async with Wal.open(log_directory) as wal:
        assert await wal.append(b"v") == 2


async def test_cancelled_while_it_opens(log_directory: Path, store) -> None:
    reached = asyncio.Event()
    store.on("any", faults.hang(asyncio.Event(), reached), times=99)
    opening = asyncio.create_task(Wal.open(log_directory, tier=tier(store)).__aenter__())
    await reached.wait()
    opening.cancel()
    await asyncio.wait((opening,))
    assert opening.cancelled()
    async with Wal.open(log_directory, tier=tier(RecordingStore(store.inner))) as wal:
        assert await wal.append(b"v", durability="cloud") == 1


# -- while it runs ---------------------------------------------------------------------------


async def test_local_appends_go_on_and_cloud_appends_wait(log_directory: Path, store) -> None:
    async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(store)) as wal:
        await wal.append(b"first", durability="cloud")
        away = asyncio.Event()
        store.on("any", faults.hang(away), times=99)
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(wal.append(b"cloud", durability="cloud")) for _ in range(20)
            ]
            for _ in range(200):
                await wal.append(b"local")
            reader = wal.reader(follow=False)
            assert len([record async for record in reader]) == 221
            assert not any(task.done() for task in waiting)
            assert wal.statistics().tier_failure is None
            away.set()
        assert len({task.result() for task in waiting}) == 20
        await wal.wait_durable(wal.tail - 1, "cloud")
    assert len(await cloud_values(store.inner)) == 221


@pytest.mark.parametrize(
    "error",
    [
        LogNotFoundError("there is no such bucket", location="s3://b"),
        ContentionError("somebody else"),
        CorruptionError("damaged", path="x"),
        ValueError("a defect"),
    ],
)
async def test_a_tier_that_fails_for_good_leaves_the_log_alone(
    log_directory: Path, store, error
) -> None:
    """Who waits for the cloud is told that the record is on disk; the next opening ships it."""
    async with Wal.open(log_directory, tier=tier(store, LAZY)) as wal:
        await wal.append(b"1", durability="cloud")
        store.on("put_if_match", fail(error), key_prefix=layout.MANIFEST)
        told = await asyncio.gather(
            *(wal.append(b"2", durability="cloud") for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(one, WalError) for one in told)
        assert {one.outcome for one in told} == {"durable"}
        assert len(set(map(id, told))) == 3
        with pytest.raises(WalError) as late:
            await wal.append(b"3", durability="cloud")
        assert late.value.outcome == "durable"
        with pytest.raises(WalError):
            await wal.wait_durable(2, "cloud")
        await wal.wait_durable(1, "cloud")
        assert str(error) in (wal.statistics().tier_failure or "")
        assert await wal.append(b"4") == 6
        assert [record.value async for record in wal.reader(5, follow=False)] == [b"3", b"4"]
    async with Wal.open(log_directory, tier=tier(RecordingStore(store.inner))):
        pass
    assert await cloud_values(store.inner) == [b"1", b"2", b"2", b"2", b"3", b"4"]
    assert await unreferenced(store.inner) == []


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailableError("the token expired", retriable=False),
        DiskFullError("no space is left"),
    ],
)
@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
async def test_what_somebody_has_to_end_is_waited_out(
    log_directory: Path, store, caplog, error, kind
) -> None:
    """Callers that wait for the cloud are told at once; shipping goes on by itself, without reopening."""
    async with Wal.open(log_directory, tier=tier(store, LAZY)) as wal:
        await wal.append(b"1", durability="cloud")
        is_refusing = True

        async def refuse(request: faults.Request) -> object:
            if is_refusing:
                raise error
            return await request()

        store.on(kind, refuse, times=10**9)
        for value in (b"2", b"3"):
            with pytest.raises(type(error)) as told:
                await wal.append(value, durability="cloud")
            assert told.value.outcome == "durable"
            assert wal.statistics().tier_failure == str(error)
        is_refusing = False
        await until(lambda: wal.statistics().tier_failure is None)
        assert await wal.append(b"4", durability="cloud") == 4
        assert wal.statistics().errors == {type(error).__name__: 1}
    assert [one for one in caplog.messages if "trying again" in one]
    assert await cloud_values(store.inner) == [b"1", b"2", b"3", b"4"]
    assert await unreferenced(store.inner) == []


async def test_a_store_that_refuses_until_the_log_is_closed(log_directory: Path, store) -> None:
    """Closing gives up as for one that does not answer; the next opening ships the rest."""
    async with Wal.open(log_directory, tier=tier(store, GIVES_UP)) as wal:
        await wal.append(b"1", durability="cloud")
        refused = StorageUnavailableError("forbidden", retriable=False)
        store.on("any", fail(refused), times=10**9)
        await wal.append(b"2")
    assert "fulfilled no request" in (wal.statistics().tier_failure or "")
    async with Wal.open(log_directory, tier=tier(RecordingStore(store.inner))):
        pass
    assert await cloud_values(store.inner) == [b"1", b"2"]


async def test_a_cancelled_waiter_stops_nothing(log_directory: Path, store) -> None:
    """Neither the put, nor those who wait beside it."""
    async with Wal.open(log_directory, tier=tier(store, LAZY)) as wal:
        release, reached = asyncio.Event(), asyncio.Event()
        store.on("put_if_absent", faults.hang(release, reached), key_prefix="log/")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(wal.append(b"1", durability="cloud"))
            await reached.wait()
            second = group.create_task(wal.append(b"2", durability="cloud"))
            await until(lambda: wal.durable_limit == 3)
            first.cancel()
            await asyncio.wait((first,))
            assert first.cancelled()
            release.set()
        assert second.result() == 2
        assert wal.uploaded_limit == 3
    assert await cloud_values(store.inner) == [b"1", b"2"]
    assert set(store.attempts.values()) == {1}


async def test_waiters_cancelled_by_the_hundred(log_directory: Path, store) -> None:
    async with Wal.open(log_directory, tier=tier(store, LAZY)) as wal:
        for _ in range(5):
            tasks = [asyncio.create_task(wal.append(b"v", durability="cloud")) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await wal.append(b"last", durability="cloud")
        assert wal.uploaded_limit == wal.tail
    assert (await cloud_values(store.inner))[-1] == b"last"


# -- at closing ------------------------------------------------------------------------------


async def test_closing_waits_for_what_is_in_flight(log_directory: Path, store) -> None:
    patient = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)
    release, reached = asyncio.Event(), asyncio.Event()
    wal = await Wal.open(log_directory, settings=SEGMENTS, tier=tier(store, patient))
    store.on("put_if_absent", faults.hang(release, reached), key_prefix="log/")
    for value in values(40):
        await wal.append(value, durability="memory")
    closing = asyncio.create_task(wal.aclose())
    await reached.wait()
    assert not closing.done()
    with pytest.raises(WalClosedError):
        await wal.append(b"too late")
    release.set()
    await closing
    assert await cloud_values(store.inner) == values(40)
    assert await unreferenced(store.inner) == []


async def test_cancelling_the_close_does_not_stop_it(log_directory: Path, store) -> None:
    patient = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)
    release, reached = asyncio.Event(), asyncio.Event()
    wal = await Wal.open(log_directory, tier=tier(store, patient))
    store.on("put_if_absent", faults.hang(release, reached), key_prefix="log/")
    await wal.append(b"v")
    closing = asyncio.create_task(wal.aclose())
    await reached.wait()
    closing.cancel()
    await asyncio.wait((closing,))
    assert closing.cancelled()
    release.set()
    await wal.aclose()
    assert await cloud_values(store.inner) == [b"v"]


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize(
    ("kind", "prefix"), [("put_if_absent", "log/"), ("put_if_match", "manifest/")]
)
async def test_closing_gives_up_on_a_store_that_hangs(
    log_directory: Path, store, kind, prefix, happens
) -> None:
    """After a while; waiters are told; nothing is lost, and nothing twice, at the next opening."""
    wal = await Wal.open(log_directory, settings=SEGMENTS, tier=tier(store, GIVES_UP))
    hang = faults.happen_then_hang if happens else faults.hang
    store.on(kind, hang(asyncio.Event()), key_prefix=prefix, times=99)
    for value in values(40):
        await wal.append(value)
    waiting = asyncio.create_task(wal.wait_durable(40, "cloud"))
    await wal.aclose()
    with pytest.raises(StorageUnavailableError, match="fulfilled no request") as told:
        await waiting
    assert told.value.outcome == "durable"
    before = await snapshot(store.inner)
    again = RecordingStore(store.inner)
    async with Wal.open(log_directory, settings=SEGMENTS, tier=tier(again)):
        pass
    assert await cloud_values(store.inner) == values(40)
    assert await unreferenced(store.inner) == []
    assert not before.keys() & again.attempts.keys()


async def test_closing_a_log_that_never_reached_its_store(log_directory: Path, store) -> None:
    """Not even the manifest could be made."""
    store.on("get", faults.hang(asyncio.Event()), nth=3, times=99)
    wal = await Wal.open(log_directory, tier=tier(store, GIVES_UP))
    await wal.append(b"v")
    await wal.aclose()
    assert "fulfilled no request" in (wal.statistics().tier_failure or "")
    assert (await contents(log_directory))[0].value == b"v"


# -- a failed log ----------------------------------------------------------------------------


async def test_a_failed_log_still_ships_what_is_durable(log_directory: Path, store, faulty) -> None:
    """The disk is gone for writing; what was synced is read from it, and reaches the cloud."""
    wal = await Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store, LAZY), fs=faulty)
    for value in values(100):
        await wal.append(value)
    faulty.fail("datasync", errno.EIO, times=None)
    faulty.fail("pwrite", errno.EIO, times=None)
    with pytest.raises(WalError) as told:
        await wal.append(b"lost", durability="cloud")
    assert told.value.outcome != "durable"
    await until(lambda: wal.uploaded_limit == 101)
    faulty.heal()
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert await cloud_values(store.inner) == values(100)


async def test_a_log_that_fails_while_fragments_are_in_flight(
    log_directory: Path, store, faulty
) -> None:
    release, reached = asyncio.Event(), asyncio.Event()
    settings = UploadSettings(fragment_bytes=4096, fragment_age_seconds=0.01)
    wal = await Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store, settings), fs=faulty)
    store.on("put_if_absent", faults.hang(release, reached), key_prefix="log/", times=3)
    for value in values(100):
        await wal.append(value)
    await reached.wait()
    waiting = asyncio.create_task(wal.wait_durable(100, "cloud"))
    faulty.fail("datasync", errno.EIO)
    with pytest.raises(WalError):
        await wal.append(b"lost")
    with pytest.raises(WalError) as told:
        await waiting
    assert told.value.outcome == "durable"
    release.set()
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert await cloud_values(store.inner) == values(100)
    assert await unreferenced(store.inner) == []


async def test_local_files_that_cannot_be_read_for_a_moment(
    log_directory: Path, store, faulty
) -> None:
    settings = SMALL_LOG.replace(cache_bytes=0)
    wal = await Wal.open(log_directory, settings=settings, tier=tier(store), fs=faulty)
    faulty.fail("open", errno.EMFILE, name="0*.wal", times=1)
    for value in values(20):
        await wal.append(value)
    await wal.wait_durable(20, "cloud")
    await wal.aclose()
    assert await cloud_values(store.inner) == values(20)


async def test_a_damaged_segment_is_not_shipped(log_directory: Path, store) -> None:
    """What the uploader reads is checked as readers' is."""
    settings = Settings(segment_bytes=64 << 10, batch_bytes=4096, cache_bytes=0)
    async with Wal.open(log_directory, settings=settings) as wal:
        for value in values(300):
            await wal.append(value, durability="memory")
    first = min(log_directory.glob("*.wal"))
    data = bytearray(first.read_bytes())
    data[20_000] ^= 1
    first.write_bytes(data)
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        with pytest.raises(CorruptionError) as told:
            await wal.wait_durable(300, "cloud")
        assert told.value.path == str(first)
        assert wal.uploaded_limit < 300
    found = await cloud_values(store.inner)
    assert found == values(len(found))
