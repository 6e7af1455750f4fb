"""What the files of the contract share: the values that a log has."""

from __future__ import annotations

from typing import Any, Final

from tests.contract.from_threads import FromThreads

HOUR: Final = 3_600_000_000
"""In microseconds."""


async def values(log: Any, *place: Any, **options: Any) -> list[bytes]:
    """Return the values that a reader delivers which does not follow."""
    return [record.value async for record in log.reader(*place, follow=False, **options)]


async def caught_up(log: Any) -> None:
    """Let a log whose limits are as last heard ask for the present ones."""
    if not isinstance(log, FromThreads) and hasattr(log, "refresh"):
        await log.refresh()
