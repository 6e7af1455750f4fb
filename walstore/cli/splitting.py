"""Cutting a stream of bytes into records. Pure."""

from __future__ import annotations

import struct
from typing import Protocol

from walstore.cli.errors import UsageError
from walstore.errors import RecordTooLargeError
from walstore.settings import MIB

_LENGTH = struct.Struct(">I")


class Splitter(Protocol):
    """Takes chunks of any size and gives back whole records."""

    max_record_bytes: int

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the records that the chunk completes."""

    def finish(self) -> list[bytes]:
        """Return what is left at the end of the input; UsageError if that is no whole record."""


class Lines:
    """A record for each line, without its newline; the last line needs none."""

    def __init__(self) -> None:
        self.max_record_bytes = 16 * MIB
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that the chunk completes; RecordTooLargeError for an endless one."""
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        self._rest_bytes += len(first)
        if self._rest_bytes > self.max_record_bytes:
            raise RecordTooLargeError(
                f"a line is longer than {self.max_record_bytes} bytes; use --length-prefixed for "
                "binary data",
                size_bytes=self._rest_bytes,
                limit_bytes=self.max_record_bytes,
            )
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest = [others[-1]]
        self._rest_bytes = len(others[-1])
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no newline."""
        rest = b"".join(self._rest)
        return [rest] if rest else []


class LengthPrefixed:
    """Records of a big-endian u32 length and so many bytes."""

    def __init__(self) -> None:
        self.max_record_bytes = 16 * MIB
        self._rest = bytearray()
        self._count = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the records that the chunk completes; RecordTooLargeError for an impossible length."""
        self._rest += chunk
        records = []
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._rest, at)
            if size > self.max_record_bytes:
                raise RecordTooLargeError(
                    f"record {self._count + 1} of the input claims {size} bytes, more than "
                    f"{self.max_record_bytes}; is the input length-prefixed, big-endian?",
                    size_bytes=size,
                    limit_bytes=self.max_record_bytes,
                )
            if len(self._rest) - at - _LENGTH.size < size:
                break
            at += _LENGTH.size
            records.append(bytes(self._rest[at : at + size]))
            at += size
            self._count += 1
        del self._rest[:at]
        return records

    def finish(self) -> list[bytes]:
        """Return nothing; UsageError if the input ends within a record."""
        if self._rest:
            raise UsageError(
                f"the input ends within record {self._count + 1}: {len(self._rest)} bytes are left"
            )
        return []
