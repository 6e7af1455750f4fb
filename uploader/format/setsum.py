"""Setsum: a checksum of a multiset of byte strings that can be added and subtracted.

Owns the arithmetic (eight columns, each modulo a prime just below 2**32), the hex form found in
manifests, and the fast way to sum many records. Pure, except that the bulk functions let other
threads run between slices. Never reads or writes anything.

An item's state is its SHA3-256, cut into eight little-endian u32. Sums do not depend on order, and
``whole - part`` is the sum of the rest, which is how a log proves that nothing was lost. It guards
against faults, not against deliberately forged items.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Final

PRIMES: Final = (
    4_294_967_291,
    4_294_967_279,
    4_294_967_231,
    4_294_967_197,
    4_294_967_189,
    4_294_967_161,
    4_294_967_143,
    4_294_967_111,
)
"""One modulus per column."""
DIGEST_BYTES: Final = 32
HEX_DIGITS: Final = 2 * DIGEST_BYTES

_COLUMNS: Final = struct.Struct("<8I")
_LANES: Final = struct.Struct("<4Q")
_RECORD_PREFIX: Final = struct.Struct(">QQ")
_ZERO: Final = (0,) * 8

SLICE_ITEMS: Final = 256
"""Items whose digests are summed at once."""
ITEM_WORK: Final = 400
"""Cost of an item in addition to its bytes, in bytes: about 1 µs, the time to hash that many."""
PAUSE_WORK: Final = 256 * 1024
"""Work between two pauses: less than 1 ms. A pause takes some 50 µs, and less often would make the event
loop wait the interpreter's 5 ms for its turn each time it wakes up."""

# A slice's digests are read as one big integer. Its even columns, then its odd ones, are put alone
# into 64-bit lanes, where 2**32 of them can be added without a carry into the next lane; folding the
# integer in halves adds all digests in log2(SLICE_ITEMS) steps.
_DIGEST_BITS: Final = 8 * DIGEST_BYTES
_EVEN_LANES: Final = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * 4 * SLICE_ITEMS, "little")
_FOLDS: Final = tuple(
    (_DIGEST_BITS << step, (1 << (_DIGEST_BITS << step)) - 1)
    for step in reversed(range(SLICE_ITEMS.bit_length() - 1))
)


