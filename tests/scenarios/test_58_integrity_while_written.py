"""Scrubs, forks and seals beside writers, collectors and roll-ups that are really at work."""

# ruff: noqa: F811 - fixtures

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.cloud import FAST, URL, cloud_values
from tests.uploader.conftest import (  # noqa: F401 - fixtures
    aws_environment,
    s3_admin,
    s3_bucket,
    s3_server,
    s3_url,
)
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.scrubber import Scrubber
from uploader.care.admin.seal import seal
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.format.findings import Severity
from uploader.format.rollup import RollUpSettings
from uploader.layouts.log_session import Layout
from uploader.read.cloud_log import CloudLog
from uploader.stores import MemoryStore
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import LogNotFoundError, LogSealedError

pytestmark = pytest.mark.slow

SETTINGS = WriterSettings(
    interval_seconds=0.0,
    roll_up=RollUpSettings(fragments_per_snapshot=3, snapshots_per_snapshot=2),
)
COLLECTING = CollectorSettings(
    interval_seconds=0.0, delete_pause_seconds=0.0, max_drop_fraction=1.0, max_fragments=7
)


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_nothing_is_wrong_with_a_log_that_is_written_collected_and_rolled_up(
    layout: Layout,
) -> None:
    """Every scrub of it says so; every fork is a stretch of it; in the end it is sealed."""
    store = MemoryStore()
    written = asyncio.Event()
    expected = [b"%d" % at for at in range(1, 121)]

    async with CloudWriter.open(
        URL, store=store, retry=FAST, settings=SETTINGS, layout=layout
    ) as log:
        await log.append(expected[0])
        await log.cursors.commit("reader", 1)

        async def write() -> None:
            for value in expected[1:]:
                offset = await log.append(value)
                if offset % 10 == 0:
                    await log.cursors.commit("reader", offset - 5)
            written.set()

        async def collect() -> None:
            async with GarbageCollector.open(
                URL, store=store, retry=FAST, settings=COLLECTING
            ) as collector:
                while not written.is_set():
                    await collector.collect()

        async def scrub() -> None:
            async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
                while not written.is_set():
                    report = await scrubber.scrub()
                    wrong = [one for one in report.findings if one.severity is not Severity.NOTE]
                    assert wrong == []
                    assert report.is_complete

        async def fork_it() -> None:
            while not written.is_set():
                target = MemoryStore()
                done = await fork(URL, URL, source_store=store, target_store=target, retry=FAST)
                assert await cloud_values(target) == expected[done.start - 1 : done.limit - 1]

        async with asyncio.TaskGroup() as group:
            for work in (write, collect, scrub, fork_it):
                group.create_task(work())
        assert await seal(URL, store=store) == 121
        with pytest.raises(LogSealedError):
            await log.append(b"late")
    async with CloudLog.open(URL, store=store) as reading:
        assert await cloud_values(store) == expected[reading.head - 1 :]
        assert reading.head > 1
    async with Scrubber.open(URL, store=store) as scrubber:
        report = await scrubber.scrub()
        assert report.is_sound


@pytest.mark.s3
async def test_on_an_s3_server(s3_url: str) -> None:
    """Scrub, seal, fork and destroy over real HTTP, given nothing but URLs."""
    copy = s3_url.replace("?", "-copy?")
    async with CloudWriter.open(s3_url, settings=SETTINGS) as log:
        for at in range(8):
            await log.append(b"%d" % at)
        assert await fork(s3_url, copy, stop=6)
        assert await seal(s3_url) == 9
        with contextlib.suppress(LogSealedError):
            await log.append(b"late")
    for url, limit in ((s3_url, 9), (copy, 6)):
        async with Scrubber.open(url) as scrubber:
            report = await scrubber.scrub()
            assert report.is_sound
            assert report.records == limit - 1
    removed = await destroy(s3_url)
    assert removed.objects > 8
    with pytest.raises(LogNotFoundError):
        await CloudLog.open(s3_url)
    async with CloudLog.open(copy) as reading:
        assert reading.tail == 6
    with pytest.raises(LogNotFoundError, match="destroyed"):
        await CloudWriter.open(s3_url)
