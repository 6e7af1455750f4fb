"""A log and its model: opened, closed, killed by power cuts, opened again and compared."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.local import (
    HastyClock,
    UnsyncedFileSystem,
    open_descriptors,
)
from tests.properties.log_machine.strategies import (
    BASE,
    BODIES,
    FORGOTTEN,
    LEVELS,
    SEEDS,
    UPDATES,
    VALUES,
    VARIANT,
)
from tests.properties.log_model import Model, Op
from walstore import Wal
from walstore.core.format.segment import HEADER_BYTES
from walstore.core.read.reader import Reader
from walstore.errors import WalError
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL


@dataclass
class Reading:
    """A reader and where the model says it stands."""

    reader: Reader
    position: int
    stream: str | None = None
    accepted: bool = False


class Running(RuleBasedStateMachine):
    """``ops[:acked]`` is durable; the rest was accepted and may be lost by a crash.

    The rules of the other modules are mixed in; what a recovered log holds is compared by ``Readers``.
    """

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
        return self.runner.run(asyncio.wait_for(coroutine, 60))

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

    def _accept(self, op: Op) -> range:
        self.ops.append(op)
        return self.model.apply(op)

    def _acknowledge(self, level: str | None = "disk") -> None:
        if (level or self.settings.durability) == "disk":
            self.acked = len(self.ops)

    async def _settle(self) -> None:
        await self.wal.flush()
        self._acknowledge()

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
