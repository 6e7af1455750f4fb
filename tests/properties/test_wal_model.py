"""A log against the plainest model of one: a list. Hypothesis chooses what is done to both."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.local import SMALL, UnsyncedFileSystem, check_contiguous, copy_log, read_all
from walstore import Wal, WouldBlock
from walstore.testing import ManualClock

SETTINGS = SMALL.replace(max_record_bytes=9000, channel_bytes=20_000, cache_bytes=8192)
VALUES = st.one_of(st.binary(max_size=20), st.integers(0, 8900).map(lambda size: b"v" * size))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.binary(max_size=5),
        "stream": st.sampled_from(["eu", "us"]),
        "headers": st.dictionaries(st.sampled_from("ab"), st.binary(max_size=3)),
    },
)


class WalMachine(RuleBasedStateMachine):
    """Every record that was accepted is in ``model``; those below ``synced`` are durable."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.model: list[tuple[bytes, dict[str, Any]]] = []
        self.synced = 0
        self.generation = 0

    def run(self, coroutine):
        return self.runner.run(coroutine)

    @initialize()
    def open(self) -> None:
        self.run(self._open())

    async def _open(self) -> None:
        self.wal = await Wal.open(
            self.root / str(self.generation),
            settings=SETTINGS,
            fs=UnsyncedFileSystem(),
            clock=self.clock,
        )
        self.reader = self.wal.follow()
        self.seen = 0

    @rule(value=VALUES, options=OPTIONS)
    def append(self, value: bytes, options: dict[str, Any]) -> None:
        offset = self.run(self.wal.append(value, **options))
        self.model.append((value, options))
        assert offset == len(self.model)
        self.synced = offset

    @rule(value=VALUES)
    def append_to_memory(self, value: bytes) -> None:
        offset = self.run(self.wal.append(value, durability="memory"))
        self.model.append((value, {}))
        assert offset == len(self.model)

    @rule(values=st.lists(VALUES, min_size=1, max_size=2), options=OPTIONS)
    def append_many(self, values: list[bytes], options: dict[str, Any]) -> None:
        span = self.run(self.wal.append_many(values, **options))
        assert span == range(len(self.model) + 1, len(self.model) + 1 + len(values))
        self.model += [(value, options) for value in values]
        self.synced = len(self.model)

    @rule(values=st.lists(VALUES, max_size=6))
    def append_nowait(self, values: list[bytes]) -> None:
        for value in values:
            try:
                offset = self.wal.append_nowait(value)
            except WouldBlock:
                assert self.wal.statistics().waiting_bytes > 0
                break
            self.model.append((value, {}))
            assert offset == len(self.model)

    @rule()
    def flush(self) -> None:
        self.run(self.wal.flush())
        self.synced = len(self.model)
        assert self.wal.durable_limit == len(self.model) + 1

    @rule()
    def rotate(self) -> None:
        self.run(self.wal.rotate())
        self.synced = len(self.model)

    @rule()
    def reopen(self) -> None:
        self.run(self._reopen())

    async def _reopen(self) -> None:
        await self.wal.aclose()
        self.synced = len(self.model)
        await self._open()
        assert self.wal.tail == len(self.model) + 1

    @rule(cut=st.integers(0, 3000))
    def crash(self, cut: int) -> None:
        """Go on with the files as a killed process leaves them, the last batch perhaps cut off."""
        self.run(self._crash(cut))

    async def _crash(self, cut: int) -> None:
        await self.wal.flush()
        await self.wal.rotate()
        before = self.wal.tail
        last = await self.wal.append_many([b"last"] * 3)
        await self.wal.flush()
        old = self.wal.path
        self.generation += 1
        copied = copy_log(old, self.root / str(self.generation))
        await self.wal.aclose()
        shutil.rmtree(old)
        torn = False
        for path in sorted(copied.glob("*.wal"))[-1:]:
            data = path.read_bytes().rstrip(b"\0")
            torn = 0 < cut < len(data) - 64
            if torn:
                path.write_bytes(data[:-cut])
        await self._open()
        assert self.wal.tail == (before if torn else last.stop)
        if not torn:
            self.model += [(b"last", {})] * 3
        self.synced = len(self.model)

    @rule(seconds=st.floats(-10, 10))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.shift_wall(seconds)

    @rule(count=st.integers(1, 12))
    def follow(self, count: int) -> None:
        """Read some records with a reader that lives until the next opening."""
        for _ in range(min(count, self.synced - self.seen)):
            record = self.run(anext(self.reader))
            self._compare(record, self.seen)
            self.seen += 1

    @rule(most=st.integers(1, 20), size=st.sampled_from([1, 5000, 1 << 20]))
    def fetch(self, most: int, size: int) -> None:
        batch = self.run(self.reader.fetch(max_records=most, max_bytes=size, max_wait_seconds=0))
        assert batch.start == self.seen + 1
        assert len(batch) <= most
        for record in batch:
            self._compare(record, self.seen)
            self.seen += 1

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def seek(self, data) -> None:
        self.seen = data.draw(st.integers(0, max(self.synced - 1, 0)))
        self.reader.seek(self.seen + 1)
        assert self.reader.position == self.seen + 1

    @rule()
    def read(self) -> None:
        records = self.run(read_all(self.wal))
        check_contiguous(records)
        assert self.synced <= len(records) <= len(self.model)
        for at, record in enumerate(records):
            self._compare(record, at)

    def _compare(self, record, at: int) -> None:
        value, options = self.model[at]
        assert (record.offset, record.value) == (at + 1, value)
        assert record.key == options.get("key")
        assert record.stream == options.get("stream")
        assert dict(record.headers) == options.get("headers", {})

    @invariant()
    def limits_agree(self) -> None:
        if self.model:
            assert (self.wal.head, self.wal.tail) == (1, len(self.model) + 1)
            assert self.synced + 1 <= self.wal.durable_limit <= self.wal.tail

    def teardown(self) -> None:
        if hasattr(self, "wal"):
            self.run(self.wal.aclose())
        self.runner.close()
        shutil.rmtree(self.root)


def test_a_log_behaves_like_a_list() -> None:
    run_state_machine_as_test(
        WalMachine, settings=settings(max_examples=30, stateful_step_count=25, deadline=None)
    )
