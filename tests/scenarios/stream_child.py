"""A program that lands logs in Parquet tables; run by test_70_spark_exactly_once.py, which kills it.

``land``: until it is killed. ``finish``: what is there, then it prints what is in the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.scenarios.stream_source import TellingSource, kind_of
from walstore.spark import local_session


def main(mode: str, place: str, locations: list[str], options: list[str]) -> None:
    spark = local_session(threads=4)
    spark.dataSource.register(TellingSource)
    given = dict(option.split("=") for option in options)
    tables = {}
    for location in locations:
        own = Path(place, kind_of(location))
        table = tables[kind_of(location)] = str(own / "table")
        frame = spark.readStream.format("telling").options(**given).load(location)
        writer = frame.writeStream.format("parquet").option("path", table)
        writer = writer.option("checkpointLocation", str(own / "checkpoint"))
        if mode == "land":
            writer.start()
        else:
            writer.trigger(availableNow=True).start().awaitTermination()
    if mode == "land":
        spark.streams.awaitAnyTermination()
    for kind, table in tables.items():
        for row in spark.read.parquet(table).select("offset", "value").collect():
            print(kind, row.offset, bytes(row.value).decode())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:5], sys.argv[5:])
