"""Connecting where nobody will serve: once, however long that takes on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from walstore.testing import ManualClock


async def try_once(connect: Callable[..., Any], *places: Any, **options: Any) -> Any:
    """Call ``walstore.connect``, or one like it; return or raise what comes of the first try."""
    clock = ManualClock()
    connecting = asyncio.ensure_future(
        _opened(connect(*places, clock=clock, connect_seconds=60, **options))
    )
    await asyncio.sleep(0)
    clock.advance(60)  # after the first try it is too late for another
    return await connecting


async def _opened(opening: Any) -> Any:
    return await opening
