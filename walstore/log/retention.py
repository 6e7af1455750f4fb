"""Retention: the task that deletes segments, and ``trim``. On the event loop; plans in ``retention_plan.py``.

:class:`_RetentionDecision` decides on the writer's thread, between two commits and under the locks of
the pins, and makes the decision durable there before a file is removed. The task sleeps until a segment
was sealed, uploaded or unpinned, and with an age limit until exactly the time at which the oldest
segment expires. Without an age limit it never sets a timer.

Two kinds of pins hold retention back: named cursors, which are files that other processes may change,
and readers of this process that request it. Retention must see a pin made while it decides, or the pin
must get the new head. For cursors the lock of ``cursors/directory.py`` ensures that, held until the new
head is durable; for readers a lock in memory does, held only for the decision, since the event loop
takes it. So does one for the cursors of a replicated log, which are in the log (``cursors/kept.py``).

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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from walstore.core.append.log_state import LogState
from walstore.core.append.tail import Tail
from walstore.core.append.writer import Writer
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.error_mapping import describe_read, describe_upkeep, is_full
from walstore.core.settings import Settings
from walstore.errors import WalClosedError, WalError, WalLockedError
from walstore.log.retention_plan import Pin, RetentionHold, RetentionPlan, plan_retention, plan_trim
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.cursors import directory as cursor_directory
from walstore.positions.cursors.kept import KeptCursors

logger = logging.getLogger("walstore.retention")

_ATTEMPTS: Final = 12
"""About five seconds of pauses; moving a cursor takes milliseconds."""
_LEAST_SECONDS: Final = 1e-6
_LEAST_RECHECK_SECONDS: Final = 60.0
_RECHECK_PART: Final = 16


class ReaderPins:
    """The pins of one open log's readers. Any thread may call; nothing blocks."""

    def __init__(self, head: int) -> None:
        """Begin without pins, at the log's head."""
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._pins: dict[int, Pin] = {}
        self._floor = head
        self._numbers = count()

    def add(self, offset: int, holder: str = "a reader") -> ReaderPin:
        """Pin ``offset`` and everything after it, until the pin is moved or released.

        Records already given up stay given up: then the pin's ``offset`` is the new head.
        """
        with self._lock:
            number = next(self._numbers)
            self._pins[number] = pin = Pin(max(offset, self._floor), holder)
            return ReaderPin(self, number, pin.offset)

    def settle(
        self, cursors: Sequence[Pin], decide: Callable[[Sequence[Pin]], RetentionPlan]
    ) -> RetentionPlan:
        """Return the plan that ``decide`` makes of all pins. From then on no pin can be below its head."""
        with self._lock:
            plan = decide([*cursors, *self._pins.values()])
            self._floor = max(self._floor, plan.head)
            return plan

    def _move(self, number: int, offset: int) -> int:
        with self._lock:
            found = self._pins[number]
            moved = found._replace(offset=max(offset, self._floor))
            self._pins[number] = moved
            return moved.offset

    def _remove(self, number: int) -> None:
        with self._lock:
            self._pins.pop(number, None)


