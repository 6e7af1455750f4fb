"""Tasks that run together, and the one error of theirs that callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

_E = TypeVar("_E", bound=BaseException)


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Run tasks; when one fails the others are cancelled, and its error is raised, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as found:
        error = first_of(found)
        raise error from error.__cause__


def first_of(group: BaseExceptionGroup[_E]) -> _E:
    """Return the first error of a group, however deep."""
    error: _E | BaseExceptionGroup[_E] = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
