"""Scans name the objects that add up to what a snapshot, or a listener, returns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, Site, content, rows
from uploader.versioned import batch_file, compaction, updates
from uploader.versioned.scan import CollectionScan
from walstore.errors import InvalidSettingsError, SinceViolationError

TABLES = (rows((1, "a")), rows((2, "b")), rows((1, "c")), rows((3, "d")), rows((2, "e")))


async def read(site: Site, scan: CollectionScan) -> list[pa.Table]:
    """The updates that count, as a program with another Parquet reader gets them."""
    store = site.program().store
    found = []
    for file in scan.files:
        footer, table = batch_file.decode((await store.get(file.key)).data, path=file.key)
        assert footer.collection == scan.collection
        assert file.digest in {None, footer.digest}
        assert file.rows == footer.rows
        found.append(updates.between(table, file.start, file.limit))
    return found


@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize("merged", range(len(TABLES) + 1))
async def test_a_scan_is_a_snapshot(kind, merged):
    site = Site(kind)
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        async with await collection.reader() as reader:
            for number, table in enumerate(TABLES):
                if number == merged:
                    await keeper.compact()
                await writer.append(table, lower=10 * number, upper=10 * number + 10)
            for as_of in (0, 9, 15, 29, 49):
                async with reader.scan(as_of=as_of) as scan:
                    found = updates.snapshot(await read(site, scan), scan.schema, as_of=as_of)
                assert content(found) == content(await reader.snapshot(as_of=as_of))
            async with reader.scan() as scan:
                assert (scan.as_of, scan.after) == (49, None)


@pytest.mark.parametrize("merged", range(len(TABLES) + 1))
async def test_a_scan_of_changes_is_what_a_listener_yields(merged):
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        async with await collection.reader() as reader:
            for number, table in enumerate(TABLES):
                if number == merged:
                    await keeper.compact(full=True)
                await writer.append(table, lower=10 * number, upper=10 * number + 10)
            for after, as_of in ((-1, 49), (9, 20), (10, 19), (19, 40), (39, 39)):
                async with reader.scan(after=after, as_of=as_of) as scan:
                    tables = await read(site, scan)
                found = updates.in_time_order(tables, scan.schema, start=after + 1)
                times = [10 * number for number in range(5) if after < 10 * number <= as_of]
                assert found.column("_t").to_pylist() == times


async def test_what_was_compacted_is_not_scanned():
    site = Site()
    async with (
        site.program().opened() as collection,
        site.program().controller() as keeper,
        await collection.reader() as reader,
    ):
        for number, table in enumerate(TABLES):
            await collection.writer().append(table, lower=10 * number, upper=10 * number + 10)
        await reader.downgrade_since(25)
        await keeper.compact(full=True)
        for times in ({"as_of": 24}, {"after": 24}, {"after": -1}):
            with pytest.raises(SinceViolationError):
                async with reader.scan(**times):
                    pass
        async with reader.scan(after=25) as scan:
            assert [file.start for file in scan.files] == [26]


@pytest.mark.parametrize("times", [{"as_of": -1}, {"after": -2}, {"after": 2**64}])
async def test_times_that_are_none(times):
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        with pytest.raises(InvalidSettingsError):
            async with reader.scan(**times):
                pass


async def test_the_objects_stay_until_the_scan_ends():
    site = Site()
    async with (
        site.program().opened() as collection,
        site.program().controller() as keeper,
        await collection.reader(lease_seconds=100 * HOUR) as reader,
    ):
        await collection.writer().append(TABLES[0], lower=0, upper=10)
        async with reader.scan() as scan:
            await collection.writer().append(TABLES[1], lower=10, upper=20)
            await keeper.compact(full=True)
            await reader.downgrade_since(5)  # renews
            await site.clock.advance(3 * HOUR)
            await keeper.gc()
            assert len(await read(site, scan)) == 1
        await reader.downgrade_since(6)
        await keeper.gc()
        assert scan.files[0].key not in await site.keys()


async def test_a_reader_that_leaves_holds_the_objects_until_its_lease_ends():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(TABLES[0], lower=0, upper=10)
        await keeper.compact()
        reader = await collection.reader("left", lease_seconds=5 * HOUR)
        async with reader.scan() as scan:
            await reader.leave()
        await reader.aclose()
        await collection.writer().append(TABLES[1], lower=10, upper=20)
        await keeper.compact(full=True)
        for hours, is_there in ((3, True), (3, False)):
            await site.clock.advance(hours * HOUR)
            await keeper.gc()
            assert (scan.files[0].key in await site.keys()) == is_there
            assert ("left" in (await collection.status()).readers) == is_there


@pytest.mark.parametrize("kind", ["diff", "upsert"])
async def test_objects_of_one_batch_have_its_length(kind, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_OBJECT_ROWS", 2)
    site = Site(kind)
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows(*[(n, "v" * n) for n in range(7)]), lower=0, upper=10)
        await keeper.compact()
        await collection.writer().append(TABLES[1], lower=10, upper=20)
        async with await collection.reader() as reader, reader.scan(as_of=14) as scan:
            (batch,) = (await collection.status()).batches
            merged, pending = scan.files[:-1], scan.files[-1]
            assert sum(file.size_bytes for file in merged) == batch.size_bytes
            assert {(file.lower, file.upper, file.latest) for file in merged} == {(0, 10, 9)}
            assert [file.is_whole for file in scan.files] == [True] * 4 + [False]
            assert (pending.start, pending.limit, pending.schema_id) == (10, 15, 0)
