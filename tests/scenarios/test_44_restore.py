"""Restore: what lies in the bucket is a log directory again, which goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cloud import (
    FAST,
    URL,
    RecordingStore,
    cloud_values,
    fragment_keys,
    put_fragment,
    tier,
    values,
)
from tests.cloud import SMALL as SMALL_FRAGMENTS
from tests.local import SMALL, read_all, segments
from tests.uploader.documents import rolled_up
from tests.uploader.parquet import by_arrow_rs, wal3_table
from uploader import CloudLog, CloudTier
from uploader.care.admin.seal import seal
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.care.restoring.restore import Restored, RestoreProgress, restore
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import inspect_fragment
from uploader.stores import MemoryStore
from uploader.write.cloud_writer import CloudWriter
from walstore import Record, Wal
from walstore.care.verify import VerifyReport
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.directory import RESTORE_NAME
from walstore.core.format.checkpoint import FILE_NAME
from walstore.core.settings import Settings
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    WalLockedError,
)
from walstore.records import from_timestamp_us


async def fill(path: Path, store: MemoryStore, count: int = 400) -> list[Record]:
    """Append records of all kinds to a log with a tier; return them as they are read."""
    async with Wal.open(path, settings=SMALL, tier=tier(store)) as wal:
        for number in range(count):
            wal.append_nowait(
                b"%d " % number + bytes(number % 700),
                key=b"k%d" % number if number % 3 else None,
                stream=("eu", "us", None)[number % 3],
                headers={"n": b"%d" % (number % 5)} if number % 2 else None,
            )
            if number % 40 == 0:
                await wal.flush()
        await wal.flush()
        return await read_all(wal)


async def again(store: MemoryStore, directory: Path, **options) -> Restored:
    options = {"settings": SMALL, **options}
    return await restore(URL, directory, store=store, **options)


async def verified(path: Path) -> VerifyReport:
    return await asyncio.to_thread(verify_directory, path)


async def records_of(path: Path) -> list[Record]:
    async with Wal.open(path, settings=SMALL) as wal:
        return await read_all(wal)


async def collect(store: MemoryStore, count: int) -> Manifest:
    """Drop the oldest fragments, as garbage collection does."""
    found = await store.get(layout.MANIFEST)
    manifest = Manifest.parse(found.data)
    count = min(count, len(manifest.fragments) - 1)  # one always stays
    if not count:
        return manifest
    gone, kept = manifest.fragments[:count], manifest.fragments[count:]
    manifest = dataclasses.replace(
        manifest,
        fragments=kept,
        collected=manifest.collected + Setsum.total(one.setsum for one in gone),
        initial_offset=gone[-1].limit,
        initial_seq_no=gone[-1].seq_no + 1,
    )
    manifest.scrub()
    await store.put_if_match(layout.MANIFEST, manifest.serialise(), found.etag)
    await store.delete([one.path for one in gone])
    return manifest


async def publish(store: MemoryStore, objects: Sequence[bytes]) -> None:
    """Put fragments of another program and a manifest that names them."""
    manifest = Manifest.initial("another program")
    for seq_no, data in enumerate(objects, 1):
        entry = inspect_fragment(data, layout.fragment_path(seq_no))
        await store.put_if_absent(entry.path, data)
        manifest = manifest.apply_fragments([entry], "another program")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())


async def test_a_log_comes_back_whole_and_goes_on(tmp_path: Path) -> None:
    """Records, identity, streams; nothing is shipped twice, and the old log's prefix goes on."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    done = await again(store, tmp_path / "new")
    assert (done.head, done.limit, done.resumed_at) == (1, 401, 1)
    assert done.owns_prefix
    assert done.streams == 2
    assert done.segments == len(segments(tmp_path / "new")) > 1
    assert done.fragments == len(await fragment_keys(store))
    report = await verified(tmp_path / "new")
    assert report.is_ok, report.problems
    assert (report.log_id, report.limit) == (done.log_id, 401)
    recording = RecordingStore(store)
    async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(recording)) as wal:
        assert wal.recovery.missing_from is None
        assert (wal.head, wal.durable_limit, wal.uploaded_limit) == (1, 401, 401)
        assert await read_all(wal) == expected
        async with wal.reader(stream="us", follow=False) as reader:
            assert [r async for r in reader] == [r for r in expected if r.stream == "us"]
        assert {name: info.opened_at for name, info in wal.streams().items()} == {"eu": 1, "us": 2}
        assert await wal.append(b"next", stream="eu", durability="cloud") == 401
    assert sum(recording.attempts.values()) == 1
    assert (await cloud_values(store))[-1] == b"next"
    assert (await verified(tmp_path / "new")).is_ok


