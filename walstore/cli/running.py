"""Running a verb's coroutine, and stopping it when the user says so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

_T = TypeVar("_T")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on an event loop of its own; KeyboardInterrupt if SIGINT cancelled it."""
    interrupted = asyncio.Event()
    try:
        return asyncio.run(_interruptible(main, interrupted))
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise


async def _interruptible(main: Coroutine[Any, Any, _T], interrupted: asyncio.Event) -> _T:
    """Let SIGINT cancel the coroutine.

    ``asyncio.run`` does so, too, but it misses a signal that comes just before the loop begins to wait:
    only handlers of the loop itself wake it up.
    """
    task = asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        interrupted.set()
        task.cancel()

    with suppress(RuntimeError, ValueError):  # not the main thread: then nobody sends signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    return await main


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT or SIGTERM sets, instead of ending the process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    added = []
    for number in STOP_SIGNALS:
        with suppress(RuntimeError, ValueError):  # not the main thread: then nobody sends signals
            loop.add_signal_handler(number, stop.set)
            added.append(number)
    try:
        yield stop
    finally:
        for number in added:
            loop.remove_signal_handler(number)


async def until_stopped(source: AsyncIterator[_T], stop: asyncio.Event) -> AsyncIterator[_T]:
    """Yield what ``source`` yields until it ends or ``stop`` is set."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_task(stop.wait())
    try:
        while True:
            following = loop.create_task(_next(source))
            await asyncio.wait((waiting, following), return_when=asyncio.FIRST_COMPLETED)
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
