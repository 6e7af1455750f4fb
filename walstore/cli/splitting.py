"""Cutting a stream of bytes into records. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from walstore.cli.errors import UsageError
from walstore.errors import RecordTooLargeError
from walstore.settings import MIB

_LENGTH = struct.Struct(">I")
MOST_RECORD_BYTES = 512 * MIB
"""Largest record that a log may allow."""


class Splitter(Protocol):
    """Takes chunks of any size and gives back whole records."""

    max_record_bytes: int

    @property
    def pending_bytes(self) -> int:
        """Bytes of the record that is not whole yet."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the records that the chunk completes; RecordTooLargeError behind those before it."""

    def finish(self) -> Iterator[bytes]:
        """Yield what is left at the end of the input; UsageError if that is no whole record."""


class Lines:
    """A record for each line, without its newline; the last line needs none."""

    def __init__(self, max_record_bytes: int = 16 * MIB) -> None:
        self.max_record_bytes = max_record_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes since the last newline."""
        return self._rest_bytes

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that the chunk completes; RecordTooLargeError also for an endless one."""
        first, *others = chunk.split(b"\n")
        self._gather(first)
        for following in others:
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
                f"a line is longer than {self.max_record_bytes} bytes; "
                f"--max-record-bytes allows up to {MOST_RECORD_BYTES}",
                size_bytes=self._rest_bytes,
                limit_bytes=self.max_record_bytes,
            )


class LengthPrefixed:
    """Records of a big-endian u32 length and so many bytes."""

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
