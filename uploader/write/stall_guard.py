"""StallGuard: how long a writer waits for a store that fails or does not answer.

Transient faults are waited out. The uploader of a local log waits however long it takes, since the log goes
on meanwhile, and gives up a silent store only while the log is closing. It also waits out faults that an
operator has to end, such as refused credentials or a full disk, and reports them meanwhile. A writer without
a disk raises those at once, and gives up after the same silence at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from uploader.runtime.task_groups import task_group
from uploader.stores.retry import RetryPolicy, is_transient
from walstore.errors import (
    DiskFullError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.ports import Clock

logger = logging.getLogger("walstore")

_T = TypeVar("_T")

_LEAST_SLEEP_SECONDS = 1e-6
_LONGEST_REFUSAL_SECONDS = 60.0
"""Longest pause between two attempts while an operator has to act first."""


class Draining(Protocol):
    """Something that will be closed."""

    async def wait_draining(self) -> None:
        """Return when it is closing."""


class StallGuard:
    """Repeats the requests of one writer. Belongs to one event loop; many tasks may call at once."""

    def __init__(
        self,
        *,
        url: str,
        retry: RetryPolicy,
        clock: Clock,
        silent_seconds: float,
        on_refusal: Callable[[WalError], None] | None = None,
    ) -> None:
        """``retry`` says how long the pauses between attempts are; their number is not limited.

        With ``on_refusal``, requests that an operator has to allow first (credentials, permissions, room) are
        repeated, too, with pauses that double up to a minute; it is called each time.
        """
        self._url = url
        self._retry = retry
        self._clock = clock
        self._silent_seconds = silent_seconds
        self._on_refusal = on_refusal
        # How many requests are unanswered, and since when the store has not answered any.
        self._unanswered = 0
        self._silent_since = 0.0
        self._waiting = asyncio.Event()
        self._trouble: BaseException | None = None

    async def call(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Await ``request()`` until it succeeds or fails for good; then raise its error.

        A request whose outcome stays unknown is repeated, too: it must be idempotent.
        """
        if not self._unanswered:
            self._silent_since = self._clock.monotonic()
        self._unanswered += 1
        self._waiting.set()
        try:
            answer = await self._repeat(request)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._waiting.clear()
        self._silent_since = self._clock.monotonic()
        self._trouble = None
        return answer

    async def guard(self, work: Callable[[], Awaitable[_T]], source: Draining | None = None) -> _T:
        """Await ``work()`` as long as the store answers now and then; see :meth:`run_out`."""
        async with task_group() as tasks:
            watching = tasks.create_task(self.run_out(source))
            answer = await work()
            watching.cancel()
        return answer

    async def run_out(self, source: Draining | None = None) -> None:
        """Wait until the store has been silent for too long; then raise.

        With ``source`` only its closing starts the count. Raises StorageUnavailableError with the last
        fault chained. Otherwise runs until it is cancelled.
        """
        if source is not None:
            await source.wait_draining()
        began = self._clock.monotonic()
        while True:
            await self._waiting.wait()
            since = max(began, self._silent_since)
            left = since + self._silent_seconds - self._clock.monotonic()
            if left < _LEAST_SLEEP_SECONDS:
                closing = (
                    ""
                    if source is None
                    else " while the log was closing; what is not shipped stays on disk for the next opening"
                )
                raise StorageUnavailableError(
                    f"{self._url} fulfilled no request for {self._silent_seconds:g} s{closing}"
                ) from self._trouble
            await self._clock.sleep(left)

    async def _repeat(self, request: Callable[[], Awaitable[_T]]) -> _T:
        attempt = 0
        while True:
            try:
                return await request()
            except (StorageUnavailableError, OutcomeUnknownError, DiskFullError) as error:
                may_pass = isinstance(error, OutcomeUnknownError) or is_transient(error)
                if not may_pass and self._on_refusal is None:
                    raise
                self._trouble = error
                attempt += 1
                if (
                    attempt & (attempt - 1) == 0
                ):  # an outage of hours is not logged every two seconds
                    logger.warning("%s; trying again (attempt %d)", error, attempt)
                if may_pass or self._on_refusal is None:
                    await self._clock.sleep(self._retry.wait_seconds(attempt))
                else:
                    self._on_refusal(error)
                    await self._clock.sleep(self._refusal_seconds(attempt))

    def _refusal_seconds(self, attempt: int) -> float:
        """Return how long to wait after an attempt, from 1, that was refused."""
        longest = self._retry.longest_wait_seconds * 2.0 ** min(attempt - 1, 64)
        return min(longest, _LONGEST_REFUSAL_SECONDS)
