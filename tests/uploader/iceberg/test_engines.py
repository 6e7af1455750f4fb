"""What DuckDB, Polars and pandas read of the three kinds of tables; docs/open_tables.md has the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from tests.uploader.iceberg.lakehouse import Lakehouse
from uploader import CloudWriter, Collection, LogTable

pytestmark = pytest.mark.slow

ROWS = pa.table(
    {"id": [1, 2], "n": [2**64 - 1, 0]}, pa.schema([("id", pa.int64()), ("n", pa.uint64())])
)


async def fill(url: str, lake: Lakehouse) -> None:
    """Make all three: of fragments, of copies, of a collection."""
    async with CloudWriter.open(url, create=True) as writer:
        await writer.append(b"a", stream="s")
        await writer.append(b"b", headers={"h": b"v"})
    for name, copy in ("shop.fragments", False), ("shop.copies", True):
        async with LogTable.open(url, lake.target(name), copy=copy) as table:
            await table.step()
    async with (
        Collection.open(
            "memory://engines", create=True, schema=ROWS.schema, key=("id",), kind="upsert"
        ) as collection,
        await collection.reader() as reader,
    ):
        await collection.writer().append(ROWS, lower=0, upper=1)
        await reader.export_iceberg(lake.target("shop.people"))


def with_duckdb(table: Table, columns: list[str]) -> list[tuple[Any, ...]]:
    found = table.scan(selected_fields=tuple(columns)).to_duckdb("found")
    try:
        return found.execute("select * from found order by 1").fetchall()
    finally:
        found.close()


def duckdb_on_files(table: Table, columns: list[str]) -> list[tuple[Any, ...]]:
    files = [task.file.file_path for task in table.scan().plan_files()]
    names = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect() as database:
        query = f"select {names} from read_parquet(?, hive_partitioning = false) order by 1"
        return database.execute(query, [files]).fetchall()


def with_polars(table: Table, columns: list[str]) -> list[tuple[Any, ...]]:
    return pl.scan_iceberg(table).select(columns).collect().sort(columns[0]).rows()


def with_pandas(table: Table, columns: list[str]) -> list[tuple[Any, ...]]:
    found = table.scan(selected_fields=tuple(columns)).to_pandas()
    return list(found.sort_values(columns[0]).itertuples(index=False, name=None))


ENGINES: list[Callable[[Table, list[str]], list[tuple[Any, ...]]]] = [
    with_duckdb,
    duckdb_on_files,
    with_polars,
    with_pandas,
]
TABLES = {
    "shop.fragments": (["offset", "body"], [(1, b"a"), (2, b"b")]),
    "shop.copies": (["offset", "body"], [(1, b"a"), (2, b"b")]),
    "shop.people": (["id", "n"], [(1, 2**64 - 1), (2, 0)]),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    path = tmp_path_factory.mktemp("lake")
    found = Lakehouse(path)
    asyncio.run(fill((path / "log").as_uri(), found))
    return found


CASES = [
    (name, engine)
    for name in TABLES
    for engine in ENGINES
    if (name, engine) != ("shop.fragments", with_polars)
]


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_an_engine_reads_a_table(
    lake: Lakehouse,
    name: str,
    engine: Callable[[Table, list[str]], list[tuple[Any, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Polars plans with a package of its own if it is there, and warns if not.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    columns, expected = TABLES[name]
    with lake.table(name) as table:
        found = engine(table, columns)
    assert [
        (row[0], row[1] if isinstance(row[1], bytes) else int(row[1])) for row in found
    ] == expected


def test_polars_refuses_the_unsigned_columns_of_fragments(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset of walstore.arrow reads them as signed."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    with lake.table("shop.fragments") as table:
        with pytest.raises(pl.exceptions.SchemaError, match="UInt64"):
            with_polars(table, ["offset", "body"])
        assert with_polars(table, ["body"]) == [(b"a",), (b"b",)]


def unsigned(file: Path) -> set[str]:
    schema = pq.ParquetFile(file).schema
    columns = [schema.column(at) for at in range(len(schema))]
    return {one.name for one in columns if "isSigned=false" in str(one.logical_type)}


def test_only_fragments_have_unsigned_columns(lake: Lakehouse) -> None:
    found = {name: set().union(*map(unsigned, lake.files(name))) for name in TABLES}
    assert found == {
        "shop.fragments": {"offset", "timestamp_us", "record_timestamp_us"},
        "shop.copies": set(),
        "shop.people": set(),
    }