async def test_the_same_segments_as_appending_makes(tmp_path: Path) -> None:
    """Sealed, chained, indexed, and with their streams, so that no reader notices."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    await again(store, tmp_path / "new")
    async with Wal.open_readonly(tmp_path / "new") as log:
        assert [r async for r in log.reader(follow=False)] == expected
        middle = from_timestamp_us(expected[200].timestamp_us)
        first = next(r for r in expected if r.timestamp >= middle)
        found = [r async for r in log.reader(middle, follow=False)]
        assert found[0] == first
    hint = tmp_path / "new" / FILE_NAME
    hint.unlink()
    assert await records_of(tmp_path / "new") == expected


@pytest.mark.slow
async def test_up_to_an_offset_it_is_another_log(tmp_path: Path) -> None:
    """It may not ship to the prefix, where other records have its offsets; elsewhere it may."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    before = {key: (await store.get(key)).data async for key in _keys(store)}
    whole = await again(store, tmp_path / "whole")
    done = await again(store, tmp_path / "part", stop=200)
    assert (done.limit, done.owns_prefix) == (200, False)
    assert done.log_id != whole.log_id
    assert done.fragments < whole.fragments
    assert {key: (await store.get(key)).data async for key in _keys(store)} == before
    assert await records_of(tmp_path / "part") == expected[:199]
    with pytest.raises(ContentionError, match="another log"):
        async with Wal.open(tmp_path / "part", tier=tier(store)):
            pass
    elsewhere = MemoryStore()
    async with Wal.open(tmp_path / "part", tier=tier(elsewhere)) as wal:
        await wal.append(b"its own", durability="cloud")
    assert await cloud_values(elsewhere) == [*(r.value for r in expected[:199]), b"its own"]


async def test_up_to_the_end_without_taking_it_over(tmp_path: Path) -> None:
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store, 50)
    done = await again(store, tmp_path / "copy", stop=51)
    assert (done.limit, done.owns_prefix) == (51, False)
    assert await records_of(tmp_path / "copy") == expected