class ReaderPin:
    """One reader's pin. Use as ``with pins.add(offset) as pin:``, or release it."""

    def __init__(self, pins: ReaderPins, number: int, offset: int) -> None:
        """Not for callers; see :meth:`ReaderPins.add`."""
        self._pins = pins
        self._number = number
        self.offset = offset
        """The offset that is pinned."""

    def move(self, offset: int) -> None:
        """Pin another offset instead. If that was given up already, pin the head."""
        self.offset = self._pins._move(self._number, offset)  # noqa: SLF001

    def release(self) -> None:
        """End the pin; twice is allowed."""
        self._pins._remove(self._number)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class LogPins:
    """All pins of one open log. Blocking, but for ``readers``; for the writer's thread."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        readers: ReaderPins,
        kept: KeptCursors | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.kept = kept
        """The cursors of a log that has them in itself, as replicated ones do; None if they are files."""
        self.readers = readers
        """Pins of this process; any thread may add one."""

    @contextlib.contextmanager
    def hold(self, now_us: int, head: Callable[[], int]) -> Iterator[HeldPins]:
        """Keep all cursors in place, and yield the pins to decide on.

        Make the decision durable before leaving; ``head()`` says what came of it. Raises WalLockedError if
        another holder has the cursors, for some milliseconds, and StorageUnavailableError if they cannot be
        read.
        """
        if self.kept is not None:
            try:
                yield HeldKeptPins(self.readers, self.kept, now_us)
            finally:
                self.kept.end_settling(head())
            return
        with contextlib.ExitStack() as stack:
            refusal: OSError | None = None
            cursors: Sequence[Pin] = ()
            try:
                try:
                    stack.enter_context(cursor_directory.hold_cursors(self._fs, self._directory))
                    cursors = cursor_pins(self._fs, self._directory, now_us)
                except OSError as error:
                    if not is_full(error) or self._has_cursors():
                        raise
                    refusal = error
            except OSError as error:
                if is_full(error):
                    raise describe_upkeep(error, "the head cannot be moved") from error
                raise describe_read(error, self._directory) from error
            yield HeldPins(self.readers, cursors, refusal, self._has_cursors)

    def _has_cursors(self) -> bool:
        """Return whether a cursor was ever made; OSError."""
        return cursor_directory.DIRECTORY_NAME in self._fs.list(self._directory)


class HeldPins:
    """All pins of a log while a head is decided on. Blocking; made by :meth:`LogPins.hold`."""

    def __init__(
        self,
        readers: ReaderPins,
        cursors: Sequence[Pin],
        refusal: OSError | None,
        has_cursors: Callable[[], bool],
    ) -> None:
        self._readers = readers
        self._cursors = cursors
        self._has_cursors = has_cursors
        self.refusal = refusal
        """Why the cursors are not locked: there are none, and a full disk has no room for their directory.
        Without this a full disk could not be trimmed. None if they are locked."""

    def settle(self, decide: Callable[[Sequence[Pin]], RetentionPlan]) -> RetentionPlan:
        """Return the plan that ``decide`` makes of all pins; see :meth:`ReaderPins.settle`."""
        return self._readers.settle(self._cursors, decide)

    def confirm(self) -> None:
        """Check that no cursor was made meanwhile, if they are not locked. WalLockedError if there may
        be one.

        Show the head first: the process that makes the first cursor makes the directory, then reads the
        head. So a cursor that this check misses is made at or above that head, or not at all.
        """
        try:
            is_new = self.refusal is not None and self._has_cursors()
        except OSError as error:
            raise describe_upkeep(error, "the head cannot be moved") from error
        if is_new:
            raise WalLockedError("the log's first cursor is being made", path="cursors")


class HeldKeptPins(HeldPins):
    """The same of a log that keeps its cursors in itself: then they are never without a lock."""

    def __init__(self, readers: ReaderPins, kept: KeptCursors, now_us: int) -> None:
        super().__init__(readers, (), None, lambda: True)
        self._kept, self._now_us = kept, now_us

    def settle(self, decide: Callable[[Sequence[Pin]], RetentionPlan]) -> RetentionPlan:
        """As of :class:`HeldPins`."""
        return self._kept.settle(
            self._now_us, lambda found: self._readers.settle(_pins_of(found), decide)
        )


def cursor_pins(fs: FileSystem, directory: Path, now_us: int) -> list[Pin]:
    """Return the pins of the cursors that have not expired. Blocking; only under their lock.

    One whose file cannot be read pins everything. Raises OSError.
    """
    return _pins_of(cursor_directory.pins(fs, directory, now_us))


def _pins_of(cursors: Iterable[CursorInfo]) -> list[Pin]:
    found = []
    for cursor in cursors:
        if cursor.is_expired:
            continue
        deadline_us = cursor.state.deadline_us if cursor.state else 0
        what = (
            f"cursor {cursor.name}"
            if cursor.problem is None
            else f"cursor {cursor.name}, unreadable"
        )
        found.append(Pin(cursor.position, what, deadline_us or None))
    return found


class Retention:
    """Deletes segments of one open log. All methods belong to its event loop."""

    def __init__(
        self,
        *,
        state: LogState,
        writer: Writer,
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

        def plan(tail: Tail, now_us: int, pins: Sequence[Pin]) -> RetentionPlan:
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

        def plan(tail: Tail, now_us: int, pins: Sequence[Pin]) -> RetentionPlan:
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
        backoff = Backoff(first_seconds=0.005, longest_seconds=1.0)
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
            await self._clock.sleep(backoff.next_seconds())
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

    def __call__(self, tail: Tail, now_us: int, pins: Sequence[Pin], /) -> RetentionPlan: ...


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

    def __call__(self, tail: Tail) -> list[int]:
        """Move the head as planned and return the segments to remove."""
        with contextlib.ExitStack() as held:
            try:
                self.result = self.plan(tail, self.now_us, ())
                if self.result.changes(tail.head):
                    pins = held.enter_context(self.pins.hold(self.now_us, lambda: tail.head))
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
    def _show_and_confirm(tail: Tail, pins: HeldPins, refusal: OSError, head: int) -> None:
        """Move the head although the cursors cannot be locked, since there are none. WalError if there may
        be one."""
        if not tail.show_head(head):
            raise describe_upkeep(refusal, "the head cannot be moved")
        try:
            pins.confirm()
        except WalError:
            tail.show_head(tail.head)
            raise
