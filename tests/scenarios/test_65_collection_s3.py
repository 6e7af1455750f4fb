"""Collection over HTTP, where ETags are hashes of the content: each empty announcement has the same."""

# ruff: noqa: F811 - fixtures

from __future__ import annotations

import pytest

from tests.scenarios.test_56_collection import COLLECTING, WRITING, LeapClock
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from uploader.care.gc.collector import GarbageCollector
from uploader.stores import open_store
from uploader.write.cloud_writer import CloudWriter
from walstore import ContentionError

pytestmark = [pytest.mark.s3, pytest.mark.slow]


async def collect(url: str):
    async with GarbageCollector.open(url, settings=COLLECTING, clock=LeapClock()) as collector:
        return await collector.collect()


async def test_collected_again_and_again(s3_url: str) -> None:
    """Each time with the same ETag of gc/GARBAGE in between."""
    async with CloudWriter.open(s3_url, settings=WRITING) as log:
        for number in range(1, 13):
            await log.append(b"%d" % number)
            if number % 4 == 0:
                await log.cursors.commit("billing", number)
                assert (await collect(s3_url)).head == number
        await log.cursors.delete("billing")
    store = open_store(s3_url)
    named = [listed.key async for listed in store.list("log/")]
    await store.aclose()
    assert len(named) == 1


async def test_a_plan_from_before_two_collections(s3_url: str) -> None:
    """The ETag does not tell that they happened; the manifest does."""
    async with CloudWriter.open(s3_url, settings=WRITING) as log:
        for number in range(1, 13):
            await log.append(b"%d" % number)
        await log.cursors.commit("billing", 3)
        await collect(s3_url)
        await log.cursors.commit("billing", 9)
        async with GarbageCollector.open(
            s3_url, settings=COLLECTING, clock=LeapClock()
        ) as collector:
            plan = await collector.plan()
            await log.cursors.rewind("billing", 5)
            await collect(s3_url)
            with pytest.raises(ContentionError):
                await collector.apply(plan)
        assert (await collect(s3_url)).head == 5
    async with CloudWriter.open(s3_url, settings=WRITING) as log:
        assert (log.head, log.tail) == (5, 13)
