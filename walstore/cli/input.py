"""Records from stdin: reading without blocking the event loop, and cutting bytes into records."""

from __future__ import annotations

import asyncio
import io
import struct
import sys
from collections.abc import AsyncIterator, Iterator

import aiofiles

from walstore.cli.errors import InputError, UsageError
from walstore.cli.output import complain
from walstore.core.settings import MIB
from walstore.errors import RecordTooLargeError

CHUNK_BYTES = 1 << 20


def require_stdin() -> None:
    """Raise UsageError if stdin is closed, before anything is created or changed."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(
            "stdin is closed; records come from stdin: give a pipe, a file or /dev/null"
        )


async def read_stdin(stop: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield what arrives on stdin, as soon as it does, until it ends or ``stop`` is set.

    The thread that reads is only asked once there is something to read: one that waits in a read for
    input could not be stopped. ``stop`` never interrupts a read, so no byte is taken from
    stdin and then lost. Raises InputError if stdin cannot be read.
    """
    while True:
        await _readable(stop)
        if stop.is_set():
            return
        try:
            chunk = await aiofiles.stdin_bytes.read1(CHUNK_BYTES)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"stdin cannot be read: {reason}") from error
        if not chunk:
            return
        yield chunk


async def _readable(stop: asyncio.Event) -> None:
    """Return once stdin has something, or ``stop`` is set."""
    try:
        descriptor = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a file, which is always readable
        return
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(event.wait()) for event in (ready, stop)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(descriptor)
            for task in waiting:
                task.cancel()


_LENGTH = struct.Struct(">I")
MOST_RECORD_BYTES = 512 * MIB
"""Largest record that a log may allow."""


class Lines:
    """A record for each line, without its newline; the last line needs none. Takes chunks of any size."""

    unit = "line"

    def __init__(self, max_record_bytes: int = 16 * MIB) -> None:
        self.max_record_bytes = max_record_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._count = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes since the last newline."""
        return self._rest_bytes

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that the chunk completes; RecordTooLargeError also for an endless one."""
        first, *others = chunk.split(b"\n")
        self._gather(first)
        for following in others:
            self._count += 1
            yield b"".join(self._rest)
            self._rest, self._rest_bytes = [], 0
            self._gather(following)

    def finish(self) -> Iterator[bytes]:
        """Yield the last line if it has no newline."""
        if self._rest_bytes:
            yield b"".join(self._rest)

    def _gather(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > self.max_record_bytes:
            raise RecordTooLargeError(
                f"line {self._count + 1} is longer than {self.max_record_bytes} bytes; "
                f"--max-record-bytes allows up to {MOST_RECORD_BYTES}",
                size_bytes=self._rest_bytes,
                limit_bytes=self.max_record_bytes,
            )


class LengthPrefixed:
    """Records of a big-endian u32 length and so many bytes. Takes chunks of any size."""

    unit = "record"

    def __init__(self, max_record_bytes: int = 16 * MIB) -> None:
        self.max_record_bytes = max_record_bytes
        self._rest = bytearray()
        self._count = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes since the last whole record."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the records that the chunk completes; RecordTooLargeError for an impossible length."""
        self._rest += chunk
        at = 0
        try:
            while len(self._rest) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._rest, at)
                self._check(size)
                end = at + _LENGTH.size + size
                if len(self._rest) < end:
                    break
                record = bytes(self._rest[at + _LENGTH.size : end])
                at = end
                self._count += 1
                yield record
        finally:
            del self._rest[:at]

    def finish(self) -> Iterator[bytes]:
        """Yield nothing; UsageError if the input ends within a record."""
        if self._rest:
            raise UsageError(
                f"the input ends within record {self._count + 1}: {len(self._rest)} bytes are left"
            )
        return iter(())

    def _check(self, size: int) -> None:
        if size > self.max_record_bytes:
            raise RecordTooLargeError(
                f"record {self._count + 1} of the input claims {size} bytes, more than "
                f"{self.max_record_bytes}; is the input length-prefixed, big-endian? if so, "
                f"--max-record-bytes allows up to {MOST_RECORD_BYTES}",
                size_bytes=size,
                limit_bytes=self.max_record_bytes,
            )


Splitter = Lines | LengthPrefixed
"""Yields whole records; RecordTooLargeError or UsageError after those before it."""


async def read_records(splitter: Splitter, stop: asyncio.Event) -> AsyncIterator[Iterator[bytes]]:
    """Yield the records of stdin, those that a read completed together, until it ends or ``stop`` is set.

    Half a record that ``stop`` cut off is not a record; stderr says how many bytes of it were read. Iterating
    over the records raises the errors of the splitter.
    """
    async for chunk in read_stdin(stop):
        yield splitter.feed(chunk)
    if not stop.is_set():
        yield splitter.finish()
    elif splitter.pending_bytes:
        complain(
            f"stopped within a record: its first {splitter.pending_bytes} bytes were not appended"
        )
