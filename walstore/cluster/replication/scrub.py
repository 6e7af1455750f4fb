"""Scrub: reads all segments of all copies, and repairs what is damaged. One task for each primary.

It does so slowly, round by round, and at once when somebody asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from walstore.cluster.replication.healing import PART_BYTES, Healer
from walstore.cluster.replication.known_copy import KnownCopy
from walstore.cluster.replication.scrub_tally import CopyTally, OwnTally
from walstore.core.ports import Clock
from walstore.core.runtime.statistics import ScrubRound

_LEAST_PAUSE: Final = 0.25
"""Of the pause after each part with which a round would take its time; to make up for what was lost."""


class Scrub:
    """Belongs to the event loop."""

    def __init__(
        self,
        healer: Healer,
        followers: Sequence[KnownCopy],
        clock: Clock,
        *,
        seconds: float,
        first: int = 0,
    ) -> None:
        """A round that nobody asked for takes about so many seconds; 0: there is none.

        The first of them begins at the segment with this number, in order of age, and goes on with the oldest
        behind the newest. A random number: if the log is led by another machine each hour, no segment is
        always the last one.
        """
        self._healer, self._followers = healer, followers
        self._extents = healer.own.written.extents
        self._clock, self._seconds = clock, seconds
        self._asked = asyncio.Event()
        """Set when a round is to begin at once."""
        self._number = 0
        self._first = first
        self.now: ScrubRound | None = None
        """The round that runs. May be read on any thread, as the next one."""
        self.last: ScrubRound | None = None
        """The last round that ended."""

    def begin(self) -> int:
        """Let a round begin now, unless one that was asked for runs; return its number."""
        if self.now is not None and self.now.is_asked:
            return self.now.number
        self._asked.set()
        return self._number + 1

    async def run(self) -> None:
        """Read for ever."""
        while True:
            if not self._seconds or not self._extents:
                await self._pause(self._seconds)
            is_asked = self._asked.is_set()
            if is_asked or self._seconds:
                self._asked.clear()
                await self._read_all(is_asked=is_asked)

    async def _read_all(self, *, is_asked: bool) -> None:
        """Do one round; one that was not asked for makes room for one that was."""
        self._number += 1
        tallies = [OwnTally(self._healer), *(CopyTally(self._healer, of) for of in self._followers)]
        ends_at, passed = self._clock.monotonic() + self._seconds, 0
        starts = sorted(self._extents)
        if starts and not is_asked:
            turned, self._first = self._first % len(starts), 0
            starts = starts[turned:] + starts[:turned]
        for at, start in enumerate(starts):
            later = self._sizes(starts[at + 1 :])
            limit, reached = sum(self._sizes([start])), 0
            for tally in tallies:
                tally.position = 0
            while (extent := self._extents.get(start)) is not None:
                reached = min(limit, *(one.position for one in tallies))
                total = passed + limit + sum(later)
                self.now = self._round(tallies, passed + reached, total, is_asked=is_asked)
                if reached == limit:
                    break
                if not is_asked:
                    await self._pause(self._pause_seconds(ends_at, [limit - reached, *later]))
                    if self._asked.is_set():
                        return
                for tally in tallies:
                    if tally.position < limit:
                        await tally.check(extent)
            passed += reached
        self.last = self._round(
            tallies, passed, passed, is_asked=is_asked, ended_us=self._clock.now_us()
        )
        self.now = None

    def _sizes(self, starts: Sequence[int]) -> list[int]:
        return [self._extents[one].size for one in starts if one in self._extents]

    def _pause_seconds(self, ends_at: float, left: Sequence[int]) -> float:
        """Return how long to wait before the next part, so that the round ends in time.

        ``left`` are the bytes of what it has not passed, by segment.
        """
        even = self._seconds / max(1, _parts(one.size for one in self._extents.values()))
        in_time = (ends_at - self._clock.monotonic()) / _parts(left)
        return min(even, max(_LEAST_PAUSE * even, in_time))

    async def _pause(self, seconds: float) -> None:
        """Wait so long, without an end for 0, or until a round is asked for."""
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(self._wait_asked())]
            if seconds:
                waits.append(group.create_task(self._sleep(seconds)))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()

    async def _wait_asked(self) -> None:
        await self._asked.wait()

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _round(
        self,
        tallies: Sequence[OwnTally],
        checked: int,
        total: int,
        *,
        is_asked: bool,
        ended_us: int | None = None,
    ) -> ScrubRound:
        return ScrubRound(
            number=self._number,
            is_asked=is_asked,
            checked_bytes=checked,
            total_bytes=total,
            ended_us=ended_us,
            copies=tuple(tally.result() for tally in tallies),
        )


def _parts(sizes: Iterable[int]) -> int:
    return sum(-(-size // PART_BYTES) for size in sizes)
