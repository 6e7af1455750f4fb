"""What the child tells its parent through the pipe: msgpack arrays, the first item says which kind."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any, Final

import msgpack

OPENED: Final = "opened"
"""The log is open: a map of what opening found."""
PRODUCER: Final = "producer"
"""A producer begins: its number and its stream."""
ACK: Final = "ack"
"""A producer's records are on disk: its number, how many so far, and their checksum."""
STATUS: Final = "status"
"""Where the log stands: a map of counters, and latencies since the last one."""
STOPPED: Final = "stopped"
"""The producers have stopped."""
CLOSED: Final = "closed"
"""The log was closed cleanly: a map of counters."""


class Pipe:
    """The child's end. Messages leave at once; nothing here waits for the parent."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        """Write to ``transport``, made with a :class:`Watch`."""
        self._transport = transport
        self._pack = msgpack.Packer().pack

    def send(self, kind: str, *items: Any) -> None:
        """Send a message."""
        self._transport.write(self._pack([kind, *items]))

    def close(self) -> None:
        """Send what is left, then close."""
        self._transport.close()


async def receive(reader: asyncio.StreamReader) -> AsyncIterator[list[Any]]:
    """Yield the messages of a child until its end of the pipe is closed.

    Of a message that the child was killed in the middle of, nothing is seen.
    """
    unpacker = msgpack.Unpacker()
    while data := await reader.read(1 << 16):
        unpacker.feed(data)
        for message in unpacker:
            yield message


def pack_latencies(samples_us: array[int]) -> bytes:
    """Return latencies for a message, and forget them."""
    data = samples_us.tobytes()
    del samples_us[:]
    return data


def unpack_latencies(data: bytes) -> array[int]:
    """Return latencies from a message."""
    samples = array("I")
    samples.frombytes(data)
    return samples


class Watch(asyncio.BaseProtocol):
    """Cancels a task when the reader of a pipe is gone: nobody is left to work for."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport; with None after a close of our own."""
        if exc is not None:
            self._task.cancel()
