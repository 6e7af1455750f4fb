"""start_task: a task that runs first when its starter waits, whatever task factory the loop has."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_task(work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
    """Start a task of the running event loop; nothing of ``work`` runs before this returns.

    For each task whose work looks at the place where its starter puts the task: with
    ``asyncio.eager_task_factory`` (Python 3.12) the loop's ``create_task`` runs it up to its first wait,
    before there is anything to look at, and a task that ends there is kept for one that runs.
    """
    loop = asyncio.get_running_loop()
    return loop.create_task(work if loop.get_task_factory() is None else _later(work), name=name)


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
