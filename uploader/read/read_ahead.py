"""ReadAhead: fetches the fragments that a reader of a log in object storage comes to next.

Owns only what is fetched ahead for that reader: its fragments that are in flight or waiting, bounded by
bytes, and their tasks. The position that was read last determines the next fragment; a jump elsewhere
cancels what is in flight. The log decides which manifest is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment import FragmentBatch
from uploader.read.fragment_ranges import PARALLEL
from uploader.read.fragment_reader import FragmentReader
from walstore.errors import WalClosedError

MOST_FRAGMENTS: Final = 16
"""Fragments in flight or waiting at once, however short they are."""
_MOST_FOOTERS: Final = 64
"""Consecutive fragments without the wanted stream that are looked at ahead."""


class ReadAhead:
    """Reads a log's fragments one after the other. One task at a time; belongs to one event loop."""

    def __init__(
        self,
        fragments: FragmentReader,
        *,
        max_bytes: int,
        stream: str | None = None,
        verify: bool = False,
        from_read: int = 1,
    ) -> None:
        """Read through ``fragments``.

        Args:
            fragments: Fetches, decodes and caches.
            max_bytes: Memory limit for fragments that are not read yet. Before a fragment is decoded,
                its memory is estimated from the last one. 0 fetches nothing ahead.
            stream: Only fragments that may hold this stream are fetched ahead.
            verify: Hash every record of every fragment.
            from_read: Number of the consecutive read that first fetches others ahead.
        """
        self._fragments = fragments
        self._max_bytes = max_bytes
        self._stream = stream
        self._verify = verify
        self._from_read = from_read
        self._ahead: list[_Ahead] = []  # in offset order
        # Every fragment that begins before this offset was begun, or is not wanted.
        self._planned = 0
        self._filling: asyncio.Task[None] | None = None
        self._next = 0
        self._reads_in_row = 0
        self._last: FragmentBatch | None = None

    @property
    def position(self) -> int:
        """Where reading continues: after the fragment that was read last."""
        return self._next

    @property
    def waiting_bytes(self) -> int:
        """Estimated memory of the fragments that are in flight or not read yet."""
        return sum(each.memory_bytes() for each in self._ahead)

    async def read(self, manifest: Manifest, position: int, limit: int) -> FragmentBatch:
        """Return the whole fragment that contains ``position``; fetch others of ``[position, limit)`` ahead.

        Raises as :meth:`FragmentReader.read`, for this fragment only; OffsetTrimmedError if the manifest
        does not name it; WalClosedError if the log is closed meanwhile. If cancelled, fetches in flight
        continue, for the next call.
        """
        last = self._last
        if last is not None and last.start <= position < last.limit:
            return last  # a reader that searched for a time begins where it found it
        self._reads_in_row = self._reads_in_row + 1 if position == self._next else 1
        self._drop_before(position)
        ahead = self._ahead[0] if self._ahead else None
        if ahead is None or ahead.entry.start > position:
            entry = await self._fragments.locate(manifest, position)
            # Meanwhile it may have been begun.
            ahead = next((each for each in self._ahead if each.entry == entry), None)
            ahead = ahead or self._begin(entry)
        self._fill_later(manifest, limit)
        await asyncio.wait((ahead.task,))
        self._ahead = [each for each in self._ahead if each is not ahead]
        if ahead.task.cancelled():
            raise WalClosedError("the log is closed")
        self._last = batch = ahead.task.result()
        self._next = batch.limit
        self._fill_later(manifest, limit)
        return batch

    def pass_over(self, start: int, limit: int) -> None:
        """Note that the reader skips from ``start`` to ``limit``: what is between is not wanted.

        The lookahead is already on its way there, so it is cancelled only if reading jumped to ``start``.
        """
        if start != self._next:
            self.cancel()
        self._drop_ended(limit)
        self._next = limit

    def cancel(self) -> None:
        """Cancel what is in flight."""
        for each in self._ahead:
            each.task.cancel()
        self._ahead = []
        self._planned = 0
        if self._filling is not None:
            self._filling.cancel()
            self._filling = None

    # -- inside ------------------------------------------------------------------------------

    def _begin(self, entry: Fragment) -> _Ahead:
        """Start to read a fragment that no task reads yet."""
        reading = self._fragments.read(entry, verify=self._verify)
        task = self._fragments.spawn(reading, f"walstore fragment {entry.path}")
        ahead = _Ahead(entry, task, self._estimate(entry))
        self._ahead = sorted((*self._ahead, ahead), key=lambda each: each.entry.start)
        self._planned = max(self._planned, entry.limit)
        return ahead

    def _drop_before(self, position: int) -> None:
        """Drop what ends before ``position``; everything, if that is not a step forward."""
        if not self._next <= position <= max(self._planned, self._next):
            self.cancel()
        self._drop_ended(position)

    def _drop_ended(self, position: int) -> None:
        for each in self._ahead:
            if each.entry.limit <= position:
                each.task.cancel()
        self._ahead = [each for each in self._ahead if each.entry.limit > position]

    def _fill_later(self, manifest: Manifest, limit: int) -> None:
        is_due = self._max_bytes > 0 and self._reads_in_row >= self._from_read
        if is_due and self._filling is None and self._planned < limit:
            self._filling = self._fragments.spawn(
                self._fill(manifest, limit), f"walstore read ahead {self._planned}"
            )

    async def _fill(self, manifest: Manifest, limit: int) -> None:
        """Start to read what comes next, as far as there is room. The next read calls again."""
        try:
            async with aclosing(self._coming(manifest, limit)) as coming:
                async for entry in coming:
                    if entry.limit <= self._planned:
                        continue
                    if not self._has_room(entry):
                        return
                    self._begin(entry)
        finally:
            if self._filling is asyncio.current_task():
                self._filling = None

    def _coming(self, manifest: Manifest, limit: int) -> AsyncGenerator[Fragment, None]:
        start = self._planned
        if self._stream is None:
            return self._fragments.tree.fragments(manifest, start, limit)
        return self._fragments.holding(
            manifest, self._stream, start, limit, at_once=PARALLEL, most_in_row=_MOST_FOOTERS
        )

    def _has_room(self, entry: Fragment) -> bool:
        if len(self._ahead) >= MOST_FRAGMENTS:
            return False
        return self.waiting_bytes + self._estimate(entry) <= self._max_bytes

    def _estimate(self, entry: Fragment) -> int:
        """Return the estimated memory of a fragment while it is decoded."""
        return int(entry.num_bytes * (1 + self._fragments.expansion))


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A fragment that is being read, or waits."""

    entry: Fragment
    task: asyncio.Task[FragmentBatch]
    estimate_bytes: int

    def memory_bytes(self) -> int:
        """Return the memory it takes: estimated until it is decoded."""
        task = self.task
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result().memory_bytes
        return self.estimate_bytes


class ReadersAhead:
    """Reads ahead for anonymous callers: one that continues where another ended counts as the same."""

    def __init__(self, fragments: FragmentReader, *, max_bytes: int, most: int = 4) -> None:
        """Follow the ``most`` latest readers at most; each may take ``max_bytes`` of memory.

        Fetching ahead starts at a reader's second consecutive read.
        """
        self._fragments = fragments
        self._max_bytes = max_bytes
        self._most = most
        self._idle: list[ReadAhead] = []  # the one used last comes last
        self._busy = 0

    async def read(self, manifest: Manifest, position: int, limit: int) -> FragmentBatch:
        """As :meth:`ReadAhead.read`. Any number of tasks may call."""
        ahead = self._take(position)
        if ahead is None:
            return await self._fragments.read(await self._fragments.locate(manifest, position))
        self._busy += 1
        try:
            return await ahead.read(manifest, position, limit)
        finally:
            self._busy -= 1
            self._idle.append(ahead)

    def _take(self, position: int) -> ReadAhead | None:
        """Return the ReadAhead for the reader at ``position``; None if too many others are reading."""
        known = next((each for each in self._idle if each.position == position), None)
        if known is not None:
            self._idle.remove(known)
            return known
        if self._busy + len(self._idle) >= self._most:
            if not self._idle:
                return None
            self._idle.pop(0).cancel()
        return ReadAhead(self._fragments, max_bytes=self._max_bytes, from_read=2)
