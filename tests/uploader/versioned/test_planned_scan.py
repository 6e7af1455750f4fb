"""Scans that are planned in one process and read in others."""

from __future__ import annotations

import pytest

from tests.uploader.versioned.collections import HOUR, Site, rows
from walstore.errors import InvalidSettingsError, SinceViolationError


async def test_its_objects_stay_without_the_program_that_planned():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows((1, "a")), lower=0, upper=10)
        async with site.program().opened() as planner:
            scan = await planner.planned_scan(as_of=9, hold_seconds=10 * HOUR)
        await keeper.compact()
        await site.clock.advance(5 * HOUR)
        await keeper.gc()
        assert scan.files[0].key in await site.keys()
        await site.clock.advance(11 * HOUR)
        await keeper.gc()
        assert scan.files[0].key not in await site.keys()
        assert not (await collection.status()).readers


async def test_plans_of_one_version_share_a_reader():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows((1, "a")), lower=0, upper=10)
        for as_of in (9, 5, 0):
            await collection.planned_scan(as_of=as_of, hold_seconds=HOUR)
        assert [*(await collection.status()).readers] == ["shared-0"]
        await keeper.compact()
        await collection.planned_scan(as_of=9, hold_seconds=HOUR)
        assert [*(await collection.status()).readers] == ["shared-0", "shared-1"]
        assert (await collection.status()).since == 0


async def test_times_that_are_gone():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows((1, "a"), at=3), lower=0, upper=10)
        async with await collection.reader(since=5):
            await keeper.compact(full=True)
        for times in ({"as_of": 4}, {"as_of": 9, "after": 4}):
            with pytest.raises(SinceViolationError):
                await collection.planned_scan(hold_seconds=HOUR, **times)
        scan = await collection.planned_scan(hold_seconds=HOUR, as_of=9, after=5)
        assert (scan.after, scan.as_of) == (5, 9)
        with pytest.raises(InvalidSettingsError):
            await collection.planned_scan(hold_seconds=0, as_of=9)


async def test_the_latest_time_also_of_a_collection_without_updates():
    site = Site()
    async with site.program().opened() as collection:
        scan = await collection.planned_scan(hold_seconds=HOUR)
        assert (scan.as_of, scan.files) == (-1, ())
        await collection.writer().append(rows((1, "a")), lower=0, upper=10)
        assert (await collection.planned_scan(hold_seconds=HOUR)).as_of == 9
        with pytest.raises(TimeoutError):
            await collection.planned_scan(hold_seconds=HOUR, as_of=10, max_wait_seconds=0.0)
