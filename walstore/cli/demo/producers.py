"""The producers of the demo: tasks that append, and report what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

from walstore.cli.demo.identity import KEY, digest
from walstore.cli.demo.samples import take
from walstore.cli.demo.texts import Texts
from walstore.log.wal import Wal

Acknowledge = Callable[[int, int, int], None]
"""Called with a producer's number, how many of its records are on disk, and their checksum."""

_READ_APPENDS = 8
"""For how many appends text is read at once."""


class NumberedRecords:
    """Numbers and sums up the records of one producer."""

    def __init__(self, wal: Wal, number: int, stream: str, acknowledge: Acknowledge) -> None:
        self._wal = wal
        self._number = number
        self._stream = stream
        self._acknowledge = acknowledge
        self._count = 0
        self._checksum = 0

    def _key(self, rows: int) -> bytes:
        """Return the key of the next records."""
        return KEY.pack(self._number, self._count, rows)

    def _tell(self, values: list[bytes]) -> None:
        """The values are on disk: say so."""
        self._count += len(values)
        self._checksum = digest(values, self._checksum)
        self._acknowledge(self._number, self._count, self._checksum)


class SampleProducer(NumberedRecords):
    """Appends samples of one kind, each when the one before is on disk."""

    def __init__(
        self,
        wal: Wal,
        number: int,
        stream: str,
        acknowledge: Acknowledge,
        *,
        latencies_us: array[int],
        begun_ns: dict[bytes, int],
    ) -> None:
        """Note latencies of appends in ``latencies_us``, and by key when each began in ``begun_ns``."""
        super().__init__(wal, number, stream, acknowledge)
        self._latencies_us = latencies_us
        self._begun_ns = begun_ns

    async def run(self, stop: asyncio.Event) -> None:
        """Append until ``stop`` is set. Owned by the child's task group."""
        clock = time.monotonic_ns
        while not stop.is_set():
            value = await asyncio.to_thread(take, self._stream, clock())
            key = self._key(1)
            self._begun_ns[key] = begin = clock()
            await self._wal.append(value, key=key, stream=self._stream)
            self._latencies_us.append((clock() - begin) // 1000)
            self._tell([value])


class TextProducer(NumberedRecords):
    """Appends lines of source files, many to an append, as fast as the log and the store take them."""

    def __init__(
        self,
        wal: Wal,
        number: int,
        stream: str,
        acknowledge: Acknowledge,
        *,
        texts: Texts,
        lines: int,
        backlog: int,
    ) -> None:
        """Append ``lines`` at a time, and wait for the store when it is ``backlog`` records behind."""
        super().__init__(wal, number, stream, acknowledge)
        self._texts = texts
        self._lines = lines
        self._backlog = backlog

    async def run(self, stop: asyncio.Event) -> None:
        """Append until ``stop`` is set. Owned by the child's task group."""
        wal = self._wal
        while not stop.is_set():
            lines = await asyncio.to_thread(self._texts.next_lines, _READ_APPENDS * self._lines)
            for at in range(0, len(lines), self._lines):
                values = lines[at : at + self._lines]
                span = await wal.append_many(
                    values, key=self._key(len(values)), stream=self._stream
                )
                self._tell(values)
                if stop.is_set():
                    return
                if span.stop - wal.uploaded_limit > self._backlog:
                    await wal.wait_durable(span.stop - self._backlog, "cloud")
