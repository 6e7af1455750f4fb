"""Tasks that run together, and the one error of theirs that callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_E = TypeVar("_E", bound=BaseException)
_T = TypeVar("_T")


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Run tasks; when one fails the others are cancelled, and its error is raised, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as found:
        error = first_of(found)
        raise error from error.__cause__


async def all_of(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all calls together and return their results in order; when one fails the others are cancelled.

    None of them goes on once this has returned or raised, as those of ``asyncio.gather`` do.
    """
    async with together() as tasks:
        begun = [tasks.create_task(call) for call in calls]
    return [task.result() for task in begun]


def first_of(group: BaseExceptionGroup[_E]) -> _E:
    """Return the first error of a group, however deep."""
    error: _E | BaseExceptionGroup[_E] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
