"""A limit of time on the clock that is injected, so that tests and simulations decide when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from walstore.ports import Clock

_T = TypeVar("_T")


async def within(clock: Clock, seconds: float, call: Coroutine[Any, Any, _T]) -> _T:
    """Return what a call returns or raise what it raises; TimeoutError if it takes longer than ``seconds``.

    The call is then cancelled, and has ended. If it ends at that moment nevertheless, its result counts.
    """
    async with asyncio.TaskGroup() as group:
        work = group.create_task(_caught(call))
        alarm = group.create_task(clock.sleep(seconds))
        await asyncio.wait((work, alarm), return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        alarm.cancel()
    if work.cancelled():
        raise TimeoutError
    result, error = work.result()
    if error is not None:
        raise error
    return result[0]


async def _caught(call: Coroutine[Any, Any, _T]) -> tuple[tuple[_T, ...], Exception | None]:
    """Return the result or the error of a call: a group would wrap the error."""
    try:
        return (await call,), None
    except Exception as error:  # noqa: BLE001 - it is raised again
        return (), error
