"""Compaction by Spark has the result of compaction here; whatever fails, nothing wrong is committed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.waiting import until
from tests.walstore.spark.versioned.columns import EVERY
from tests.walstore.spark.versioned.histories import snapshot
from tests.walstore.spark.versioned.random_collections import STEPS, build, counted, run
from uploader import Collection, Controller, ControllerSettings
from uploader.stores import open_store
from uploader.versioned import batch_file, updates
from uploader.versioned.schema import CollectionSchema
from walstore.errors import InvalidSettingsError, WalError
from walstore.spark import merge_engine

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = ControllerSettings(most_rows=1)
"""Spark gets every pass."""


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/c"


async def compact(url, engine, *, is_full=True):
    async with Controller.open(url, settings=SMALL, take_over=True) as keeper:
        return await keeper.compact(engine=engine, full=is_full)


async def merged_rows(url: str) -> tuple[CollectionSchema, list[pa.Table]]:
    """Return the updates of the merged area, one table for each batch."""
    store = open_store(url)
    async with Collection.open(url) as collection:
        status = await collection.status()
    tables = []
    for batch in status.batches:
        found = [(await store.get(key)).data for key in batch.keys]
        parts = [
            updates.upgrade(batch_file.decode(data, path="")[1], status.schema, path="")
            for data in found
        ]
        tables.append(pa.concat_tables([status.schema.stored.empty_table(), *parts]))
        assert batch.rows == tables[-1].num_rows
    return status.schema, tables


@pytest.mark.parametrize("steps", [(EVERY,), STEPS], ids=["every", "evolved"])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_both_engines_write_the_same(spark, url, tmp_path, kind, steps):
    times = run(build(url, kind, 7, steps=steps, compactions=0.15))
    before = [counted(run(snapshot(url, as_of))) for as_of in times]
    copy = f"file://{tmp_path}/copy"
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    run(compact(copy, merge_engine(spark, object_rows=10_000)))
    there = run(merged_rows(copy))
    assert [counted(run(snapshot(copy, as_of))) for as_of in times] == before

    async def locally() -> None:
        async with Controller.open(url) as keeper:
            await keeper.compact(full=True)

    run(locally())
    here = run(merged_rows(url))
    assert str([table.to_pylist() for table in there[1]]) == str(
        [table.to_pylist() for table in here[1]]
    )


async def fill(url: str, kind: str, rows: int = 1000) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    async with Collection.open(
        url, create=True, schema=columns, key=("id",), kind=kind
    ) as collection:
        writer = collection.writer()
        for at in range(4):
            ids = [(7 * n + at) % rows for n in range(rows)]
            table = pa.table({"id": ids, "name": [f"{at}-{n}" for n in ids]})
            await writer.append(table, lower=10 * at, upper=10 * at + 10)


def test_objects_are_in_the_order_of_keys(spark, url):
    run(fill(url, "upsert"))
    run(compact(url, merge_engine(spark, object_rows=300)))
    _, (table,) = run(merged_rows(url))
    keys = list(zip(table.column("id").to_pylist(), table.column("_t").to_pylist(), strict=True))
    assert keys == sorted(set(keys))
    assert len(keys) == 4000


def test_a_failing_store(spark, url, tmp_path):
    run(fill(url, "diff"))
    wanted = counted(run(snapshot(url)))
    victim = next(Path(tmp_path, "c", "pending").rglob("*.parquet"))
    data = victim.read_bytes()
    victim.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    with pytest.raises(WalError, match="nothing was changed"):
        run(compact(url, merge_engine(spark)))
    victim.write_bytes(data)
    assert run(merged_rows(url))[1] == []
    done = run(compact(url, merge_engine(spark)))
    assert done.passes
    assert counted(run(snapshot(url))) == wanted


@pytest.mark.parametrize(
    "change", [{"rows_read": 3999}, {"digest_read": 5}, {"objects": ()}], ids=str
)
def test_a_wrong_result_is_not_committed(spark, url, change):
    class Wrong:
        async def merge(self, job):
            return dataclasses.replace(await merge_engine(spark).merge(job), **change)

    run(fill(url, "diff"))
    with pytest.raises(WalError, match="nothing was committed"):
        run(compact(url, Wrong()))
    assert run(merged_rows(url))[1] == []


def test_a_cancelled_compaction_ends_its_tasks(spark, url):
    run(fill(url, "upsert"))

    async def main() -> None:
        task = asyncio.create_task(compact(url, merge_engine(spark, object_rows=100)))
        await until(lambda: bool(spark.sparkContext.statusTracker().getActiveJobsIds()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()

    run(main())
    assert run(merged_rows(url))[1] == []


def test_stores_and_numbers_that_it_does_not_take(spark):
    async def main() -> None:
        await fill("memory://spark-merge", "diff", 10)
        await compact("memory://spark-merge", merge_engine(spark))

    with pytest.raises(InvalidSettingsError, match="memory:"):
        run(main())
    with pytest.raises(InvalidSettingsError, match="object_rows"):
        merge_engine(spark, object_rows=0)


def test_the_command_line_starts_a_session(url, spark_jvm):
    run(fill(url, "upsert"))
    verb = ["collection", "compact", url, "--engine", "spark", "--full", "--confirm", "--json"]
    with spark_jvm.lend() as environment:
        done = subprocess.run(
            [sys.executable, "-m", "walstore", *verb],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows_written"] == 4000
