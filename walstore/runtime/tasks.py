"""start_task: a task that runs first when its starter waits, whatever task factory the loop has."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_task(work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
    """Start a task of the running event loop; nothing of ``work`` runs before this returns.

    For each task whose work looks at the place where its starter puts the task: with
    ``asyncio.eager_task_factory`` (Python 3.12) the loop's own ``create_task`` runs it up to its first
    wait, before there is anything to look at, and a task that ends there is kept for one that runs.
    The loop's task factory does not see these tasks.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop(), name=name)
