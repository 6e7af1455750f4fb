"""The consumers inside the writing process: one that tails, and one that reads all from the beginning."""

from __future__ import annotations

import asyncio
import time
from array import array

from walstore.errors import CorruptionError
from walstore.log.wal import Wal

_LOOK_SECONDS = 0.1


class TailConsumer:
    """Follows the log from where it is now, and measures how long records take from append to here."""

    def __init__(self, wal: Wal, begun_ns: dict[bytes, int], latencies_us: array[int]) -> None:
        self._wal = wal
        self._begun_ns = begun_ns
        self._latencies_us = latencies_us
        self._reader = wal.reader("latest")
        self.records = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop`` is set and everything was read. Owned by the child's task group."""
        reader = self._reader
        while not (stop.is_set() and reader.is_caught_up):
            batch = await reader.fetch(max_records=4096, max_wait=_LOOK_SECONDS)
            now_ns = time.monotonic_ns()
            for key in dict.fromkeys(batch.keys):
                begun_ns = self._begun_ns.pop(key or b"", None)
                if begun_ns is not None:
                    self._latencies_us.append((now_ns - begun_ns) // 1000)
            self.records += len(batch)


class HistoryConsumer:
    """Reads the log from its first record: from the cloud, then files, then memory, then live."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self.position = wal.head
        """Next offset to read."""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop`` is set and everything was read. Owned by the child's task group.

        CorruptionError if a record is skipped or comes twice.
        """
        reader = self._wal.reader("earliest")
        while not (stop.is_set() and reader.is_caught_up):
            batch = await reader.fetch(
                max_records=1 << 16, max_bytes=4 << 20, max_wait=_LOOK_SECONDS
            )
            if batch.start != self.position or len(batch.values) != batch.limit - batch.start:
                raise CorruptionError(
                    f"the reader was at {self.position} and got [{batch.start}, {batch.limit})",
                    path=str(self._wal.path),
                )
            self.position = batch.limit
