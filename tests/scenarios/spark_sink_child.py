"""A program that is killed: follows files of rows into a partitioned log, a file for each micro-batch.

Arguments: the files' directory, the log's URL, the checkpoint. Prints a line for each micro-batch that is
done.
"""

from __future__ import annotations

import sys

from walstore.spark import local_session


def main(files: str, url: str, checkpoint: str) -> None:
    spark = local_session(threads=2, config={"spark.sql.shuffle.partitions": "2"})
    rows = (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(files)
        .repartition(2)
    )
    query = (
        rows.writeStream.format("walstore")
        .option("checkpointLocation", checkpoint)
        .option("partitions", 3)
        .option("fragmentBytes", 1024)
        .trigger(availableNow=True)
        .start(url)
    )
    told = -1
    while not query.awaitTermination(1) or query.lastProgress["batchId"] > told:
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                print("batch", told, flush=True)
        if not query.isActive and query.lastProgress["batchId"] <= told:
            break
    if query.exception():
        raise query.exception()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
