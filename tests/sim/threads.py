"""Threads of simulated processes: real ones, of which one runs at a time and only when it is told to.

A thread stops at every call on the disk (:meth:`SimThread.pause`) and says how long that takes; the event
loop lets it go on when that time has come. So threads and tasks interleave in every way, and always in the
same way for the same seed.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import walstore.core.runtime.threads
import walstore.log.log_resources
import walstore.store.wal_store
from tests.sim.loop import PROCESS, Killed, Process, SimLoop

_local = threading.local()


STUCK_SECONDS = 60.0
"""A call that goes on for so long, without one on the disk, waits for a real lock."""


def current() -> SimThread | None:
    """Return the simulated thread that runs; None on the event loop."""
    return getattr(_local, "thread", None)


_idle: list[Body] = []


class Body:
    """A real thread that runs one call after the other, each when it is told to."""

    def __init__(self) -> None:
        """Start the thread."""
        self._go = threading.Lock()
        self.back = threading.Lock()
        self._go.acquire()
        self.back.acquire()
        self._call: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._serve, name="sim", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, call: Callable[[], None]) -> Body:
        body = _idle.pop() if _idle else cls()
        body._call = call
        return body

    def step(self) -> None:
        """Let the call go on until it pauses or ends; RuntimeError if it waits for what is not simulated."""
        self._go.release()
        if not self.back.acquire(timeout=STUCK_SECONDS):
            frame = sys._current_frames()[self._thread.ident]
            stack = "".join(traceback.format_stack(frame))
            raise RuntimeError(f"a simulated thread waits for another one, at\n{stack}")

    def pause(self) -> None:
        """On the thread: give control back until the next step."""
        self.back.release()
        self._go.acquire()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            assert self._call is not None
            self._call()
            self._call = None
            _idle.append(self)
            self.back.release()


_OUTSIDE = contextvars.Context()


class SimThread:
    """One call on a thread of a process."""

    def __init__(self, process: Process, call: Callable[[], None], done: Callable[[], None]):
        self._process = process
        self._call = call
        self._done = done
        self._has_ended = False
        self._wake_seconds = 0.0
        self._context = contextvars.Context()
        self._context.run(PROCESS.set, process)
        self._body = Body.take(lambda: self._context.run(self._run))
        process.threads.append(self)

    def start(self, after_seconds: float) -> None:
        self._later(after_seconds)

    def pause(self, seconds: float) -> None:
        """On this thread: let that much time pass; raises Killed if the process ends meanwhile."""
        if not self._process.is_alive:
            raise Killed
        self._wake_seconds = seconds
        self._body.pause()
        if not self._process.is_alive:
            raise Killed

    def kill(self) -> None:
        """Unwind; everything that the thread still calls fails."""
        while not self._has_ended:
            self._body.step()

    def _later(self, seconds: float) -> None:
        STAGE.loop.call_later(seconds, self._step, context=_OUTSIDE)

    def _step(self) -> None:
        if self._has_ended:
            return
        self._body.step()
        if not self._has_ended:
            self._later(self._wake_seconds)

    def _run(self) -> None:
        _local.thread = self
        try:
            if self._process.is_alive:
                self._call()
        except Killed:
            pass
        finally:
            _local.thread = None
            self._has_ended = True
            self._process.threads.remove(self)
            self._done()


class SimPool(walstore.core.runtime.threads.Pool):
    """A pool whose threads are simulated. Lanes are the real ones."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self.guard = threading.Lock()
        self._process = PROCESS.get()
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()
        self._busy = 0
        self._is_closed = False
        self._last: Callable[[], None] | None = None
        self.refusal = None

    def submit(self, turn: Any, job: Callable[[], None]) -> None:
        if self._is_closed:
            raise RuntimeError("the pool is closed")
        self._waiting.append((turn, job))
        self._start_some()

    def _close(self, last: Callable[[], None] | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._last = last
            self._start_some()

    def join(self) -> None:
        assert not self._busy

    def _start_some(self) -> None:
        while self._process.is_alive and self._waiting and self._busy < self._most:
            turn, job = self._waiting.popleft()
            self._busy += 1
            thread = SimThread(self._process, lambda turn=turn, job=job: turn(job), self._end)
            thread.start(STAGE.random.choice(_START_SECONDS))
        if self._is_closed and not self._busy and self._last is not None:
            last, self._last = self._last, None
            SimThread(self._process, last, lambda: None).start(0.0)

    def _end(self) -> None:
        self._busy -= 1
        self._start_some()


_START_SECONDS = (0.0, 5e-6, 30e-6, 200e-6)
STAGE = SimpleNamespace(random=None, loop=None)
"""What decides when threads start, and the loop that starts them; set for each history."""


class SimLock:
    """A lock between simulated threads: who finds it taken lets others run."""

    def __init__(self) -> None:
        self._is_taken = False

    def acquire(self, blocking: bool = True) -> bool:
        seconds = 20e-6
        while self._is_taken:
            thread = current()
            if not blocking:
                return False
            assert thread is not None, "the event loop would block on a lock"
            thread.pause(seconds)
            seconds = min(2 * seconds, 0.01)
        self._is_taken = True
        return True

    def release(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def simulated_threads(random: Random, loop: SimLoop) -> Iterator[None]:
    """Let logs that are opened meanwhile run on simulated threads."""
    STAGE.random, STAGE.loop = random, loop
    with ExitStack() as patches:
        for module in (
            walstore.core.runtime.threads,
            walstore.log.log_resources,
            walstore.store.wal_store,
        ):
            patches.enter_context(patch.object(module, "Pool", SimPool))
        for module in modules_with_locks():
            patches.enter_context(patch.object(module, "threading", _SIMULATED_THREADING))
        yield


_SIMULATED_THREADING = SimpleNamespace(**vars(threading) | {"Lock": SimLock})


def modules_with_locks() -> list[ModuleType]:
    """Return the modules whose locks threads may hold during calls on the disk."""
    packages = ("core.append", "positions.cursors", "core.files", "log", "core.read", "store")
    prefixes = tuple(f"walstore.{name}." for name in packages)
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith(prefixes) and getattr(module, "threading", None) is threading
    ]
