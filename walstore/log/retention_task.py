"""Retention: the task that deletes segments, and ``trim``. On the event loop; plans in ``retention_plan.py``.

:class:`_RetentionDecision` decides on the writer's thread, between two commits and under the locks of
the pins, and makes the decision durable there before a file is removed. The task sleeps until a segment
was sealed, uploaded or unpinned, and with an age limit until exactly the time at which the oldest
segment expires. Without an age limit it never sets a timer.

Invariants (tests/walstore/log/test_retention_task.py)
  R1  No record at or above a pin is removed, also if the pin is made while retention decides.
  R2  With a tier, no record is removed before it is uploaded.
  R3  The head is durable before a file below it is removed, and never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final, Protocol

from walstore.append.state import LogState
from walstore.errors import WalClosedError, WalError, WalLockedError
from walstore.format.segment import SegmentSummary
from walstore.log.pins import HeldPins, LogPins
from walstore.log.retention_plan import Pin, RetentionHold, RetentionPlan, plan_retention, plan_trim
from walstore.ports import Clock
from walstore.runtime.error_mapping import describe_upkeep
from walstore.settings import Settings

logger = logging.getLogger("walstore")

_LEAST_PAUSE_SECONDS: Final = 0.005
_MOST_PAUSE_SECONDS: Final = 1.0
_ATTEMPTS: Final = 12
"""About five seconds of pauses; moving a cursor takes milliseconds."""
_LEAST_SECONDS: Final = 1e-6
_LEAST_RECHECK_SECONDS: Final = 60.0
_RECHECK_PART: Final = 16


class HeadKeeper(Protocol):
    """What retention needs of :class:`walstore.append.tail.Tail`. Blocking; only on the writer's thread."""

    head: int
    """First retained offset."""

    @property
    def durable_limit(self) -> int:
        """Every offset below it is synced."""

    def summaries(self) -> list[SegmentSummary]:
        """Return the sealed segments, oldest first, then the active one as sealing would now record it."""

    def show_head(self, limit: int) -> bool:
        """Show ``limit`` to other processes as the head before it is; return whether they see it."""

    def advance_head(self, limit: int) -> list[int]:
        """Make ``limit`` the head, durably, and give up the sealed segments wholly below it.

        Returns their first offsets. Does nothing if there is nothing to do. WalError if the head cannot
        be made durable now: then no segment was given up.
        """


class HeadWriter(Protocol):
    """What retention needs of :class:`walstore.append.writer.Writer`."""

    async def advance_head(self, decide: Callable[[HeadKeeper], list[int]]) -> None:
        """Run ``decide`` on the writer's thread between two commits, pass the resulting head to the
        listener, and remove the segments it returned. WalError if the log has failed or closes."""

    async def rotate(self) -> None:
        """Seal the active segment if it holds records."""


