"""within: a limit of time, on a clock that is injected: tests and simulations decide when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from walstore.core.runtime.tasks import start_task, wait_ended

_T = TypeVar("_T")
_Sleep = Callable[[float], Coroutine[Any, Any, None]]


async def within(seconds: float, call: Coroutine[Any, Any, _T], *, sleep: _Sleep) -> _T:
    """Return what a call returns or raise what it raises; TimeoutError if it takes longer than ``seconds``.

    The call is then cancelled, and has ended. If it ends at that moment nevertheless, its result counts.
    ``sleep`` is that of a :class:`walstore.core.ports.Clock`.
    """
    work, alarm = start_task(call), start_task(sleep(seconds))
    work.add_done_callback(lambda _: alarm.cancel())
    alarm.add_done_callback(lambda _: work.cancel())
    try:
        await asyncio.wait((work, alarm))
    except asyncio.CancelledError:
        work.cancel()
        await wait_ended(work, alarm)
        if not work.cancelled():
            work.exception()  # nothing follows from it
        raise
    if not alarm.cancelled():
        alarm.result()
    if work.cancelled():
        raise TimeoutError
    return work.result()
