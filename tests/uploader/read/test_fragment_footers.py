"""What is read of fragments' ends: how much, how often, and what follows for readers of one stream."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.cloud import cloud_log
from tests.uploader.cloud_streams import put_log, put_records
from tests.uploader.parquet import by_arrow_rs, wal3_table
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.bloom import StreamSet
from uploader.fragments.fragment import inspect_fragment
from uploader.read.fragment_reader import FragmentReader
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, OffsetTrimmedError, StorageUnavailableError
from walstore.records import Record


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def reader(store: FaultyStore):
    worker = Worker("test", threads=2)
    yield FragmentReader(store=store, worker=worker, cache_bytes=1 << 20)
    worker.close()


def noise(offset: int) -> bytes:
    """Return a value that makes fragments of ten longer than the part that is asked for first."""
    return os.urandom(4000)


async def streams(log, name: str, **options) -> list[int]:
    return [
        record.offset async for record in log.reader(stream=name, **{"stop": log.limit, **options})
    ]


# -- footers ---------------------------------------------------------------------------------


async def test_an_end_is_enough(store, reader) -> None:
    manifest = await put_log(store.inner, 2, lambda at: f"s{at % 2}", value=noise)
    footer = await reader.footers.get(manifest.fragments[1])
    assert footer.times_us == (11, 20)
    assert footer.streams.names == {"s0", "s1"}
    assert store.count("get_range").requests == 1
    assert store.count("get_range").bytes <= 8 << 10
    await reader.footers.get(manifest.fragments[1])
    assert store.requests == 1
    assert 2000 < reader.footers.cached_bytes < 3000


async def test_who_asks_at_the_same_time_asks_once(store, reader) -> None:
    manifest = await put_log(store.inner, 1, lambda _: None, value=noise)
    asking = (reader.footers.get(manifest.fragments[0]) for _ in range(20))
    assert len(set(map(id, await asyncio.gather(*asking)))) == 1
    assert store.requests == 1


@pytest.mark.slow
async def test_a_long_footer_takes_two_requests_once(store, reader) -> None:
    """Ten thousand streams in a fragment; then so much is asked for at once."""
    manifest = await put_log(store.inner, 3, lambda at: f"s{at}", records=10_000)
    for number, requests in enumerate((2, 3, 4)):
        footer = await reader.footers.get(manifest.fragments[number])
        assert footer.streams.may_hold(f"s{number * 10_000 + 5}")
        assert store.requests == requests


async def test_a_short_fragment_is_fetched_once_in_all(store, reader) -> None:
    manifest = await put_log(store.inner, 1, lambda _: "a")
    await reader.footers.get(manifest.fragments[0])
    assert (await reader.read(manifest.fragments[0])).start == 1
    assert store.requests == 1


async def test_fragments_of_wal3_have_no_streams(store, reader) -> None:
    data = by_arrow_rs(wal3_table(1, 5, [os.urandom(20_000)]))
    path = layout.fragment_path(1)
    await store.inner.put_if_absent(path, data)
    entry = await asyncio.to_thread(inspect_fragment, data, path)
    footer = await reader.footers.get(entry)
    assert footer.streams.is_known
    assert not footer.streams.may_hold("a")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: data[:-4] + b"PARX",
        lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:],
        lambda data: bytes(len(data) - 8) + data[-8:],
    ],
)
async def test_damaged_ends_are_named(store, reader, spoil) -> None:
    manifest = await put_log(store.inner, 1, lambda _: "a", value=noise)
    entry = manifest.fragments[0]
    data = (await store.inner.get(entry.path)).data
    await store.inner.delete([entry.path])
    await store.inner.put_if_absent(entry.path, spoil(data))
    with pytest.raises(CorruptionError) as told:
        await reader.footers.get(entry)
    assert told.value.path == entry.path


@pytest.fixture
def small_cache(monkeypatch) -> None:
    monkeypatch.setattr("uploader.read.fragment_ranges.CACHE_BYTES", 1000)


async def test_kept_footers_are_bounded(store, small_cache, reader) -> None:
    manifest = await put_log(store.inner, 20, lambda _: "a", value=noise)
    for entry in manifest.fragments:
        await reader.footers.get(entry)
        assert reader.footers.cached_bytes <= 1000


# -- readers of one stream -------------------------------------------------------------------


async def test_fragments_without_the_stream_are_never_fetched(store) -> None:
    """One fragment in twenty has it. The ends of the others are read, and nothing else."""
    await put_log(
        store.inner, 100, lambda at: "rare" if at % 200 == 7 else f"s{at % 3}", value=noise
    )
    async with cloud_log(store) as log:
        assert await streams(log, "rare") == list(range(7, 1001, 200))
        whole = store.count("get_range").bytes
        assert store.count("get_range").requests == 100 + 5
        assert whole < 100 * (8 << 10) + 5 * 50_000
        before = store.requests
        assert await streams(log, "rare") == list(range(7, 1001, 200))
        assert await streams(log, "none") == []
        assert store.requests == before


async def test_the_ends_are_read_several_at_once(store) -> None:
    await put_log(store.inner, 60, lambda _: "a", value=noise)
    under_way = most = 0

    async def slowly(request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        return await request()

    store.on("get_range", slowly, times=10**6)
    async with cloud_log(store) as log:
        assert await streams(log, "b") == []
    assert most == 16


async def test_a_stream_everywhere_is_read_whole(store) -> None:
    await put_log(store.inner, 20, lambda _: "a")
    async with cloud_log(store) as log:
        assert await streams(log, "a") == list(range(1, 201))
        assert await streams(log, "a", start=35, stop=77) == list(range(35, 77))
        assert await streams(log, "a", prefetch_bytes=0, verify=True) == list(range(1, 201))


async def test_thousands_of_streams(store) -> None:
    await put_log(store.inner, 5, lambda at: f"s{at}", records=1000)
    async with cloud_log(store) as log:
        for at in (1, 1000, 1001, 4999):
            assert await streams(log, f"s{at}") == [at]


async def test_a_footer_that_cannot_be_read_denies_nothing(store) -> None:
    """The fragment is read instead; if that fails too, the reader is told."""
    await put_log(store.inner, 3, lambda _: "a", value=noise)
    store.on("get_range", fail(timeout("not_written")))
    async with cloud_log(store) as log:
        assert await streams(log, "a", prefetch_bytes=0) == list(range(1, 31))
        store.on("get_range", fail(timeout("not_written")), times=2)
        async with cloud_log(FaultyStore(store)) as other:
            with pytest.raises(StorageUnavailableError):
                await streams(other, "a", prefetch_bytes=0)


async def test_collected_fragments_are_not_passed_over_in_silence(store) -> None:
    manifest = await put_log(store.inner, 3, lambda _: "a", value=noise)
    async with cloud_log(store) as log:
        left = manifest.fragments[0]
        await store.inner.delete([left.path, layout.MANIFEST])
        dropped = Manifest(
            setsum=manifest.setsum,
            collected=left.setsum,
            acc_bytes=manifest.acc_bytes,
            writer="gc",
            fragments=manifest.fragments[1:],
            initial_offset=11,
            initial_seq_no=2,
        )
        await store.inner.put_if_absent(layout.MANIFEST, dropped.serialise())
        with pytest.raises(OffsetTrimmedError) as told:
            await streams(log, "a")
        assert (told.value.requested, told.value.head) == (1, 11)


async def test_a_footer_that_lies_is_found_by_verifying(store, monkeypatch) -> None:
    lie = StreamSet.of(["b"])
    with monkeypatch.context() as patch:
        patch.setattr(StreamSet, "of", lambda _: lie)
        entry = await put_records(store.inner, 1, [Record(1, b"v", None, "a", timestamp_us=1)])
    await _name(store, entry)
    async with cloud_log(store) as log:
        with pytest.raises(CorruptionError, match="denies stream 'a'") as told:
            await log.verify()
        assert told.value.path == entry.path


async def _name(store: FaultyStore, *entries: Fragment) -> None:
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())
