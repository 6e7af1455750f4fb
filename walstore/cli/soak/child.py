"""The processes of a soak: writers, readers and a collector. Each may be killed at any moment.

A pipe to the parent is their stdout. A message is in the pipe before the next step: a reader's position
before its cursor moves there, an append before it begins. So after a kill at any moment, the parent knows
what may have happened.

A record follows from the seed, its stream and its number, which counts from 1 in each stream. So a reader
checks any record by making it again, and keeps one number for each stream.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from uploader import (
    CloudLog,
    CloudTier,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    Layout,
    UploadSettings,
    WriterSettings,
)
from walstore import Batch, Reader, Settings, Wal
from walstore.cli.child_process import run_child, say
from walstore.cli.errors import exit_code
from walstore.core.settings import KIB, MIB
from walstore.errors import ContentionError, OffsetMismatchError, WalError
from walstore.records import AnyDurability

STREAMS: Final = [f"stream-{at}" for at in range(8)]
"""Names of the streams, which here go by their places in this list. The key of a record is the same."""
MOST_PROBLEMS: Final = 20
"""Problems that one check names; there may be more."""

_PLACES: Final = {name: at for at, name in enumerate(STREAMS)}
_HEADER: Final = struct.Struct(">HQI")
"""Stream, number, CRC-32C of the filler."""
_CHANCE: Final = struct.Struct(">QHQ")
_BLOCK_BYTES: Final = 1 << 16
_MOST_FILLER: Final = 1 << 10


class Generator:
    """Makes the records of a seed, which is 0 to 2**64 - 1. Fillers have 0 to 1023 bytes, mostly few."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = random.Random(seed).randbytes(_BLOCK_BYTES + _MOST_FILLER)

    def value(self, stream: int, number: int) -> bytes:
        """Return the value of a stream's record."""
        chance = crc32c(_CHANCE.pack(self._seed, stream, number))
        size = (chance >> 16) & ((16 << (chance & 0xFF) % 7) - 1)
        at = chance & (_BLOCK_BYTES - 1)
        filler = self._block[at : at + size]
        return _HEADER.pack(stream, number, crc32c(filler)) + filler

    def identify(self, value: bytes) -> tuple[int, int] | None:
        """Return stream and number of a value; None if it is none of ours, or was altered."""
        if len(value) < _HEADER.size:
            return None
        stream, number, _ = _HEADER.unpack_from(value)
        is_ours = stream < len(STREAMS) and value == self.value(stream, number)
        return (stream, number) if is_ours else None


class Checker:
    """Takes the records of a log in their order and notes whatever is not 1:1 with what was made."""

    def __init__(self, seed: int, position: int, numbers: Sequence[int]) -> None:
        """Begin at offset ``position``, where ``numbers`` are the next ones of the streams.

        A number of 0 is not known: the first record found is believed.
        """
        self.position = position
        """Next offset to read."""
        self.numbers = list(numbers)
        """By stream, the number of its next record."""
        self.problems: list[str] = []
        self._generator = Generator(seed)
        self._missing: list[set[int]] = [set() for _ in STREAMS]

    def take(self, batch: Batch) -> None:
        """Check the next records."""
        if batch.start != self.position or len(batch) != batch.limit - batch.start:
            self._complain(
                f"{len(batch)} records of offsets [{batch.start}, {batch.limit}) were read at "
                f"{self.position}"
            )
        offset = batch.start
        for name, key, value in zip(batch.streams, batch.keys, batch.values, strict=True):
            stream = _PLACES.get(name or "", -1)
            if stream < 0 or key != STREAMS[stream].encode():
                self._complain(f"offset {offset}: nobody appended key {key!r} to stream {name}")
            elif value == self._generator.value(stream, self.numbers[stream]):
                self.numbers[stream] += 1
            else:
                self._explain(offset, stream, value)
            offset += 1
        self.position = batch.limit

    def _explain(self, offset: int, stream: int, value: bytes) -> None:
        """Say why a record is not the next of its stream, and continue behind it."""
        expected, found = self.numbers[stream], self._generator.identify(value)
        if found is None:
            self._complain(f"offset {offset}: record {expected} of stream {stream} was altered")
            self.numbers[stream] += 1
        elif found[0] != stream:
            self._complain(f"offset {offset}: a record of stream {found[0]} is in stream {stream}")
        elif found[1] in self._missing[stream]:
            self._missing[stream].discard(found[1])
            self._complain(f"offset {offset}: record {found[1]} of stream {stream} is out of order")
        elif found[1] < expected:
            self._complain(f"offset {offset}: record {found[1]} of stream {stream} is there twice")
        else:
            self.numbers[stream] = found[1] + 1
            if expected:
                # A record that is far ahead was never made, so only the last 1000 missing ones are noted.
                first = max(expected, found[1] - 1000)
                self._missing[stream].update(range(first, found[1]))
                self._complain(
                    f"offset {offset}: stream {stream} has record {found[1]} where {expected} is "
                    "missing"
                )

    def _complain(self, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)