async def test_up_to_a_time(tmp_path: Path) -> None:
    """The first record that is not older than the time is left out, and all behind it."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    moment = expected[250].timestamp
    done = await again(store, tmp_path / "part", stop=moment)
    assert await records_of(tmp_path / "part") == [r for r in expected if r.timestamp < moment]
    assert not done.owns_prefix
    late = await again(store, tmp_path / "late", stop=moment + timedelta(days=1))
    assert (late.limit, late.owns_prefix) == (401, False)
    early = await again(store, tmp_path / "early", stop=datetime(1999, 1, 1, tzinfo=UTC))
    assert (early.head, early.limit, early.segments) == (1, 1, 0)
    with pytest.raises(ValueError, match="time zone"):
        await again(store, tmp_path / "naive", stop=datetime(2025, 1, 1))
    assert not (tmp_path / "naive").exists()


async def test_after_a_collection_it_begins_where_the_bucket_begins(tmp_path: Path) -> None:
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    head = (await collect(store, 3)).oldest_offset
    assert head > 1
    done = await again(store, tmp_path / "new")
    assert (done.head, done.limit) == (head, 401)
    assert (await verified(tmp_path / "new")).is_ok
    async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(store)) as wal:
        assert wal.head == head
        assert await read_all(wal) == expected[head - 1 :]
        assert await wal.append(b"next", durability="cloud") == 401
        with pytest.raises(OffsetTrimmedError):
            async with wal.follow(1) as reader:
                await anext(reader)
    for stop in (head - 1, 1):
        with pytest.raises(OffsetTrimmedError):
            await again(store, tmp_path / "trimmed", stop=stop)


@pytest.mark.parametrize("head", [1, 100])
async def test_a_log_without_records(tmp_path: Path, head: int) -> None:
    """Never written to, or all of it collected: offsets are not used twice."""
    store = MemoryStore()
    manifest = Manifest.initial("somebody")
    if head > 1:
        manifest = dataclasses.replace(manifest, initial_offset=head, initial_seq_no=7)
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    done = await again(store, tmp_path / "new")
    assert (done.head, done.limit, done.segments) == (head, head, 0)
    assert (await verified(tmp_path / "new")).is_ok
    async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(store)) as wal:
        assert await wal.append(b"first", durability="cloud") == head
    assert await cloud_values(store) == [b"first"]


async def test_a_log_of_wal3(tmp_path: Path) -> None:
    """Three columns, one time for each fragment; a time that went back is raised."""
    store = MemoryStore()
    times = [1000, 900, 2000]
    await publish(
        store,
        [
            by_arrow_rs(wal3_table(1 + at * 10, time, [b"%d" % n for n in range(10)]))
            for at, time in enumerate(times)
        ],
    )
    done = await again(store, tmp_path / "new")
    assert done.limit == 31
    found = await records_of(tmp_path / "new")
    assert [r.value for r in found] == [b"%d" % n for n in range(10)] * 3
    assert [r.timestamp_us for r in found] == [1000] * 20 + [2000] * 10
    assert {(r.key, r.stream) for r in found} == {(None, None)}
    async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(store)) as wal:
        assert await wal.append(b"ours", durability="cloud") == 31
    assert (await cloud_values(store))[-2:] == [b"9", b"ours"]


async def test_a_log_of_wal3_that_went_on_is_not_ours(tmp_path: Path) -> None:
    store = MemoryStore()
    await publish(store, [by_arrow_rs(wal3_table(1, 5, [b"a"]))])
    await again(store, tmp_path / "new")
    found = await store.get(layout.MANIFEST)
    entry = await put_fragment(store, 2, 2, [b"b"])
    manifest = Manifest.parse(found.data).apply_fragments([entry], "another program")
    await store.put_if_match(layout.MANIFEST, manifest.serialise(), found.etag)
    with pytest.raises(ContentionError):
        async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(store)):
            pass


async def test_fragments_that_nobody_published_are_adopted(tmp_path: Path) -> None:
    """They may have been acknowledged on the disk that is lost, so they are part of the log."""
    store = MemoryStore()
    await fill(tmp_path / "old", store, 50)
    content = values(10)
    await put_fragment(store, await _next_seq_no(store), 51, content)
    done = await again(store, tmp_path / "new")
    assert (done.limit, done.adopted_fragments) == (61, 1)
    assert [r.value for r in (await records_of(tmp_path / "new"))[50:]] == content
    assert (await cloud_values(store))[50:] == content
    copy = await again(store, tmp_path / "copy", stop=51)
    assert copy.adopted_fragments == 0


async def test_records_that_only_the_lost_disk_had(tmp_path: Path) -> None:
    """Fragments behind a hole cannot be part of the log; without them it can be restored."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store, 50)
    await put_fragment(store, await _next_seq_no(store) + 1, 61, values(10))
    with pytest.raises(ContentionError, match="never uploaded"):
        await again(store, tmp_path / "new")
    assert not segments(tmp_path / "new")
    await again(store, tmp_path / "new", stop=51)
    assert await records_of(tmp_path / "new") == expected


