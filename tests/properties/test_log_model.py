"""A whole log against plain lists and dicts: what it holds, remembers and survives.

Hypothesis chooses what is done: appends of every kind, transactions that commit, fail or are cancelled,
registers, fences, producers, streams, cursors, rotation, trimming, readers of every kind, other settings at
every opening, and power cuts at any call. The model is the sequence of accepted operations
(:mod:`tests.properties.log_model`). After a crash the log must hold a first part of it that ends no earlier
than what was acknowledged, records and all that is remembered beside them alike.

tests/properties/test_wal_model.py has fewer rules and goes deeper into torn batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.interrupted import Interrupted, finish
from tests.local import (
    SMALL,
    HastyClock,
    UnsyncedFileSystem,
    check_contiguous,
    open_descriptors,
    read_all,
)
from tests.properties.log_model import MOST_PRODUCERS, WINDOW, Item, Model, Op
from walstore import Wal, WouldBlock
from walstore.errors import (
    ExpectationError,
    FencedError,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    RegisterMismatchError,
    SequenceMismatchError,
    StreamClosedError,
    WalClosedError,
    WalError,
)
from walstore.reader import Reader
from walstore.segment import HEADER_BYTES
from walstore.settings import KIB
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

BASE = SMALL.replace(
    max_record_bytes=9000,
    channel_bytes=20_000,
    cache_bytes=8 * KIB,
    transaction_memory_bytes=2 * KIB,
    producer_window=WINDOW,
    max_producers=MOST_PRODUCERS,
    min_free_bytes=0,
)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"sync": "os"},
    {"sync": 1.0, "durability": "memory"},
    {"compression": "zstd"},
    {"batch_bytes": 64 * KIB, "cache_bytes": 0, "read_ahead_bytes": 64 * KIB},
    {"linger_seconds": 0.001, "segment_bytes": 256 * KIB},
    {"channel_records": 5, "durability": "memory"},
]
VARIANT = st.sampled_from(VARIANTS)
FORGOTTEN = st.sampled_from([(), (), ("CHECKPOINT",), ("DURABLE",), ("CHECKPOINT", "DURABLE")])
SEEDS = st.one_of(st.just(KEEP_ALL), st.just(LOSE_ALL), st.integers(2, 1 << 16))
STREAMS = st.sampled_from(["eu", "us", "asia"])
NAMES = st.sampled_from("abc")
LEVELS = st.sampled_from([None, "memory", "disk"])
VALUES = st.one_of(st.binary(max_size=20), st.integers(0, 4000).map(lambda size: b"v" * size))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.binary(max_size=5),
        "stream": STREAMS,
        "headers": st.dictionaries(NAMES, st.binary(max_size=3), max_size=2),
    },
)
ITEMS = st.tuples(VALUES, OPTIONS)
# Nothing is drawn in the middle of a rule: what the log has done by then is not the same each time.
PICK = st.integers(0, 1 << 30)
"""Picks a place or a thing among those that there are."""
UPDATES = st.dictionaries(NAMES, st.sampled_from([None, "x", "y"]), max_size=2)


def records_of(size: int, count: int) -> list[Item]:
    """Return records whose place can be told."""
    return [((b"%d " % at).ljust(size, b"."), {}) for at in range(count)]


EXPECTED = st.one_of(st.none(), st.none(), UPDATES)
BEHIND = st.sampled_from([None, None, None, None, 0, 0, 1, -1])
BODIES = st.one_of(
    st.lists(ITEMS, max_size=3),
    st.builds(records_of, st.sampled_from([300, 1000, 8900]), st.integers(3, 30)),
    st.builds(records_of, st.just(8000), st.just(40)),
)
"""Records of a transaction: none, a few, more than its memory, more than one batch of its file."""


@dataclass
class Reading:
    """A reader and where the model says it stands."""

    reader: Reader
    position: int
    stream: str | None = None
    accepted: bool = False


class LogMachine(RuleBasedStateMachine):
    """``ops[:acked]`` is durable; the rest was accepted and may be lost by a crash."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.runner = asyncio.Runner()
        self.clock = HastyClock()
        self.ops: list[Op] = []
        self.acked = 0
        self.model = Model()
        self.head = 1
        self.cursors: dict[str, int] = {}
        self.generation = 0
        self.is_dead = False
        self.fences: list[Any] = []
        self.readings: list[Reading] = []

    def run(self, coroutine):
        return self.runner.run(asyncio.wait_for(coroutine, 20))

    # -- opening, closing, crashing --------------------------------------------------------

    @property
    def place(self) -> Path:
        return self.root / str(self.generation)

    @initialize(variant=VARIANT)
    def begin(self, variant: dict[str, Any]) -> None:
        self.place.mkdir()
        self._open(variant)

    def _open(self, variant: dict[str, Any]) -> None:
        self.power = PowerLossFileSystem(self.place, UnsyncedFileSystem())
        self.fs = FaultyFileSystem(self.power)
        self.settings = BASE.replace(**variant)

        async def open_it() -> Wal:
            return await Wal.open(
                self.place / "log", settings=self.settings, fs=self.fs, clock=self.clock
            )

        self.wal = self.run(open_it())
        self.is_dead = False
        self.fences.clear()
        self.readings.clear()

    @rule(variant=VARIANT, forgotten=FORGOTTEN)
    def reopen(self, variant: dict[str, Any], forgotten: tuple[str, ...]) -> None:
        self.run(self.wal.aclose())
        self.acked = len(self.ops)
        assert open_descriptors(self.place) == []
        self._forget(forgotten)
        self._open(variant)
        self._recover()
        assert self.wal.recovery.truncated_bytes == 0
        assert self.wal.recovery.missing_from is None

    @rule(seed=SEEDS, variant=VARIANT, forgotten=FORGOTTEN)
    def crash(self, seed: int, variant: dict[str, Any], forgotten: tuple[str, ...]) -> None:
        """The power goes; the log goes on with what the disk may hold then."""
        self._die()
        before = self.place
        self.generation += 1
        self.power.crash(seed, self.place)
        shutil.rmtree(before)
        self._forget(forgotten)
        self._open(variant)
        self._recover()

    @rule(
        bodies=st.lists(st.tuples(BODIES, UPDATES, LEVELS), min_size=1, max_size=5),
        calls=st.integers(0, 60),
        seed=SEEDS,
        variant=VARIANT,
        forgotten=FORGOTTEN,
    )
    def crash_at_a_call(self, bodies, calls, seed, variant, forgotten) -> None:
        """The power goes while transactions commit, before some call on the file system."""
        last = len(self.fs.calls) + calls
        fs, power = self.fs, self.power
        fs.before_each(lambda _: len(fs.calls) > last and power.cut())

        async def work() -> None:
            for body, update, level in bodies:
                items = [item for item in body if not self.model.is_closed(item[1].get("stream"))]
                self._accept(Op(items, update))
                async with self.wal.transaction(update=update, durability=level) as transaction:
                    for value, options in items:
                        await transaction.append(value, **options)
                self._acknowledge(level)
                await self.wal.rotate()

        with contextlib.suppress(WalError):
            self.run(work())
        self.crash(seed, variant, forgotten)

    @rule(items=st.lists(VALUES, min_size=1, max_size=3), cut=st.integers(1, 5000), variant=VARIANT)
    def crash_with_a_torn_tail(self, items: list[bytes], cut: int, variant: dict[str, Any]) -> None:
        """The process dies as it writes: the last group is cut off at some byte."""
        self.run(self._settle())
        cell = (self.place / "log" / "DURABLE").read_bytes()
        before = self._last_segment()
        self.run(self.wal.append_many(items, durability="disk"))
        self.ops.append(Op([(value, {}) for value in items]))
        self.generation += 1
        self._die()
        self.power.crash(KEEP_ALL, self.place)
        shutil.rmtree(self.root / str(self.generation - 1))
        (self.place / "log" / "DURABLE").write_bytes(cell)
        name, size = before
        path = self.place / "log" / name
        if self._last_segment()[0] == name:
            with path.open("r+b") as file:
                file.truncate(max(size, self._last_segment()[1] - cut))
        self._open(variant)
        self._recover()

    def _die(self) -> None:
        self.power.cut()
        self.is_dead = True
        with contextlib.suppress(WalError):
            self.run(self.wal.aclose())
        assert open_descriptors(self.root) == []

    def _last_segment(self) -> tuple[str, int]:
        """Return name and used length of the newest segment."""
        path = max((self.place / "log").glob("*.wal"))
        return path.name, max(HEADER_BYTES, len(path.read_bytes().rstrip(b"\0")))

    def _forget(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self.place / "log" / name).unlink(missing_ok=True)

    def _recover(self) -> None:
        """Find the first part of the operations that the log holds; it must be there exactly."""
        assert self.wal.head == self.head
        for count in range(len(self.ops), self.acked - 1, -1):
            self.model = Model(self.ops[:count])
            if self.model.tail == self.wal.tail and self._is_remembered():
                break
        else:
            raise AssertionError(
                f"the log ends at {self.wal.tail} with {dict(self.wal.registers)}; "
                f"acknowledged: {Model(self.ops[: self.acked]).tail}"
            )
        del self.ops[count:]
        self.acked = count
        self.read_everything()
        for name, position in self.cursors.items():
            assert self.run(self.wal.cursor(name)).position == position

    def _is_remembered(self) -> bool:
        ledger, model = self.wal._channel.ledger, self.model
        producers = {
            name: {number: window.find(number) for number in range(window.first, window.last + 1)}
            for name, window in ledger.producers.items()
        }
        streams = {
            name: (info.is_open, dict(info.metadata), info.opened_at)
            for name, info in self.wal.streams().items()
        }
        return (
            ledger.registers == model.registers
            and streams == model.streams
            and producers == dict(model.producers)
            and list(producers) == list(model.producers)
        )

    # -- appending -------------------------------------------------------------------------

    def _accept(self, op: Op) -> range:
        self.ops.append(op)
        return self.model.apply(op)

    def _acknowledge(self, level: str | None = "disk") -> None:
        if (level or self.settings.durability) == "disk":
            self.acked = len(self.ops)

    async def _settle(self) -> None:
        await self.wal.flush()
        self._acknowledge()

    @rule(item=ITEMS, level=LEVELS)
    def append(self, item: Item, level: str | None) -> None:
        value, options = item
        if self.model.is_closed(options.get("stream")):
            with pytest.raises(StreamClosedError):
                self.run(self.wal.append(value, **options))
            return
        offset = self.run(self.wal.append(value, **options, durability=level))
        assert offset == self._accept(Op([item])).start
        self._acknowledge(level)

    @rule(values=st.lists(VALUES, max_size=6))
    def append_nowait(self, values: list[bytes]) -> None:
        async def work() -> None:
            for value in values:
                try:
                    offset = self.wal.append_nowait(value)
                except WouldBlock:
                    assert self.wal.statistics().waiting_records > 0
                    break
                assert offset == self._accept(Op([(value, {})])).start

        self.run(work())

    @rule(
        values=st.lists(VALUES, min_size=1, max_size=4),
        options=OPTIONS,
        update=UPDATES,
        level=LEVELS,
        expect=EXPECTED,
        behind=BEHIND,
    )
    def append_many(self, values, options, update, level, expect, behind) -> None:
        conditions, error = self._conditions(expect, behind)
        if self.model.is_closed(options.get("stream")):
            error = StreamClosedError if error is None else WalError
        call = self.wal.append_many(
            values, **options, update=update, durability=level, **conditions
        )
        op = Op([(value, options) for value in values], update)
        self._expect(call, op, level, error)

    @rule(
        body=BODIES,
        update=UPDATES,
        level=LEVELS,
        end=st.integers(0, 3),
        expect=EXPECTED,
        behind=BEHIND,
    )
    def transaction(self, body, update, level, end, expect, behind) -> None:
        conditions, error = self._conditions(expect, behind)
        if any(self.model.is_closed(options.get("stream")) for _, options in body):
            error = StreamClosedError if error is None else WalError
        if end == 0:
            error = ZeroDivisionError

        async def work() -> range:
            async with self.wal.transaction(
                update=update, durability=level, **conditions
            ) as transaction:
                for at, (value, options) in enumerate(body):
                    assert await transaction.append(value, **options) == at
                if end == 0:
                    raise ZeroDivisionError
            return transaction.span

        self._expect(work(), Op(body, update), level, error)

    @rule(body=BODIES, update=UPDATES, nth=st.integers(1, 25), late=st.booleans())
    def cancelled_transaction(self, body, update, nth: int, late: bool) -> None:
        items = [item for item in body if not self.model.is_closed(item[1].get("stream"))]

        async def work() -> None:
            transaction = self.wal.transaction(update=update)

            async def fill() -> None:
                async with transaction:
                    for value, options in items:
                        await transaction.append(value, **options)

            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.create_task(finish(Interrupted(fill(), nth, late=late)))
            if transaction.span is not None:
                assert transaction.span == self._accept(Op(items, update))

        self.run(work())

    @rule(bodies=st.lists(st.tuples(BODIES, LEVELS), min_size=2, max_size=4))
    def at_the_same_time(self, bodies) -> None:
        """Transactions, groups and single records of several tasks; the offsets say in which order."""
        spans: list[tuple[range, list[Item]]] = []

        async def transact(items: list[Item], level: str | None) -> None:
            async with self.wal.transaction(durability=level) as transaction:
                for value, options in items:
                    await transaction.append(value, **options)
            spans.append((transaction.span, items))

        async def append(value: bytes, level: str | None) -> None:
            offset = await self.wal.append(value, durability=level)
            spans.append((range(offset, offset + 1), [(value, {})]))

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for n, (body, level) in enumerate(bodies):
                    items = [(value, {}) for value, _ in body]
                    group.create_task(transact(items, level))
                    group.create_task(append(b"single %d" % n, level))
                    group.create_task(self.wal.flush())

        self.run(work())
        for span, items in sorted(spans, key=lambda found: (found[0].start, found[0].stop)):
            assert self._accept(Op(items)) == span
        if all((level or self.settings.durability) == "disk" for _, level in bodies):
            self._acknowledge()

    def _conditions(self, expect, behind) -> tuple[dict[str, Any], type[Exception] | None]:
        """Return conditions for an append and what must be raised because of them."""
        conditions: dict[str, Any] = {}
        error: type[Exception] | None = None
        if expect is not None:
            conditions["expect"] = expect
            if not self.model.matches(expect):
                error = RegisterMismatchError
        if behind is not None:
            conditions["expect_offset"] = self.model.tail - behind
            if behind:
                error = OffsetMismatchError  # looked at first
        return conditions, error

    def _expect(self, call, op: Op, level: str | None, error: type[Exception] | None) -> None:
        if error is None:
            assert self.run(call) == self._accept(op)
            self._acknowledge(level)
            return
        with pytest.raises(error) as caught:
            self.run(call)
        if isinstance(caught.value, ExpectationError):
            assert caught.value.outcome == "not_written"
            self._acknowledge()  # what it was compared with is durable
        if isinstance(caught.value, RegisterMismatchError):
            assert caught.value.actual == self.model.registers

    # -- fences, producers, streams --------------------------------------------------------

    @rule(owner=st.sampled_from(["me", "you"]), register=st.sampled_from(["fence", "a"]))
    def take_fence(self, owner: str, register: str) -> None:
        token = self.model.next_token(owner, register)
        fence = self.run(self.wal.fence(owner, register=register))
        assert fence.token == token
        self._accept(Op(update={register: token}))
        self._acknowledge()
        self.fences = [*self.fences[-3:], fence]

    @rule(value=VALUES, level=LEVELS, pick=PICK)
    def append_under_a_fence(self, value: bytes, level: str | None, pick: int) -> None:
        if not self.fences:
            return
        fence = self.fences[pick % len(self.fences)]
        holds = self.model.registers.get(fence.register) == fence.token
        assert fence.holds == holds
        call = fence.append_many([value], durability=level)
        self._expect(call, Op([(value, {})]), level, None if holds else FencedError)

    @rule(name=st.sampled_from("pqrs"), body=BODIES, back=st.integers(-2, 6), level=LEVELS)
    def produce(self, name: str, body: list[Item], back: int, level: str | None) -> None:
        """Append under the next number, or one that was used, is forgotten, or leaves a gap."""
        items = [(value, {}) for value, _ in body]
        producer, last = self.wal.producer(name), self.model.last_sequence(name)
        assert producer.last_sequence == last
        number = max(1, last + 1 - back) if back else None

        async def work() -> range:
            async with producer.transaction(sequence=number, durability=level) as transaction:
                for value, options in items:
                    await transaction.append(value, **options)
            return transaction.span

        if number is None or number == last + 1:
            self._expect(work(), Op(items, producer=name), level, None)
            return
        span = self.model.producers.get(name, {}).get(number)
        if span is not None:
            assert self.run(work()) == span
            return
        with pytest.raises(SequenceMismatchError) as caught:
            self.run(work())
        assert caught.value.outcome == ("not_written" if number > last else "durable")
        self._acknowledge()

    @rule(name=st.sampled_from("pqrs"), count=st.integers(1, 7), level=LEVELS)
    def produce_more(self, name: str, count: int, level: str | None) -> None:
        """Fill the window, each number twice."""
        producer = self.wal.producer(name)
        for number in range(self.model.last_sequence(name) + 1, count + 1):
            item = (b"produced %d" % number, {})
            call = producer.append_many([item[0]], sequence=number, durability=level)
            self._expect(call, Op([item], producer=name), level, None)
            span = self.run(producer.append_many([b"again"], sequence=number, durability=level))
            assert span == self.model.producers[name][number]

    @rule(name=STREAMS, metadata=st.dictionaries(NAMES, NAMES, max_size=2))
    def open_stream(self, name: str, metadata: dict[str, str]) -> None:
        self.run(self.wal.open_stream(name, metadata=metadata))
        self._accept(Op(opened={name: metadata}))
        self._acknowledge()

    @rule(name=STREAMS)
    def close_stream(self, name: str) -> None:
        if name not in self.model.streams:
            with pytest.raises(StreamClosedError):
                self.run(self.wal.close_stream(name))
            return
        self.run(self.wal.close_stream(name))
        self._accept(Op(closed=[name]))
        self._acknowledge()

    # -- rotation, retention, time ---------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.run(self._settle())
        assert self.wal.durable_limit == self.model.tail
        assert self.wal.registers == self.model.registers
        assert self.wal.statistics().waiting_records == 0
        assert self._is_remembered()

    @rule()
    def rotate(self) -> None:
        self.run(self.wal.rotate())
        while self.acked < len(self.ops) and any(op.items for op in self.ops[self.acked :]):
            self.acked += 1

    @rule(pick=PICK)
    def trim(self, pick: int) -> None:
        before = 1 + pick % self.wal.durable_limit
        expected = max(self.head, min([before, *self.cursors.values()]))
        assert self.run(self.wal.trim(before)) == expected
        self.head = expected
        with pytest.raises(OffsetNotWrittenError):
            self.run(self.wal.trim(self.model.tail + 1))

    @rule(name=NAMES, pick=PICK)
    def move_cursor(self, name: str, pick: int) -> None:
        cursor = self.run(self.wal.cursor(name))
        assert cursor.position == self.cursors.setdefault(name, self.head)
        to = self.head + pick % (self.wal.durable_limit - self.head + 1)
        self.run(cursor.rewind(to))
        self.cursors[name] = to

    @rule(name=NAMES)
    def delete_cursor(self, name: str) -> None:
        assert self.run(self.wal.delete_cursor(name)) == (name in self.cursors)
        self.cursors.pop(name, None)

    @rule(seconds=st.sampled_from([0.5, 2, 100]), wall=st.integers(-1000, 1000))
    def let_time_pass(self, seconds: float, wall: int) -> None:
        self.clock.shift_wall(wall)

        async def work() -> None:
            self.clock.advance(seconds)
            await asyncio.sleep(0)

        self.run(work())

    # -- reading ---------------------------------------------------------------------------

    @rule(
        stream=st.one_of(st.none(), STREAMS),
        accepted=st.booleans(),
        start=st.sampled_from(["earliest", "latest"]),
    )
    def make_reader(self, stream: str | None, accepted: bool, start: str) -> None:
        visibility = "accepted" if accepted else "durable"
        reader = self.wal.reader(start, stream=stream, visibility=visibility)
        if start == "earliest":
            assert reader.position == self.head
        self.readings = [
            *self.readings[-4:],
            Reading(reader, reader.position, stream, accepted),
        ]

    @rule(pick=PICK, most=st.integers(1, 40), size=st.sampled_from([1, 5000, 1 << 20]))
    def fetch(self, pick: int, most: int, size: int) -> None:
        if not self.readings:
            return
        reading = self.readings[pick % len(self.readings)]
        visible = self.wal.visible_limit
        try:
            batch = self.run(reading.reader.fetch(max_records=most, max_bytes=size, max_wait=0))
        except OffsetTrimmedError:
            assert reading.position < self.head
            reading.reader.seek(self.head)
            reading.position = self.head
            return
        records = list(batch)
        assert batch.start == reading.position
        assert len(records) <= most
        if reading.stream is None:
            assert [r.offset for r in records] == list(range(batch.start, batch.limit))
            assert records or reading.accepted or reading.position >= visible
        self._compare(records, reading, batch.limit)

    @rule(pick=PICK, one=st.booleans())
    def iterate(self, pick: int, one: bool) -> None:
        """One record by ``async for``, or a whole stored batch."""
        ready = [
            r
            for r in self.readings
            if r.stream is None and self.head <= r.position < self.wal.visible_limit
        ]
        if not ready:
            return
        reading = ready[pick % len(ready)]
        if one:
            record = self.run(anext(reading.reader))
            self._compare([record], reading, record.offset + 1)
        else:
            batch = self.run(anext(reading.reader.batches()))
            self._compare(list(batch), reading, batch.limit)

    @rule(pick=PICK)
    def seek(self, pick: int) -> None:
        if self.readings:
            reading = self.readings[pick % len(self.readings)]
            reading.position = self.head + pick % (self.wal.visible_limit - self.head + 1)
            reading.reader.seek(reading.position)

    def _compare(self, records, reading: Reading, limit: int) -> None:
        """What was read is all of the stream between the old and the new position."""
        assert limit <= (self.model.tail if reading.accepted else self.wal.visible_limit)
        expected = [
            (offset, *self.model.items[offset - 1])
            for offset in range(reading.position, limit)
            if reading.stream in (None, self.model.items[offset - 1][1].get("stream"))
        ]
        assert len(records) == len(expected)
        for record, (offset, value, options) in zip(records, expected, strict=True):
            assert (record.offset, record.value) == (offset, value)
            assert record.key == options.get("key")
            assert record.stream == options.get("stream")
            assert dict(record.headers) == options.get("headers", {})
        assert reading.reader.position == limit
        reading.position = limit

    @rule()
    def read_everything(self) -> None:
        visible = self.wal.visible_limit
        records = self.run(read_all(self.wal))
        check_contiguous(records, self.head)
        whole = Reading(self.wal.reader(), self.head)
        limit = self.head + len(records)
        assert limit >= visible
        whole.reader.seek(limit)
        self._compare(records, whole, limit)

    @rule(pick=PICK)
    def look_up_times(self, pick: int) -> None:
        """A time finds the first record that has it; records know theirs."""
        visible = self.wal.visible_limit
        if self.head == visible:
            with pytest.raises(OffsetNotWrittenError):
                self.run(self.wal.timestamp_at(self.wal.tail))
            return
        offset = self.head + pick % (visible - self.head)
        time_us = self.run(self.wal.timestamp_at(offset))
        first = self.run(self.wal.offset_at(time_us))
        assert self.head <= first <= offset
        assert self.run(self.wal.timestamp_at(first)) == time_us
        if first > self.head:
            assert self.run(self.wal.timestamp_at(first - 1)) < time_us
        with pytest.raises(OffsetNotWrittenError):
            self.run(self.wal.timestamp_at(self.wal.tail))
        if self.head > 1:
            with pytest.raises(OffsetTrimmedError):
                self.run(self.wal.timestamp_at(self.head - 1))

    # -- always ----------------------------------------------------------------------------

    @invariant()
    def limits_are_in_order(self) -> None:
        if not hasattr(self, "wal"):
            return
        wal = self.wal
        assert wal.tail == self.model.tail
        assert wal.head == self.head
        assert wal.head <= wal.durable_limit <= wal.visible_limit <= wal.tail
        assert wal.durable_limit >= Model(self.ops[: self.acked]).tail
        assert not wal.is_closing
        counts = wal.statistics()
        assert (counts.head, counts.tail) == (wal.head, wal.tail)
        assert counts.segments >= 1
        assert 0 <= counts.waiting_records <= counts.tail - 1
        assert counts.waiting_bytes >= 0
        assert counts.cache_bytes <= self.settings.cache_bytes
        assert counts.local_head == wal.head

    def teardown(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.root)
            stack.callback(self.runner.close)
            if not hasattr(self, "wal"):
                return
            if self.is_dead:  # a check failed between a power cut and the next opening
                stack.enter_context(contextlib.suppress(WalError))
            self.run(self.wal.aclose())

            async def rest() -> set[Any]:
                return asyncio.all_tasks() - {asyncio.current_task()}

            assert len(self.run(rest())) <= 1, "only wait_for's"
            assert open_descriptors(self.place) == []
            assert not list(self.root.glob("*/log/transaction-*"))


async def test_a_large_transaction_that_never_reached_the_disk_leaves_no_open_file(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    wal = await Wal.open(log_directory, settings=BASE, fs=faulty)
    with faulty.hold("datasync", name="next.tmp") as hold:
        wal.append_nowait(b"under way")
        await hold.wait_entered()
        async with wal.transaction(durability="memory") as transaction:
            for value, _ in records_of(1000, 5):
                await transaction.append(value)
        assert transaction.span == range(2, 7)
        faulty.fail("replace", error=errno.EIO)
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert open_descriptors(log_directory) == []
    assert list(log_directory.glob("transaction-*")) == []


def test_a_log_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_log_does_what_the_model_does_for_longer() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=250, stateful_step_count=60, deadline=None)
    )
