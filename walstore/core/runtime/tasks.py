"""start_task: a task that runs first when its starter waits, whatever task factory the loop has.

:func:`wait_ended` and :func:`run_to_end` are for work that a cancelled caller has to see through.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context
from itertools import chain
from typing import Any, TypeVar

logger = logging.getLogger("walstore.log")

_T = TypeVar("_T")


def start_task(work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
    """Start a task of the running event loop; nothing of ``work`` runs before this returns.

    For each task whose work looks at the place where its starter puts the task: with
    ``asyncio.eager_task_factory`` (Python 3.12) the loop's ``create_task`` runs it up to its first wait,
    before there is anything to look at, and a task that ends there is kept for one that runs.
    """
    loop = asyncio.get_running_loop()
    return loop.create_task(work if loop.get_task_factory() is None else _later(work), name=name)


def wake(futures: Iterable[asyncio.Future[_T]], result: _T) -> None:
    """Resolve futures that are not done; what waits for each runs before this returns, up to its next wait.

    Only for callbacks of the event loop, once they have nothing else to do: never within a task, and not
    with state that the woken tasks must not see. ``set_result`` alone schedules a callback for each, which
    takes as long as all that an append does itself, and one more turn of the event loop. Where a future does
    not tell its callbacks, that is what happens.
    """
    left = iter(futures)
    uncalled: list[tuple[Callable[[asyncio.Future[_T]], object], Context]] = []
    try:
        for future in left:
            if future.done():
                continue  # cancelled, maybe by one that was woken just now
            # There is no public name for them.
            uncalled = list(getattr(future, "_callbacks", None) or ())
            for callback, _ in uncalled:
                future.remove_done_callback(callback)
            future.set_result(result)
            while uncalled:
                callback, context = uncalled.pop(0)
                try:
                    context.run(callback, future)
                except Exception as error:  # noqa: BLE001 - it is no task's: the event loop reports it
                    _report(future, callback, error)
    finally:  # there is more to do only if a task that was woken, or a signal, ends the program
        for callback, context in uncalled:
            future.remove_done_callback(callback)
            future.get_loop().call_soon(callback, future, context=context)
        for other in chain((future,) if uncalled else (), left):
            if not other.done():
                other.set_result(result)


def _report(future: asyncio.Future[Any], callback: object, error: Exception) -> None:
    context = {"message": f"Exception in callback {callback!r}", "exception": error}
    future.get_loop().call_exception_handler(context)


async def wait_ended(*work: asyncio.Future[Any]) -> bool:
    """Return when all of it is done, however often the caller is cancelled meanwhile; whether it was.

    The caller has to raise CancelledError then, or to end for another reason.
    """
    pending, is_cancelled = set(work), False
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            is_cancelled = True
    return is_cancelled


def shield(work: asyncio.Future[_T]) -> asyncio.Future[_T]:
    """Return a future with the outcome of ``work``; cancelling it leaves ``work`` alone.

    Unlike with ``asyncio.shield`` nobody is told when ``work`` fails once its caller was cancelled: from
    Python 3.14 on that tells the event loop's exception handler, which logs it as an error of the program.
    """
    if work.done():
        return work
    outer: asyncio.Future[_T] = work.get_loop().create_future()

    def copy(ended: asyncio.Future[_T]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if outer.done():
            return
        if ended.cancelled():
            outer.cancel()
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(ended.result())

    work.add_done_callback(copy)
    return outer


async def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work of several steps, and return its result. For closing, which must not stop between two steps.

    A cancelled caller gets CancelledError once the work has ended; if that failed, its error is logged.
    """
    task = start_task(work)
    if await wait_ended(task):
        log_failure(task)
        raise asyncio.CancelledError
    return task.result()


def log_failure(closing: asyncio.Future[Any]) -> None:
    """Log the error of a closing that nobody waits for, when it has one."""
    closing.add_done_callback(_log_failure)


def _log_failure(closing: asyncio.Future[Any]) -> None:
    error = None if closing.cancelled() else closing.exception()
    if error is not None:
        logger.error("closing failed, and nobody waited for it: %s", error)


async def _later(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        await _next_turn()
    except BaseException:  # cancelled before it began
        work.close()
        raise
    return await work


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    yield
