"""Undone records: those of one consumer that were delivered and are still being handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

from walstore.core.validation.arguments import as_int
from walstore.errors import InvalidSettingsError
from walstore.records import Record

MOST_CONCURRENCY: Final = 100_000

Handler: TypeAlias = Callable[[Record], Awaitable[object]]


def check_concurrency(value: object) -> int:
    """Return how many records may be undone at once; TypeError or InvalidSettingsError."""
    concurrency = as_int(value, "concurrency")
    if not 1 <= concurrency <= MOST_CONCURRENCY:
        raise InvalidSettingsError(
            f"concurrency must be between 1 and {MOST_CONCURRENCY}, not {concurrency}"
        )
    return concurrency


class UndoneRecords:
    """Offsets in the order of their delivery. The first is where a consumer has to begin again."""

    def __init__(self, most: int) -> None:
        """Let ``most`` records be undone at once."""
        self._most = most
        self._offsets: dict[int, None] = {}
        self._has_room = asyncio.Event()
        self.is_run = False
        """Whether :func:`run_handlers` hands the records out."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._offsets)

    @property
    def first(self) -> int | None:
        """Offset of the first; None if all that was delivered is done."""
        return next(iter(self._offsets), None)

    async def wait_for_room(self) -> None:
        """Return once another record may be delivered."""
        while len(self._offsets) >= self._most:
            self._has_room.clear()
            await self._has_room.wait()

    def add(self, offset: int) -> None:
        """Note a record that is delivered."""
        self._offsets[offset] = None

    def done(self, offset: int) -> None:
        """Note that a record is done; nothing happens if it is not undone."""
        self._offsets.pop(offset, None)
        self._has_room.set()

    def clear(self) -> None:
        """Forget all: they will be delivered again, or were passed over."""
        self._offsets.clear()
        self._has_room.set()


async def run_handlers(
    records: AsyncIterator[Record], undone: UndoneRecords, handler: Handler
) -> None:
    """Call ``handler`` for each record, in tasks; return when all are done.

    The first error of a handler cancels the others and is raised, not in a group.
    """

    async def handle(record: Record) -> None:
        await handler(record)
        undone.done(record.offset)

    try:
        async with asyncio.TaskGroup() as group:
            async for record in records:
                group.create_task(handle(record))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