async def test_only_into_a_directory_of_its_own(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store, 10)
    with pytest.raises(InvalidSettingsError, match="is not empty"):
        await again(store, tmp_path / "old")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InvalidSettingsError, match="is not empty"):
        await again(store, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    assert (await again(store, tmp_path / "empty")).limit == 11
    with pytest.raises(InvalidSettingsError, match="is not empty"):
        await again(store, tmp_path / "empty")
    with pytest.raises(LogNotFoundError):
        await again(MemoryStore(), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


async def test_a_directory_in_use(tmp_path: Path) -> None:
    from walstore.core.files.posix import PosixFileSystem

    store = MemoryStore()
    await fill(tmp_path / "old", store, 10)
    (tmp_path / "new").mkdir()
    lock = await asyncio.to_thread(PosixFileSystem().lock, tmp_path / "new" / "LOCK", "somebody")
    with pytest.raises(WalLockedError):
        await again(store, tmp_path / "new")
    await asyncio.to_thread(lock.release)
    await again(store, tmp_path / "new")


@pytest.mark.parametrize("stop", [0, 12, 10_000])
async def test_an_offset_that_is_not_there(tmp_path: Path, stop: int) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store, 10)
    with pytest.raises((OffsetNotWrittenError, OffsetTrimmedError)):
        await again(store, tmp_path / "new", stop=stop)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stop", [True, "5", 5.0])
async def test_a_stop_that_is_none(tmp_path: Path, stop: object) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store, 10)
    with pytest.raises(TypeError):
        await again(store, tmp_path / "new", stop=stop)


