"""Stamp: the publisher of a message, its clock, and whether it is committed; and the clock itself.

A message is a record with one header of the reserved name :data:`HEADER`. Its 16 bytes are laid out in
docs/messages.md. Records without it are ordinary records and count as committed. Pure, except for
:func:`new_producer_id` and the clock that :class:`MessageClock` takes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from walstore.core.ports import Clock
from walstore.errors import FormatVersionError
from walstore.records import Record

HEADER: Final = "walstore.stamp"
"""Name of the header that carries the stamp. Reserved: publishers refuse it from callers."""
VERSION: Final = 1
LAYOUT: Final = struct.Struct("<BB6sQ")
PRODUCER_BYTES: Final = 6
MAX_CLOCK: Final = 2**64 - 1

_MULTICAST: Final = 0x01

COUNTER_BITS: Final = 4
"""Low bits of a clock value; the 60 above count units of 100 ns since 1970 UTC."""
_TICKS_PER_MICROSECOND: Final = 10 << COUNTER_BITS


class Flag(IntEnum):
    """The effect of a message on the transaction of its producer in its log."""

    OUTSIDE = 0
    """Committed at once, independently."""
    CONTINUE = 1
    """Pending until the producer's next acknowledgement in this log."""
    ACK = 2
    """Commits the pending messages with clocks up to its own; rolls back if there is nothing new."""
    ABORT = 3
    """Rolls back all pending messages of the producer in this log; its clock is ignored."""


class Stamp(NamedTuple):
    """The stamp of one message."""

    producer: bytes
    """Identity of the publisher, :data:`PRODUCER_BYTES` bytes."""
    clock: int
    """Strictly increasing for each producer, over all logs; 0: not tracked."""
    flag: int
    """One of :class:`Flag`; other numbers are read as OUTSIDE."""

    def encode(self) -> bytes:
        """Return the header's value; ValueError for fields out of range."""
        if len(self.producer) != PRODUCER_BYTES:
            raise ValueError(
                f"a producer id has {PRODUCER_BYTES} bytes, not {len(self.producer)}; "
                "use new_producer_id()"
            )
        if not 0 <= self.clock <= MAX_CLOCK:
            raise ValueError(f"clock {self.clock} does not fit 64 bits")
        return LAYOUT.pack(VERSION, self.flag, self.producer, self.clock)

    @classmethod
    def decode(cls, data: bytes, where: str = "stamp") -> Stamp:
        """Parse a header's value; FormatVersionError, naming ``where``, if this version cannot."""
        if len(data) != LAYOUT.size or data[0] != VERSION:
            found = data[0] if len(data) == LAYOUT.size else f"{len(data)} bytes"
            raise FormatVersionError(
                f"the header {HEADER!r} is not a stamp of a known version",
                path=where,
                found=found,
                supported=VERSION,
            )
        _, flag, producer, clock = LAYOUT.unpack(data)
        return cls(producer, clock, flag)

    @classmethod
    def of(cls, record: Record) -> Stamp | None:
        """Return the stamp of a record, or None if it has none."""
        data = record.headers.get(HEADER)
        return None if data is None else cls.decode(data, f"record {record.offset}")


def stamped(headers: Mapping[str, bytes] | None, stamp: Stamp) -> dict[str, bytes]:
    """Return a caller's headers with a stamp added; ValueError if they use its name."""
    if headers and HEADER in headers:
        raise ValueError(f"the header name {HEADER!r} is reserved; choose another")
    return {**(headers or {}), HEADER: stamp.encode()}


def new_producer_id(entropy: Callable[[int], bytes] = os.urandom) -> bytes:
    """Return a producer id: 47 random bits, with the multicast bit of a MAC address set.

    ``entropy(n)`` gives n random bytes. Make a new id for every publisher and never use one again:
    readers drop what an id published before as a duplicate.
    """
    first, *rest = entropy(PRODUCER_BYTES)
    return bytes([first | _MULTICAST, *rest])


class MessageClock:
    """Gives each message of a publisher its clock value.

    A value is the wall time in units of 100 ns, shifted left by four bits; or the value before plus
    one, if that is more. So values increase strictly even if the wall clock stops or goes back, and run
    ahead of it only above 160 values per microsecond. One event loop; nothing is awaited.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last = 0
        """The last value returned; 0 before the first."""

    def tick(self) -> int:
        """Return the next value, at least 1."""
        now = self._clock.now_us() * _TICKS_PER_MICROSECOND
        self.last = max(self.last + 1, now)
        return self.last


def time_us(value: int) -> int:
    """Return the wall time in a clock value, in microseconds since 1970 UTC."""
    return value // _TICKS_PER_MICROSECOND
