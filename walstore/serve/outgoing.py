"""Outgoing: the answers on their way to one client.

Short ones are written at once: there are as many as requests in progress. All others are made one after the
other, each once there is room for it: of this client, which may have taken too little of what it was sent,
and of the server, whose clients share a budget. So thousands of reads that wait hold nothing, and are served
in turn as their client takes its answers. A client that has taken nearly all always gets a short answer.

The transport gets no more than a little ahead of what the client takes, so that a large answer is held once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from walstore.core.append.budgets import ChannelBudget
from walstore.serve.answer import PreparedAnswer, size_of
from walstore.serve.room import Room

SHORT_BYTES: Final = 64 << 10
"""An answer of up to so much costs nothing of the budget, nor does what a client has not taken of so much."""

TAKER_BYTES: Final = 512 << 10
"""A client that has taken so much takes its answers: a socket of the default size holds 180 KiB for one that
takes nothing (:func:`limit_ahead`), and one with a receive buffer of 256 KiB nearly as much as this."""
_AHEAD_BYTES: Final = 64 << 10

Pieces = Sequence[bytes | memoryview]


class Outgoing:
    """What one client is sent. Belongs to the event loop of the server."""

    def __init__(self, budget: ChannelBudget, most_bytes: int) -> None:
        """Hold up to ``most_bytes`` that the client has not taken, of what ``budget`` has for all."""
        self._most_bytes = most_bytes
        # What waits in the transport, and room for the answer that is being made.
        self._waiting, self._making = Room(budget), Room(budget)
        self._transport: asyncio.Transport | None = None
        self._turn = asyncio.Lock()
        # Of the messages that were written, what the transport has not been given.
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        # Of the first of their pieces, what it was given: all of it is in memory until its end is sent.
        self._begun_bytes = 0
        self._written_bytes = 0
        self._has_taken = asyncio.Event()
        self._has_taken.set()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_writable(self) -> bool:
        """Whether the client takes its answers."""
        return self._writable.is_set()

    @property
    def held_bytes(self) -> int:
        """What it takes of the budget."""
        return self._waiting.held_bytes + self._making.held_bytes

    @property
    def taken_bytes(self) -> int | None:
        """What the client has taken so far; None if nothing waits for it."""
        left = self._left_bytes
        return self._written_bytes - left if left else None

    @property
    def _left_bytes(self) -> int:
        """What the client has not taken."""
        transport = self._transport
        return self._unsent_bytes + (transport.get_write_buffer_size() if transport else 0)

    def begin(self, transport: asyncio.Transport) -> None:
        """Write to a transport."""
        self._transport = transport
        limit_ahead(transport)

    def write(self, pieces: Pieces) -> None:
        """Write a message now, behind those before."""
        if self._transport is None or self._transport.is_closing():
            return
        size = size_of(pieces)
        self._written_bytes += size
        self._unsent.extend(pieces)
        self._unsent_bytes += size
        if self._send_on() > self._most_bytes:
            self._writable.clear()

    def pause(self) -> None:
        """The client has not taken a short answer's bytes yet."""
        self._has_taken.clear()

    def resume(self) -> None:
        """The client has taken nearly all that the transport has."""
        self._has_taken.set()
        self._send_on()
        if self._has_taken.is_set():
            self._writable.set()

    def close(self) -> None:
        """End the connection once all that is written has been sent."""
        if self._transport is None or self._transport.is_closing():
            return
        while self._unsent:
            self._transport.write(self._next_unsent())
        self._transport.close()

    def end(self) -> None:
        """The connection is lost: nothing waits for it."""
        self._unsent.clear()
        self._unsent_bytes = self._begun_bytes = 0
        self._waiting.close()
        self._making.close()
        self._has_taken.set()
        self._writable.set()

    async def send(
        self,
        prepared: PreparedAnswer,
        encode: Callable[[Any], Pieces],
        write: Callable[[Pieces], None],
    ) -> None:
        """Make an answer when it is its turn and there is room for it, and write it."""
        async with self._turn:
            room = await self._room(prepared.most_bytes)
            try:
                pieces = encode(await prepared.make(room))
                while (size := size_of(pieces)) > max(room, SHORT_BYTES) and not self._has_room(
                    size - room
                ):
                    del pieces  # nothing is held while it waits
                    self._making.hold(0)
                    await self._has_taken.wait()
                    await self._making.wait(size, is_first=self._is_taker)
                    room = size
                    pieces = encode(await prepared.make(room))
                write(pieces)
            finally:
                self._making.hold(0)

    @property
    def _is_taker(self) -> bool:
        """Whether the client has taken more than its socket holds."""
        return self._written_bytes - self._left_bytes >= TAKER_BYTES

    def _has_room(self, size_bytes: int) -> bool:
        return self._making.has(size_bytes, is_first=self._is_taker)

    async def _room(self, wanted: int) -> int:
        """Return how much the next answer may have."""
        await self._writable.wait()
        if not self._has_room(wanted):
            await self._has_taken.wait()
            wanted = min(wanted, SHORT_BYTES)
        self._making.hold(wanted)
        return wanted

    def _send_on(self) -> int:
        """Give the transport more until the client has to take some; return what it has not taken."""
        transport = self._transport
        assert transport is not None
        while self._unsent and self._has_taken.is_set() and not transport.is_closing():
            transport.write(self._next_unsent())
        left = self._left_bytes
        held = left + self._begun_bytes
        self._waiting.hold(held if held > SHORT_BYTES else 0)
        return left

    def _next_unsent(self) -> bytes | memoryview:
        """Remove and return what is to be sent next: a part of a piece, or several pieces."""
        if len(self._unsent) == 1 and self._unsent_bytes <= SHORT_BYTES:
            self._begun_bytes = self._unsent_bytes = 0
            return self._unsent.popleft()
        taken: list[bytes | memoryview] = []
        room = SHORT_BYTES
        while self._unsent and room:
            piece = self._unsent.popleft()
            if len(piece) <= room:
                self._begun_bytes = 0
            else:
                whole = memoryview(piece)
                piece = whole[:room]
                self._unsent.appendleft(whole[room:])
                self._begun_bytes += room
            taken.append(piece)
            room -= len(piece)
        self._unsent_bytes -= SHORT_BYTES - room
        return taken[0] if len(taken) == 1 else b"".join(taken)


def limit_ahead(transport: asyncio.BaseTransport) -> None:
    """Let a connection take what is sent only a little ahead of its other end.

    Linux takes up to 4 MiB for one that takes nothing, in memory that no process is charged for.
    """
    cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=SHORT_BYTES)
    connection = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and connection is not None and connection.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, option, _AHEAD_BYTES)
