"""Tasks that run together, and the one error of theirs that callers are told.

Nobody who calls us should meet an ExceptionGroup: what failed first is one of the errors that the call
documents, and what others raised meanwhile follows from it. But a defect, or the end of the program, is never
hidden by an error that is expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from walstore.errors import WalError

_E = TypeVar("_E", bound=BaseException)
_T = TypeVar("_T")


class _TaskGroup(asyncio.TaskGroup):
    """What :func:`task_group` returns.

    No generator: one that is forgotten in the middle of its block would be closed by the event loop later,
    and cannot be, since it waits for the tasks.
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

    If several failed: the first that is no WalError, else the first.
    """
    return _TaskGroup()


def main_error(group: BaseExceptionGroup[_E]) -> _E:
    """Return the error of a group, however deep, that callers are told."""
    return next(
        (error for error in _errors(group) if not isinstance(error, WalError)), first_of(group)
    )


async def gather_all(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all calls together and return their results in order; when one fails the others are cancelled.

    None of them goes on once this has returned or raised, as those of ``asyncio.gather`` do.
    """
    async with task_group() as tasks:
        begun = [tasks.create_task(call) for call in calls]
    return [task.result() for task in begun]


def first_of(group: BaseExceptionGroup[_E]) -> _E:
    """Return the first error of a group, however deep."""
    return next(_errors(group))


def _errors(group: BaseExceptionGroup[_E]) -> Iterator[_E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _errors(error)
        else:
            yield error
