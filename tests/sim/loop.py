"""An event loop on virtual time. It never waits: when nothing is ready it is the time of the next timer.

Every callback belongs to a process, by its context. A process that was killed runs no callback any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
from asyncio import base_events
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any, Final

_TURN_SECONDS: Final = 20e-6
"""The most that a turn of the loop takes."""


class StuckError(Exception):
    """Somebody waits, and nothing is going to happen."""


class Killed(BaseException):
    """Raised in a thread whose process was killed."""


class Process:
    """A program that runs on the simulated machine, until it ends or is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.runs_callbacks = True
        """False once its event loop has ended, while threads may go on."""
        self.threads: list[Any] = []
        self.descriptors: dict[int, str] = {}
        self.on_kill: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name


OUTSIDE: Final = Process("-")
PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=OUTSIDE)


def context_of(process: Process) -> contextvars.Context:
    """Return a context whose callbacks belong to a process."""
    context = contextvars.Context()
    context.run(PROCESS.set, process)
    return context


class SimFuture(asyncio.Future):
    """A future whose place in a set does not depend on its address."""

    _numbers = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.number = next(self._numbers)

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task):
    """A task that knows its process, and whose place in a set does not depend on its address."""

    def __init__(self, *args: Any, number: int, **options: Any) -> None:
        self.number = number
        self.process = PROCESS.get()
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self.number


class SimLoop(base_events.BaseEventLoop):
    """Runs what is ready in the order in which asyncio does, or with ``shuffles`` tasks in any order."""

    def __init__(self, random: Random, *, shuffles: bool, most_turns: int = 400_000) -> None:
        super().__init__()
        self._random = random
        self._shuffles = shuffles
        self._now = 0.0
        self._turns_left = most_turns
        self._numbers = count(1)
        self.tasks: dict[int, SimTask] = {}
        """Every task that has not ended."""
        self.complaints: list[str] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._complain)

    # -- time and order ----------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        self._turns_left -= 1
        if self._turns_left < 0:
            raise StuckError("the programs turn in circles")
        self._now += self._random.random() * _TURN_SECONDS
        while scheduled and (scheduled[0]._cancelled or not _is_alive(scheduled[0])):
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise StuckError("everybody waits, and nothing is going to happen")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        batch = list(ready)
        ready.clear()
        for handle in self._shuffled(batch) if self._shuffles else batch:
            if not handle._cancelled and _is_alive(handle):
                handle._run()

    def _shuffled(self, batch: list[Any]) -> list[Any]:
        """Tasks come in any order, other callbacks in their own; asyncio promises no more."""
        tasks, others = [], []
        for handle in batch:
            owner = getattr(handle._callback, "__self__", None)
            (tasks if isinstance(owner, asyncio.Task) else others).append(handle)
        self._random.shuffle(tasks)
        mixed = []
        while tasks and others:
            mixed.append((tasks if self._random.random() < 0.5 else others).pop(0))
        return mixed + tasks + others

    # -- what asyncio asks of a loop ---------------------------------------------------------

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> SimTask:
        number = next(self._numbers)
        context = options.get("context")
        make = SimTask if context is None else _in(context, SimTask)
        task = make(coro, loop=loop, number=number, **options)
        self.tasks[number] = task
        task.add_done_callback(lambda done: self.tasks.pop(done.number, None))
        return task

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there are no files to watch")

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.complaints.append(f"{context['message']}: {error!r}")

    # -- processes ---------------------------------------------------------------------------

    def spawn(self, process: Process, coro: Coroutine[Any, Any, Any], name: str) -> SimTask:
        """Start a process's first task."""
        return self.create_task(coro, name=name, context=context_of(process))

    def tasks_of(self, process: Process) -> list[SimTask]:
        """Return the tasks of a process that have not ended, in the order of their making."""
        return [task for task in self.tasks.values() if task.process is process]

    def kill(self, process: Process) -> None:
        """End a process at once: nothing of it runs any more, not even its ``finally``."""
        process.is_alive = False
        for act in process.on_kill:
            act()
        for thread in list(process.threads):
            thread.kill()
        context = context_of(process)
        while tasks := self.tasks_of(process):  # more may come while these are taken apart
            for task in tasks:
                self.tasks.pop(task.number, None)
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _bury(task.get_coro(), context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_at(when, callback, *args, context=context)


def _is_alive(handle: Any) -> bool:
    context = handle._context
    process = context.get(PROCESS) if context is not None else None
    return process is None or (process.is_alive and process.runs_callbacks)


def _in(context: contextvars.Context, make: Callable[..., SimTask]) -> Callable[..., SimTask]:
    def made(*args: Any, **options: Any) -> SimTask:
        task = make(*args, **options)
        task.process = context.get(PROCESS, OUTSIDE)
        return task

    return made


def _awaited_by(coro: Any) -> Any:
    """Return the coroutine that another one awaits, through whatever is between them; None for none."""
    awaited = coro.cr_await
    while awaited is not None and not hasattr(awaited, "cr_frame"):
        if hasattr(awaited, "gi_yieldfrom"):
            awaited = awaited.gi_yieldfrom
        elif type(awaited).__name__ == "coroutine_wrapper":  # of ``coroutine.__await__()``
            awaited = gc.get_referents(awaited)[0]
        else:
            return None
    return awaited if getattr(awaited, "cr_frame", None) is not None else None


def _bury(coro: Any, context: contextvars.Context) -> None:
    """Take a coroutine apart that nobody will run again, however often it awaits on its way out.

    From the inside out: else those outside would take what those inside say to it for an error.
    """
    if not hasattr(coro, "cr_frame"):  # the closing of a generator that somebody left
        with contextlib.suppress(BaseException):
            context.run(coro.close)
        return
    for _ in range(1000):
        if coro.cr_frame is None:
            return
        innermost = coro
        while (inner := _awaited_by(innermost)) is not None:
            innermost = inner
        with contextlib.suppress(BaseException):
            context.run(innermost.close)
    raise AssertionError(f"{coro} does not end")
