"""A program that lands a log in a Parquet table; run by test_70_spark_exactly_once.py, which kills it.

``land``: until it is killed. ``finish``: what is there, then it prints what is in the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.scenarios.stream_source import TellingSource
from walstore.spark import local_session


def main(mode: str, location: str, place: str, options: list[str]) -> None:
    spark = local_session(threads=2)
    spark.dataSource.register(TellingSource)
    given = dict(option.split("=") for option in options)
    table, checkpoint = str(Path(place, "table")), str(Path(place, "checkpoint"))
    frame = spark.readStream.format("telling").options(**given).load(location)
    writer = frame.writeStream.format("parquet").option("path", table)
    writer = writer.option("checkpointLocation", checkpoint)
    if mode == "land":
        writer.start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    for row in spark.read.parquet(table).select("offset", "value").collect():
        print(row.offset, bytes(row.value).decode())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
