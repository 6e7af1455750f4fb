"""A merge engine gets one job, and what it reports is checked before it is committed."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, Program, Site, content, rows
from uploader.versioned import batch_file, updates
from uploader.versioned.compaction import merged_file
from uploader.versioned.controller import ControllerSettings
from uploader.versioned.merging import MergedObject, MergeJob, MergeResult
from uploader.versioned.names import merged_key
from walstore.errors import (
    CorruptionError,
    FencedError,
    InvalidSettingsError,
    LimitExceededError,
    WalLockedError,
)

SMALL = ControllerSettings(most_rows=1)


class Engine:
    """Merges in this process, by what a job says alone."""

    def __init__(self, program: Program, **changes: Any) -> None:
        self.store = program.store
        self.changes = changes
        self.jobs: list[MergeJob] = []

    async def merge(self, job: MergeJob) -> MergeResult:
        self.jobs.append(job)
        await self.pause()
        tables = []
        for one in job.inputs:
            data = (await self.store.get(one.key)).data
            table = updates.upgrade(
                batch_file.decode(data, path=one.key)[1], job.schema, path=one.key
            )
            tables.append(updates.between(table, one.start, one.limit))
        table = updates.consolidate(tables, job.schema, since=job.since, is_oldest=job.is_oldest)
        objects = []
        for start in range(0, table.num_rows, 2):
            file = merged_file(
                table.slice(start, 2), job.schema, collection=job.collection,
                lower=job.lower, upper=job.upper, since=job.since,
            )  # fmt: skip
            key = merged_key(job.epoch)
            await self.store.put_if_absent(key, file.data)
            objects.append(
                MergedObject(key=key, rows=file.rows, size_bytes=len(file.data), digest=file.digest)
            )
        result = MergeResult(
            objects=tuple(objects),
            rows_read=sum(one.num_rows for one in tables),
            digest_read=sum(map(updates.digest, tables)) % (1 << 64),
        )
        return dataclasses.replace(result, **self.changes)

    async def pause(self) -> None:
        """Wait before the work, in some tests."""


async def fill(site: Site) -> pa.Table:
    async with site.program().opened() as collection:
        for at in range(3):
            table = rows((1, str(at)), (2, "b"), (3 + at, "c"))
            await collection.writer().append(table, lower=10 * at, upper=10 * at + 10)
        async with await collection.reader() as reader:
            return await reader.snapshot()


async def snapshot(site: Site) -> pa.Table:
    async with site.program().opened() as collection, await collection.reader() as reader:
        return await reader.snapshot()


@pytest.mark.parametrize("kind", ["diff", "upsert"])
async def test_an_engine_merges_what_is_large(kind):
    site = Site(kind)
    wanted = content(await fill(site))
    program = site.program()
    engine = Engine(program)
    async with program.controller(settings=SMALL) as keeper:
        done = await keeper.compact(engine=engine, full=True)
    assert (len(engine.jobs), done.passes, done.rows_read) == (1, 1, 9)
    assert engine.jobs[0].rows == 9
    assert content(await snapshot(site)) == wanted
    async with program.controller() as keeper:  # sixteen million rows are few
        await keeper.compact(engine=engine, full=True)
    assert len(engine.jobs) == 1


async def test_parts_of_batches_are_counted():
    """Two shards whose batches end at different times."""
    site = Site()
    program = site.program()
    engine = Engine(program)
    async with site.program().opened() as collection:
        writer, other = collection.writer("a"), collection.writer("b")
        tables = [rows((at, "v"), at=at) for at in range(9)]
        await writer.append(pa.concat_tables(tables[:4]), lower=0, upper=4)
        await other.append(pa.concat_tables(tables), lower=0, upper=9)
        await writer.append(pa.concat_tables(tables[4:6]), lower=4, upper=6)
        wanted = content(await snapshot(site))
        async with program.controller(settings=SMALL) as keeper:
            await keeper.compact(engine=engine)
    assert sum(job.rows for job in engine.jobs) >= 9
    assert content(await snapshot(site)) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"rows_read": 8},
        {"digest_read": 1},
        {"objects": ()},
        {"objects": (MergedObject(key=merged_key(7), rows=1, size_bytes=1, digest=0),)},
    ],
    ids=["rows", "digest", "nothing", "elsewhere"],
)
async def test_a_wrong_result_is_not_committed(change):
    site = Site()
    await fill(site)
    program = site.program()
    async with program.controller(settings=SMALL) as keeper:
        with pytest.raises(CorruptionError, match=r"nothing was committed|elsewhere"):
            await keeper.compact(engine=Engine(program, **change), full=True)
        assert (await keeper.compact(full=True)).passes


async def test_more_objects_than_a_version_names_are_not_committed():
    site = Site("upsert")
    await fill(site)
    program = site.program()
    many = tuple(
        MergedObject(key=merged_key(1), rows=1, size_bytes=1, digest=0) for _ in range(10_001)
    )
    async with program.controller(settings=SMALL) as keeper:
        with pytest.raises(LimitExceededError, match="nothing was committed"):
            await keeper.compact(engine=Engine(program, objects=many), full=True)
        assert (await keeper.plan()) is not None


async def test_the_lease_is_extended_while_an_engine_works():
    site = Site()
    await fill(site)
    program = site.program()

    class Slow(Engine):
        async def pause(self) -> None:
            for _ in range(8):  # two leases
                await site.clock.advance(SMALL.lease_seconds / 4)
            with pytest.raises(WalLockedError):
                async with site.program().controller():
                    pass

    async with program.controller(settings=SMALL) as keeper:
        await keeper.compact(engine=Slow(program), full=True)


async def test_a_controller_that_was_replaced_ends_its_engine():
    site = Site()
    await fill(site)
    program = site.program()
    ended = []

    class Endless(Engine):
        async def pause(self) -> None:
            async with site.program().controller(take_over=True):
                pass
            try:
                await asyncio.gather(asyncio.Event().wait(), site.clock.advance(HOUR))
            finally:
                ended.append(True)

    async with program.controller(settings=SMALL) as keeper:
        with pytest.raises(FencedError):
            await keeper.compact(engine=Endless(program), full=True)
    assert ended == [True]
    assert not [key for key in await site.keys() if key.startswith("merged/")]


async def test_an_engine_whose_input_was_removed_was_replaced():
    site = Site()
    await fill(site)
    program = site.program()

    class Replaced(Engine):
        async def pause(self) -> None:
            async with site.program().controller(take_over=True):
                raise OSError("the job failed")

    async with program.controller(settings=SMALL) as keeper:
        with pytest.raises(FencedError):
            await keeper.compact(engine=Replaced(program))


@pytest.mark.parametrize("engine", ["spark", None, 1])
async def test_what_is_no_engine(engine):
    site = Site()
    await fill(site)
    async with site.program().controller() as keeper:
        with pytest.raises(InvalidSettingsError, match="engine"):
            await keeper.compact(engine=engine)