FOUND: Final = "found"
"""A writer looked at the log: the number of the next record of each stream."""
OPENED: Final = "opened"
"""The process does its work from here on."""
BEGUN: Final = "begun"
"""An append begins: stream, the number behind its records."""
ACKNOWLEDGED: Final = "acknowledged"
"""It returned: the same, and the microseconds that it took."""
READ: Final = "read"
"""A reader's position: the next offset, the next number of each stream, how many records it just read."""
COLLECTED: Final = "collected"
"""A collection ended: how many objects it removed."""
CLOSED: Final = "closed"
"""A writer has closed the log after SIGTERM."""

TRY_AGAIN: Final = 75
"""Exit code of a process that the log or the store refused for now."""

SETTINGS: Final = Settings(
    segment_bytes=256 * KIB, checkpoint_bytes=256 * KIB, retention_bytes=1 * MIB
)
"""Small, so that segments are rotated, shipped and deleted all the time."""
_FRAGMENT_BYTES: Final = 256 * KIB
_PUTS: Final = 4
"""Fragments that a writer to the store has in flight."""
_MEAN_ROWS: Final = 8
_WEIGHTS: Final = [(at + 1) ** -1.2 for at in range(len(STREAMS))]
"""How the rate is divided: the k-th stream gets a part like ``1 / k**1.2``."""
_LOOK_SECONDS: Final = 0.5

