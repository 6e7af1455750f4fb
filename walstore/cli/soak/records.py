"""The records of a soak, and the check that a log holds each of them once. Pure.

A record follows from the seed, its stream and its number, which counts from 1 in each stream. So a reader
checks any record by making it again, and keeps one number for each stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from walstore import Batch

STREAMS: Final = [f"stream-{at}" for at in range(8)]
"""Names of the streams, which here go by their places in this list. The key of a record is the same."""
MOST_PROBLEMS: Final = 20
"""Problems that one check names; there may be more."""

_PLACES: Final = {name: at for at, name in enumerate(STREAMS)}
_HEADER: Final = struct.Struct(">HQI")
"""Stream, number, CRC-32C of the filler."""
_CHANCE: Final = struct.Struct(">QHQ")
_BLOCK_BYTES: Final = 1 << 16
_MOST_FILLER: Final = 1 << 10


class Generator:
    """Makes the records of a seed, which is 0 to 2**64 - 1. Fillers have 0 to 1023 bytes, mostly few."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = random.Random(seed).randbytes(_BLOCK_BYTES + _MOST_FILLER)

    def value(self, stream: int, number: int) -> bytes:
        """Return the value of a stream's record."""
        chance = crc32c(_CHANCE.pack(self._seed, stream, number))
        size = (chance >> 16) & ((16 << (chance & 0xFF) % 7) - 1)
        at = chance & (_BLOCK_BYTES - 1)
        filler = self._block[at : at + size]
        return _HEADER.pack(stream, number, crc32c(filler)) + filler

    def identify(self, value: bytes) -> tuple[int, int] | None:
        """Return stream and number of a value; None if it is none of ours, or was altered."""
        if len(value) < _HEADER.size:
            return None
        stream, number, _ = _HEADER.unpack_from(value)
        is_ours = stream < len(STREAMS) and value == self.value(stream, number)
        return (stream, number) if is_ours else None


class Checker:
    """Takes the records of a log in their order and notes whatever is not 1:1 with what was made."""

    def __init__(self, seed: int, position: int, numbers: Sequence[int]) -> None:
        """Begin at offset ``position``, where ``numbers`` are the next ones of the streams.

        A number of 0 is not known: the first record found is believed.
        """
        self.position = position
        """Next offset to read."""
        self.numbers = list(numbers)
        """By stream, the number of its next record."""
        self.problems: list[str] = []
        self._generator = Generator(seed)
        self._missing: list[set[int]] = [set() for _ in STREAMS]

    def take(self, batch: Batch) -> None:
        """Check the next records."""
        if batch.start != self.position or len(batch) != batch.limit - batch.start:
            self._complain(
                f"{len(batch)} records of offsets [{batch.start}, {batch.limit}) were read at "
                f"{self.position}"
            )
        offset = batch.start
        for name, key, value in zip(batch.streams, batch.keys, batch.values, strict=True):
            stream = _PLACES.get(name or "", -1)
            if stream < 0 or key != STREAMS[stream].encode():
                self._complain(f"offset {offset}: nobody appended key {key!r} to stream {name}")
            elif value == self._generator.value(stream, self.numbers[stream]):
                self.numbers[stream] += 1
            else:
                self._explain(offset, stream, value)
            offset += 1
        self.position = batch.limit

    def _explain(self, offset: int, stream: int, value: bytes) -> None:
        """Say why a record is not the next of its stream, and go on behind it."""
        expected, found = self.numbers[stream], self._generator.identify(value)
        if found is None:
            self._complain(f"offset {offset}: record {expected} of stream {stream} was altered")
            self.numbers[stream] += 1
        elif found[0] != stream:
            self._complain(f"offset {offset}: a record of stream {found[0]} is in stream {stream}")
        elif found[1] in self._missing[stream]:
            self._missing[stream].discard(found[1])
            self._complain(f"offset {offset}: record {found[1]} of stream {stream} is out of order")
        elif found[1] < expected:
            self._complain(f"offset {offset}: record {found[1]} of stream {stream} is there twice")
        else:
            self.numbers[stream] = found[1] + 1
            if expected:
                # A record that is far ahead was never made, so only the last 1000 missing ones are noted.
                first = max(expected, found[1] - 1000)
                self._missing[stream].update(range(first, found[1]))
                self._complain(
                    f"offset {offset}: stream {stream} has record {found[1]} where {expected} is "
                    "missing"
                )

    def _complain(self, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)
