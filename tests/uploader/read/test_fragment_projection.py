"""Some columns of a fragment: the same as when all of it is read, for fewer bytes."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.frames import batch_of, build
from tests.uploader.parquet import by_arrow_rs, by_pyarrow, wal3_table
from uploader.format.entries import Fragment
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_builder import EncodedFragment, encode_fragment
from uploader.read.fragment_ranges import GAP_BYTES, merge
from uploader.read.fragment_reader import FragmentReader
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, OffsetTrimmedError, StorageUnavailableError
from walstore.records import Record

SHORT = ("timestamp_us", "stream")
COLUMNS = ("timestamp_us", "value", "key", "stream", "headers")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def reader(store: FaultyStore):
    worker = Worker("test", threads=2)
    yield FragmentReader(store=store, worker=worker, cache_bytes=0)
    worker.close()


def records(count: int, value_bytes: int = 2000, start: int = 1) -> list[Record]:
    return [
        Record(
            start + at,
            os.urandom(value_bytes),
            b"k%d" % at if at % 2 else None,
            f"s{at % 3}" if at % 5 else None,
            {"h": b"%d" % at} if at % 7 == 0 else {},
            1_000_000 + at,
        )
        for at in range(count)
    ]


async def encode(content: list[Record]) -> EncodedFragment:
    batches = [batch_of(build(content))]
    return await asyncio.to_thread(encode_fragment, batches, timestamp_us=7)


async def put(store: FaultyStore, content: list[Record]) -> Fragment:
    encoded = await encode(content)
    entry = encoded.entry(1)
    await store.inner.put_if_absent(entry.path, encoded.data)
    return entry


@pytest.mark.parametrize("count", [1, 1000, 10_000])
@pytest.mark.parametrize("names", [(), SHORT, ("timestamp_us",), ("stream", "headers"), COLUMNS])
async def test_columns_are_those_of_the_whole(store, reader, count, names):
    content = records(count)
    entry = await put(store, content)
    found = await reader.read_columns(entry, names)
    assert (found.start, found.limit) == (1, count + 1)
    whole = (await reader.read(entry)).to_arrow()
    for name in ("offset", *names):
        assert found.to_arrow().column(name).equals(whole.column(name))


@pytest.mark.slow
async def test_only_what_is_wanted_is_fetched(store, reader):
    entry = await put(store, records(10_000))
    assert entry.num_bytes > 20_000_000
    found = await reader.read_columns(entry, SHORT)
    assert found.keys == found.values == [None] * 10_000
    count = store.count("get_range")
    assert count.requests <= 1 + 3 * 2  # the end, and a run of columns in each of three row groups
    assert count.bytes < entry.num_bytes / 50
    assert store.requests == count.requests


async def test_a_fragment_of_short_values_is_read_whole(store, reader):
    entry = await put(store, records(10_000, value_bytes=1))
    found = await reader.read_columns(entry, SHORT)
    assert len(found) == 10_000
    assert store.requests <= 3


async def test_a_tiny_fragment_takes_one_request(store, reader):
    content = records(3, value_bytes=10)
    found = await reader.read_columns(await put(store, content), SHORT)
    assert list(found.streams) == [record.stream for record in content]
    assert store.requests == 1


@pytest.mark.parametrize("made", [by_pyarrow, by_arrow_rs])
async def test_fragments_of_wal3_have_their_own_time(store, reader, made):
    data = await asyncio.to_thread(made, wal3_table(5, 99, [bytes(100)] * 400))
    path = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"
    await store.inner.put_if_absent(path, data)
    entry = await asyncio.to_thread(inspect_fragment, data, path)
    found = await reader.read_columns(entry, SHORT)
    whole = await reader.read(entry)
    assert found.timestamps_us == whole.timestamps_us
    assert found.streams == whole.streams


@pytest.mark.slow
async def test_damage_is_found_or_changes_nothing(store, reader):
    content = records(300, value_bytes=1000)
    entry = await put(store, content)
    data = (await store.inner.get(entry.path)).data
    times = [record.timestamp_us for record in content]
    broken = 0
    for at in range(0, len(data), 401):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        await store.inner.delete([entry.path])
        await store.inner.put_if_absent(entry.path, damaged)
        try:
            found = await reader.read_columns(entry, SHORT)
        except CorruptionError:
            broken += 1
        else:
            assert found.timestamps_us == times
            assert list(found.streams) == [record.stream for record in content]
    assert broken


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: d[:50]])
async def test_another_length_is_found(store, reader, change):
    entry = await put(store, records(300))
    data = (await store.inner.get(entry.path)).data
    await store.inner.delete([entry.path])
    await store.inner.put_if_absent(entry.path, change(data))
    with pytest.raises(CorruptionError):
        await reader.read_columns(entry, SHORT)


async def test_another_fragment_in_its_place_is_found(store, reader):
    entry = await put(store, records(300))
    other = await encode(records(300, start=2))
    await store.inner.delete([entry.path])
    await store.inner.put_if_absent(entry.path, other.data)
    with pytest.raises(CorruptionError):
        await reader.read_columns(entry, SHORT)


@pytest.mark.parametrize("at", [1, 2])
async def test_a_store_that_does_not_answer_is_reported(store, reader, at):
    entry = await put(store, records(300))
    store.on("get_range", fail(timeout("not_written")), nth=at)
    with pytest.raises(StorageUnavailableError):
        await reader.read_columns(entry, SHORT)


async def test_a_fragment_that_is_gone(store, reader):
    entry = await put(store, records(300))
    await store.inner.delete([entry.path])
    with pytest.raises((OffsetTrimmedError, CorruptionError)):
        await reader.read_columns(entry, SHORT)


def test_close_ranges_become_one():
    assert merge([]) == []
    assert merge([(5, 9), (0, 3)]) == [(0, 9)]
    far = 10 + GAP_BYTES + 1
    assert merge([(0, 10), (far, far + 1), (2, 4)]) == [(0, 10), (far, far + 1)]
