"""walstore.arrow: a stored log as a dataset of pyarrow, and what other engines read of it."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest

from tests.effort import first_seed, some
from tests.golden.test_golden_rust import DIRECTORY as RUST
from uploader import CloudLog, CloudWriter, LogFile
from walstore import InvalidSettingsError, LogNotFoundError, OffsetNotWrittenError, WrongLoopError
from walstore.arrow import SCHEMA, LogDataset, dataset

NOW_US = 1_700_000_000_000_000


async def fill(url: str, fragments: int = 6) -> None:
    """Append three records a fragment, of two streams."""
    async with CloudWriter.open(url, create=True) as log:
        for number in range(fragments):
            await log.append_many(
                [b"%d" % number] * 3,
                key=b"k" if number % 3 else None,
                stream="odd" if number % 2 else "even",
                headers={"h": b"%d" % number} if number % 2 else None,
                timestamp_us=NOW_US + number,
            )


async def table_of(url: str, **options: Any) -> pa.Table:
    async with CloudLog.open(url) as log:
        return await log.to_arrow(**options)


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = (tmp_path / "log").as_uri()
    asyncio.run(fill(found))
    return found


def path_of(found: LogDataset, at: int) -> Path:
    return Path(found.files[at])


def test_a_dataset_has_what_the_log_gives(url: str) -> None:
    found = dataset(url)
    assert found.schema == SCHEMA
    assert found.to_table() == asyncio.run(table_of(url))
    assert found.count_rows() == 18
    assert dataset(url, start=5, stop=12).to_table() == asyncio.run(table_of(url, start=5, stop=12))
    moment = datetime.fromtimestamp(NOW_US / 1e6, UTC) + timedelta(microseconds=4)
    assert (
        dataset(url, start=moment).to_table(["value"]).column(0).to_pylist()
        == [b"4"] * 3 + [b"5"] * 3
    )
    assert dataset(url, start=5, stop=5).to_table().num_rows == 0
    assert dataset(url, start="latest").to_table() == SCHEMA.empty_table()
    assert dataset(url, stop=4).head(2).column("offset").to_pylist() == [1, 2]


EXPRESSIONS: list[Callable[[Random], pc.Expression]] = [
    lambda random: pc.field("offset") >= random.randint(0, 20),
    lambda random: pc.field("offset") < random.randint(0, 20),
    lambda random: pc.field("stream") == random.choice(("odd", "even", "none")),
    lambda random: pc.field("value") != b"%d" % random.randint(0, 6),
    lambda random: pc.field("key").is_null(),
    lambda random: pc.field("headers").is_valid(),
    lambda random: (
        pc.field("timestamp")
        >= pa.scalar(NOW_US + random.randint(0, 6), SCHEMA.field("timestamp").type)
    ),
]


def test_columns_and_filters_give_what_they_give_of_a_table(url: str) -> None:
    random = Random(first_seed("test_columns_and_filters"))
    opened = []
    for low, high in (1, 19), (2, 18), (5, 9), (7, 7):
        found = dataset(url, start=low, stop=high)
        opened.append((found, asyncio.run(table_of(url, start=low, stop=high))))
    for _ in range(some(100)):
        found, whole = random.choice(opened)
        rows = random.choice(EXPRESSIONS)(random)
        if random.random() < 0.5:
            rows |= random.choice(EXPRESSIONS)(random)
        names = random.sample(SCHEMA.names, random.randint(1, len(SCHEMA)))
        expected = whole.filter(rows).select(names)
        assert found.to_table(names, filter=rows) == expected
        assert found.filter(rows).to_table(names) == expected
        assert found.count_rows(filter=rows) == expected.num_rows
        assert pickle.loads(pickle.dumps(found.filter(rows))).to_table(names) == expected
        again = random.choice(EXPRESSIONS)(random)
        both = whole.filter(rows & again).num_rows
        assert found.filter(rows).filter(again).count_rows() == both
        assert found.filter(rows).to_table(filter=again).num_rows == both
        sums = {"twice": pc.field("offset") + pc.field("offset"), "v": pc.field("value")}
        made = found.to_table(sums, filter=rows)
        offsets = whole.filter(rows).column("offset")
        assert made.column("twice").to_pylist() == [2 * offset for offset in offsets.to_pylist()]


def test_files_that_a_filter_rules_out_are_not_opened(url: str) -> None:
    found = dataset(url)
    for at in (0, 1, 2):
        path_of(found, at).unlink()
    later = pc.field("offset") > 9
    with_time = later & (pc.field("timestamp") > pa.scalar(NOW_US, SCHEMA.field("timestamp").type))
    assert found.count_rows(filter=later) == found.count_rows(filter=with_time) == 9
    with pytest.raises(FileNotFoundError):  # as of one that was collected
        found.to_table()


def test_duckdb_polars_and_pandas_read_it(url: str) -> None:
    found = dataset(url)
    with duckdb.connect() as database:
        database.register("log", found)
        query = """
            select stream, count(*), max("offset"), max(value) from log
            where "offset" > 3 and epoch_us(timestamp) >= $least group by all order by all
        """
        rows = database.execute(query, {"least": NOW_US + 2}).fetchall()
        assert rows == [("even", 6, 15, b"4"), ("odd", 6, 18, b"5")]
        query = "select headers['h'] from log where value = '3'::blob limit 1"
        assert database.execute(query).fetchall() == [(b"3",)]
        assert database.execute("select count(*) from log").fetchall() == [(18,)]
    frame = (
        pl.scan_pyarrow_dataset(found)
        .filter((pl.col("offset") > 3) & (pl.col("stream") == "odd"))
        .select("offset", "value")
        .collect()
    )
    assert frame["offset"].to_list() == [4, 5, 6, 10, 11, 12, 16, 17, 18]
    assert set(frame["value"]) == {b"1", b"3", b"5"}
    table = found.to_table(["offset", "timestamp", "value"])
    pandas = table.to_pandas()
    assert pandas["offset"].dtype == "int64"
    assert pandas["timestamp"].dt.tz is not None
    assert pandas["timestamp"].max() == pd.Timestamp(NOW_US + 5, unit="us", tz="UTC")
    assert pl.DataFrame(table).schema["offset"] == pl.Int64
    with duckdb.connect() as database:
        database.register("log", table)
        assert database.execute('select sum("offset") from log').fetchall() == [(171,)]


def test_fragments_of_wal3_have_the_columns_too(tmp_path: Path) -> None:
    url = Path(shutil.copytree(RUST / "whole", tmp_path / "log")).as_uri()
    expected = asyncio.run(table_of(url))
    assert dataset(url).to_table() == expected
    assert dataset(url).count_rows(filter=pc.field("stream").is_null()) == expected.num_rows
    assert expected.column("timestamp").null_count == 0


async def test_in_an_event_loop_it_takes_the_files(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    await fill(url)
    with pytest.raises(WrongLoopError, match=r"pass await log.files\(\) of a CloudLog$"):
        dataset(url)
    async with CloudLog.open(url) as log:
        files = await log.files(5, 12)
        expected = await log.to_arrow(start=files[0].start, stop=files[-1].limit)
    found = dataset(files)
    assert await asyncio.to_thread(found.to_table) == expected
    with pytest.raises(InvalidSettingsError, match=r"start and stop are of log\.files"):
        dataset(files, start=3)
    assert dataset([]).schema == SCHEMA


def test_a_file_system_of_the_caller(url: str) -> None:
    whole = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    assert dataset(url, filesystem=whole).count_rows() == 18


def test_what_is_no_dataset(url: str, tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        dataset((tmp_path / "none").as_uri())
    with pytest.raises(OffsetNotWrittenError):
        dataset(url, start=99)
    with pytest.raises(InvalidSettingsError, match="another engine refers to files"):
        asyncio.run(fill("memory://dataset"))
        dataset("memory://dataset")
    with pytest.raises(InvalidSettingsError, match="columns of a log are fixed"):
        dataset(url).replace_schema(SCHEMA)
    with pytest.raises(InvalidSettingsError, match=r"give filesystem=.* at gs: URLs"):
        dataset([LogFile("gs://bucket/log/a.parquet", 1, 2, 100)])
    with pytest.raises(InvalidSettingsError, match="not 'body'"):
        dataset(url).to_table(["body"])
    with pytest.raises(pa.ArrowInvalid, match="body"):
        dataset(url).to_table(filter=pc.field("body") == b"1")
