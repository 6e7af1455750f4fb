"""The demo from beginning to end: two lives with a kill between them, reading back, Spark."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from rich.console import Console

from walstore import spark
from walstore.cli.demo.judge import SparkPart, judge
from walstore.cli.demo.life import Life
from walstore.cli.demo.outside import OutsideConsumer
from walstore.cli.demo.plan import DemoRun
from walstore.cli.demo.progress import Display
from walstore.cli.demo.reading import ReadBack, read_back
from walstore.cli.demo.report import Result
from walstore.cli.demo.spark_part import aggregate
from walstore.cli.demo.story import Story
from walstore.cli.output import format_count
from walstore.errors import CorruptionError, WalError

_NO_END_SECONDS = 1e6


class Show:
    """One run of the demo."""

    def __init__(self, plan: DemoRun, console: Console, *, with_spark: bool) -> None:
        """``console`` shows the progress."""
        self._plan = plan
        self._with_spark = with_spark
        self._story = Story()
        self._outside = OutsideConsumer(plan.log_path)
        self._display = Display(console, self._story, 2 * plan.life_seconds)

    async def run(self) -> Result:
        """Run it all and return the result. Raises the errors of the log if it cannot go on."""
        begin = time.monotonic()
        with self._display:
            await self._write()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read_back())
                asking = group.create_task(self._ask_spark())
        return judge(
            self._plan,
            self._story,
            reading.result(),
            self._outside.ledger,
            asking.result(),
            seconds=time.monotonic() - begin,
        )

    async def _write(self) -> None:
        """Let the log be written by two lives, and be followed from outside through both."""
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(self._display.follow())
            following = group.create_task(asyncio.to_thread(self._outside.run))
            try:
                await self._live_twice()
            finally:
                self._outside.end()
            await following
            showing.cancel()
        self._display.refresh()

    async def _live_twice(self) -> None:
        plan, story, say = self._plan, self._story, self._display.say
        say(f"appending to {plan.directory}, shipping to {plan.store_url.partition('?')[0]}")
        endless = dataclasses.replace(plan, life_seconds=_NO_END_SECONDS)
        await Life(endless, story, say).run(kill_after_seconds=plan.life_seconds)
        say(f"killed -9 after {format_count(story.acknowledged)} acknowledged records; restarting")
        await Life(plan.second_life(), story, say).run()
        say(f"closed after {format_count(story.acknowledged)} acknowledged records, all uploaded")

    async def _read_back(self) -> ReadBack:
        plan, display = self._plan, self._display
        limit = int(self._story.status.get("durable_limit", 1))
        bar = display.add("read back", total=limit)
        try:
            read = await read_back(
                plan.log_path, plan.store_url, self._story.claims, lambda at: display.move(bar, at)
            )
        except CorruptionError as error:
            raise WalError(f"what was written cannot be read back: {error}") from error
        display.finish(bar, f"{format_count(read.ledger.records)} records from the cloud alone")
        return read

    async def _ask_spark(self) -> SparkPart:
        if not self._with_spark:
            return SparkPart(left_out="--no-spark")
        missing = await asyncio.to_thread(spark.problem)
        if missing:
            self._display.say(f"leaving Spark out: {missing}")
            return SparkPart(left_out=missing)
        bar = self._display.add("Spark", total=None)
        try:
            found = await aggregate(self._plan.store_url)
        except WalError as error:
            self._display.finish(bar, "failed")
            return SparkPart(failure=str(error))
        self._display.finish(bar, f"{len(found.by_stream)} streams aggregated")
        return SparkPart(found=found)
