"""BareLog: a group commit in asyncio and nothing else. The yardstick: no log in Python does much less.

It has no offsets, readers, limits or recovery. Tasks put values on a list; one thread joins them, makes a
CRC-32C, writes and syncs, and wakes the event loop once for all of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Self

import crc32c

Waiting = tuple[list[bytes], list[asyncio.Future[None]]]


class BareLog:
    """Belongs to the event loop that makes it. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """At a file, which must not be there."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._loop = asyncio.get_running_loop()
        self._waiting: Waiting = ([], [])
        self._is_busy = False
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        os.close(self._file)

    async def append(self, value: bytes) -> None:
        """Return when the value is synced."""
        future = self._loop.create_future()
        self._waiting[0].append(value)
        self._waiting[1].append(future)
        if not self._is_busy:
            self._begin()
        await future

    async def append_many(self, values: Sequence[bytes]) -> None:
        """The same for several values."""
        self._waiting[0].extend(values[:-1])
        await self.append(values[-1])

    def _begin(self) -> None:
        taken, self._waiting = self._waiting, ([], [])
        self._is_busy = bool(taken[0])
        if self._is_busy:
            self._queue.put(taken)

    def _write(self) -> None:
        position = 0
        while (taken := self._queue.get()) is not None:
            data = b"".join(taken[0])
            check = crc32c.crc32c(data).to_bytes(4, "little")
            position += os.pwritev(self._file, [check, data], position)
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(self._wake, taken[1])

    def _wake(self, futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)
        self._loop.call_soon(self._begin)  # behind the callers, whose next values belong to it
