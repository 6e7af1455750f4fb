"""Child processes of the demo and the soak: their start, their messages to the parent, and latencies."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import IO, Any, Final

import msgpack

RESERVOIR: Final = 200_000


async def start_child(
    module: str, argument: str, *, stderr: int | IO[Any] = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    """Start ``python -m module argument`` with a pipe as its stdout."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, argument),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is the parent's to handle
    )


def say(*message: Any) -> None:
    """Write a message to the parent, and return once the pipe contains it.

    The child's next step begins after that. BrokenPipeError if the parent has ended.
    """
    data = memoryview(msgpack.packb(message))
    while data:
        data = data[os.write(1, data) :]


async def receive(reader: asyncio.StreamReader) -> AsyncIterator[list[Any]]:
    """Yield the messages of a child until its end of the pipe is closed.

    A message that a kill cut off is dropped.
    """
    unpacker = msgpack.Unpacker()
    while data := await reader.read(1 << 16):
        unpacker.feed(data)
        for message in unpacker:
            yield message


class LatencySamples:
    """Percentiles over many samples in bounded memory. Samples are in microseconds."""

    def __init__(self, *, capacity: int = RESERVOIR) -> None:
        """Keep the first ``capacity`` samples, and a uniform choice of all samples after that."""
        self._capacity = capacity
        self._random = random.Random(1)
        self._kept = array("I")
        self.count = 0
        """How many samples were added."""

    def add(self, samples_us: Iterable[int]) -> None:
        """Add samples."""
        for sample in samples_us:
            self.count += 1
            if len(self._kept) < self._capacity:
                self._kept.append(sample)
                continue
            at = self._random.randrange(self.count)
            if at < self._capacity:
                self._kept[at] = sample

    def milliseconds(self, percent: float) -> float | None:
        """Return the value that ``percent`` of the samples do not exceed; None if there are none."""
        if not self._kept:
            return None
        ordered = sorted(self._kept)
        at = min(int(len(ordered) * percent / 100), len(ordered) - 1)
        return ordered[at] / 1e3
