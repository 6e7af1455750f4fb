"""The producers of the demo: tasks that append, and report what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

from walstore.cli.demo.identity import KEY, digest
from walstore.cli.demo.samples import take
from walstore.cli.demo.texts import read_lines, source_files
from walstore.errors import WouldBlock
from walstore.wal import Wal

Acknowledge = Callable[[int, int, int], None]
"""Called with a producer's number, how many of its records are on disk, and their checksum."""

LINES_PER_WAIT = 256


class Producer:
    """Numbers the records of one producer."""

    def __init__(self, wal: Wal, number: int, stream: str, acknowledge: Acknowledge) -> None:
        self._wal = wal
        self._number = number
        self._stream = stream
        self._acknowledge = acknowledge
        self._count = 0
        self._checksum = 0

    def _next_key(self) -> bytes:
        return KEY.pack(self._number, self._count)

    def _note(self, key: bytes, value: bytes) -> None:
        self._count += 1
        self._checksum = digest(key, value, self._checksum)

    def _tell(self) -> None:
        self._acknowledge(self._number, self._count, self._checksum)


class SampleProducer(Producer):
    """Appends samples of one kind, each when the one before is on disk."""

    def __init__(
        self,
        wal: Wal,
        number: int,
        stream: str,
        acknowledge: Acknowledge,
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
            key = self._next_key()
            self._begun_ns[key] = begin = clock()
            await self._wal.append(value, key=key, stream=self._stream)
            self._latencies_us.append((clock() - begin) // 1000)
            self._note(key, value)
            self._tell()


class TextProducer(Producer):
    """Appends lines of source files as fast as the log takes them."""

    def __init__(
        self, wal: Wal, number: int, stream: str, acknowledge: Acknowledge, part: int, parts: int
    ) -> None:
        super().__init__(wal, number, stream, acknowledge)
        self._files = source_files(part, parts)

    async def run(self, stop: asyncio.Event) -> None:
        """Append until ``stop`` is set. Owned by the child's task group."""
        while not stop.is_set():
            lines = await asyncio.to_thread(read_lines, self._files)
            for at in range(0, len(lines), LINES_PER_WAIT):
                last = await self._append_all(lines[at : at + LINES_PER_WAIT])
                await self._wal.wait_durable(last)
                self._tell()
                if stop.is_set():
                    return

    async def _append_all(self, lines: list[bytes]) -> int:
        offset = 0
        for line in lines:
            key = self._next_key()
            try:
                offset = self._wal.append_nowait(line, key=key, stream=self._stream)
            except WouldBlock:
                offset = await self._wal.append(
                    line, key=key, stream=self._stream, durability="memory"
                )
            self._note(key, line)
        return offset
