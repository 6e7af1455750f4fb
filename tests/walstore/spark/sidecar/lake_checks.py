"""What a sidecar says to tables that are there already; run by test_lakes.py in a session with the jars.

Prints what each check said, and the rows of a table that was not made by a sidecar.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.lakes import Lake
from tests.walstore.spark.reading import fill
from walstore.errors import InvalidSettingsError
from walstore.spark.sidecar.checkpoint import QueryCheckpoint, SparkFolder
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat
from walstore.spark.sidecar.tables import open_table, start_query

ORDERS = ("orders", 0)
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
)
REST = "timestampType int, stream string"
COUNT = 300


def main(table_format: str, jars: str, path: str) -> None:
    place = Path(path)
    lake = Lake(table_format, jars, place)
    spark = lake.session()
    is_delta = table_format == "delta"
    said: dict[str, object] = {}
    asyncio.run(fill(place / "orders_log" / "orders", COUNT))

    def name_of(table: str) -> str:
        return f"delta.`{place / table}`" if is_delta else f"lake.db.{table}"

    def settings_of(name: str, **options: object) -> SidecarSettings:
        found = SidecarSettings(
            location=str(place / "orders_log" / "orders"),
            table=str(place / name) if is_delta else f"lake.db.{name}",
            checkpoint=str(place / "checkpoints" / name),
            table_format=TableFormat(table_format),
            has_headers=False,
            is_once=True,
        )
        return replace(found, **options)

    def make(table: str, columns: str, more: str = "") -> None:
        spark.sql(f"CREATE TABLE {name_of(table)} ({columns}) USING {table_format} {more}")

    def check(word: str, settings: SidecarSettings) -> None:
        checkpoint = QueryCheckpoint(SparkFolder(spark, settings.checkpoint_place))
        try:
            open_table(spark, settings).check(checkpoint, lambda: {ORDERS: 1})
        except InvalidSettingsError as error:
            said[word] = str(error).replace(path, "")
        else:
            said[word] = None

    def land(settings: SidecarSettings) -> None:
        table = open_table(spark, settings)
        table.check(
            QueryCheckpoint(SparkFolder(spark, settings.checkpoint_place)), lambda: {ORDERS: 1}
        )
        query = start_query(spark, settings, {ORDERS: 1}, table)
        assert query.awaitTermination(200)
        said["places"] = [found.replace(path, "") for found in table.local_places()]

    check("none", settings_of("none"))
    make("narrow", "key binary, value string, offset bigint")
    check("narrow", settings_of("narrow"))
    make("dated", f"{COLUMNS}, {REST}, date date", "PARTITIONED BY (date)")
    check("dated", settings_of("dated"))
    check("dated, told", settings_of("dated", partition_by=("date",)))
    check("dated, told more", settings_of("dated", partition_by=("stream", "date")))
    if is_delta:
        (place / "files").mkdir()
        (place / "files" / "part-0.parquet").write_bytes(b"")
        check("files", settings_of("files"))
    else:
        check("no catalog", settings_of("x", table="ocean.db.x"))
        check("no path", settings_of("x", table=str(place / "nothing")))

    # Made by somebody else: other order, a column more, divided by what there are several of in a batch.
    division = "PARTITIONED BY (stream)" if is_delta else "PARTITIONED BY (stream, days(timestamp))"
    make("wide", f"{REST}, note string, {COLUMNS}", division)
    wide = settings_of("wide", partition_by=("stream",))
    land(wide)
    rows = spark.table(name_of("wide"))
    said["rows"] = (
        rows.where("note IS NULL AND topic = 'orders'").select("offset").distinct().count()
    )
    said["count"] = rows.count()
    said["streams"] = rows.select("stream").distinct().count()
    land(wide)
    said["again"] = rows.count()

    # The checkpoint of one table with another, and the other way round.
    check(
        "new checkpoint", settings_of("wide", partition_by=("stream",), checkpoint=str(place / "n"))
    )
    check("no table", settings_of("gone", checkpoint=wide.checkpoint_place))
    (place / "checkpoints" / "wide" / "commits" / "1").write_text("v1\n{}")
    offsets = place / "checkpoints" / "wide" / "offsets"
    (offsets / "1").write_text((offsets / "0").read_text())
    check(
        "other table",
        settings_of("dated", partition_by=("date",), checkpoint=wide.checkpoint_place),
    )
    sys.stdout.write(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
