"""Workload: random operations by a seed, which report what they are about to do and what they were promised.

An intent is reported before the call, an acknowledgement after it: ``promises.py`` lists them. The values of
the records follow from the intent, so whoever heard it can check what is found on disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from walstore import OffsetTrimmedError, ReadonlyWal, Settings, Wal
from walstore.cli.prove.promises import BrokenPromiseError, Row, parse_value, require, value_of
from walstore.core.settings import KIB
from walstore.errors import WalError

Say = Callable[[list[Any]], None]
"""Takes a report, and returns once it is certain to arrive even if this process is killed."""
SIZES: Final = (20, 60, 200, 700, 1500, 3000, 9000, 20_000)
STREAMS: Final = ("eu", "us")
PRODUCERS: Final = ("left", "right")


def settings_of(seed: int) -> Settings:
    """Return small limits, so that everything rotates and spills, with a policy that follows the seed."""
    return Settings(
        segment_bytes=64 * KIB,
        checkpoint_bytes=64 * KIB,
        batch_bytes=4 * KIB,
        cache_bytes=16 * KIB,
        max_record_bytes=64 * KIB,
        channel_bytes=512 * KIB,
        transaction_memory_bytes=16 * KIB,
        min_free_bytes=0,
        sync=("batch", "os", "batch", 0.05)[seed // 2 % 4],
        compression=("zstd" if seed % 3 == 2 else None),
    )


class Workload:
    """Random operations on an open log, one after another, some with several appends at a time."""

    def __init__(
        self,
        wal: Wal,
        say: Say,
        seed: int,
        first_op: int = 1,
        forged: bytes = b"",
        *,
        is_trimmed_often: bool = False,
    ) -> None:
        """With ``is_trimmed_often`` most segments get the files of deleted ones."""
        self.wal = wal
        self.chance = random.Random(seed)
        self._say = say
        self._op = first_op - 1
        self._forged = forged
        steps: dict[Callable[[], Awaitable[None]], int] = {
            self.append: 8,
            self.append_together: 6,
            self.append_group: 6,
            self.commit_small: 5,
            self.commit_spilled: 3,
            self.set_register: 4,
            self.take_fence: 2,
            self.change_stream: 3,
            self.append_to_stream: 3,
            self.produce: 5,
            self.append_forged: 5 if forged else 0,
            self.append_lazily: 4,
            self.rotate: 6 if is_trimmed_often else 2,
            self.trim: 10 if is_trimmed_often else 2,
            self.move_cursor: 3,
        }
        self._steps, self._weights = list(steps), list(steps.values())

    async def run(self, steps: int) -> None:
        """Take that many random steps."""
        for _ in range(steps):
            (step,) = self.chance.choices(self._steps, self._weights)
            await step()

    def _intend(self, sizes: list[int], **more: object) -> int:
        self._op += 1
        self._say(["op", self._op, sizes, more])
        return self._op

    @contextlib.contextmanager
    def _trying(self, op: int) -> Iterator[None]:
        """Report an operation that the block was refused."""
        try:
            yield
        except WalError as error:
            if error.outcome == "not_written":
                self._say(["refused", op])
            raise

    def _size(self) -> int:
        return self.chance.choice(SIZES)

    async def append(self) -> None:
        """Append one record, with a key now and then."""
        size, key = self._size(), self.chance.choice((None, "key"))
        op = self._intend([size], key=key)
        with self._trying(op):
            offset = await self.wal.append(
                value_of(op, 0, size), key.encode() if key else None, durability="disk"
            )
        self._say(["ok", op, offset])

    async def append_together(self) -> None:
        """Append from several tasks at the same time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.chance.randint(2, 6)):
                tasks.create_task(self.append())

    async def append_group(self) -> None:
        """Append an atomic group."""
        sizes = [self._size() for _ in range(self.chance.randint(2, 6))]
        op = self._intend(sizes)
        values = [value_of(op, at, size) for at, size in enumerate(sizes)]
        with self._trying(op):
            span = await self.wal.append_many(values, durability="disk")
        self._say(["ok", op, span.start])

    async def commit_small(self) -> None:
        """Commit a transaction that fits into memory, with a register."""
        await self._commit([self._size() % 3000 for _ in range(self.chance.randint(1, 4))])

    async def commit_spilled(self) -> None:
        """Commit a transaction that goes to a file of its own."""
        await self._commit([9000 + self._size() for _ in range(self.chance.randint(3, 8))])

    async def set_register(self) -> None:
        """Change a register without a record."""
        await self._commit([])

    async def _commit(self, sizes: list[int]) -> None:
        name = self.chance.choice("ab")
        op = self._intend(sizes, register=name)
        with self._trying(op):
            async with self.wal.transaction(
                update={name: str(op)}, durability="disk"
            ) as transaction:
                for at, size in enumerate(sizes):
                    await transaction.append(value_of(op, at, size))
        assert transaction.span is not None
        self._say(["ok", op, transaction.span.start])

    async def take_fence(self) -> None:
        """Take the log over, and append through the fence."""
        op = self._intend([], register="fence")
        fence = await self.wal.fence(str(op))
        self._say(["ok", op, 0])
        size = self._size()
        op = self._intend([size])
        self._say(["ok", op, await fence.append(value_of(op, 0, size), durability="disk")])

    async def change_stream(self) -> None:
        """Open a stream with other metadata, or close it."""
        name = self.chance.choice(STREAMS)
        found = self.wal.streams().get(name)
        self._op += 1
        if found is not None and found.is_open and self.chance.random() < 0.5:
            self._say(["stream?", name, [False, dict(found.metadata)]])
            await self.wal.close_stream(name)
        else:
            self._say(["stream?", name, [True, {"v": str(self._op)}]])
            await self.wal.open_stream(name, metadata={"v": str(self._op)})
        self._say(["stream", name])

    async def append_to_stream(self) -> None:
        """Append to a stream that is open."""
        for name, found in self.wal.streams().items():
            if found.is_open:
                size = self._size()
                op = self._intend([size], stream=name)
                with self._trying(op):
                    offset = await self.wal.append(
                        value_of(op, 0, size), stream=name, durability="disk"
                    )
                self._say(["ok", op, offset])
                return

    async def produce(self) -> None:
        """Append once under a number, though it is asked for twice now and then."""
        producer = self.wal.producer(self.chance.choice(PRODUCERS))
        sequence = await producer.last_sequence() + 1
        sizes = [self._size() % 4000 for _ in range(self.chance.randint(1, 3))]
        op = self._intend(sizes, producer=[producer.id, sequence])
        values = [value_of(op, at, size) for at, size in enumerate(sizes)]
        with self._trying(op):
            span = await producer.append_many(values, sequence=sequence, durability="disk")
        self._say(["ok", op, span.start])
        if self.chance.random() < 0.3:
            again = await producer.append_many(values, sequence=sequence, durability="disk")
            require(again == span, f"operation {op}, repeated under its number, is elsewhere")

    async def append_forged(self) -> None:
        """Append a value that holds whole frames, which speak of offsets that this log has not reached."""
        size = self.chance.randint(1000, 4000)
        op = self._intend([size], fill=base64.b64encode(self._forged).decode())
        value = value_of(op, 0, size, self._forged)
        self._say(["ok", op, await self.wal.append(value, durability="disk")])

    async def append_lazily(self) -> None:
        """Append at level memory, and flush now and then."""
        size = self._size()
        op = self._intend([size])
        with self._trying(op):
            offset = await self.wal.append(value_of(op, 0, size), durability="memory")
        self._say(["accepted", op, offset])
        if self.wal.settings.sync == "os":  # readers see it now, though nobody synced it
            async with self.wal.follow(offset, stop=offset + 1) as reader:
                await anext(reader)
        if self.chance.random() < 0.5:
            limit = self.wal.tail
            await self.wal.flush()
            self._say(["durable", limit])

    async def rotate(self) -> None:
        """Seal the active segment."""
        await self.wal.rotate()

    async def trim(self) -> None:
        """Trim in the younger half of the log, so that some of it stays."""
        head, limit = self.wal.head, self.wal.durable_limit
        before = self.chance.randint(head, head + max(0, limit - head) // 2)
        self._say(["trim?", before])
        self._say(["trim", await self.wal.trim(before)])

    async def move_cursor(self) -> None:
        """Make a cursor, which retention does not pass, or move it on."""
        cursor = await self.wal.cursor("reader")
        target = self.chance.randint(
            max(cursor.position, self.wal.head), max(cursor.position, self.wal.durable_limit)
        )
        self._say(["cursor?", "reader", target])
        if target > cursor.position:
            await cursor.commit(target)
        self._say(["cursor", "reader", target])


async def report_shown(wal: Wal, say: Say) -> None:
    """Report what an opened log shows, which from then on may not go away."""
    limit = wal.durable_limit
    head, records = await read_all(wal, limit)
    names = []
    for offset, value, *_ in records:
        named = parse_value(value)
        if named is None:
            raise BrokenPromiseError(f"offset {offset} holds garbage: {value[:40]!r}")
        names.append([offset, *named])
    say(["opened", head, limit])
    say(["shown", names])


async def read_all(wal: Wal, limit: int) -> tuple[int, list[Row]]:
    """Return the head on local disk and all records from there on, though retention moves it meanwhile."""
    while True:
        head = wal.statistics().local_head
        try:
            return head, await read(wal, limit, head)
        except OffsetTrimmedError:
            continue


async def read(log: Wal | ReadonlyWal, limit: int, start: int | str = "earliest") -> list[Row]:
    """Return the records below a limit."""
    found: list[Row] = []
    async with log.reader(start, stop=limit, follow=False) as reader:
        async for batch in reader.batches():
            found += [(r.offset, r.value, r.key, r.stream) for r in batch.records()]
    return found