Append = Callable[..., Awaitable[range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakJob:
    """What one process does. A value; its fields are the arguments of the process."""

    url: str
    directory: str | None
    """Directory of the local log; None if writers append straight to the store."""
    layout: Layout
    durability: AnyDurability
    seed: int
    rate: float
    """Records a second that all streams together are given."""
    collect_seconds: float
    role: str = ""
    life: int = 0
    position: int = 1
    """Offset at which a reader continues, and a writer begins to look for its last records."""
    numbers: tuple[int, ...] = (1,) * len(STREAMS)
    """The next numbers of the streams there."""

    @property
    def writers(self) -> tuple[str, ...]:
        """The roles of processes that append; a local log has one."""
        return ("writer",) if self.directory else ("writer_0", "writer_1")

    @property
    def readers(self) -> tuple[str, ...]:
        """The roles of processes that follow; also the names of their cursors."""
        return ("disk", "store") if self.directory else ("store_0", "store_1")

    def own_streams(self, writer: str) -> range:
        """Return the streams that a writer appends to; no two writers share one."""
        return range(self.writers.index(writer), len(STREAMS), len(self.writers))


async def advance(checker: Checker, reader: Reader, max_wait_seconds: float | None = None) -> int:
    """Check the records there, or that come within that time; return how many. WalError if one is wrong."""
    batch = await reader.fetch(max_records=4096, max_wait_seconds=max_wait_seconds)
    checker.take(batch)
    if checker.problems:
        raise WalError(checker.problems[0])
    return len(batch)


class Writing:
    """Appends to the streams of one writer, at rates that differ and vary."""

    def __init__(self, plan: SoakJob) -> None:
        self._plan = plan
        self._checker = Checker(plan.seed, plan.position, plan.numbers)
        self._generator = Generator(plan.seed)
        self._chance = random.Random(f"{plan.seed} {plan.role} {plan.life}")
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Append until SIGTERM, then close the log. Reads first what an earlier life wrote."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        await (self._write_locally() if self._plan.directory else self._write_to_store())
        say(CLOSED)

    async def _write_locally(self) -> None:
        plan = self._plan
        tier = CloudTier(
            plan.url,
            layout=plan.layout,
            settings=UploadSettings(fragment_bytes=_FRAGMENT_BYTES, fragment_age_seconds=0.2),
        )
        async with Wal.open(Path(plan.directory or ""), settings=SETTINGS, tier=tier) as wal:
            limit = wal.durable_limit
            await self._advance_to(limit, wal.reader(plan.position, stop=limit, follow=False))
            say(FOUND, self._checker.numbers)
            await self._produce(partial(wal.append_many, durability=plan.durability))

    async def _write_to_store(self) -> None:
        plan = self._plan
        settings = WriterSettings(fragment_bytes=_FRAGMENT_BYTES, max_in_flight=_PUTS)
        async with CloudWriter.open(plan.url, create=False, settings=settings) as log:
            await self._look()
            say(FOUND, self._checker.numbers)
            for _ in range(_PUTS):
                await self._occupy(log)
            await log.cursors.delete(plan.role)
            await self._produce(log.append_many)

    async def _look(self) -> None:
        """Read what is in the log by now."""
        async with CloudLog.open(self._plan.url) as log:
            reader = log.reader(self._checker.position, stop=log.tail)
            await self._advance_to(log.tail, reader)

    async def _advance_to(self, limit: int, reader: Reader) -> None:
        async with reader:
            while self._checker.position < limit:
                await advance(self._checker, reader)

    async def _occupy(self, log: CloudWriter) -> None:
        """Append a record where the log ends, and look again if it ends elsewhere by then.

        A request of a killed writer may reach the store late. After as many of these records as the writer
        had fragments in flight, none of its fragments fits any more: the outcome of its appends is final.
        """
        stream = self._plan.own_streams(self._plan.role)[0]
        while True:
            try:
                at = self._checker.position
                await self._append(partial(log.append_many, expect_offset=at), stream, 1)
            except OffsetMismatchError:
                self._checker.numbers[stream] -= 1
                await self._look()
            else:
                self._checker.position += 1
                return

    async def _produce(self, append: Append) -> None:
        say(OPENED)
        async with asyncio.TaskGroup() as group:
            for stream in self._plan.own_streams(self._plan.role):
                group.create_task(self._feed(append, stream))

    async def _feed(self, append: Append, stream: int) -> None:
        """Append to one stream: groups of 1 to 15 records, after pauses of any length."""
        mean_seconds = _MEAN_ROWS * sum(_WEIGHTS) / (self._plan.rate * _WEIGHTS[stream])
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(self._chance.expovariate(1 / mean_seconds)):
                    await self._stop.wait()
            except TimeoutError:
                await self._append(append, stream, self._chance.randrange(1, 2 * _MEAN_ROWS))

    async def _append(self, append: Append, stream: int, rows: int) -> None:
        first, generator = self._checker.numbers[stream], self._generator
        values = [generator.value(stream, first + row) for row in range(rows)]
        self._checker.numbers[stream] = limit = first + rows
        say(BEGUN, stream, limit)
        begin = time.monotonic_ns()
        while True:
            try:
                await append(values, key=STREAMS[stream].encode(), stream=STREAMS[stream])
            except ContentionError:  # not written
                continue
            say(ACKNOWLEDGED, stream, limit, (time.monotonic_ns() - begin) // 1000)
            return


async def read(plan: SoakJob) -> None:
    """Follow the log from the plan's position, in its directory or in the store."""
    if plan.role == "disk":
        assert plan.directory is not None
        async with Wal.open_readonly(plan.directory) as wal:
            cursor = await wal.cursor(plan.role)
            await _follow(plan, wal.follow(plan.position), cursor.commit)
    else:
        async with CloudLog.open(plan.url) as log:
            commit = partial(log.cursors.commit, plan.role)
            await _follow(plan, log.follow(plan.position), commit)


async def _follow(
    plan: SoakJob, reader: Reader, commit: Callable[[int], Awaitable[object]]
) -> None:
    checker, at = Checker(plan.seed, plan.position, plan.numbers), 0.0
    say(OPENED)
    while True:
        count = await advance(checker, reader, _LOOK_SECONDS)
        say(READ, checker.position, checker.numbers, count)  # also nothing: is the parent there?
        if count and time.monotonic() - at > _LOOK_SECONDS:
            at = time.monotonic()
            await commit(checker.position)


async def collect(plan: SoakJob) -> None:
    """Remove what no cursor needs, repeatedly."""
    settings = CollectorSettings(
        interval_seconds=plan.collect_seconds, delete_pause_seconds=0, max_drop_fraction=1
    )
    async with GarbageCollector.open(plan.url, settings=settings) as collector:
        say(OPENED)
        while True:
            done = await collector.collect()
            say(COLLECTED, len(done.deleted))
            await asyncio.sleep(min(plan.collect_seconds, _LOOK_SECONDS))


def may_pass(error: BaseException) -> bool:
    """Return whether the same may succeed another time."""
    return isinstance(error, WalError) and (error.retriable or error.outcome == "unknown")


async def main(**fields: Any) -> None:
    """Do what the role of the plan does."""
    plan = SoakJob(**fields)
    if plan.role in plan.writers:
        await Writing(plan).run()
    else:
        await (collect if plan.role == "collector" else read)(plan)


if __name__ == "__main__":
    run_child(main, code_of=lambda error: TRY_AGAIN if may_pass(error) else exit_code(error))
