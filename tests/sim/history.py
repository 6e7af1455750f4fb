"""A history: one machine, one log, and the processes that write and read it until the last has ended."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import walstore.log.spilled_records
from tests.sim.disk import Disk
from tests.sim.files import SimFileSystem
from tests.sim.loop import OUTSIDE, PROCESS, Process, SimLoop, SimTask, StuckError
from tests.sim.plan import CONDITIONS, Plan, draw
from tests.sim.programs import ReadingProgram, WritingProgram
from tests.sim.rules import Book, Entry, ViolationError
from tests.sim.surroundings import Nobody, SimClock, abandon_all, quiet, where
from tests.sim.threads import simulated_threads
from tests.sim.weather import CHANGING, Weather
from walstore.care.verify.verifying import verify_directory
from walstore.core.files import unlinked_file
from walstore.core.files.spill import Spill
from walstore.errors import LogNotFoundError, WalError

_PATIENCE_SECONDS = 3000.0
"""More than all stalls of a session together."""
_FREE_BYTES = 1 << 40


class History:
    """Runs a plan and checks the rules on the way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.directory = Path("/srv/store/log") if plan.store else Path("/srv/log")
        self.random = Random(f"history {plan.seed}")
        self.loop = SimLoop(Random(f"loop {plan.seed}"), shuffles=plan.shuffles)
        self.disk = Disk(Random(f"disk {plan.seed}"), lies=plan.lies)
        self.weather = Weather(Random(f"weather {plan.seed}"), needs_checkpoint=plan.store)
        self.clock = SimClock(self.loop)
        self.book = Book()
        self.trace: list[tuple[float, str, str]] = []
        self.violation: ViolationError | None = None
        self.kills = 0
        self.sessions = 0
        self.was_opened = True
        """Whether a writer opened the log since the power failed: before, its last change may not be seen."""
        self._memories: dict[str, dict[str, Any]] = {}
        self._violated = asyncio.Event()
        self._doomed: Process | None = None
        self._calls_left = 0
        self._struck = asyncio.Event()
        self._unlocked: set[str] = set()

    # -- watching ----------------------------------------------------------------------------

    def note(self, who: Process, text: str) -> None:
        self.trace.append((self.loop.time(), who.name, text))

    def on_call(self, process: Process, text: str) -> None:
        self.note(process, f"    {text}")
        if process is self._doomed and text.split(maxsplit=1)[0] in CHANGING:
            self._calls_left -= 1
            if self._calls_left == 0:
                self.loop.call_soon(self._strike, process, context=contextvars.Context())

    def _strike(self, process: Process) -> None:
        """Kill a process between two moments of a call."""
        if process.is_alive:
            self.loop.kill(process)
            self.kills += 1
            self.note(OUTSIDE, f"{process} is killed")
        self._struck.set()

    def on_change(self, process: Process, path: Path, kind: str) -> None:
        """A process changes a file: it must hold the lock."""
        log = self.directory
        if path.parent != log or path.name == "LOCK":
            return
        lock = log.parent / ".store" if self.plan.store else log / "LOCK"
        if not self.disk.holds_lock(process, lock):
            self.violate(ViolationError("one-writer", f"{process} {kind} {path.name}, unlocked"))

    def violate(self, violation: ViolationError) -> None:
        if violation.rule in self.plan.ignored or not PROCESS.get().is_alive:
            return  # else its tasks are being buried
        if self.violation is None:
            self.violation = violation
            self.note(OUTSIDE, f"VIOLATION {violation}")
            self._violated.set()

    # -- processes ---------------------------------------------------------------------------

    def memory(self, name: str) -> dict[str, Any]:
        """Return what an actor remembers from one session to the next."""
        return self._memories.setdefault(name, {})

    def on_open(self, process: Process, end: str) -> None:
        """A process begins to use the log: if it is to be killed, that will be soon."""
        self.was_opened = True
        if end in ("kill", "power") and self._doomed is None:
            most = self.random.choice([3, 15, 60])
            self._doom(process, 1 + int(self.random.expovariate(1 / most)))

    def file_system(self, process: Process) -> SimFileSystem:
        return SimFileSystem(self.disk, self.weather, process, self, _FREE_BYTES)

    async def guard(self, call: Any) -> None:
        """Report what an actor finds."""
        try:
            await call
        except ViolationError as violation:
            self.violate(violation)
        except WalError as error:
            found = ViolationError("typed-errors", f"an actor got {error!r}")
            found.__cause__ = error
            self.violate(found)
        except Exception as error:  # noqa: BLE001
            found = ViolationError("typed-errors", f"an actor got {error!r}")
            found.__cause__ = error
            self.violate(found)

    # -- the machine -------------------------------------------------------------------------

    async def direct(self) -> None:
        """Start and end processes as planned; then let all be well and look once more."""
        plan = self.plan
        watcher: Process | None = None
        for end in (*plan.ends, "last"):
            if end == "last":
                self.weather.clear()
            else:
                self._change_weather()
            if plan.readonly and (watcher is None or not watcher.is_alive):
                watcher = self._start("reader", lambda one: ReadingProgram(self, one))
            await self._session(end)
            if self.violation is not None:
                return
            if end == "power":
                for process in self._running():
                    self.loop.kill(process)
                self.disk.lose_power()
                self.was_opened = False
                self.note(OUTSIDE, "the power failed")
            elif watcher is not None and self.random.random() < 0.2:
                self.loop.kill(watcher)
            self._verify()
        for process in self._running():
            self.loop.kill(process)

    def _verify(self) -> None:
        """Let ``verify`` look at what a session left, crashed or not."""
        weather = Weather(Random(0))
        fs = SimFileSystem(self.disk, weather, Process("verify"), Nobody(), _FREE_BYTES)
        try:
            report = verify_directory(self.directory, fs=fs)
        except LogNotFoundError:
            return
        except WalError as error:
            self.violate(ViolationError("verifies", repr(error)))
            return
        if not report.is_ok:
            self.violate(ViolationError("verifies", "; ".join(map(str, report.problems))))

    def _running(self) -> list[Process]:
        return list(
            {
                task.process.name: task.process
                for task in self.loop.tasks.values()
                if task.process is not OUTSIDE
            }.values()
        ) + [process for process in self._lingering if process.is_alive]

    _lingering: list[Process]
    _owed: list[Entry]
    _troubles: tuple[int, int]

    def _change_weather(self) -> None:
        random, plan, weather = self.random, self.plan, self.weather
        weather.clear()
        if random.random() < 0.7:
            weather.rate, weather.read_rate = plan.rate, plan.read_rate
        weather.stall_rate = plan.stall_rate
        weather.slowness = random.choice([0.2, 1.0, 1.0, 5.0])
        self.clock.off_us += random.choice([0, 0, 3_000_000, -2_000_000])
        for condition in plan.conditions:
            if random.random() < 0.5:
                begin = random.expovariate(100)
                self.loop.call_later(begin, self._set_condition, condition, True)
                self.loop.call_later(
                    begin + random.expovariate(50), self._set_condition, condition, False
                )

    def _set_condition(self, condition: str, value: bool) -> None:
        setattr(self.weather, CONDITIONS[condition], value)
        self.note(OUTSIDE, f"disk {condition}: {value}")

    def _start(self, name: str, make: Callable[[Process], Any]) -> Process:
        process = Process(f"{name}{self.sessions}")
        program = self.guard(make(process).run())
        self._main = self.loop.spawn(process, program, f"main of {process}")
        return process

    async def _session(self, end: str) -> None:
        """Run a writing process to its end, as planned."""
        random = self.random
        self.sessions += 1
        self._troubles = self.weather.faults, self.weather.nuisances
        process = self._start("w", lambda one: WritingProgram(self, one, end))
        main = self._main
        self.note(OUTSIDE, f"{process} starts; its end: {end}")
        if end in ("kill", "power"):
            self._struck.clear()
            if random.random() < 0.25:
                self._doom(process, random.randint(1, 20))
            await self._wait(main, _PATIENCE_SECONDS, self._struck)
            self._doomed = None
            self._strike(process)
            return
        if end == "cancel":
            self._struck.clear()
            await self._wait(main, random.choice([1e-3, 1e-2, 3e-2, 0.1]) * random.random())
            await self._cancel_all(process, main)
        elif not await self._wait(main, _PATIENCE_SECONDS):
            self._hangs(process)
            return
        if self.violation is None:
            await self._leave(process, end)

    def _doom(self, process: Process, calls: int) -> None:
        """Let a process die in its next so many calls that change the disk."""
        if not self._struck.is_set():
            self._doomed, self._calls_left = process, calls

    async def _wait(self, main: SimTask, seconds: float, *events: asyncio.Event) -> bool:
        """Return whether a process ended of itself."""
        waiting = [self.loop.create_task(event.wait()) for event in (self._violated, *events)]
        await asyncio.wait([main, *waiting], timeout=seconds, return_when="FIRST_COMPLETED")
        for each in waiting:
            each.cancel()
        return main.done() or self.violation is not None

    async def _cancel_all(self, process: Process, main: SimTask) -> None:
        """End a process as ``asyncio.run`` does after a signal: cancel all tasks, until all have ended."""
        self._owed = self.book.pending() if not main.done() else []
        for _ in range(50):
            tasks = self.loop.tasks_of(process)
            if not tasks:
                break
            self.note(OUTSIDE, f"cancels {len(tasks)} tasks of {process}")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self.random.choice([1e-5, 1e-3, 1.0, 60.0]))
            if self.violation is not None:
                return
        else:
            self._hangs(process)

    def _hangs(self, process: Process) -> None:
        stacks = []
        for task in self.loop.tasks_of(process):
            stacks.append(f"{task.get_name()}: {where(task)}")
        self.violate(ViolationError("ends", "\n      ".join([f"{process} hangs", *stacks])))

    async def _leave(self, process: Process, end: str) -> None:
        """Let a process that has ended finish what its threads do, then see what it left."""
        if end == "cancel":
            process.runs_callbacks = False
            if (self.weather.faults, self.weather.nuisances) == self._troubles:
                for entry in self._owed:
                    entry.rule = "drains"
                    self.book.durable(entry)
        self._lingering.append(process)
        for _ in range(200):
            if not process.threads and not self.loop.tasks_of(process):
                break
            if end == "cancel" and self.random.random() < 0.5:
                return  # the next one starts meanwhile
            await asyncio.sleep(1.0)
        if self.loop.tasks_of(process):
            self._hangs(process)
        elif process.descriptors:
            left = sorted(process.descriptors.values())
            self.violate(ViolationError("releases", f"{process} left {left} open"))
        self.loop.kill(process)

    def run(self) -> None:
        """Run it all; ViolationError if a rule is broken."""
        self._lingering = []
        entropy = Random(f"entropy {self.plan.seed}")
        with (
            quiet(),
            simulated_threads(Random(f"threads {self.plan.seed}"), self.loop),
            patch.object(os, "urandom", entropy.randbytes),
            patch.object(walstore.log.spilled_records, "_LEAST_FRAME_BYTES", 1024),
            patch.object(unlinked_file, "PART_BYTES", 4096),
            patch.object(Spill, "__hash__", lambda spill: len(spill.path.name)),
        ):
            directing = self.loop.create_task(self.direct())
            try:
                self.loop.run_until_complete(directing)
            except StuckError as error:
                self.violate(ViolationError("ends", f"{error}"))
            finally:
                for process in self._running():
                    self.loop.kill(process)
                directing._log_destroy_pending = False
                with contextlib.suppress(RuntimeError):
                    directing.get_coro().close()
                self.loop.close()
                abandon_all()
        if self.loop.complaints and not self.kills:
            self.violate(ViolationError("typed-errors", f"{self.loop.complaints}"))
        if self.violation is not None:
            raise self.violation


def simulate(seed: int, **changes: Any) -> History:
    """Run the history of a seed; its plan may be changed."""
    history = History(draw(seed).replace(**changes))
    history.run()
    return history
