"""Tasks that run together, the one error that callers get, and one task in the background.

Callers should not get an ExceptionGroup: the first error is one of those that the call
documents, and errors of other tasks follow from it. But an expected error never hides a defect or the end
of the program.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from walstore.core.runtime.tasks import start_task
from walstore.errors import WalError

_E = TypeVar("_E", bound=BaseException)
_S = TypeVar("_S")
_T = TypeVar("_T")

_KEEPS_COUNT: Final = sys.version_info < (3, 13)


class LoopTaskGroup(asyncio.TaskGroup):
    """A task group that may be destroyed with its event loop.

    If nobody closes a log before its event loop is closed, the coroutine that waits in the group's block is
    destroyed some time later. Then no task can be cancelled or awaited any more, and asyncio's group would
    complain on standard error. And the count of cancellations of its task is right afterwards, also before
    Python 3.13.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:
            return
        was_requested = self._has_cancelled_parent
        is_destroyed = False
        try:
            await super().__aexit__(kind, error, trace)
        except GeneratorExit:
            is_destroyed = True
            raise
        finally:
            # Before Python 3.13 the count of cancellations keeps the group's own one if the first task
            # failed when the block was over.
            if _KEEPS_COUNT and not is_destroyed:
                task = asyncio.current_task()
                if task and self._has_cancelled_parent and not was_requested:
                    task.uncancel()

    @property
    def _has_cancelled_parent(self) -> bool:
        return bool(getattr(self, "_parent_cancel_requested", False))


class _TaskGroup(LoopTaskGroup):
    """What :func:`task_group` returns.

    Not a generator: the event loop would later close one that is abandoned in the middle of its block, which
    fails, since it waits for the tasks.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as found:
            raised = main_error(found)
            raise raised from raised.__cause__


def task_group() -> asyncio.TaskGroup:
    """Run tasks; when one fails the others are cancelled, and its error is raised, not in a group.

    If several failed: the first that is not a WalError, else the first.
    """
    return _TaskGroup()


def main_error(group: BaseExceptionGroup[_E]) -> _E:
    """Return the error of a group, however deep, that callers get."""
    return next(
        (error for error in _errors(group) if not isinstance(error, WalError)), first_of(group)
    )


def check_cancelled() -> None:
    """Raise CancelledError if this task was cancelled from outside; call it after handling a group's error.

    A group that ends with an error forgets such a cancellation, before Python 3.13 for good. A loop that
    goes on after the error would never end then. All groups of the task must be of this module.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def gather_all(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all calls together and return their results in order; when one fails the others are cancelled.

    None of them still runs once this has returned or raised, unlike those of ``asyncio.gather``.
    """
    async with task_group() as tasks:
        begun = [tasks.create_task(call) for call in calls]
    return [task.result() for task in begun]


async def map_all(
    call: Callable[[_S], Coroutine[Any, Any, _T]], items: Iterable[_S], *, at_once: int
) -> list[_T]:
    """Return what ``call`` returns for all items, in their order; as :func:`gather_all`, a few at a time.

    No item is taken before its call begins.
    """
    numbered = enumerate(items)
    results: dict[int, _T] = {}

    async def run() -> None:
        for number, item in numbered:
            results[number] = await call(item)

    await gather_all(run() for _ in range(at_once))
    return [results[number] for number in range(len(results))]


async def settle_all(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all calls together, also if one fails; return the results in order, or raise the first error."""
    results: list[_T] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def first_of(group: BaseExceptionGroup[_E]) -> _E:
    """Return the first error of a group, however deep."""
    return next(_errors(group))


def _errors(group: BaseExceptionGroup[_E]) -> Iterator[_E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _errors(error)
        else:
            yield error


class BackgroundTask(Generic[_T]):
    """Owns one task at a time, for which its caller does not wait. Belongs to one event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_T] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the task is under way."""
        return self._task is not None and not self._task.done()

    @property
    def has_task(self) -> bool:
        """Whether a task is under way, or its result waits to be taken."""
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, _T], name: str) -> None:
        """Begin; what an earlier task returned is forgotten."""
        assert not self.is_busy
        self._task = start_task(work, name=name)

    def take(self) -> asyncio.Task[_T] | None:
        """Return the task if it has ended and was not taken yet."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        return task

    async def wait(self) -> None:
        """Return when no task is running; does not report its result."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def aclose(self, *, grace_seconds: float = 0.0) -> None:
        """Cancel the task, unless it ends within ``grace_seconds``, and wait for its end; idempotent.

        If this call is cancelled, so is the task.
        """
        task, self._task = self._task, None
        if task is not None:
            try:
                if grace_seconds:
                    await asyncio.wait((task,), timeout=grace_seconds)
            finally:
                task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # nothing follows from it
