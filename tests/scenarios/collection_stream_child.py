"""A program that is killed: follows one collection and writes what it finds into another.

Arguments: the collection that is followed, the one that is written, the checkpoint. Prints a line for each
micro-batch that is done.
"""

from __future__ import annotations

import sys

from walstore.spark import local_session
from walstore.spark.features import HAS_LIMITS


def main(source: str, target: str, checkpoint: str) -> None:
    spark = local_session(threads=2, config={"spark.sql.shuffle.partitions": "2"})
    reading = spark.readStream.format("walstore.collection").option("reader", "copy")
    if HAS_LIMITS:
        reading = reading.option("maxTimesPerTrigger", 7)
    rows = reading.load(source).selectExpr("id", "name", "_d").repartition(2, "id")
    query = (
        rows.writeStream.format("walstore.collection")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    told = -1
    while not query.awaitTermination(1) or query.lastProgress["batchId"] > told:
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                print("batch", told, flush=True)
        if not query.isActive and (not query.lastProgress or query.lastProgress["batchId"] <= told):
            break
    if query.exception():
        raise query.exception()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
