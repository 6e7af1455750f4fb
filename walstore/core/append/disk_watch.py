"""DiskWatch: stops appends before the disk is full, and resumes them when there is space again.

A log on a full disk fails and must be opened again. This prevents that: while less than
``min_free_bytes`` is free, in addition to accepted and unwritten bytes, channels refuse records with
DiskFullError. Their logs stay open, readers continue, and accepted records are committed.

The free space is checked when a log is opened and after every few megabytes written, so idle logs make
no calls and a disk with space has no timer. Only while appends are refused is it checked every second.
Other writers to the same disk between two checks, or a channel filled at once, can still pass the
limit: it is a watermark, not a reservation. Logs that share a disk should share a watch, since each
watch counts only the bytes of its own logs. Everything here belongs to the event loop; a thread calls
the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.threads import Lane
from walstore.core.settings import MIB
from walstore.errors import DiskFullError, WalClosedError, WalError

logger = logging.getLogger("walstore.log")

RECHECK_SECONDS: Final = 1.0
"""How often the free space is checked while appends are refused."""
_STEP_PART: Final = 4
_MOST_STEP_BYTES: Final = 16 * MIB
_MARGIN_PART: Final = 8


class Refusing(Protocol):
    """An object that can refuse appends: :class:`walstore.core.append.channel.Channel`."""

    @property
    def waiting(self) -> tuple[int, int]:
        """Bytes and records accepted and not yet on disk."""

    def refuse(self, error: WalError | None) -> None:
        """Refuse further records with ``error`` until called with None."""


class DiskWatch:
    """Watches the free space of a file system for its logs."""

    def __init__(
        self,
        *,
        fs: FileSystem,
        path: Path,
        min_free_bytes: int,
        worker: Lane,
        clock: Clock,
        waiting_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Watch the file system of ``path`` for at least ``min_free_bytes``; 0 watches nothing.

        ``waiting_bytes()`` returns the bytes that all channels have accepted and not yet written;
        without it each channel is read, which is slow for thousands.
        """
        self._fs = fs
        self._path = path
        self._min_free_bytes = min_free_bytes
        self._worker = worker
        self._clock = clock
        self._step_bytes = min(max(min_free_bytes // _STEP_PART, 1), _MOST_STEP_BYTES)
        self._margin_bytes = max(self._step_bytes, min_free_bytes // _MARGIN_PART)
        self._channels: dict[Refusing, None] = {}
        self._waiting_bytes = waiting_bytes or self._ask_channels
        self._unchecked_bytes = 0
        self._due = asyncio.Event()
        self.refusal: DiskFullError | None = None
        """The error with which appends are refused now, if they are."""
        self.free_bytes: int | None = None
        """Free space at the last check; None before the first."""

    def add(self, channel: Refusing) -> None:
        """Let a channel refuse appends while space is short."""
        self._channels[channel] = None
        if self.refusal is not None:
            channel.refuse(self.refusal)

    def remove(self, channel: Refusing) -> None:
        """Leave a channel alone, since its log is closed; twice is allowed."""
        self._channels.pop(channel, None)

    def note_written(self, size_bytes: int) -> None:
        """Count bytes written to the disk; never blocks."""
        self._unchecked_bytes += size_bytes
        if self._unchecked_bytes >= self._step_bytes and self._min_free_bytes:
            self._due.set()

    def judge(self, free_bytes: int | None) -> None:
        """Refuse or accept appends by the result of :func:`look`; None changes nothing."""
        if free_bytes is None or not self._min_free_bytes:
            return
        self.free_bytes = free_bytes
        needed = self._min_free_bytes + self._waiting_bytes()
        if self.refusal is not None:
            needed += self._margin_bytes  # else appends would stop and resume with every few bytes
        if free_bytes < needed:
            self._stop(free_bytes, needed)
        elif self.refusal is not None:
            self._refuse(None)
            logger.warning("appends below %s continue: %d bytes are free", self._path, free_bytes)

    async def check(self) -> None:
        """Check the free space now, and refuse or accept appends accordingly."""
        self._unchecked_bytes = 0
        self._due.clear()
        self.judge(await self._worker.run(look, self._fs, self._path))

    async def run(self) -> None:
        """Watch until cancelled. For the log's task group, if there is a ``min_free_bytes``."""
        with contextlib.suppress(WalClosedError):
            while True:
                if self.refusal is None:
                    await self._due.wait()
                else:
                    await self._clock.sleep(RECHECK_SECONDS)
                await self.check()

    def _ask_channels(self) -> int:
        return sum(channel.waiting[0] for channel in self._channels)

    def _stop(self, free_bytes: int, needed_bytes: int) -> None:
        if self.refusal is None:
            logger.error("appends below %s are refused: %d bytes are free", self._path, free_bytes)
        error = DiskFullError(
            f"{free_bytes} bytes are free at {self._path} and {needed_bytes} are needed; "
            "free some space, then appends work again, or lower min_free_bytes",
            outcome="not_written",
            retriable=True,
        )
        self._refuse(error)

    def _refuse(self, error: DiskFullError | None) -> None:
        self.refusal = error
        for channel in self._channels:
            channel.refuse(error)


def look(fs: FileSystem, path: Path) -> int | None:
    """Return how many bytes are free for a log at ``path``; None if that is not known. Blocking."""
    try:
        return fs.free_bytes(path)
    except OSError as error:
        logger.warning("the free space of %s is not known: %s", path, error)
        return None
