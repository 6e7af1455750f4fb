"""Programs: what the processes of a history do. One writes a log at a time, others read it beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim import actors
from tests.sim.following import READERS, Sight
from tests.sim.loop import Process
from tests.sim.rules import ViolationError
from tests.sim.stage import STREAMS, Stage
from walstore import Wal, WalStore
from walstore.errors import (
    CorruptionError,
    LogNotFoundError,
    OffsetTrimmedError,
    WalError,
    WalLockedError,
)
from walstore.log.readonly import ReadonlyWal
from walstore.records import Record
from walstore.store.store_settings import StoreSettings

if TYPE_CHECKING:
    from tests.sim.history import History

_NEIGHBOURS = 2
"""Other logs of a store, which take room among the open files."""


class WritingProgram:
    """Opens the log, by itself or in a store, uses it, and closes it."""

    def __init__(self, history: History, process: Process, end: str) -> None:
        self._history = history
        self._process = process
        self._end = end
        self._plan = history.plan
        self._random = history.random
        self._book = history.book
        self._store: WalStore | None = None

    async def run(self) -> None:
        weather = self._history.weather
        faults, nuisances = weather.faults, weather.nuisances
        self._book.session += 1
        wal = await self._open()
        if wal is None:
            return
        self._note(f"opened {wal!r} {wal.recovery}")
        stage = Stage(wal, self._book, self._plan, self._random, self._note)
        stage.may_fail = lambda: weather.faults > faults
        stage.is_hindered = lambda: weather.nuisances > nuisances
        try:
            if await self._survey(stage):
                await self._act(stage)
        finally:
            stage.is_ending = True
            try:
                await wal.aclose()
                self._note("closed")
                if self._end != "cancel":
                    self._book.closed_cleanly()
            except WalError as error:
                self._note(f"aclose: {error!r}")
                if (weather.faults, weather.nuisances) == (faults, nuisances):
                    raise ViolationError("fails-for-a-cause", f"aclose: {error!r}") from error
            finally:
                await self._close_store()

    def _note(self, text: str) -> None:
        self._history.note(self._process, text)

    async def _open(self) -> Wal | None:
        """Open the log; None if the disk does not let it."""
        weather = self._history.weather
        before = weather.faults, weather.nuisances
        options: dict[str, Any] = {
            "settings": self._plan.make_settings(),
            "fs": self._history.file_system(self._process),
            "clock": self._history.clock,
        }
        directory = self._history.directory
        try:
            if not self._plan.store:
                return await Wal.open(directory, **options)
            few = StoreSettings(max_open_logs=1, writer_threads=2, reader_threads=2)
            self._store = await WalStore.open(directory.parent, store_settings=few, **options)
            return await self._store.wal(directory.name)
        except (CorruptionError, LogNotFoundError) as error:
            raise ViolationError("reopens", f"{error!r}") from error
        except WalLockedError as error:
            self._note(f"open: {error!r}")
        except WalError as error:
            self._note(f"open: {error!r}")
            if (weather.faults, weather.nuisances) == before:
                raise ViolationError("reopens", f"{error!r}") from error
        except asyncio.CancelledError:
            await self._close_store()
            raise
        await self._close_store()
        return None

    async def _close_store(self) -> None:
        if self._store is not None:
            try:
                await self._store.aclose()
            except WalError as error:
                self._note(f"aclose of the store: {error!r}")

    # -- what an opening found -----------------------------------------------------------------

    async def _survey(self, stage: Stage) -> bool:
        """Check what an opening found; False if that could not be read."""
        wal, book = stage.wal, self._book
        if wal.recovery.missing_from is not None:
            raise ViolationError("nothing-missing", f"{wal.recovery}")
        found = await self._read_all(stage)
        if found is None:
            return False
        head, limit, records = found
        if self._plan.retains:
            book.head_most = max(book.head_most, head)
        book.reopened(records, wal.registers, head, limit)
        missing = book.streams - set(wal.streams())
        if missing:
            raise ViolationError("streams", f"{missing} are gone")
        for name, most in book.cursors_most.items():
            if head > most:
                raise ViolationError("cursors", f"the head {head} passed {name} at {most}")
        await self._survey_stream(stage, records, head)
        return True

    async def _read_all(self, stage: Stage) -> tuple[int, int, list[Record]] | None:
        """Return head, limit and records; None if they cannot be read."""
        wal = stage.wal
        for _ in range(30):
            head, limit = wal.head, wal.durable_limit
            try:
                async with wal.reader("earliest", follow=False) as reader:
                    records = [record async for record in reader]
            except OffsetTrimmedError:
                continue  # retention is at it already
            except WalError as error:
                stage.judge("the survey", error)
                if wal.is_closing:
                    return None
            else:
                return max([head, *(record.offset for record in records[:1])]), limit, records
        return None

    async def _survey_stream(self, stage: Stage, records: list[Record], head: int) -> None:
        """Check that the reader of a stream finds what the log holds of it."""
        chosen = stage.random.choice(STREAMS)
        try:
            async with stage.wal.reader(head, follow=False, stream=chosen) as reader:
                found = [record.offset async for record in reader]
        except OffsetTrimmedError:
            return
        except WalError as error:
            stage.judge("the survey", error)
            return
        want = [record.offset for record in records if record.stream == chosen]
        if found != want:
            raise ViolationError("streams", f"{chosen} has {found}, not {want}")

    # -- using it ------------------------------------------------------------------------------

    async def _act(self, stage: Stage) -> None:
        """Let actors use the log, then close it, maybe under them."""
        random, history = self._random, self._history
        if self._plan.retains:
            self._book.head_most = float("inf")
        history.on_open(self._process, self._end)
        readers = [
            self._start(READERS[kind](stage, f"f{number}"), f"{kind} f{number}")
            for number, kind in enumerate(self._plan.followers)
        ]
        writers = [
            self._start(self._use(stage, f"a{number}"), f"a{number}")
            for number in range(self._plan.actors)
        ]
        if self._store is not None:
            writers += [
                self._start(self._use_neighbour(self._store, f"n{number}"), f"n{number}")
                for number in range(_NEIGHBOURS)
            ]
        if self._end == "busy":
            await asyncio.sleep(random.choice([1e-4, 1e-3, 5e-3, 2e-2]))
        else:
            await asyncio.wait(writers)
        stage.is_ending = True
        self._note(f"closes, {self._end}")
        close = stage.wal.aclose if self._store is None else self._store.aclose
        closing = asyncio.get_running_loop().create_task(close(), name="aclose")
        # Also if this program is cancelled while it waits.
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait([closing, *readers, *writers])

    def _start(self, call: Any, name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._history.guard(call), name=name)

    async def _use(self, stage: Stage, name: str) -> None:
        """Make some calls of any kind."""
        for _ in range(self._random.randint(1, self._plan.calls)):
            kind = self._random.choice(self._plan.acts)
            if kind == "produce":
                await actors.produce(stage, name, self._history.memory(name))
            else:
                await actors.APPENDERS[kind](stage, name)
            if stage.wal.is_closing and self._random.random() < 0.8:
                return
            await stage.pause()

    async def _use_neighbour(self, store: WalStore, name: str) -> None:
        """Append to another log of the store; only that it ends is checked."""
        for _ in range(self._random.randint(1, 5)):
            try:
                log = await store.wal(name)
                await log.append(b"neighbour")
            except WalError as error:
                self._note(f"{name}: {error!r}")
            await asyncio.sleep(self._random.choice([0, 1e-3]))


class ReadingProgram:
    """Reads the log beside its writer, without its lock, until it is killed."""

    def __init__(self, history: History, process: Process) -> None:
        self._history = history
        self._process = process
        plan, random = history.plan, history.random
        self._note: Callable[[str], None] = lambda text: history.note(process, text)
        self._stage = Stage(None, history.book, plan, random, self._note)  # type: ignore[arg-type]

    async def run(self) -> None:
        history, stage = self._history, self._stage
        fs = history.file_system(self._process)
        while True:
            try:
                async with ReadonlyWal.open(history.directory, fs=fs, clock=history.clock) as log:
                    self._note(f"opened {log!r}")
                    await self._read(log)
            except WalError as error:
                self._note(f"{error!r}")
                if isinstance(error, CorruptionError) and stage.keeps:
                    raise ViolationError("readers", f"beside the writer: {error!r}") from error
            await asyncio.sleep(stage.random.uniform(0.001, 0.05))

    async def _read(self, log: ReadonlyWal) -> None:
        stage = self._stage
        reader = log.follow("earliest")
        sight = Sight(stage, self._process.name, keeps=stage.keeps)
        while True:
            position = reader.position
            try:
                sight.see([await anext(reader)], position)
            except OffsetTrimmedError:
                reader.seek(log.head)
            if stage.random.random() < 0.02:
                await log.refresh()
                await self._look_at_registers(log)

    async def _look_at_registers(self, log: ReadonlyWal) -> None:
        """What was acknowledged before the look is seen by it, or a later change is."""
        acknowledged = dict(self._stage.book.counters) if self._history.was_opened else {}
        found = await log.registers()
        for name, least in acknowledged.items():
            if not name.startswith("shared") and int(found.get(name, "0")) < least:
                raise ViolationError(
                    "registers", f"{self._process} sees {name} at {found.get(name)}, not {least}"
                )
