"""The files of a log for other engines: what is published, whole, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cloud import FAST, write_without_objects
from tests.golden.test_golden_rust import DIRECTORY as RUST
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector
from uploader.layouts.log_session import Layout
from uploader.read.log_file import LogFile, file_prefix
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore
from uploader.testing.faults import Request
from walstore.errors import InvalidSettingsError, OffsetNotWrittenError, OffsetTrimmedError

AT_ONCE = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)


async def fill(directory: Path, *values: bytes, layout: Layout = "swap") -> str:
    """Append groups of two records, a fragment each."""
    url = directory.as_uri()
    async with CloudWriter.open(url, create=True, layout=layout) as writer:
        for value in values:
            await writer.append_many([value, value])
    return url


def path_of(file: LogFile) -> Path:
    return Path(file.url.removeprefix("file://"))


def bounds(files: list[LogFile]) -> list[tuple[int, int]]:
    return [(file.start, file.limit) for file in files]


async def test_files_have_the_records_that_they_name(tmp_path: Path) -> None:
    url = await fill(tmp_path / "log", b"a", b"b", b"c")
    async with CloudLog.open(url) as log:
        files = await log.files()
        assert bounds(files) == [(1, 3), (3, 5), (5, 7)]
        for file in files:
            found = pq.ParquetFile(path_of(file)).read()
            assert found.column("offset").to_pylist() == list(range(file.start, file.limit))
            assert file.records == found.num_rows
            assert file.size_bytes == path_of(file).stat().st_size
        assert bounds(await log.files(3)) == [(3, 5), (5, 7)]
        assert bounds(await log.files(4, 6)) == [(3, 5), (5, 7)]
        assert bounds(await log.files(stop=3)) == [(1, 3)]
        assert bounds(await log.files(4, 4)) == bounds(await log.files("latest")) == []
        time_us = await log.timestamp_at(5)
        moment = datetime.fromtimestamp(time_us // 1_000_000 + 3600, UTC)
        assert await log.files(moment) == []
        assert bounds(await log.files(datetime(2000, 1, 1, tzinfo=UTC))) == bounds(files)
        await fill(tmp_path / "log", b"d")
        assert bounds(await log.files(5, log.limit)) == [(5, 7)]  # as the manifest was
        assert bounds(await log.files(5)) == [(5, 7), (7, 9)]
        with pytest.raises(OffsetNotWrittenError):
            await log.files(99)


@pytest.mark.parametrize("layout", ["swap", "chain"])
async def test_a_fragment_that_is_not_published_is_never_named(
    tmp_path: Path, layout: Layout
) -> None:
    """Looked at before and after every request of a writer; a glob sees what was put and is not named."""
    url = await fill(tmp_path / "log", b"a", layout=layout)
    store = FaultyStore(LocalStore(tmp_path / "log"))
    unnamed: list[int] = []

    async def look() -> None:
        async with CloudLog.open(url) as log:
            files = await log.files()
            records = [record.offset async for record in log.reader(stop=files[-1].limit)]
        found = [pq.ParquetFile(path_of(file)).read(["offset"])["offset"] for file in files]
        assert [row for offsets in found for row in offsets.to_pylist()] == records
        globbed = await asyncio.to_thread(lambda: list((tmp_path / "log").rglob("*.parquet")))
        unnamed.append(len(globbed) - len(files))

    async def look_around(request: Request[Any]) -> object:
        await look()
        answer = await request()
        await look()
        return answer

    store.on("any", look_around, times=100)
    async with CloudWriter.open(url, store=store, retry=FAST) as writer:
        for _ in range(3):
            await writer.append(Random(1).randbytes(100_000))  # no manifest holds it
    await look()
    assert max(unnamed) > 0
    assert unnamed[-1] == 0


async def test_fragments_that_only_manifests_hold_are_put_first(tmp_path: Path) -> None:
    await write_without_objects(LocalStore(tmp_path / "log"), b"a", b"b")
    async with CloudLog.open((tmp_path / "log").as_uri()) as log:
        assert [path_of(file).exists() for file in await log.files()] == [True, True]


async def test_a_cursor_keeps_the_files_of_a_query(tmp_path: Path) -> None:
    url = await fill(tmp_path / "log", b"a", b"b", b"c")
    async with CloudLog.open(url) as log, GarbageCollector.open(url, settings=AT_ONCE) as collector:
        done = await log.cursor("done", start=5)
        cursor = await log.cursor("report", start=3, lease_seconds=3600)
        files = await log.files(cursor.position)
        await collector.collect()
        assert all(path_of(file).exists() for file in files)
        with pytest.raises(OffsetTrimmedError):
            await log.files(1)
        await log.cursors.delete("report")
        await collector.collect()
        assert [path_of(file).exists() for file in files] == [False, True]
        assert bounds(await log.files()) == [(5, 7)]
        assert done.position == 5


async def test_files_of_wal3(tmp_path: Path) -> None:
    url = Path(shutil.copytree(RUST / "whole", tmp_path / "log")).as_uri()
    async with CloudLog.open(url) as log:
        files = await log.files()
        assert sum(file.records for file in files) == log.limit - log.head
        assert all(path_of(file).exists() for file in files)


async def test_places_where_no_engine_finds_files(tmp_path: Path) -> None:
    async with CloudWriter.open("memory://files", create=True) as writer:
        await writer.append(b"a")
    async with CloudLog.open("memory://files") as log:
        with pytest.raises(InvalidSettingsError, match="another engine refers to files at s3://"):
            await log.files()
    async with CloudLog.open(await fill(tmp_path / "a%b", b"a")) as log:
        with pytest.raises(InvalidSettingsError, match="one of the signs"):
            await log.files()


def test_names_of_files() -> None:
    assert file_prefix("s3://bucket/my%20logs/a?region=x") == "s3://bucket/my logs/a"
    assert file_prefix("az://box/a/") == "az://box/a"
    assert file_prefix("file:///srv/a%20b") == "file:///srv/a b"