@dataclass(frozen=True, slots=True, repr=False)
class Setsum:
    """An immutable sum of items. ``Setsum()`` is the sum of none; ``+`` and ``-`` combine sums."""

    columns: tuple[int, ...] = _ZERO
    """Eight numbers, each below its prime."""

    def __post_init__(self) -> None:
        """Refuse columns that no sum can have; ValueError."""
        columns = self.columns
        if len(columns) != 8 or min(columns) < 0 or not all(map(lt, columns, PRIMES)):
            raise ValueError(f"setsum columns are out of range: {columns}")

    @classmethod
    def of_items(cls, items: Iterable[bytes]) -> Setsum:
        """Return the sum of the items. Blocks while it hashes: not for the event loop."""
        fresh = hashlib.sha3_256().copy
        remaining = iter(items)
        even = odd = work = 0
        while batch := list(islice(remaining, SLICE_ITEMS)):
            digests = []
            for item in batch:
                # Copying a fresh hash is faster than making one, which looks up the algorithm.
                state = fresh()
                state.update(item)
                digests.append(state.digest())
            even, odd = _fold(digests, even, odd)
            work = _pause_if_due(work, len(batch), sum(map(len, batch)))
        return _from_lanes(even, odd)

    @classmethod
    def of_records(cls, start_offset: int, timestamp_us: int, values: Sequence[bytes]) -> Setsum:
        """Return the sum of records at ``start_offset`` and up, all of one fragment's time.

        The item of a record is its offset and the time, each as 8 bytes big-endian, then its value.
        ValueError if an offset or the time does not fit 64 bits. Sums of parts add up, so a caller may
        as well go slice by slice. Blocks while it hashes (not for the event loop), but pauses about
        every millisecond so that other threads, the event loop's above all, get their turn.
        """
        _check_u64(start_offset, start_offset + len(values), timestamp_us)
        fresh = hashlib.sha3_256().copy
        prefix = _RECORD_PREFIX.pack
        even = odd = work = 0
        for low in range(0, len(values), SLICE_ITEMS):
            digests = []
            batch = values[low : low + SLICE_ITEMS]
            # The body repeats that of of_items: a generator between the two costs a tenth.
            for offset, value in enumerate(batch, start_offset + low):
                state = fresh()
                state.update(prefix(offset, timestamp_us))
                state.update(value)
                digests.append(state.digest())
            even, odd = _fold(digests, even, odd)
            work = _pause_if_due(work, len(batch), sum(map(len, batch)))
        return _from_lanes(even, odd)

    @classmethod
    def of_slices(
        cls, start_offset: int, timestamp_us: int, data: memoryview, bounds: Sequence[int]
    ) -> Setsum:
        """As :meth:`of_records` of the values ``data[bounds[0]:bounds[1]]``, ``data[bounds[1]:bounds[2]]``
        and so on, none of which is copied: a fifth faster for 1 KiB.
        """
        rows = len(bounds) - 1
        _check_u64(start_offset, start_offset + rows, timestamp_us)
        fresh = hashlib.sha3_256().copy
        prefix = _RECORD_PREFIX.pack
        even = odd = work = 0
        for low in range(0, rows, SLICE_ITEMS):
            digests = []
            cuts = bounds[low : low + SLICE_ITEMS + 1]
            begin = cuts[0]
            for offset, end in enumerate(cuts[1:], start_offset + low):
                state = fresh()
                state.update(prefix(offset, timestamp_us))
                state.update(data[begin:end])
                digests.append(state.digest())
                begin = end
            even, odd = _fold(digests, even, odd)
            work = _pause_if_due(work, len(digests), begin - cuts[0])
        return _from_lanes(even, odd)

    @classmethod
    def total(cls, sums: Iterable[Setsum]) -> Setsum:
        """Return the sum of sums, faster than adding them one by one."""
        columns = zip(*(one.columns for one in sums), strict=True)
        summed = tuple(sum(column) % prime for column, prime in zip(columns, PRIMES, strict=False))
        return cls(summed or _ZERO)

    @classmethod
    def from_digest(cls, digest: bytes) -> Setsum:
        """Return the sum with that digest; ValueError unless it is 32 bytes in canonical form."""
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"a setsum has {DIGEST_BYTES} bytes, not {len(digest)}")
        return cls(_COLUMNS.unpack(digest))

    @classmethod
    def from_hexdigest(cls, text: str) -> Setsum:
        """Return the sum written as ``text``.

        ValueError unless it is what :meth:`hexdigest` writes: 64 lowercase hex digits, every column
        below its prime.
        """
        digest = _unhex(text)
        if len(text) != HEX_DIGITS or digest.hex() != text:
            raise ValueError(f"a setsum is {HEX_DIGITS} lowercase hex digits, not {text[:80]!r}")
        return cls.from_digest(digest)

    def digest(self) -> bytes:
        """Return the 32 bytes: the columns as little-endian u32."""
        return _COLUMNS.pack(*self.columns)

    def hexdigest(self) -> str:
        """Return the digest as 64 lowercase hex digits, as manifests hold it."""
        return self.digest().hex()

    def __add__(self, other: Setsum) -> Setsum:
        """Return the sum of the items of both."""
        return Setsum(
            tuple(
                (left + right) % prime
                for left, right, prime in zip(self.columns, other.columns, PRIMES, strict=True)
            )
        )

    def __sub__(self, other: Setsum) -> Setsum:
        """Return what added to ``other`` gives this sum."""
        return Setsum(
            tuple(
                (left - right) % prime
                for left, right, prime in zip(self.columns, other.columns, PRIMES, strict=True)
            )
        )

    def __repr__(self) -> str:
        return f"Setsum({self.hexdigest()})"


def _unhex(text: str) -> bytes:
    """Return what hex digits mean, or nothing for other text."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _fold(digests: Sequence[bytes], even: int, odd: int) -> tuple[int, int]:
    """Add at most SLICE_ITEMS digests to four even and four odd columns, each in a 64-bit lane."""
    joined = int.from_bytes(b"".join(digests), "little")
    evens = joined & _EVEN_LANES
    odds = (joined >> 32) & _EVEN_LANES
    for bits, mask in _FOLDS:
        evens = (evens & mask) + (evens >> bits)
        odds = (odds & mask) + (odds >> bits)
    return even + evens, odd + odds


def _from_lanes(even: int, odd: int) -> Setsum:
    evens = _LANES.unpack(even.to_bytes(DIGEST_BYTES, "little"))
    odds = _LANES.unpack(odd.to_bytes(DIGEST_BYTES, "little"))
    lanes = (lane for pair in zip(evens, odds, strict=True) for lane in pair)
    return Setsum(tuple(lane % prime for lane, prime in zip(lanes, PRIMES, strict=True)))


def _check_u64(start: int, limit: int, timestamp_us: int) -> None:
    if not (0 <= start <= limit < 1 << 64 and 0 <= timestamp_us < 1 << 64):
        raise ValueError(f"not 64-bit numbers: [{start}, {limit}) at {timestamp_us}")


def _pause_if_due(work: int, items: int, size_bytes: int) -> int:
    """Let other threads run if enough was done; return the work done since the last pause."""
    work += ITEM_WORK * items + size_bytes
    if work < PAUSE_WORK:
        return work
    time.sleep(0)  # noqa: TID251 - no wait is meant: it lets go of the interpreter lock
    return 0
