"""Surroundings of a history: its clock, and what keeps the traces of killed processes from the tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sim.files import SimFileSystem
from tests.sim.loop import Process, SimLoop
from walstore.core.runtime import resource
from walstore.errors import WalClosedError


class SimClock:
    """Of the machine. Its wall clock is set now and then, also back."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.off_us = 0

    def now_us(self) -> int:
        return 1_750_000_000_000_000 + self.off_us + round(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def abandon_all() -> None:
    """Silence logs and writers of killed processes: nobody closed them, and they may be collected later."""
    for thing in list(resource._inherited):
        fs = getattr(thing, "fs", None) or getattr(thing, "_fs", None)
        url = getattr(thing, "url", None)
        if isinstance(fs, SimFileSystem) or str(url).startswith("sim:"):
            thing.abandon(WalClosedError("its process was killed"))


class Nobody:
    """Watches nothing."""

    def on_call(self, process: Process, text: str) -> None:
        pass

    def on_change(self, process: Process, path: Path, kind: str) -> None:
        pass


def where(task: asyncio.Task[Any]) -> str:
    """Return the innermost lines at which a task waits."""
    lines = []
    at: Any = task.get_coro()
    while at is not None:
        if getattr(at, "gi_frame", None) is not None:  # of an object that can be awaited
            at = at.gi_yieldfrom
            continue
        if (frame := getattr(at, "cr_frame", None)) is None:
            break
        lines.append(
            f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        )
        at = at.cr_await
    return " > ".join(lines[-4:])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing, and do not mind what processes that were killed leave behind."""
    logger = logging.getLogger("walstore")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            warnings.filterwarnings(
                "ignore", "the (log|store|reader|writer|collection)", ResourceWarning
            )
            yield
    finally:
        logger.setLevel(before)
