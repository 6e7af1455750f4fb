"""StallGuard and PutWindow: how a writer treats a store that is slow, fails or does not answer; and the
WriteContext, which all parts of a writer share.

Transient faults are waited out. The uploader of a local log waits however long it takes, since the log goes
on meanwhile, and gives up a silent store only while the log is closing. It also waits out faults that an
operator has to end, such as refused credentials or a full disk, and reports them meanwhile. A writer without
a disk raises those at once, and gives up after the same silence at any time.

Puts that share a slow uplink all take as long as all of them together. Sixteen fragments of 8 MiB at 3 MB/s
take 45 s each, longer than any timeout: everything is sent again and again, and nothing ever arrives. So the
number of puts follows their time and outcome: it begins small, grows while they are quick, and falls when
they are slow, fail or are given up. One is always sent, so there is progress if there can be any.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from uploader.layouts.log_session import LogSession
from uploader.root.root import Root
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy, is_transient
from uploader.stores.wrapper import Request, StoreWrapper
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.threads import Worker
from walstore.core.tier_port import TierSource
from walstore.errors import DiskFullError, OutcomeUnknownError, StorageUnavailableError, WalError

logger = logging.getLogger("walstore.upload")

_T = TypeVar("_T")

_LEAST_SLEEP_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """What all parts of one writer share."""

    store: ObjectStore
    """Contains the log."""
    root: Root
    """Names its fragments."""
    stall_guard: StallGuard
    """Waits out the store's faults."""
    retry: RetryPolicy
    """How a single request is repeated."""
    clock: Clock
    worker: Worker
    """Encodes and decodes, off the event loop."""

    @classmethod
    def of(cls, session: LogSession, root: Root, stall_guard: StallGuard) -> Self:
        """Return the context of the writer that has the session, whose root is loaded."""
        return cls(
            store=session.store,
            root=root,
            stall_guard=stall_guard,
            retry=session.retry,
            clock=session.clock,
            worker=session.worker,
        )

    @property
    def url(self) -> str:
        """Location of the log, without credentials."""
        return self.store.url


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
        self._refusal_backoff = Backoff(retry.longest_wait_seconds, longest_seconds=60.0)
        """While an operator has to act first."""
        # How many requests are unanswered, and since when the store has not answered any.
        self._unanswered = 0
        self._silent_since = 0.0
        self.retries = 0
        """Requests that were repeated."""
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

    async def guard(
        self, work: Callable[[], Awaitable[_T]], source: TierSource | None = None
    ) -> _T:
        """Await ``work()`` as long as the store answers now and then; see :meth:`run_out`."""
        async with task_group() as tasks:
            watching = tasks.create_task(self.run_out(source))
            answer = await work()
            watching.cancel()
        return answer

    async def run_out(self, source: TierSource | None = None) -> None:
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
                self.retries += 1
                if attempt & (attempt - 1) == 0:
                    # An outage of hours is not logged every two seconds.
                    logger.warning("%s; trying again (attempt %d)", error, attempt)
                if may_pass or self._on_refusal is None:
                    await self._clock.sleep(self._retry.wait_seconds(attempt))
                else:
                    self._on_refusal(error)
                    await self._clock.sleep(self._refusal_backoff.after(attempt))


_FIRST: Final = 4
"""Four fragments of 8 MiB at 3 MB/s take 11 s, which is less than any time limit."""
_QUICK_SECONDS: Final = 2.5
"""A put that takes less time leaves room for another one."""
_SLOW_SECONDS: Final = 5.0
"""One that takes longer shows that there were too many: requests time out after 15 to 60 s."""


class PutWindow:
    """The number of puts that may be under way at once. Belongs to one event loop.

    Turns are given in the order of the requests, also to repeated attempts.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        """``most`` is never exceeded; 1 or more."""
        self.most = most
        self.allowed = min(_FIRST, most)
        """How many may be under way at present; 1 to ``most``."""
        self._clock = clock
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lowered_at = float("-inf")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; make one put within the block. Its time and outcome adjust the window."""
        await self._enter()
        began = self._clock.monotonic()
        try:
            yield
        except (StorageUnavailableError, asyncio.CancelledError):
            slow = self._clock.monotonic() - began > _QUICK_SECONDS
            self._lower(began, 1 if slow else self.allowed // 2)
            raise
        else:
            self._learn(began)
        finally:
            self._under_way -= 1
            self._admit()

    # -- inside ------------------------------------------------------------------------------

    async def _enter(self) -> None:
        if self._under_way < self.allowed and not self._waiting:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given just now
                self._under_way -= 1
            else:
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            self._admit()
            raise

    def _learn(self, began: float) -> None:
        seconds = self._clock.monotonic() - began
        if seconds > _SLOW_SECONDS:
            self._lower(began, self.allowed // 2)
        elif seconds <= _QUICK_SECONDS and began >= self._lowered_at:
            self.allowed = min(self.allowed + 1, self.most)

    def _lower(self, began: float, allowed: int) -> None:
        """Allow fewer, once for all puts that were under way together."""
        if began >= self._lowered_at:
            self.allowed = max(allowed, 1)
            self._lowered_at = self._clock.monotonic()

    def _admit(self) -> None:
        while self._waiting and self._under_way < self.allowed:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)


class WindowedStore(StoreWrapper):
    """The port over another store, whose puts take turns. Its users do not close it."""

    def __init__(self, inner: ObjectStore, window: PutWindow) -> None:
        """Wrap ``inner``; several wrappers may share a window."""
        super().__init__(inner)
        self._window = window

    async def _call(self, request: Request[_T]) -> _T:
        if not request.sent_bytes:
            return await request()
        async with self._window.turn():
            return await request()
