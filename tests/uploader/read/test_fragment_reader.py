"""Finding, fetching and checking fragments."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence

import pytest

from tests.cloud import put_fragment, values
from tests.frames import batch_of, build
from tests.uploader.parquet import by_pyarrow, copy_as_wal3, wal3_table
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_builder import encode_fragment
from uploader.read.fragment_reader import FragmentReader
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CorruptionError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    StorageUnavailableError,
)
from walstore.records import Record

CONTENT = values(100, 40)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def make(store: FaultyStore):
    """Make readers over the store."""
    worker = Worker("test", threads=2)

    def found(cache_bytes: int = 1 << 20) -> FragmentReader:
        return FragmentReader(store=store, worker=worker, cache_bytes=cache_bytes)

    yield found
    worker.close()


@pytest.fixture
def reader(make) -> FragmentReader:
    return make()


async def write(store: FaultyStore, count: int = 5, size: int = 10) -> Manifest:
    """Put fragments of so many records each, and the manifest that names them."""
    entries = []
    for at in range(count):
        start = 1 + at * size
        content = CONTENT[start - 1 : start - 1 + size]
        entries.append(await put_fragment(store.inner, at + 1, start, content))
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    return manifest


# -- finding ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "limit", "numbers"),
    [
        (0, 51, [1, 2, 3, 4, 5]),
        (1, 2, [1]),
        (10, 11, [1]),
        (11, 12, [2]),
        (10, 12, [1, 2]),
        (20, 41, [2, 3, 4]),
        (50, 99, [5]),
        (51, 99, []),
        (0, 1, []),
        (7, 7, []),
    ],
)
async def test_entries_of_an_interval(store, reader, start, limit, numbers) -> None:
    manifest = await write(store)
    found = await reader.tree.entries(manifest, start, limit)
    assert [entry.seq_no for entry in found] == numbers
    assert store.requests == 0


# -- reading ---------------------------------------------------------------------------------


async def test_the_rest_of_a_fragment(store, reader) -> None:
    manifest = await write(store)
    (batch,) = await reader.read_from(manifest, 13, 99, 1 << 20)
    assert (batch.start, batch.limit, list(batch.values)) == (13, 21, CONTENT[12:20])
    (batch,) = await reader.read_from(manifest, 13, 15, 1 << 20)
    assert (batch.start, batch.limit) == (13, 15)


async def test_in_pieces_of_a_size(store, reader) -> None:
    """A fragment may be much larger than what a reader wants to take apart at once."""
    manifest = await write(store)
    record_bytes = (await reader.read(manifest.fragments[0])).nbytes // 10
    found = await reader.read_from(manifest, 12, 99, 3 * record_bytes + 5)
    assert [(batch.start, batch.limit) for batch in found] == [(12, 15), (15, 18), (18, 21)]
    assert [value for batch in found for value in batch.values] == CONTENT[11:20]
    assert len(await reader.read_from(manifest, 12, 99, 1)) == 9


async def test_no_piece_has_very_many_records(store, reader) -> None:
    """They are taken apart on the event loop."""
    entry = await put_fragment(store.inner, 1, 1, [b""] * 10_000)
    manifest = Manifest.initial("w").apply_fragments([entry], "w")
    found = await reader.read_from(manifest, 1, 99_999, 1 << 30)
    assert [len(batch) for batch in found] == [4096, 4096, 1808]


@pytest.mark.parametrize(
    ("position", "error"), [(0, OffsetTrimmedError), (51, OffsetNotWrittenError)]
)
async def test_a_position_that_is_not_there(store, reader, position, error) -> None:
    manifest = await write(store)
    with pytest.raises(error) as told:
        await reader.read_from(manifest, position, 60, 1)
    assert (told.value.requested, told.value.head, told.value.tail) == (position, 1, 51)


async def test_a_position_between_two_fragments(store, reader) -> None:
    whole = await write(store)
    manifest = dataclasses.replace(whole, fragments=whole.fragments[:2] + whole.fragments[3:])
    with pytest.raises(CorruptionError, match="no fragment has offset 25"):
        await reader.read_from(manifest, 25, 30, 1)


async def test_a_fragment_is_fetched_once(store, make) -> None:
    manifest = await write(store)
    reader = make()
    for position in (1, 5, 11, 1):
        await reader.read_from(manifest, position, 99, 1 << 20)
    assert store.requests == 2


async def test_readers_at_the_same_place_fetch_once(store, reader) -> None:
    manifest = await write(store)
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(reader.read_from(manifest, 1, 99, 1 << 20))
    assert store.requests == 1


async def test_a_cancelled_reader_does_not_spoil_it_for_others(store, reader) -> None:
    manifest = await write(store)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get_range", faults.hang(release, reached))
    first = asyncio.create_task(reader.read(manifest.fragments[0]))
    await reached.wait()
    second = asyncio.create_task(reader.read(manifest.fragments[0]))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).start == 1
    assert store.requests == 2


async def test_short_fragments_count_with_all_that_they_take(store, make) -> None:
    """One record each, as of appends that wait for the store: some 40 bytes in 10 KiB of objects."""
    manifest = await write(store, count=30, size=1)
    reader = make(100 << 10)
    for _ in range(2):
        before = store.requests
        for entry in manifest.fragments:
            await reader.read(entry)
        assert store.requests - before == 30
        assert reader.cached_bytes <= 100 << 10
    kept = manifest.fragments[-8:]
    before = store.requests
    for entry in kept:
        await reader.read(entry)
    assert store.requests == before


async def test_the_cache_is_bounded(store, make) -> None:
    manifest = await write(store)
    size = (await make().read(manifest.fragments[0])).memory_bytes
    reader = make(2 * size)
    before = store.requests
    for number in (0, 1, 0, 2, 0, 1):
        await reader.read(manifest.fragments[number])
    assert store.requests - before == 4  # 0, 1, 2, and 1 again, which was used longest ago
    assert reader.cached_bytes <= 2 * size
    none = make(0)
    before = store.requests
    for _ in range(3):
        await none.read(manifest.fragments[0])
    assert store.requests - before == 3
    assert none.cached_bytes == 0


async def test_a_fault_is_raised_and_forgotten(store, reader) -> None:
    manifest = await write(store)
    store.on("get_range", fail(timeout("not_written")))
    with pytest.raises(StorageUnavailableError):
        await reader.read(manifest.fragments[0])
    assert (await reader.read(manifest.fragments[0])).start == 1


async def test_a_fragment_that_was_lost(store, reader) -> None:
    manifest = await write(store)
    path = manifest.fragments[1].path
    await store.inner.delete([path])
    for read in (reader.read, reader.fetch):
        with pytest.raises(CorruptionError, match="missing") as told:
            await read(manifest.fragments[1])
        assert told.value.path == path


async def test_a_fragment_that_was_collected(store, reader) -> None:
    """The manifest that was read earlier still names it; the one that is there does not."""
    manifest = await write(store)
    collected = dataclasses.replace(
        manifest,
        collected=manifest.fragments[0].setsum,
        fragments=manifest.fragments[1:],
        initial_offset=11,
    )
    await store.inner.delete([manifest.fragments[0].path, layout.MANIFEST])
    await store.inner.put_if_absent(layout.MANIFEST, collected.serialise())
    with pytest.raises(OffsetTrimmedError) as told:
        await reader.read_from(manifest, 3, 99, 1)
    assert (told.value.requested, told.value.head, told.value.tail) == (1, 11, 51)


async def test_everything_was_deleted(store, reader) -> None:
    manifest = await write(store)
    await store.inner.delete([manifest.fragments[0].path, layout.MANIFEST])
    with pytest.raises(CorruptionError) as told:
        await reader.read(manifest.fragments[0])
    assert told.value.path == layout.MANIFEST


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"", bytes.swapcase]
)
async def test_a_damaged_fragment_is_named(store, reader, spoil) -> None:
    manifest = await write(store)
    path = manifest.fragments[2].path
    data = (await store.inner.get(path)).data
    await store.inner.delete([path])
    await store.inner.put_if_absent(path, spoil(data))
    with pytest.raises(CorruptionError) as told:
        await reader.read(manifest.fragments[2])
    assert told.value.path == path


# -- of another length -----------------------------------------------------------------------


@pytest.mark.parametrize("is_longer", [False, True])
async def test_fragments_of_another_length_are_read(store, make, caplog, is_longer) -> None:
    """wal3's copy of a log has other objects under the same entries; wal3 does not look at the length."""
    manifest = await write(store, 3, 30)
    await copy_as_wal3(store.inner, manifest, is_longer=is_longer)
    reader = make()
    for at, entry in enumerate(manifest.fragments):
        for verify in (False, True):
            batch = await reader.read(entry, verify=verify)
            assert list(batch.values) == CONTENT[30 * at : 30 * at + 30]
    assert await make().offset_at(manifest, 7) == 1
    assert await make().offset_at(manifest, 8) is None
    assert await make().skip_stream(manifest, "a", 1, 91) == 91
    columns = await make().read_columns(manifest.fragments[1], ["value"])
    assert list(columns.values) == CONTENT[30:60]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 5  # once for each reader
    assert manifest.fragments[0].path in warnings[0]
    assert str(manifest.fragments[0].num_bytes) in warnings[0]


