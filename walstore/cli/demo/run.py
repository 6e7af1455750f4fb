"""The parent of the demo: two lives of the writing process with a kill between them, and the check.

As a program, it is the process in which Spark counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
import time
from typing import Any, Final

from rich.console import Console
from rich.status import Status

from uploader import CloudLog
from walstore import Batch, CorruptionError, Reader, Wal, WalError, spark
from walstore.care.verify import verify_directory
from walstore.cli.child_process import child_process, receive
from walstore.cli.demo.checks import (
    OPENED,
    ReadBack,
    ReadTally,
    SparkTotals,
    Story,
    compare_batches,
    judge,
)
from walstore.cli.demo.writer import DemoJob
from walstore.cli.errors import ChildFailedError
from walstore.cli.output import format_count

_START_SECONDS: Final = 60.0
"""How long a life may take to open the log."""
_DRAIN_SECONDS: Final = 180.0
"""How long it may take to end after its time is up."""
_SPARK_SECONDS: Final = 180.0
"""How long Spark may take. The parent may have to stop it, as it runs in a process of its own."""
_MARK: Final = "walstore-demo-result "
_NO_END_SECONDS: Final = 1e6
_LOOK_SECONDS: Final = 0.1


class Demo:
    """One run."""

    def __init__(self, job: DemoJob, console: Console, *, with_spark: bool) -> None:
        """``console`` shows the progress: a line for each step, and on a terminal how far it is."""
        self._job = job
        self._with_spark = with_spark
        self._console = console
        self._status = Status("", console=console)
        self._story = Story()
        self._outside = ReadTally()
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Run all steps; return the fields of ``walstore demo --json``.

        Raises the errors of the log and the store if a step fails.
        """
        begin = time.monotonic()
        with self._status:
            async with asyncio.TaskGroup() as group:
                showing = group.create_task(self._show())
                group.create_task(self._follow())
                await self._live_twice()
                self._closed.set()
                showing.cancel()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read_back())
                counting = group.create_task(self._ask_spark())
        return judge(self._story, reading.result(), self._outside, counting.result()) | {
            "seconds": time.monotonic() - begin,
            "directory": self._job.directory,
            "store_url": self._job.store_url.partition("?")[0],
        }

    # -- writing -----------------------------------------------------------------------------

    async def _live_twice(self) -> None:
        job, story = self._job, self._story
        self._say(f"appending to {job.directory}, shipping to {job.store_url.partition('?')[0]}")
        endless = dataclasses.replace(job, seconds=_NO_END_SECONDS)
        await self._live(endless, kill_seconds=job.seconds)
        count = format_count(story.acknowledged.total())
        self._say(f"killed -9 after {count} acknowledged records; restarting")
        await self._live(dataclasses.replace(job, life=2))
        count = format_count(story.acknowledged.total())
        self._say(f"closed after {count} acknowledged records, all uploaded")

    async def _live(self, job: DemoJob, *, kill_seconds: float | None = None) -> None:
        """Start the writing process and take all its messages until it ends.

        SIGKILL ends it ``kill_seconds`` after it opened the log; without them it ends after the job's time.
        WalError if it ends in any other way.
        """
        loop, is_open = asyncio.get_running_loop(), False
        async with child_process("walstore.cli.demo.writer", dataclasses.asdict(job)) as process:
            killing = loop.call_later(_START_SECONDS, _kill, process)
            assert process.stdout is not None
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(process))
                async for message in receive(process.stdout):
                    self._story.take(message)
                    if message[0] == OPENED:
                        is_open = True
                        self._opened.set()
                        killing.cancel()
                        seconds = kill_seconds or job.seconds + _DRAIN_SECONDS
                        killing = loop.call_later(seconds, _kill, process)
            self._story.end_life()
            code = await process.wait()
            killing.cancel()
        if not is_open:
            what = "did not open the log"
        elif kill_seconds is not None:
            what = "" if code == -signal.SIGKILL else "ended too early"
        else:
            what = "does not end" if code == -signal.SIGKILL else "failed" if code else ""
        if what:
            raise ChildFailedError(f"the writing process {what}: exit code {code}", code=code)

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._say(line.decode("utf-8", "replace").rstrip())

    async def _follow(self) -> None:
        """Follow the log's files, without its lock, through the kill and the restart."""
        await self._opened.wait()
        async with Wal.open_readonly(self._job.directory) as log:
            reader = log.follow("earliest")
            while not (self._closed.is_set() and reader.is_caught_up):
                batch = await reader.fetch(max_records=1 << 16, max_wait_seconds=_LOOK_SECONDS)
                await asyncio.to_thread(self._outside.take, batch)

    # -- reading back ------------------------------------------------------------------------

    async def _read_back(self) -> ReadBack:
        """Verify the directory, read everything from the store alone, and compare the two."""
        begin, tally = time.monotonic(), ReadTally()
        report = await asyncio.to_thread(verify_directory, self._job.directory)
        for problem in report.problems:
            tally.complain(f"on disk: {problem}")
        try:
            async with (
                Wal.open_readonly(self._job.directory) as disk,
                CloudLog.open(self._job.store_url) as log,
            ):
                verified = await log.verify()
                on_disk, difference = disk.reader("earliest", follow=False), None
                async for batch in log.reader("earliest").batches():
                    await asyncio.to_thread(tally.take, batch)
                    if difference is None and (difference := await _difference(batch, on_disk)):
                        tally.complain(difference)
                    self._status.update(f"read back {format_count(tally.records)} records")
                if tally.records != verified.records or verified.records != log.tail - log.head:
                    tally.complain(
                        f"read {tally.records} of {verified.records} records in the cloud"
                    )
                if log.tail != disk.limit:
                    tally.complain(f"the cloud ends at {log.tail}, the disk at {disk.limit}")
                if log.head != 1:
                    tally.complain(f"the cloud begins at {log.head}")
                read = ReadBack(
                    tally, log.head, log.tail, disk.head, verified.fragments, verified.setsum
                )
        except CorruptionError as error:
            raise WalError(f"what was written cannot be read back: {error}") from error
        self._done(f"read back: {format_count(tally.records)} records from the cloud alone", begin)
        return read

    async def _ask_spark(self) -> SparkTotals | WalError | str:
        """Return what Spark counted, how it failed, or why it was left out."""
        if not self._with_spark:
            return "--no-spark"
        missing = await asyncio.to_thread(spark.problem)
        if missing:
            self._say(f"leaving Spark out: {missing}")
            return missing
        begin = time.monotonic()
        try:
            found = await count_by_stream(self._job.store_url)
        except WalError as error:
            self._done("Spark: failed", begin)
            return error
        self._done(f"Spark: {len(found.by_stream)} streams aggregated", begin)
        return found

    # -- progress ----------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _done(self, step: str, begin: float) -> None:
        self._say(f"{step}, {time.monotonic() - begin:.1f} s")

    async def _show(self) -> None:
        while True:
            self._status.update(progress(self._story))
            await asyncio.sleep(_LOOK_SECONDS)


