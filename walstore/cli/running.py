"""Running a verb's coroutine, and stopping it on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interrupts:
    """The signals of the verb that runs: they stop it if it can be stopped, else cancel it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.stop: asyncio.Event | None = None
        """Set by the first signal while the verb can be stopped; a second one cancels it."""
        self.is_interrupted = False
        self.is_stopped = False
        """Whether a signal stopped the verb."""
        self._task = task

    def __call__(self) -> None:
        if self.stop is not None and not self.stop.is_set():
            self.is_stopped = True
            self.stop.set()
        else:
            self.is_interrupted = True
            self._task.cancel()


_running: ContextVar[_Interrupts | None] = ContextVar("_running", default=None)


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on an event loop of its own; KeyboardInterrupt if a signal cancelled it.

    Once a coroutine that a signal stopped has returned, SIGINT and SIGTERM are ignored, and the process
    ends with the verb's own exit code.
    """
    interrupts: list[_Interrupts] = []
    try:
        return asyncio.run(_interruptible(main, interrupts))
    except asyncio.CancelledError:
        if any(one.is_interrupted for one in interrupts):
            raise KeyboardInterrupt from None
        raise


async def _interruptible(main: Coroutine[Any, Any, _T], interrupts: list[_Interrupts]) -> _T:
    """Let SIGINT cancel the coroutine.

    ``asyncio.run`` does so, too, but it misses a signal that comes just before the loop begins to wait:
    only handlers of the loop itself wake it up.
    """
    task = asyncio.current_task()
    assert task is not None
    interrupts.append(_Interrupts(task))
    _running.set(interrupts[0])
    _handle(signal.SIGINT, interrupts[0])
    result = await main
    if interrupts[0].is_stopped and not interrupts[0].is_interrupted:
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    return result


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT or SIGTERM sets, instead of ending the process.

    A second signal cancels what :func:`run_async` runs: stopping may have to wait for a store. So does a
    signal after the block, while the verb still runs.
    """
    interrupts = _running.get()
    assert interrupts is not None, "only within run_async"
    interrupts.stop = stop = asyncio.Event()
    _handle(signal.SIGTERM, interrupts)
    try:
        yield stop
    finally:
        interrupts.stop = None


def _handle(number: signal.Signals, interrupts: _Interrupts) -> None:
    with suppress(RuntimeError, ValueError):  # not the main thread, which gets no signals
        asyncio.get_running_loop().add_signal_handler(number, interrupts)


async def until_stopped(source: AsyncIterator[_T], stop: asyncio.Event) -> AsyncIterator[_T]:
    """Yield what ``source`` yields until it ends or ``stop`` is set."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_task(stop.wait())
    try:
        while True:
            following = loop.create_task(_next(source))
            try:
                await asyncio.wait((waiting, following), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                following.cancel()
                await asyncio.wait((following,))
                raise
            if not following.done():
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                return
            found = following.result()
            if not found:
                return
            yield found[0]
    finally:
        waiting.cancel()


async def _next(source: AsyncIterator[_T]) -> tuple[_T, ...]:
    """Return the next item in a tuple, or an empty one at the end: a task cannot raise StopIteration."""
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return ()
