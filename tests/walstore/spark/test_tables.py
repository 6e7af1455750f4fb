"""Tables of Spark's catalog: their options reach the source although Spark keeps only columns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.walstore.spark.reading import copied, fill
from walstore import LogNotFoundError
from walstore.spark.source import WalstoreSource, all_options, table_options

PROPERTIES = {"provider": "walstore", "owner": "root", "comment": "hi", "x": "y"}
"""What the catalog adds, and a property of the user's own."""


def of_catalog(location: str, **options: str) -> dict[str, str]:
    named = {f"option.{name}": value for name, value in options.items()}
    return {**PROPERTIES, **options, **named, "location": location, "path": location}


def stored(schema: StructType) -> StructType:
    """Return the columns as a catalog does that keeps them as JSON."""
    return StructType.fromJson(copied(schema.jsonValue()))


def test_options_travel_with_the_columns(log_directory: Path) -> None:
    records = asyncio.run(fill(log_directory, count=20))
    given = of_catalog(f"file:{log_directory}", startingoffsets="11")
    schema = WalstoreSource(given).schema()
    found = all_options({}, stored(schema))
    assert found == {"path": str(log_directory), "startingoffsets": "11"}
    reader = WalstoreSource({}).reader(stored(schema))
    (partition,) = reader.partitions()
    rows = sum(batch.num_rows for batch in reader.read(partition))
    assert rows == len(records) - 10


def test_a_query_may_add_and_change_options(log_directory: Path) -> None:
    asyncio.run(fill(log_directory, count=20))
    schema = WalstoreSource(of_catalog(str(log_directory), stream="eu")).schema()
    found = all_options({"startingOffsets": "5", "STREAM": "us"}, stored(schema))
    assert found == {"path": str(log_directory), "startingoffsets": "5", "stream": "us"}


def test_the_catalogs_form_of_a_path(log_directory: Path, tmp_path: Path) -> None:
    """One slash stands for a directory and for a store; what lies there decides."""
    named = tmp_path / "several logs" / "eu"
    asyncio.run(fill(named / "log", count=10))
    asyncio.run(fill(log_directory, count=10))
    for path, plain in (
        (f"file:{log_directory}", str(log_directory)),
        (f"file:{tmp_path}/several%20logs", f"{tmp_path}/several logs"),
        (f"file:{tmp_path}/store", f"file://{tmp_path}/store"),
        ("s3a://bucket/orders", "s3a://bucket/orders"),
        ("/logs/orders", "/logs/orders"),
    ):
        assert (table_options(of_catalog(path)) or {})["path"] == plain


def test_a_read_is_no_table() -> None:
    assert table_options({"path": "/logs/orders", "startingOffsets": "1"}) is None


def test_a_location_without_a_log_shows_with_the_columns(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), (tmp_path / "none").as_uri()):
        with pytest.raises(LogNotFoundError, match="there is no log at"):
            WalstoreSource({"path": path}).schema()
        with pytest.raises(LogNotFoundError, match="no log at"):
            WalstoreSource({"path": path, "subscribePattern": "a.*"}).schema()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tables_in_sql(spark: SparkSession, log_directory: Path) -> None:
    """Made with a path or a location, read with options or without, and dropped without harm."""
    asyncio.run(fill(log_directory, count=100))
    spark.sql(
        f"CREATE TABLE first USING walstore OPTIONS (path '{log_directory}', startingOffsets '91')"
    )
    spark.sql(
        "CREATE TABLE second USING walstore COMMENT 'orders' TBLPROPERTIES ('x' = 'y') "
        f"LOCATION '{log_directory}'"
    )
    try:
        counts = "SELECT (SELECT count(*) FROM first), (SELECT count(*) FROM second)"
        assert tuple(spark.sql(counts).first() or ()) == (10, 100)
        # A query of its own: Spark's object for a table keeps the plan of one read at a time, so two
        # reads with different options in one query may share it (PythonDataSourceV2.getOrCreateReadInfo).
        with_stream = spark.sql("SELECT count(*) FROM second WITH (stream = 'eu')").first()
        assert tuple(with_stream or ()) == (10,)
    finally:
        spark.sql("DROP TABLE first")
        spark.sql("DROP TABLE second")
    assert spark.read.format("walstore").load(str(log_directory)).count() == 100
