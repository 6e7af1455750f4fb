"""The writing process of the demo: it opens the log, appends, is killed, and is started once more.

Started by the parent as ``python -m walstore.cli.demo.child PLAN`` with a pipe as its stdout, through
which it says what was acknowledged (messages.py). In its last life it stops by itself after the plan's
time and closes the log, which ships the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import sys
from array import array

from uploader.write.cloud_tier import CloudTier
from uploader.write.writer_settings import UploadSettings
from walstore.cli.demo import messages
from walstore.cli.demo.consumer import HistoryConsumer, TailConsumer
from walstore.cli.demo.identity import producer_number
from walstore.cli.demo.messages import Pipe, Watch, pack_latencies
from walstore.cli.demo.plan import SAMPLE_STREAMS, TEXT_STREAM, DemoRun
from walstore.cli.demo.producers import SampleProducer, TextProducer
from walstore.cli.demo.texts import Texts
from walstore.cli.errors import exit_code, explain, is_expected, unwrap
from walstore.cli.output import complain, send_logs_to_stderr
from walstore.log.wal import Wal
from walstore.runtime.clock import SystemClock

STATUS_SECONDS = 0.1


class Child:
    """One life of the writing process."""

    def __init__(self, plan: DemoRun, pipe: Pipe) -> None:
        self._plan = plan
        self._pipe = pipe
        self._append_us = array("I")
        self._tail_us = array("I")
        self._begun_ns: dict[bytes, int] = {}

    async def run(self) -> None:
        """Open the log, append for the plan's time, and close it."""
        plan, pipe = self._plan, self._pipe
        tier = CloudTier(
            plan.store_url, settings=UploadSettings(fragment_bytes=plan.fragment_bytes)
        )
        async with asyncio.TaskGroup() as group:
            async with Wal.open(plan.log_path, settings=plan.settings(), tier=tier) as wal:
                found = {"head": wal.head, "tail": wal.tail} | dataclasses.asdict(wal.recovery)
                pipe.send(messages.OPENED, found)
                reporting = group.create_task(self._report(wal))
                tail, history = await self._work(wal)
                self._send_status(wal)
                pipe.send(
                    messages.STOPPED,
                    {"tail_read": tail.records, "history_read": history.position},
                )
            reporting.cancel()
        self._send_status(wal)
        pipe.send(messages.CLOSED, {"fragments": tier.uploader.uploaded_fragments})

    async def _work(self, wal: Wal) -> tuple[TailConsumer, HistoryConsumer]:
        """Run producers for the plan's time; let the consumers read all that they appended."""
        tail = TailConsumer(wal, self._begun_ns, self._tail_us)
        history = HistoryConsumer(wal)
        written = asyncio.Event()
        async with asyncio.TaskGroup() as consumers:
            for consumer in (tail, history):
                consumers.create_task(consumer.run(written))
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as producers:
                for producer in self._producers(wal):
                    producers.create_task(producer.run(stop))
                await SystemClock().sleep(self._plan.life_seconds)
                stop.set()
            await wal.flush()
            written.set()
        return tail, history

    def _producers(self, wal: Wal) -> list[SampleProducer | TextProducer]:
        plan = self._plan
        made: list[SampleProducer | TextProducer] = []
        for stream in SAMPLE_STREAMS * plan.samplers_per_stream:
            made.append(
                SampleProducer(
                    wal,
                    self._announce(len(made), stream),
                    stream,
                    self._acknowledge,
                    latencies_us=self._append_us,
                    begun_ns=self._begun_ns,
                )
            )
        texts = Texts()
        for _ in range(plan.text_producers):
            made.append(
                TextProducer(
                    wal,
                    self._announce(len(made), TEXT_STREAM),
                    TEXT_STREAM,
                    self._acknowledge,
                    texts=texts,
                    lines=plan.lines_per_append,
                    backlog=plan.backlog_records,
                )
            )
        return made

    def _announce(self, index: int, stream: str) -> int:
        number = producer_number(self._plan.life, index)
        self._pipe.send(messages.PRODUCER, number, stream)
        return number

    def _acknowledge(self, number: int, count: int, checksum: int) -> None:
        self._pipe.send(messages.ACK, number, count, checksum)

    async def _report(self, wal: Wal) -> None:
        clock = SystemClock()
        while True:
            await clock.sleep(STATUS_SECONDS)
            self._send_status(wal)

    def _send_status(self, wal: Wal) -> None:
        now = wal.statistics()
        self._pipe.send(
            messages.STATUS,
            {
                "durable_limit": now.durable_limit,
                "uploaded_limit": now.uploaded_limit,
                "local_head": now.local_head,
                "appended_bytes": now.appended_bytes,
                "commits": now.commits,
                "rotations": now.rotations,
                "tier_reads": now.tier_reads,
                "tier_failure": now.tier_failure,
            },
            pack_latencies(self._append_us),
            pack_latencies(self._tail_us),
        )


async def main(plan: DemoRun, parent: io.RawIOBase) -> None:
    """Run one life, speaking to ``parent``."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(lambda: Watch(task), parent)
    pipe = Pipe(transport)
    try:
        await Child(plan, pipe).run()
    finally:
        pipe.close()


if __name__ == "__main__":
    send_logs_to_stderr()
    try:
        asyncio.run(main(DemoRun.from_json(sys.argv[1]), io.FileIO(sys.stdout.fileno(), "w")))
    except Exception as error:
        cause = unwrap(error)
        if not is_expected(cause):
            raise
        complain(explain(cause))
        sys.exit(exit_code(cause))
