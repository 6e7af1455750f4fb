"""A program that compacts a collection with Spark, and does not end well.

Arguments: the collection's URL, and what happens: ``before`` or ``after`` kill it around its commit;
``flaky``: the first attempt of each task fails after it has put its objects.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from uploader import Controller, ControllerSettings, MergeEngine, MergeJob, MergeResult
from walstore.spark import local_session, merge_engine
from walstore.spark.versioned import compaction


class FlakyTask(compaction.MergeTask):
    """A task whose first attempt fails at its end. Pickled by value, since it is the main program's."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from compaction.MergeTask.run(self, batches)
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("the first attempt fails")


class Deadly:
    """An engine whose process is killed when all objects are put."""

    def __init__(self, engine: MergeEngine) -> None:
        self.engine = engine

    async def merge(self, job: MergeJob) -> MergeResult:
        await self.engine.merge(job)
        die()
        raise AssertionError


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, what: str) -> None:
    if what == "flaky":
        compaction.MergeTask = FlakyTask
    config = {"spark.master": "local[2,3]"}  # three attempts of each task
    spark = await asyncio.to_thread(local_session, config=config)
    settings = ControllerSettings(most_rows=1)
    async with Controller.open(url, settings=settings, take_over=True) as keeper:
        engine = merge_engine(spark, object_rows=300)
        await keeper.compact(engine=Deadly(engine) if what == "before" else engine, full=True)
        if what == "after":
            die()
    await asyncio.to_thread(spark.stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
