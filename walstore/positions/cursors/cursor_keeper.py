"""CursorKeeper: moves the cursor of an open consumer, on request and at intervals, and renews its lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from walstore.core.ports import Clock
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.tasks import start_task
from walstore.errors import CursorMovedError, WalClosedError, WalError
from walstore.positions.cursor import Cursor
from walstore.positions.cursors.consumer_transaction import ConsumerRegister

logger = logging.getLogger("walstore.cursors")

_RENEWALS_PER_LEASE: Final = 3


class CursorKeeper:
    """The cursor of one open consumer. Belongs to the event loop."""

    def __init__(
        self,
        cursor: Cursor,
        *,
        clock: Clock,
        auto_commit_seconds: float | None,
        register: ConsumerRegister | None,
        processed: Callable[[], int],
    ) -> None:
        """Follow ``processed()``, the offset below which every record is processed, or the ``register``."""
        self.cursor = cursor
        """The cursor that is moved."""
        self.failure: WalError | None = None
        """Why the consumer cannot continue; all of its calls raise this."""
        self.goes_back = register is not None
        """Whether the cursor may go back: by seeking, or because the register is authoritative."""
        self._clock = clock
        self._auto_commit_seconds = auto_commit_seconds
        self._register = register
        self._processed = processed
        self._task: asyncio.Task[None] | None = None

    @property
    def moves_alone(self) -> bool:
        """Whether the cursor moves without a request."""
        return self._auto_commit_seconds is not None or self._register is not None

    def end(self) -> None:
        """Refuse all later calls. An earlier failure stays what they raise."""
        if self.failure is None:
            self.failure = WalClosedError(
                "the consumer's 'async with' block has ended; make another"
            )

    def check(self) -> None:
        """Raise the error that stops the consumer, if any."""
        if self.failure is not None:
            raise copy_error(self.failure)

    async def commit(self, offset: int | None) -> None:
        """Move the cursor at a caller's request: to an offset, or to the consumer's position.

        If another handle has moved it, the consumer has ended, as for a commit that nobody requested.
        """
        try:
            if offset is None:
                await self.save()
            else:
                await self.cursor.commit(offset)
        except CursorMovedError as error:
            self.failure = error
            raise

    async def save(self) -> None:
        """Move the cursor to the consumer's position; return when that is durable."""
        register = self._register
        if register is None:
            await self._move(self._processed())
            self.goes_back = False
            return
        try:
            await self._move(register.durable_position)
        except CursorMovedError:
            if not register.is_ours:
                raise register.fenced() from None
            # Another handle moved the cursor, which only follows the register.
            await self.cursor.refresh()
            await self._move(register.durable_position)

    async def keep(self) -> None:
        """Save or renew, and record a failure; raises nothing but cancellation."""
        try:
            if self.moves_alone:
                await self.save()
            else:
                await self.cursor.renew()
        except WalError as error:
            if error.retriable:
                logger.warning("%r will be moved later: %s", self.cursor, error)
            else:
                self.failure = error

    def start(self) -> None:
        """Start saving and renewing at intervals, if there is a reason to; :meth:`stop` ends it."""
        periods = [self._auto_commit_seconds] if self._auto_commit_seconds is not None else []
        if self.cursor.lease_seconds is not None:
            periods.append(self.cursor.lease_seconds / _RENEWALS_PER_LEASE)
        if periods:
            self._task = start_task(
                self._run(min(periods)), name=f"walstore consumer {self.cursor.name}"
            )

    async def stop(self) -> None:
        """Stop the task. A commit in progress is finished, but not waited for."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _run(self, period_seconds: float) -> None:
        while self.failure is None:
            await self._clock.sleep(period_seconds)
            await self.keep()

    async def _move(self, position: int) -> None:
        cursor = self.cursor
        if position == cursor.target == cursor.position:
            await cursor.renew()
        elif position >= cursor.target:
            await cursor.commit(position)
        elif self.goes_back:
            await cursor.rewind(position)