def progress(story: Story) -> str:
    """Return in one line how far the writing is."""
    count, seconds = story.acknowledged.total(), story.append_seconds
    return (
        f"append {format_count(count)} records  {story.total('appended_bytes') / 1e6:.1f} MB  "
        f"{format_count(count / seconds if seconds else 0)}/s; "
        f"{format_count(story.status.get('uploaded_limit', 1) - 1)} records uploaded"
    )


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _difference(batch: Batch, on_disk: Reader) -> str | None:
    """Return how the disk differs from a batch of the store, where it still has it; None if it does not."""
    if on_disk.position < batch.start:
        on_disk.seek(batch.start)
    try:
        while (at := on_disk.position) < batch.limit:
            piece = await on_disk.fetch(max_records=batch.limit - at)
            if piece.limit == at:
                return f"[{at}, {batch.limit}) is in the cloud, but not on disk"
            difference = compare_batches(batch.slice(at, piece.limit), piece)
            if difference:
                return f"cloud and disk: {difference}"
    except CorruptionError as error:
        return f"on disk: {error}"
    return None


async def count_by_stream(url: str) -> SparkTotals:
    """Let Spark read the log at ``url``. WalError with Spark's last line if it fails."""
    async with child_process("walstore.cli.demo.run", {"url": url}) as process:  # and its JVM
        try:
            async with asyncio.timeout(_SPARK_SECONDS):
                out, err = await process.communicate()
        except TimeoutError:
            raise WalError(f"Spark did not finish within {_SPARK_SECONDS:.0f} s") from None
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            version, rows, head, limit = json.loads(line.removeprefix(_MARK))
            return SparkTotals(version, {row[0]: (row[1], row[2]) for row in rows}, head, limit)
    lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it wrote nothing to stderr"
    raise WalError(f"Spark failed with exit code {process.returncode}: {last}")


def _count(url: str) -> None:
    """Count records and bytes by stream, in a process of its own: Spark and its JVM write to its streams."""
    from pyspark.sql import functions as f

    config = {
        # Enough for a few streams; Spark's default of 200 would take longer than the reading.
        "spark.sql.shuffle.partitions": "2",
        # The run is too short for Java's optimising compiler to pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    session = spark.local_session(app_name="walstore demo", config=config)
    try:
        log = session.read.format("walstore").schema("offset long, stream string, value binary")
        totals = (
            log.load(url)
            .groupBy("stream")
            .agg(f.count("*"), f.sum(f.length("value")), f.min("offset"), f.max("offset"))
            .collect()
        )
        rows = sorted([stream or "", records, size] for stream, records, size, _, _ in totals)
        head = min((row[3] for row in totals), default=1)
        limit = max((row[4] for row in totals), default=0) + 1
        version = session.version
    finally:
        session.stop()
    print(_MARK + json.dumps([version, rows, head, limit]), flush=True)


if __name__ == "__main__":
    _count(**json.loads(sys.argv[1]))