class Retention:
    """Deletes segments of one open log. All methods belong to its event loop."""

    def __init__(
        self,
        *,
        state: LogState,
        writer: HeadWriter,
        clock: Clock,
        settings: Settings,
        pins: LogPins,
        is_tiered: bool,
    ) -> None:
        self._state = state
        self._writer = writer
        self._clock = clock
        seconds = settings.retention_seconds
        self._seconds = None if seconds == math.inf else seconds
        self._bytes = settings.retention_bytes
        self._pins = pins
        self._is_tiered = is_tiered
        self.plan: RetentionPlan | None = None
        """The latest plan, with the held segments and their holders; None before the first."""
        self.dropped_segments = 0
        """Segments deleted since the log was opened."""
        self.dropped_bytes = 0
        """Bytes of batches in them."""

    async def run(self) -> None:
        """Delete expired segments until cancelled or until the log fails. For the log's task group.

        If cancelled during a deletion, it finishes that first.
        """
        is_limited = self._seconds is not None or self._bytes is not None
        with contextlib.suppress(WalError):  # the log failed; its waiters get the error
            while True:
                self._state.shrinkable.clear()
                if is_limited or self._has_trimmed():
                    plan = await self._shrink()
                    if plan is not None and plan.seals_active:
                        await self._writer.rotate()
                    else:
                        await self._wait(plan)
                else:
                    await self._state.shrinkable.wait()

    async def trim(self, before: int) -> int:
        """Remove all records below ``before`` and return the new head.

        The head is then exactly ``before``, unless a pin or, with a tier, a record not yet uploaded
        keeps it lower, or it was higher already. It is durable when this returns. Files wholly below it
        are deleted; the file that contains it is deleted once the head has passed it. A tier's copy is
        not affected.

        Raises TypeError, OffsetNotWrittenError for an offset beyond the durable limit,
        StorageUnavailableError if the cursors cannot be read, WalLockedError if another process keeps
        them locked for seconds, DiskFullError or OutcomeUnknownError if a write failed the log, and
        WalClosedError. If cancelled, the head may have moved or may still move.
        """
        uploaded_limit = self._uploaded_limit()

        def plan(tail: HeadKeeper, now_us: int, pins: Sequence[Pin]) -> RetentionPlan:
            head = plan_trim(
                before,
                head=tail.head,
                durable_limit=tail.durable_limit,
                now_us=now_us,
                uploaded_limit=uploaded_limit,
                pins=pins,
            )
            return RetentionPlan(head)

        head = (await self._decide(plan)).head
        logger.info("%d is the new head; trimming below %d was requested", head, before)
        return head

    # -- inside ------------------------------------------------------------------------------

    def _has_trimmed(self) -> bool:
        """Whether a sealed segment is below the head: it contained the head while it was active."""
        oldest = self._state.segments.peekitem(0)[1].summary
        return oldest is not None and oldest.limit <= self._state.head

    def _uploaded_limit(self) -> int | None:
        return self._state.uploaded.value if self._is_tiered else None

    async def _shrink(self) -> RetentionPlan | None:
        """Drop expired segments. None if the pins could not be read: then nothing was dropped."""
        uploaded_limit = self._uploaded_limit()

        def plan(tail: HeadKeeper, now_us: int, pins: Sequence[Pin]) -> RetentionPlan:
            *sealed, active = tail.summaries()
            return plan_retention(
                sealed,
                active=active,
                head=tail.head,
                now_us=now_us,
                retention_seconds=self._seconds,
                retention_bytes=self._bytes,
                uploaded_limit=uploaded_limit,
                pins=pins,
            )

        try:
            found = await self._decide(plan)
        except WalClosedError:
            raise
        except WalError as error:
            logger.warning("nothing is deleted for now: %s", error)
            return None
        for decision in found.dropped:
            logger.info("%s", decision)
        if found.held is not None and found.held != (self.plan.held if self.plan else None):
            logger.info("%s", found.held)
        self.plan = found
        return found

    async def _decide(self, plan: _Planner) -> RetentionPlan:
        """Plan and carry it out on the writer's thread; try again while the cursors are locked."""
        pause = _LEAST_PAUSE_SECONDS
        for attempt in count(1):
            decision = _RetentionDecision(self._pins, self._clock.now_us(), plan)
            await self._writer.advance_head(decision)
            if decision.error is None:
                self.dropped_segments += decision.dropped_segments
                self.dropped_bytes += decision.dropped_bytes
                assert decision.result is not None
                return decision.result
            if not isinstance(decision.error, WalLockedError) or attempt == _ATTEMPTS:
                raise decision.error
            await self._clock.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    async def _wait(self, plan: RetentionPlan | None) -> None:
        """Return when the plan may have changed."""
        shrinkable = self._state.shrinkable
        seconds = self._seconds_left(plan)
        if seconds is not None:
            async with asyncio.TaskGroup() as group:
                timer = group.create_task(self._wake_after(seconds))
                await shrinkable.wait()
                timer.cancel()
        elif plan is not None and self._seconds is not None and plan.held is None:
            # No record is left. The next one sets the next deadline.
            with contextlib.suppress(WalError):
                await self._state.visible.wait(plan.limit + 1)
        else:
            await shrinkable.wait()

    async def _wake_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._state.shrinkable.set()

    def _seconds_left(self, plan: RetentionPlan | None) -> float | None:
        """Return how long nothing changes by time alone; None for ever, as without an age limit."""
        if self._seconds is None:
            return None
        now_us = self._clock.now_us()
        recheck = max(_LEAST_RECHECK_SECONDS, self._seconds / _RECHECK_PART)
        if plan is None:
            return recheck
        left = None if plan.due_us is None else max((plan.due_us - now_us) / 1e6, _LEAST_SECONDS)
        if plan.held is None or plan.held.hold is not RetentionHold.PINNED:
            return left
        # Another process may move a cursor without any signal here.
        return recheck if left is None else min(left, recheck)


class _Planner(Protocol):
    """Makes a plan from the state of the tail; called on the writer's thread."""

    def __call__(self, tail: HeadKeeper, now_us: int, pins: Sequence[Pin], /) -> RetentionPlan: ...


@dataclass(slots=True)
class _RetentionDecision:
    """One decision on the writer's thread. Raises only errors of the tail, which fail the log."""

    pins: LogPins
    now_us: int
    plan: _Planner
    result: RetentionPlan | None = None
    error: Exception | None = None
    """Why there is no result."""
    dropped_segments: int = 0
    dropped_bytes: int = 0

    def __call__(self, tail: HeadKeeper) -> list[int]:
        """Move the head as planned and return the segments to remove."""
        with contextlib.ExitStack() as held:
            try:
                self.result = self.plan(tail, self.now_us, ())
                if self.result.changes(tail.head):
                    pins = held.enter_context(self.pins.hold(self.now_us))
                    self.result = pins.settle(partial(self.plan, tail, self.now_us))
                    if pins.refusal is not None:
                        self._show_and_confirm(tail, pins, pins.refusal, self.result.head)
            except (WalError, TypeError) as error:
                self.error = error
                return []
            sizes = {summary.start: summary.data_bytes for summary in tail.summaries()}
            try:
                starts = tail.advance_head(self.result.head)
            except WalError as error:  # the disk call failed for now; the log continues
                self.result, self.error = None, error
                tail.show_head(tail.head)
                return []
            if tail.head != self.result.head:  # no room to write the head
                self.result = replace(self.result, head=tail.head)
        self.dropped_segments = len(starts)
        self.dropped_bytes = sum(sizes[start] for start in starts)
        return starts

    @staticmethod
    def _show_and_confirm(tail: HeadKeeper, pins: HeldPins, refusal: OSError, head: int) -> None:
        """Move the head although the cursors cannot be locked, since there are none. WalError if there may
        be one."""
        if not tail.show_head(head):
            raise describe_upkeep(refusal, "the head cannot be moved")
        try:
            pins.confirm()
        except WalError:
            tail.show_head(tail.head)
            raise
