"""CutSchedule: when to cut the next fragment, so that no record waits longer than it must. Pure.

A record is durable in the cloud after two successive requests: the put of its fragment, and the change of
the root that names it. Roots may only follow one another (``max_publishing`` 1), so a fragment cut as
soon as there is something to ship would mostly wait for the change under way, and with it every record
that could have come along. So it is cut so that its put ends when that change is expected to end.
Expectations are medians of the last requests' times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import Final

from uploader.format.setsum import ITEM_WORK

_SAMPLES: Final = 9
_NEAR: Final = 0.25
"""Part of the time between two changes in which a second fragment for the same one does not pay."""
_LATE: Final = 0.1
"""Part of the time between two changes by which a fragment may be cut too late and still be waited for."""
_OVERDUE: Final = 0.125
"""Part of a put's delay after which it is checked again: an overdue put is expected at any moment, so the
next cut would stay equally far ahead at every check."""

TIMER_SECONDS: Final = 0.0005
"""Timers of asyncio's event loop are late by up to a millisecond: set this much earlier, they are on time on
average."""
_HEAD_START_SECONDS: Final = 0.02
"""How long before its cut a fragment is begun, when nothing is known yet."""
_HEAD_START_WORK: Final = 384 << 10
"""A fragment of less work is built as fast in one go."""
_AMPLE: Final = 1.5
"""Encoding that began early should end before the cut even if it takes this many times as long."""


class CutSchedule:
    """When one writer cuts its fragments. Times are seconds of one monotonic clock."""

    def __init__(self, *, interval_seconds: float, max_publishing: int) -> None:
        """``interval_seconds`` is the least time between two cuts while something is under way."""
        self.interval_seconds = interval_seconds
        self._max_publishing = max_publishing
        self._puts: deque[float] = deque(maxlen=_SAMPLES)
        self._publishes: deque[float] = deque(maxlen=_SAMPLES)
        self._head_starts: deque[float] = deque(maxlen=_SAMPLES)
        self.put_seconds = 0.0
        """How long building and putting a fragment is expected to take; 0 before the first one."""
        self.publish_seconds = 0.0
        """How long naming it is expected to take; 0 before the first time."""
        self.head_start_seconds = _HEAD_START_SECONDS
        """How long before its cut a fragment should be begun to be encoded."""

    def deserves_head_start(self, records: int, size_bytes: int) -> bool:
        """Return whether a fragment of this size should be begun before it is cut."""
        return size_bytes + ITEM_WORK * records >= _HEAD_START_WORK

    def note_put(self, seconds: float) -> None:
        """Learn how long a fragment took to be built and put."""
        self._puts.append(seconds)
        self.put_seconds = median(self._puts)

    def note_publish(self, seconds: float) -> None:
        """Learn how long a change of the root took."""
        self._publishes.append(seconds)
        self.publish_seconds = median(self._publishes)

    def note_head_start(self, seconds: float) -> None:
        """Learn how long it took to encode what a fragment had before it was cut."""
        self._head_starts.append(seconds)
        self.head_start_seconds = _AMPLE * median(self._head_starts)

    def due(self, now: float, cuts: Iterable[float], publishing: Sequence[float]) -> float:
        """Return when the next fragment should be cut; now or earlier means at once.

        ``cuts`` are the cut times of fragments that are not being published yet, oldest first;
        ``publishing`` are the start times of the changes under way.
        """
        spacing = self.publish_seconds / self._max_publishing
        free = now
        if len(publishing) >= self._max_publishing:
            free = max(now, publishing[0] + self.publish_seconds)
        turn: float | None = None  # when the change begins that takes the fragments so far
        last: float | None = None
        expected = now  # when the oldest put under way should have ended
        for last in cuts:
            ready = last + self.put_seconds
            if turn is None:
                expected = ready
                turn = max(free, ready)
            elif ready > turn:
                turn = max(turn + spacing, ready)
        if turn is None or last is None:
            return free - self.put_seconds
        due = turn - self.put_seconds  # to go with the last one, else with the change after
        due = _next(due, spacing, last + max(self.interval_seconds, spacing * _NEAR))
        # A little too late is better than a whole change later.
        due = _next(due, spacing, now - spacing * _LATE)
        if turn == now < due and spacing > 0 and self.put_seconds > 0:
            due = max(due, now + _OVERDUE * (now - expected))
        return max(due, last + self.interval_seconds)

    def hold_seconds(self, now: float, cut: float, publishing: int) -> float:
        """Return how long a change that could begin now should wait for a fragment cut at ``cut``.

        A fragment that misses the only change that can be under way waits for a whole one, and it was
        cut to be put just now. 0 if it is not expected soon, or another change could take it.
        """
        longest = self.publish_seconds / self._max_publishing * _LATE
        is_scarce = publishing + 1 >= self._max_publishing
        is_near = abs(cut + self.put_seconds - now) <= longest
        return longest if is_scarce and is_near else 0.0


def _next(time: float, spacing: float, bound: float) -> float:
    """Return the first of ``time``, ``time + spacing``, ... that is not before ``bound``."""
    if time >= bound:
        return time
    return bound if spacing <= 0 else time + ceil((bound - time) / spacing) * spacing
