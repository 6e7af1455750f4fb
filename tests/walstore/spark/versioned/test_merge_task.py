"""What a task of a Spark compaction does with its rows, without Spark."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.walstore.spark.versioned.columns import every_schema, table
from uploader.versioned import updates
from uploader.versioned.merging import MergeInput, MergeJob
from uploader.versioned.schema import HASH, TIME, CollectionSchema
from walstore.errors import LimitExceededError
from walstore.spark.versioned import compaction
from walstore.spark.versioned.compaction import (
    MergeTask,
    SparkMerger,
    consolidated,
    last_key,
    stored,
)
from walstore.spark.versioned.object_tasks import (
    HASH_LONG,
    ORDER,
    from_long,
    to_long,
)
from walstore.spark.versioned.scanning import TASK_BYTES, divide
from walstore.spark.versioned.types import to_spark


def job_of(schema: CollectionSchema, url: str = "", since: int = 40) -> MergeJob:
    return MergeJob(
        url=url, collection="c" * 32, schema=schema, epoch=3, lower=0, upper=100, since=since,
        is_oldest=True, rows=0, inputs=(),
    )  # fmt: skip


def sorted_rows(schema: CollectionSchema, rows: int, seed: int) -> pa.Table:
    """Return stored updates at many times, sorted as the JVM does."""
    rng = random.Random(seed)
    given = table(rows, rng, schema.columns, keys=rows // 8)
    times = [rng.randrange(100) for _ in range(rows)]
    given = given.append_column(TIME, pa.array(times, pa.uint64()))
    if schema.kind == "upsert":
        removed = [rng.random() < 0.3 for _ in range(rows)]
        given = given.append_column("_deleted", pa.array(removed))
    return updates.conform(given, schema, lower=0, upper=100)


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_pieces_add_up_to_the_whole(monkeypatch, kind, piece):
    monkeypatch.setattr(compaction, "_PIECE_ROWS", piece)
    schema = every_schema(kind)
    rows = sorted_rows(schema, 200, 5)
    whole = updates.consolidate([rows], schema, since=40, is_oldest=True)
    tables = (rows.slice(at, 9) for at in range(0, rows.num_rows, 9))
    found = pa.concat_tables(consolidated(tables, job_of(schema)))
    assert str(found.to_pylist()) == str(whole.to_pylist())


def test_one_key_in_many_pieces(monkeypatch):
    monkeypatch.setattr(compaction, "_PIECE_ROWS", 3)
    schema = every_schema("upsert")
    given = pa.table(
        {"id": [1] * 50, "c3": range(50), TIME: pa.array(range(50), pa.uint64())}
    ).append_column("_deleted", pa.array([True] * 45 + [False] * 5))
    rows = updates.conform(given, schema, lower=0, upper=100)
    for since in (30, 44, 46, 60):
        whole = updates.consolidate([rows], schema, since=since, is_oldest=True)
        tables = (rows.slice(at, 2) for at in range(0, 50, 2))
        found = pa.concat_tables(consolidated(tables, job_of(schema, since=since)))
        assert found.to_pylist() == whole.to_pylist()


def test_where_the_last_key_begins():
    schema = every_schema("upsert")
    rows = updates.conform(
        pa.table({"id": [1, 2, 2], TIME: pa.array([0, 0, 1], pa.uint64())}),
        schema,
        lower=0,
        upper=9,
    )
    assert [last_key(rows.slice(0, n), schema) for n in (1, 2, 3)] == [0, 1, 1]
    assert last_key(rows.slice(1), schema) == 0


@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_two_attempts_put_objects_of_their_own(kind, tmp_path):
    schema = every_schema(kind)
    rows = sorted_rows(schema, 200, 6)
    shown = to_spark(rows.select([*schema.columns.names, schema.effect]))
    shown = shown.append_column(ORDER, to_long(rows.column(TIME)))
    shown = shown.append_column(HASH_LONG, to_long(rows.column(HASH)))
    assert str(pa.concat_tables(stored(iter(shown.to_batches(50)), schema)).to_pylist()) == str(
        rows.to_pylist()
    )
    task = MergeTask(job_of(schema, f"file://{tmp_path}"), 50)
    attempts = [
        [json.loads(batch.column(0)[0].as_py()) for batch in task.run(iter(shown.to_batches(30)))]
        for _ in range(2)
    ]
    keys = [{one["key"] for one in reports if one["key"]} for reports in attempts]
    assert len(keys[0]) == len(keys[1]) > 1
    assert not keys[0] & keys[1]
    files = {str(path.relative_to(tmp_path)) for path in Path(tmp_path).rglob("*.parquet")}
    assert files == keys[0] | keys[1]
    for reports in attempts:
        assert sum(one["rows_read"] for one in reports) == rows.num_rows
        assert sum(one["digest_read"] for one in reports) % 2**64 == updates.digest(rows)
        assert {one["rows"] for one in reports[:-2]} == {50}


async def test_more_objects_than_a_version_names():
    job = dataclasses.replace(job_of(every_schema("diff"), "file:///nowhere"), rows=10_001)
    with pytest.raises(LimitExceededError, match="object_rows"):
        await SparkMerger(None, object_rows=1).merge(job)


def test_numbers_keep_their_order_as_longs():
    numbers = pa.chunked_array([pa.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], pa.uint64())])
    longs = to_long(numbers).to_pylist()
    assert longs == sorted(longs)
    assert from_long(to_long(numbers)).equals(numbers)


def test_parts_are_divided_by_size():
    parts = [
        MergeInput(key=str(n), start=0, limit=1, latest=0, size_bytes=n * TASK_BYTES // 8)
        for n in range(17)
    ]
    tasks = divide(parts)
    assert sorted(part.key for task in tasks for part in task) == sorted(p.key for p in parts)
    sizes = [sum(part.size_bytes for part in task) for task in tasks]
    assert max(sizes) <= 2 * TASK_BYTES
    assert divide([]) == []