async def test_every_fragment_is_checked(tmp_path: Path) -> None:
    """Another object of the same length and offsets shows by its setsum; nothing is left behind."""
    store = MemoryStore()
    manifest = Manifest.initial("w")
    for number in range(1, 4):
        entry = await put_fragment(store, number, number * 2 - 1, [b"right", b"right"])
        manifest = manifest.apply_fragments([entry], "w")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    spoiled = manifest.fragments[1]
    await store.delete([spoiled.path])
    other = await put_fragment(store, 2, 3, [b"wrong", b"wrong"])
    assert (other.num_bytes, other.limit) == (spoiled.num_bytes, spoiled.limit)
    with pytest.raises(CorruptionError, match="setsum"):
        await again(store, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["LOCK"]
    part = await again(store, tmp_path / "new", stop=3)
    assert part.limit == 3


async def test_a_fragment_that_is_gone(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store)
    async with CloudLog.open(URL, store=store) as log:
        entry = (await log.fragments())[2]
    await store.delete([entry.path])
    with pytest.raises(CorruptionError, match="missing"):
        await again(store, tmp_path / "new")


async def test_progress_is_told(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store)
    told: list[RestoreProgress] = []
    done = await again(store, tmp_path / "new", progress=told.append)
    assert len(told) == done.fragments
    positions = [one.position for one in told]
    assert positions == sorted(set(positions))
    assert positions[-1] == told[-1].limit == 401
    assert told[-1].fragment_bytes == done.fragment_bytes


async def test_so_many_fragments_are_held_and_no_more(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(tmp_path / "old", store)

    class Counting(RecordingStore):
        under_way = most = 0

        async def get_range(self, key: str, start: int, limit: int) -> bytes:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                return await super().get_range(key, start, limit)
            finally:
                self.under_way -= 1

    counting = Counting(store)
    await again(counting, tmp_path / "new", concurrency=3)
    assert counting.most == 3
    for wrong in (0, 65):
        with pytest.raises(InvalidSettingsError, match="concurrency"):
            await again(store, tmp_path / "other", concurrency=wrong)


async def test_compressed_and_in_larger_segments(tmp_path: Path) -> None:
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    small = await again(store, tmp_path / "small")
    done = await again(store, tmp_path / "new", settings=Settings(compression="zstd"))
    assert done.segments == 1
    assert done.size_bytes < small.size_bytes
    assert await records_of(tmp_path / "new") == expected


@pytest.mark.slow
async def test_little_fragments_do_not_make_little_batches(tmp_path: Path) -> None:
    store = MemoryStore()
    manifest = Manifest.initial("w")
    for number in range(1, 101):
        entry = await put_fragment(store, number, number, [b"%d" % number])
        manifest = manifest.apply_fragments([entry], "w")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    await again(store, tmp_path / "new")
    report = await verified(tmp_path / "new")
    assert (report.records, report.batches) == (100, 1)


async def test_a_directory_with_an_unfinished_restore_is_no_log(tmp_path: Path) -> None:
    (tmp_path / RESTORE_NAME).write_bytes(b"")
    with pytest.raises(CorruptionError, match="restore was interrupted"):
        async with Wal.open(tmp_path):
            pass


async def _keys(store: MemoryStore):
    async for listed in store.list(""):
        yield listed.key


async def _next_seq_no(store: MemoryStore) -> int:
    return Manifest.parse((await store.get(layout.MANIFEST)).data).next_seq_no


async def test_a_log_of_a_cloud_writer(tmp_path: Path) -> None:
    """It has no local log that could be lost, so what is restored is another one."""
    store = MemoryStore()
    async with CloudWriter.open(URL, store=store) as log:
        await log.append_many([b"a", b"b"], key=b"k", stream="eu", headers={"h": b"1"})
        await log.append(b"c")
    async with CloudLog.open(URL, store=store) as stored:
        expected = [record async for record in stored.reader()]
    done = await again(store, tmp_path / "new")
    assert (done.limit, done.owns_prefix, done.streams) == (4, False, 1)
    assert await records_of(tmp_path / "new") == expected
    with pytest.raises(ContentionError):
        async with Wal.open(tmp_path / "new", settings=SMALL, tier=tier(store)):
            pass


async def test_a_sealed_log(tmp_path: Path) -> None:
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store, 50)
    assert await seal(URL, store=store) == 51
    done = await again(store, tmp_path / "new")
    assert (done.limit, done.owns_prefix) == (51, False)
    assert await records_of(tmp_path / "new") == expected


@pytest.mark.slow
async def test_through_snapshots_and_after_a_collection(tmp_path: Path) -> None:
    """What older manifests named one by one is found through the tree, from where the log begins."""
    store = MemoryStore()
    expected = await fill(tmp_path / "old", store)
    found = await store.get(layout.MANIFEST)
    manifest = Manifest.parse(found.data)
    many = len(manifest.fragments)
    assert many > 6
    for count in (2, 2, 1):
        manifest, snapshot = rolled_up(manifest, count)
        await store.put_if_absent(snapshot.path, snapshot.serialise())
    await store.put_if_match(layout.MANIFEST, manifest.serialise(), found.etag)
    async with CloudLog.open(URL, store=store) as log:
        entries = await log.fragments()
        assert len(entries) == many > len(log.manifest.fragments)
    settings = CollectorSettings(interval_seconds=0.0)
    async with GarbageCollector.open(URL, store=store, settings=settings) as collector:
        await collector.cursors.commit("reader", entries[3].start)
        head = (await collector.collect()).head
    assert head == entries[3].start
    done = await again(store, tmp_path / "new")
    assert (done.head, done.limit, done.owns_prefix) == (head, 401, True)
    assert await records_of(tmp_path / "new") == expected[head - 1 :]
    assert (await verified(tmp_path / "new")).is_ok


async def test_a_chain_of_manifests(tmp_path: Path) -> None:
    """The other layout is restored, and gone on with, like the first."""
    store = MemoryStore()

    def chained() -> CloudTier:
        return CloudTier(URL, store=store, settings=SMALL_FRAGMENTS, retry=FAST, layout="chain")

    async with Wal.open(tmp_path / "old", settings=SMALL, tier=chained()) as wal:
        for number in range(50):
            wal.append_nowait(b"%d" % number + bytes(300), stream="s")
        await wal.flush()
        expected = await read_all(wal)
    done = await again(store, tmp_path / "new")
    assert (done.limit, done.owns_prefix) == (51, True)
    async with Wal.open(tmp_path / "new", settings=SMALL, tier=chained()) as wal:
        assert await read_all(wal) == expected
        assert await wal.append(b"next", durability="cloud") == 51
    part = await again(store, tmp_path / "part", stop=20)
    assert (part.limit, part.owns_prefix) == (20, False)
