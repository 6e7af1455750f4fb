"""What runs in the processes of a storm: a writer until it is killed, a judge, a follower.

Each is forked from a parent that never opened a log, and reports through a pipe, one line with one write.
A child has the promises of each log as they were when it was forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.promises import Found, Promises, require
from tests.crash.trial import look
from tests.crash.workload import Workload, read, report_shown, settings_of
from uploader import CloudLog, CloudTier
from walstore import OffsetTrimmedError, Settings, Wal, WalStore

OPS_OF_A_ROUND = 100_000
STORE_LOGS = 4
ENDLESS = 1 << 30

Say = Callable[[list], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a story takes place, and in which way."""

    kind: str
    """``log``, ``retention``, ``store`` or ``tier``."""
    directory: Path
    seed: int

    @property
    def logs(self) -> int:
        return STORE_LOGS if self.kind == "store" else 1

    @property
    def settings(self) -> Settings:
        settings = settings_of(self.seed + self.seed // 8)
        if self.kind in ("retention", "tier"):
            settings = settings.replace(retention_bytes=256 << 10)
        return settings

    @property
    def bucket(self) -> str:
        return (self.directory / "bucket" / "log").absolute().as_uri()

    def path(self, log: int) -> Path:
        """Return the directory of a log."""
        if self.kind == "store":
            return self.directory / "store" / f"log{log}"
        return self.directory / "log"


def reporter(descriptor: int) -> Callable[[int], Say]:
    """Return what makes the reporter of each log."""

    def of(log: int) -> Say:
        return lambda report: _write(descriptor, [log, report])

    return of


def _write(descriptor: int, what: list) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:  # a pipe takes long lines in parts; a line that was cut off is not heard
        data = data[os.write(descriptor, data) :]


@contextlib.asynccontextmanager
async def opened(scene: Scene) -> AsyncIterator[list[Wal]]:
    """Open the logs of a scene."""
    if scene.kind == "store":
        async with WalStore.open(scene.directory / "store", settings=scene.settings) as store:
            yield [await store.wal(f"log{log}") for log in range(scene.logs)]
        return
    tier = CloudTier(scene.bucket) if scene.kind == "tier" else None
    async with Wal.open(scene.directory / "log", settings=scene.settings, tier=tier) as wal:
        yield [wal]


async def write(
    scene: Scene, all_promises: Sequence[Promises], descriptor: int, round_: int, steps: int
) -> None:
    """Open, repeat what may have been lost, and work until somebody kills us, or for some steps."""
    of = reporter(descriptor)
    async with opened(scene) as logs:
        for log, wal in enumerate(logs):
            await report_shown(wal, of(log))
            await _retry(wal, all_promises[log], of(log))
        async with asyncio.TaskGroup() as tasks:
            for log, wal in enumerate(logs):
                chance = scene.seed * 7919 + round_ * 101 + log
                work = Workload(wal, of(log), chance, round_ * OPS_OF_A_ROUND + 1)
                tasks.create_task(work.run(steps))
                if scene.kind == "tier":
                    tasks.create_task(_ship(wal, of(log), chance, steps))
        of(0)(["closing"])
        limits = [wal.tail for wal in logs]
    for log, limit in enumerate(limits):
        of(log)(["durable", limit])


async def _retry(wal: Wal, promises: Promises, say: Say) -> None:
    """Repeat the newest append of each producer under its number, whatever became of it."""
    for name, numbers in promises.sequences.items():
        number = max(numbers)
        op = promises.ops[numbers[number][0]]
        values = [op.value(at) for at in range(len(op.sizes))]
        span = await wal.producer(name).append_many(values, sequence=number, durability="disk")
        say(["ok", op.id, span.start])


async def _ship(wal: Wal, say: Say, seed: int, steps: int) -> None:
    """Wait for the cloud now and then."""
    chance = random.Random(seed)
    for _ in range(min(steps, ENDLESS) // 4 + 1):
        limit = wal.durable_limit
        if limit > wal.uploaded_limit:
            await wal.wait_durable(limit - 1, "cloud")
            say(["uploaded", limit])
        await asyncio.sleep(chance.uniform(0, 0.01))


async def judge(scene: Scene, all_promises: Sequence[Promises], descriptor: int) -> None:
    """Open each log as its next writer would, compare, and report what it shows."""
    of = reporter(descriptor)
    async with opened(scene) as logs:
        for log, (wal, promises) in enumerate(zip(logs, all_promises, strict=True)):
            require(wal.recovery.missing_from is None, "synced records are missing")
            found = await look(wal, promises)
            promises.check(found, retains_all=scene.kind in ("log", "store"))
            if wal.head < found.head:  # the older records are in the tier
                records = await read(wal, found.limit)
                promises.check_records(Found(wal.head, found.limit, records))
            await report_shown(wal, of(log))
    if scene.kind == "tier":
        await _judge_bucket(scene, all_promises[0])
    of(0)(["judged"])


async def _judge_bucket(scene: Scene, promises: Promises) -> None:
    async with CloudLog.open(scene.bucket) as log:
        await log.verify()
        require(log.limit >= promises.uploaded, f"the bucket ends at {log.limit}")
        async with log.reader("earliest", stop=log.limit, follow=False) as reader:
            found = [(r.offset, r.value, r.key, r.stream) async for r in reader]
        promises.check_records(Found(log.head, log.limit, found), is_whole=False)


async def follow(scene: Scene, log: int, descriptor: int) -> None:
    """Follow a log from its beginning, through all deaths of its writers, and report what is seen."""
    directory, say = scene.path(log), reporter(descriptor)(log)
    async with Wal.open_readonly(directory, longest_poll_seconds=0.02) as wal:
        start: int | str = "earliest"
        while True:
            try:
                async for record in wal.follow(start):
                    op, _, place = record.value.split(b" ", 1)[0].partition(b"/")
                    say(["saw", record.offset, int(op), int(place)])
            except OffsetTrimmedError as error:
                start = error.head
