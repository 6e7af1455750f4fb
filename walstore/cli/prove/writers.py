"""Writers: what runs in the processes of a round of kills: a writer, a checker, a follower, a second writer.

Each is forked from a process that never opened a log, and knows the promises of each log as they were then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from uploader import CloudLog, CloudTier
from walstore import OffsetTrimmedError, Settings, Wal, WalLockedError, WalStore
from walstore.cli.prove.examination import look
from walstore.cli.prove.forks import send
from walstore.cli.prove.promises import FoundLog, Promises, parse_value, require
from walstore.cli.prove.workload import Say, Workload, read, report_shown, settings_of
from walstore.core.ports import FileSystem

OPS_OF_A_LIFE: Final = 100_000
STORE_LOGS: Final = 4
ENDLESS: Final = 1 << 30

SceneKind = Literal["log", "retention", "store", "tier"]
SCENES: Final[tuple[SceneKind, ...]] = (
    *("log", "retention", "log", "store", "log", "tier", "retention", "store"),
)
"""The kinds, by the remainder of a seed."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Which logs the writers of a round open, and where."""

    kind: SceneKind
    """A log, one with retention, four logs of a store, or a log that ships to a directory."""
    directory: Path
    seed: int
    fs: FileSystem | None = None
    """The file system of the writers and checkers; None is the machine's."""

    @property
    def logs(self) -> int:
        """The number of logs."""
        return STORE_LOGS if self.kind == "store" else 1

    @property
    def settings(self) -> Settings:
        """The settings of each log."""
        settings = settings_of(self.seed + self.seed // 8)
        if self.kind in ("retention", "tier"):
            settings = settings.replace(retention_bytes=256 << 10)
        return settings

    @property
    def bucket(self) -> str:
        """The URL that a log of kind ``tier`` ships to."""
        return (self.directory / "bucket" / "log").absolute().as_uri()

    def path(self, log: int) -> Path:
        """Return the directory of a log."""
        if self.kind == "store":
            return self.directory / "store" / f"log{log}"
        return self.directory / "log"


def _reporter(descriptor: int) -> Callable[[int], Say]:
    """Return what makes the reporter of each log."""
    return lambda log: lambda report: send(descriptor, [log, report])


@contextlib.asynccontextmanager
async def opened(scene: Scene) -> AsyncIterator[list[Wal]]:
    """Open the logs of a scene."""
    if scene.kind == "store":
        async with WalStore.open(
            scene.directory / "store", settings=scene.settings, fs=scene.fs
        ) as store:
            yield [await store.wal(f"log{log}") for log in range(scene.logs)]
        return
    tier = CloudTier(scene.bucket) if scene.kind == "tier" else None
    opening = Wal.open(scene.directory / "log", settings=scene.settings, tier=tier, fs=scene.fs)
    async with opening as wal:
        yield [wal]


async def write(
    scene: Scene, all_promises: Sequence[Promises], descriptor: int, life: int, steps: int
) -> None:
    """Open, repeat what may have been lost, and work until killed, or for some steps."""
    of = _reporter(descriptor)
    async with opened(scene) as logs:
        for log, wal in enumerate(logs):
            await report_shown(wal, of(log))
            await _retry(wal, all_promises[log], of(log))
        async with asyncio.TaskGroup() as tasks:
            for log, wal in enumerate(logs):
                chance = scene.seed * 7919 + life * 101 + log
                work = Workload(wal, of(log), chance, life * OPS_OF_A_LIFE + 1)
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


async def check(scene: Scene, all_promises: Sequence[Promises], descriptor: int) -> None:
    """Open each log as its next writer would, compare, and report what it shows."""
    of, checked = _reporter(descriptor), 0
    async with opened(scene) as logs:
        for log, (wal, promises) in enumerate(zip(logs, all_promises, strict=True)):
            require(wal.recovery.missing_from is None, "synced records are missing")
            found = await look(wal, promises)
            checked += len(found.records)
            promises.check(found, retains_all=scene.kind in ("log", "store"))
            if wal.head < found.head:  # the older records are in the tier
                records = await read(wal, found.limit)
                checked += len(records)
                promises.check_records(FoundLog(wal.head, found.limit, records))
            await report_shown(wal, of(log))
    if scene.kind == "tier":
        checked += await _check_bucket(scene, all_promises[0])
    of(0)(["checked", checked])


async def _check_bucket(scene: Scene, promises: Promises) -> int:
    """Check what was shipped; return the number of records."""
    async with CloudLog.open(scene.bucket) as log:
        await log.verify()
        require(log.limit >= promises.uploaded, f"the bucket ends at {log.limit}")
        async with log.reader("earliest", stop=log.limit, follow=False) as reader:
            found = [(r.offset, r.value, r.key, r.stream) async for r in reader]
        promises.check_records(FoundLog(log.head, log.limit, found), is_whole=False)
        return len(found)


async def follow(scene: Scene, log: int, descriptor: int) -> None:
    """Follow a log from its beginning, while its writers are killed, and report what is seen."""
    directory, say = scene.path(log), _reporter(descriptor)(log)
    async with Wal.open_readonly(directory, longest_poll_seconds=0.02) as wal:
        start: int | str = "earliest"
        while True:
            try:
                async for record in wal.follow(start):
                    say(["saw", record.offset, parse_value(record.value)])
            except OffsetTrimmedError as error:
                start = error.head


async def intrude(scene: Scene, descriptor: int) -> None:
    """Try to open the logs for writing while their writer is paused, which must be refused."""
    try:
        async with opened(scene):
            require(condition=False, message="a second writer opened the log of a paused one")
    except WalLockedError:
        _reporter(descriptor)(0)(["locked"])
