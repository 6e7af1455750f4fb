"""Measurement: how fast a disk is, and a log on it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from walstore import Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import File

GROUP_RECORDS: Final = 1000
"""Records of each ``append_many``."""
_READ_RECORDS: Final = 200_000
_RAW_BYTES: Final = 64 << 20
RAW: Final = "write + fdatasync"
GROWING: Final = "the same, growing file"
WRITTEN: Final = "the same, blocks written before"
_RAW_KINDS: Final = (RAW, GROWING, WRITTEN)
"""A log reserves the blocks of a segment; with retention it uses those of a deleted one."""
_RAW_SYNCS: Final = 16
"""Of one kind, before the next one has its turn: what else the machine does meets them all."""
PRODUCER_STEPS: Final = (1, 4, 16, 64, 256)
SIZE_STEPS: Final = (100, 1_000, 10_000, 100_000)
"""Bytes of a record."""
_LONGEST_STEP_SECONDS: Final = 1.0
"""A step with large records fills a gigabyte in some seconds."""
_MOST_WAITING_BYTES: Final = 32 << 20
"""The last append of each producer ends after its step; so many bytes do not take long."""
_SHARES: Final = 200


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """How to measure."""

    place: Path
    """An empty directory."""
    seconds: float
    """For all parts together."""
    producers: int
    record_bytes: int
    has_steps: bool = False
    """Whether durable appends are also measured for other numbers of producers and other record sizes."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Producers and record size of each short part that follows the others."""
        if not self.has_steps:
            return []
        producers = [one for one in PRODUCER_STEPS if one not in (1, self.producers)]
        sizes = [
            size
            for size in SIZE_STEPS
            if size != self.record_bytes and size * self.producers <= _MOST_WAITING_BYTES
        ]
        return [
            *((one, self.record_bytes) for one in producers),
            *((self.producers, size) for size in sizes),
        ]

    @property
    def step_seconds(self) -> float:
        """How long each step runs."""
        return min(self.seconds / (4 + len(self.steps)), _LONGEST_STEP_SECONDS)

    @property
    def part_seconds(self) -> float:
        """How long each part runs; catching up is as long as it takes."""
        return (self.seconds - len(self.steps) * self.step_seconds) / 4


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one part."""

    name: str
    records: int
    seconds: float
    latency_ms: tuple[float, ...] = ()
    """Of a call: shares of 0, 0.5, 1, ... 100 % are not slower. Empty where there is no single call."""

    @property
    def p50_ms(self) -> float | None:
        """Median latency of a call; None where there is no single call."""
        return self._latency(50)

    @property
    def p99_ms(self) -> float | None:
        """Latency that one call in a hundred exceeds; None where there is no single call."""
        return self._latency(99)

    def _latency(self, percent: int) -> float | None:
        if not self.latency_ms:
            return None
        return round(self.latency_ms[percent * _SHARES // 100], 4)

    @property
    def per_second(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class BenchResults:
    """The results of all parts."""

    parts: list[Measured]
    """In this order: the disk alone, one producer, many, groups, catching up."""
    appends: dict[tuple[int, int], Measured]
    """Durable appends by producers and record size: the second and third part, and the steps."""
    other_blocks: list[Measured] = field(default_factory=list)
    """The disk alone where it does not write to reserved blocks, as the first part does."""

    @property
    def rows(self) -> list[Measured]:
        """All parts, in the order in which they are shown."""
        return [self.parts[0], *self.other_blocks, *self.parts[1:]]


async def measure_all(plan: MeasurePlan, on_part: Callable[[str], None]) -> BenchResults:
    """Run all parts one after another. ``on_part`` is called with the name of each before it begins."""
    on_part(RAW)
    raw, *other_blocks = await asyncio.to_thread(measure_disk, plan)
    parts = [raw]
    appends: dict[tuple[int, int], Measured] = {}
    value = bytes(plan.record_bytes)
    for name, producers in (("1 producer", 1), (f"{plan.producers} producers", plan.producers)):
        on_part(name)
        path = plan.place / f"log-{len(parts)}"
        parts.append(await _append(path, plan.part_seconds, name, producers, value))
        appends[producers, plan.record_bytes] = parts[-1]
    name = f"append_many, {GROUP_RECORDS} records"
    on_part(name)
    async with Wal.open(plan.place / "log-groups") as wal:
        append_group = partial(wal.append_many, [value] * GROUP_RECORDS, durability="disk")
        parts.append(await _produce(plan.part_seconds, name, 1, append_group, GROUP_RECORDS))
    on_part("catching up")
    parts.append(await _catch_up(plan, value))
    for producers, record_bytes in plan.steps:
        name = f"{producers} producers, {record_bytes} B"
        on_part(name)
        path = plan.place / "log-step"
        appends[producers, record_bytes] = await _append(
            path, plan.step_seconds, name, producers, bytes(record_bytes)
        )
        await asyncio.to_thread(shutil.rmtree, path)
    return BenchResults(parts, appends, other_blocks)


async def _append(path: Path, seconds: float, name: str, producers: int, value: bytes) -> Measured:
    """Append to a new log, a record a call."""
    async with Wal.open(path) as wal:
        append = partial(wal.append, value, durability="disk")
        return await _produce(seconds, name, producers, append)


def measure_disk(plan: MeasurePlan) -> list[Measured]:
    """Write and sync so many bytes again and again, without a log: the speed of the disk itself.

    Blocks for a part of the plan's time. Returns a part each for reserved blocks, a growing file, and blocks
    that were written before.
    """
    with ExitStack() as stack:
        files = []
        for number, kind in enumerate(_RAW_KINDS):
            path = plan.place / f"raw-{number}"
            files.append(stack.enter_context(closing(PosixFileSystem().open(path, "x"))))
            _prepare(files[-1], kind)
        samples: list[list[float]] = [[] for _ in files]
        data = bytes(max(plan.record_bytes, 1))
        ends = time.monotonic() + plan.part_seconds
        while not samples[-1] or time.monotonic() < ends:
            for file, seen in zip(files, samples, strict=True):
                for _ in range(_RAW_SYNCS):
                    began = time.monotonic()
                    file.pwrite([data], len(seen) * len(data) % (_RAW_BYTES - len(data)))
                    file.datasync()
                    seen.append(time.monotonic() - began)
    return [
        _measured(kind, len(seen), sum(seen), seen)
        for kind, seen in zip(_RAW_KINDS, samples, strict=True)
    ]


def _prepare(file: File, kind: str) -> None:
    """Let the blocks of a new file be reserved, written, or not there yet."""
    if kind == RAW:
        file.allocate(_RAW_BYTES)
    elif kind == WRITTEN:
        zeros = bytes(1 << 20)
        for at in range(0, _RAW_BYTES, len(zeros)):
            file.pwrite([zeros], at)
    file.datasync()


async def _produce(
    seconds: float,
    name: str,
    producers: int,
    append: Callable[[], Awaitable[object]],
    rows: int = 1,
) -> Measured:
    """Let tasks append ``rows`` records at a time until the time is over, each waiting for every append."""
    begin = time.monotonic()
    samples: list[float] = []

    async def produce() -> None:
        now = time.monotonic()
        while True:  # once at least, however slow the machine is
            await append()
            after = time.monotonic()
            samples.append(after - now)
            now = after
            if now >= begin + seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(producers):
            group.create_task(produce())
    return _measured(name, rows * len(samples), time.monotonic() - begin, samples)


async def _catch_up(plan: MeasurePlan, value: bytes) -> Measured:
    """Read a log from its beginning after it was opened again, so that nothing is in memory."""
    path = plan.place / "log-read"
    async with Wal.open(path) as wal:
        for _ in range(_READ_RECORDS // GROUP_RECORDS):
            await wal.append_many([value] * GROUP_RECORDS, durability="memory")
    async with Wal.open(path) as wal:
        begin = time.monotonic()
        records = 0
        async with wal.reader(follow=False) as reader:
            async for batch in reader.batches():
                records += len(batch.values)
        return Measured("catching up", records, time.monotonic() - begin)


def _measured(name: str, records: int, seconds: float, samples: list[float]) -> Measured:
    ordered = sorted(samples)
    last = len(ordered) - 1
    shares = range(_SHARES + 1 if ordered else 0)
    places = (min(last, len(ordered) * share // _SHARES) for share in shares)
    return Measured(name, records, seconds, tuple(1e3 * ordered[place] for place in places))