@pytest.mark.parametrize("is_longer", [False, True])
async def test_other_records_of_another_length_are_damage(store, make, is_longer) -> None:
    manifest = await write(store, 1, 30)
    (entry,) = manifest.fragments
    await copy_as_wal3(store.inner, manifest, is_longer=is_longer, changed_us=1)
    for read in (
        lambda reader: reader.read(entry),
        lambda reader: reader.footers.get(entry),
        lambda reader: reader.read_columns(entry, ["value"]),
        lambda reader: reader.offset_at(manifest, 5),
    ):
        with pytest.raises(CorruptionError, match="setsum") as told:
            await read(make())
        assert told.value.path == entry.path


@pytest.mark.parametrize("is_longer", [False, True])
async def test_what_another_length_costs(store, make, is_longer) -> None:
    manifest = await write(store, 1, 30)
    (entry,) = manifest.fragments
    await copy_as_wal3(store.inner, manifest, is_longer=is_longer)
    await make().read(entry)
    assert store.requests == (2 if is_longer else 1)


# -- by time ---------------------------------------------------------------------------------


async def timed(store: FaultyStore, times: Sequence[Sequence[int]]) -> Manifest:
    """Put fragments whose records have these times."""
    entries, start = [], 1
    for seq_no, moments in enumerate(times, 1):
        records = [Record(start + at, b"v", timestamp_us=us) for at, us in enumerate(moments)]
        encoded = encode_fragment([batch_of(build(records))], timestamp_us=99_999)
        await store.inner.put_if_absent(layout.fragment_path(seq_no), encoded.data)
        entries.append(encoded.entry(seq_no))
        start += len(moments)
    return Manifest.initial("w").apply_fragments(entries, "w")


