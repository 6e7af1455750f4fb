"""A history: one log in a simulated store, its forks, and the programs that use them, until all is still."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import random as chance
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import uploader.runtime.shared_worker
from tests.sim.cloud.ending import end_all
from tests.sim.cloud.keeping import collect, destroy_it, fork_it, seal_it
from tests.sim.cloud.ledger import CloudViolationError, Ledger
from tests.sim.cloud.machines import Machine, ship
from tests.sim.cloud.network import LATEST_SECONDS, Network, World
from tests.sim.cloud.plan import CloudPlan, draw
from tests.sim.cloud.reading import consume, follow, pin, read
from tests.sim.cloud.scene import Scene
from tests.sim.cloud.writing import write
from tests.sim.loop import OUTSIDE, PROCESS, Process, SimLoop, SimTask, StuckError
from tests.sim.rules import ViolationError
from tests.sim.surroundings import abandon_all, quiet, where
from tests.sim.threads import SimPool, simulated_threads
from walstore.errors import WalError

URL = "sim://world/log"
PROGRAMS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "read": read,
    "follow": follow,
    "consume": consume,
    "pin": pin,
    "collect": collect,
    "fork": fork_it,
    "seal": seal_it,
    "destroy": destroy_it,
}
_PATIENCE_SECONDS = 200_000.0
"""More than all that a program waits for in one life."""


class CloudHistory:
    """Runs a plan and checks the rules on the way."""

    def __init__(self, plan: CloudPlan) -> None:
        self.plan = plan
        self.random = Random(f"cloud history {plan.seed}")
        self.loop = SimLoop(Random(f"cloud loop {plan.seed}"), shuffles=False, most_turns=3_000_000)
        self.world = World(
            Random(f"cloud world {plan.seed}"),
            self.loop,
            Network(usual_seconds=plan.usual_seconds, **plan.faults),
            etags_of_content=plan.etags_of_content,
            page=plan.page,
            shuffles=plan.shuffles,
            probes=plan.probes,
            lies=plan.lies,
            watch=self._on_request,
        )
        self.ledgers = {URL: Ledger(URL, now=self.loop.time)}
        self.machines: dict[str, Machine] = {}
        self.trace: list[tuple[float, str, str]] = []
        self.violation: ViolationError | None = None
        self.kills = 0
        self.is_shared = True
        """Whether others may come between."""
        self._numbers = count(1)
        self._slots: list[asyncio.Task[None]] = []
        self._dooms: dict[Process, int] = {}
        self._struck: dict[Process, asyncio.Event] = {}
        self._violated = asyncio.Event()

    def number(self) -> int:
        """Return a number for an append."""
        return next(self._numbers)

    # -- watching ----------------------------------------------------------------------------

    def note(self, who: Process, text: str) -> None:
        self.trace.append((self.loop.time(), who.name, text))

    def _on_request(self, process: Process, text: str) -> None:
        """A process sends a request, or the world obeys one: it may be the last of that process."""
        self.note(process, text)
        if process in self._dooms:
            self._dooms[process] -= 1
            if self._dooms[process] <= 0:
                del self._dooms[process]
                self.loop.call_soon(self._strike, process, context=contextvars.Context())

    def _strike(self, process: Process) -> None:
        if process.is_alive:
            self.loop.kill(process)
            self.kills += 1
            self.note(OUTSIDE, f"{process} is killed")
        self._struck[process].set()

    def violate(self, violation: ViolationError) -> None:
        if violation.rule in self.plan.ignored or not PROCESS.get().is_alive:
            return  # else its tasks are being buried
        if self.violation is None:
            self.violation = violation
            self.note(OUTSIDE, f"VIOLATION {violation}")
            self._violated.set()

    async def guard(self, call: Awaitable[Any]) -> None:
        """Report what a program finds."""
        try:
            await call
        except ViolationError as violation:
            self.violate(violation)
        except Exception as error:  # noqa: BLE001
            rule = "fails-for-a-cause" if isinstance(error, WalError) else "typed-errors"
            found = CloudViolationError(rule, f"a program got {error!r}")
            found.__cause__ = error
            self.violate(found)

    # -- the programs ------------------------------------------------------------------------

    async def direct(self) -> None:
        """Run all programs to their ends; then let all be well, and look once more."""
        plan, ledger = self.plan, self.ledgers[URL]
        work = ship if plan.ships else write
        for number in range(plan.writers):
            self._start(f"w{number}", work, ledger, plan.lives)
        for name in plan.others:
            lives = self.random.randint(1, plan.lives)
            self._start(name, PROGRAMS[name], ledger, lives, delay=self.random.choice([0.5, 5, 60]))
        for _ in range(plan.outages):
            self.loop.call_later(self.random.uniform(0, 60), self._lose, True)
            self.loop.call_later(self.random.uniform(60, 120), self._lose, False)
        while not all(slot.done() for slot in self._slots):
            await asyncio.wait([slot for slot in self._slots if not slot.done()])
        if self.violation is not None:
            return
        self.world.network = Network()
        await asyncio.sleep(LATEST_SECONDS + 60)
        self.note(OUTSIDE, "the end begins")
        for ledger in list(self.ledgers.values()):
            await self._live("last", lambda scene: end_all(scene), ledger, "clean")
            if self.violation is not None:
                return

    def forked(self, source: Ledger, target: str, start: int, limit: int) -> None:
        """Note that a fork was made, and let programs use it."""
        if target in self.ledgers:
            return
        ledger = Ledger(
            target,
            parent=source,
            parent_limit=limit,
            first_head=start,
            head=start,
            tail=limit,
            is_begun=True,
            now=self.loop.time,
        )
        self.ledgers[target] = ledger
        others = [name for name in self.plan.others if name not in ("fork", "seal")]
        for name in ("read", *self.random.sample(others, min(2, len(others)))):
            self._start(f"{name}_f", PROGRAMS[name], ledger, 1)
        if not self.plan.ships:
            self._start("w_f", write, ledger, 1)

    def _lose(self, is_away: bool) -> None:
        self.world.is_away = is_away
        self.note(OUTSIDE, f"the store is away: {is_away}")

    def _start(
        self,
        name: str,
        program: Callable[[Scene], Awaitable[None]],
        ledger: Ledger,
        lives: int,
        *,
        delay: float = 0.0,
    ) -> None:
        async def run() -> None:
            await asyncio.sleep(self.random.uniform(0, delay))
            for life in range(lives):
                if self.violation is not None:
                    return
                end = self.random.choice(self.plan.ends)
                await self._live(f"{name}.{life}", program, ledger, end)
                await asyncio.sleep(self.random.choice([0.0, 1.0, 60.0, 3000.0]))

        outside = contextvars.Context()
        self._slots.append(self.loop.create_task(run(), name=f"slot {name}", context=outside))

    async def _live(
        self,
        name: str,
        program: Callable[[Scene], Awaitable[None]],
        ledger: Ledger,
        end: str,
    ) -> None:
        """Run a process to its end, as planned."""
        process = Process(name)
        struck = self._struck[process] = asyncio.Event()
        scene = Scene(self, process, ledger, end)
        if end == "kill":
            most = self.random.choice([3, 15, 60])
            self._dooms[process] = 1 + int(self.random.expovariate(1 / most))
        self.note(OUTSIDE, f"{process} starts; its end: {end}")
        main = self.loop.spawn(process, self.guard(program(scene)), f"main of {process}")
        patience = self.random.choice([0.1, 1.0, 30.0]) if end == "cancel" else _PATIENCE_SECONDS
        has_ended = await self._wait(main, patience, struck)
        self._dooms.pop(process, None)
        if end == "cancel" and not has_ended:
            await self._cancel_all(process)
        elif not has_ended and not struck.is_set():
            self._hangs(process)
        if process.is_alive and self.violation is None:
            await self._leave(process)
        if process.is_alive:
            self.loop.kill(process)

    async def _wait(self, main: SimTask, seconds: float, struck: asyncio.Event) -> bool:
        """Return whether a process ended of itself."""
        waiting = [self.loop.create_task(event.wait()) for event in (self._violated, struck)]
        await asyncio.wait([main, *waiting], timeout=seconds, return_when="FIRST_COMPLETED")
        for each in waiting:
            each.cancel()
        return main.done() or self.violation is not None

    async def _cancel_all(self, process: Process) -> None:
        """End a process as ``asyncio.run`` does after a signal: cancel all tasks, until all have ended."""
        for _ in range(50):
            tasks = self.loop.tasks_of(process)
            if not tasks or self.violation is not None:
                return
            self.note(OUTSIDE, f"cancels {len(tasks)} tasks of {process}")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self.random.choice([0.1, 10.0, 1000.0]))
        self._hangs(process)

    async def _leave(self, process: Process) -> None:
        """Wait for what a program that has ended may still do, which is little."""
        for _ in range(20):
            if not self.loop.tasks_of(process):
                return
            await asyncio.sleep(10.0)
        self._hangs(process)

    def _hangs(self, process: Process) -> None:
        stacks = [f"{task.get_name()}: {where(task)}" for task in self.loop.tasks_of(process)]
        self.violate(CloudViolationError("ends", "\n      ".join([f"{process} hangs", *stacks])))

    def _running(self) -> list[Process]:
        found = {task.process.name: task.process for task in self.loop.tasks.values()}
        return [process for process in found.values() if process is not OUTSIDE]

    def run(self) -> None:
        """Run it all; ViolationError if a rule is broken."""
        entropy = Random(f"cloud entropy {self.plan.seed}")
        with (
            quiet(),
            _without_collections(),
            simulated_threads(Random(f"cloud threads {self.plan.seed}"), self.loop),
            patch.object(uploader.runtime.shared_worker, "_pool", _pool),
            patch.object(os, "urandom", entropy.randbytes),
            patch.object(chance, "_urandom", entropy.randbytes),
        ):
            directing = self.loop.create_task(self.direct())
            try:
                self.loop.run_until_complete(directing)
            except StuckError as error:
                self.violate(CloudViolationError("ends", f"{error}"))
            finally:
                for process in self._running():
                    self.loop.kill(process)
                for task in (directing, *self._slots):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(RuntimeError):
                        task.get_coro().close()
                self.loop.close()
                abandon_all()
        if self.loop.complaints and not self.kills:
            self.violate(CloudViolationError("typed-errors", f"{self.loop.complaints}"))
        if self.violation is not None:
            raise self.violation


@contextlib.contextmanager
def _without_collections() -> Any:
    """Collect no cycles meanwhile: what is finalised then would come at other moments in the next run."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _pool(purpose: str) -> SimPool:
    """Return the threads of the current process for one purpose."""
    pools = PROCESS.get().__dict__.setdefault("pools", {})
    if purpose not in pools:
        pools[purpose] = SimPool(purpose, 4)
    return pools[purpose]


def simulate(seed: int, **changes: Any) -> CloudHistory:
    """Run the history of a seed; its plan may be changed."""
    history = CloudHistory(draw(seed).replace(**changes))
    history.run()
    return history