@pytest.mark.parametrize(
    ("timestamp_us", "offset"),
    [(0, 1), (10, 1), (11, 2), (20, 2), (21, 4), (30, 4), (31, 6), (40, 6), (41, None)],
)
async def test_the_first_record_at_a_time(store, reader, timestamp_us, offset) -> None:
    manifest = await timed(store, [[10, 20, 20], [30, 30], [40, 40]])
    assert await reader.offset_at(manifest, timestamp_us) == offset


async def test_a_log_without_records_has_no_time(store, reader) -> None:
    assert await reader.offset_at(Manifest.initial("w"), 0) is None
    assert store.requests == 0


async def test_few_fragments_are_looked_at(store, reader) -> None:
    manifest = await timed(store, [[number] for number in range(250)])
    assert await reader.offset_at(manifest, 170) == 171
    assert store.requests <= 9


async def test_only_the_ends_of_long_fragments_are_read(store, reader) -> None:
    for seq_no, start in [(1, 1), (2, 31)]:
        content = [bytes([seq_no]) + os.urandom(20_000) for _ in range(30)]
        await put_fragment(store.inner, seq_no, start, content)
    entries = [(await inspect(store, number)) for number in (1, 2)]
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    assert await reader.offset_at(manifest, 1) is None
    assert store.count("get_range").bytes <= 2 * 64 * 1024


async def inspect(store: FaultyStore, seq_no: int) -> Fragment:
    path = layout.fragment_path(seq_no)
    data = (await store.inner.get(path)).data
    return await asyncio.to_thread(inspect_fragment, data, path)


async def test_a_long_fragment_that_does_not_tell_is_read_whole(store, reader) -> None:
    """Another writer may leave statistics out."""
    table = wal3_table(1, 500, [os.urandom(20_000) for _ in range(30)])
    data = by_pyarrow(table, write_statistics=False, compression="none")
    await store.inner.put_if_absent(layout.fragment_path(1), data)
    manifest = Manifest.initial("w").apply_fragments([await inspect(store, 1)], "w")
    assert await reader.offset_at(manifest, 500) == 1
    assert await reader.offset_at(manifest, 501) is None


async def test_a_damaged_fragment_is_named_by_a_search(store, reader) -> None:
    manifest = await write(store)
    path = manifest.fragments[2].path
    await store.inner.delete([path])
    await store.inner.put_if_absent(path, b"x" * manifest.fragments[2].num_bytes)
    with pytest.raises(CorruptionError) as told:
        await reader.offset_at(manifest, 5)
    assert told.value.path == path
