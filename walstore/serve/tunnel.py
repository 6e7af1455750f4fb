"""Tunnel: the bytes of a client on their way to the machine that leads its log, and back.

The greeting is passed on with ``direct``, so that the other machine does not pass it on again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Final, cast

from walstore.errors import StorageUnavailableError
from walstore.net.wire.address import Address
from walstore.net.wire.message import PREAMBLE, Kind, Message, encode

_QUIET_SECONDS: Final = 0.1
"""After so long without an answer a stopping server ends a tunnel."""


class Tunnel(asyncio.Protocol):
    """The connection to the other machine. Belongs to the event loop of its client's connection."""

    def __init__(self, client: asyncio.Transport) -> None:
        """Write what comes back to ``client``, which is closed when the connection ends."""
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._preamble = bytearray()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers = 0

    async def connect(
        self, address: Address, tls: ssl.SSLContext | None, greeting: Message, seconds: float
    ) -> None:
        """Connect and pass the greeting on. StorageUnavailableError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                if address.scheme == "unix":
                    await loop.create_unix_connection(lambda: self, address.path)
                else:
                    trust = None
                    if address.scheme == "tls":
                        trust = tls or ssl.create_default_context()
                    await loop.create_connection(
                        lambda: self, address.host, address.port, ssl=trust
                    )
        except (OSError, TimeoutError) as error:
            self.close()
            raise StorageUnavailableError(
                f"the log is led at {address}, which does not answer: {error}"
            ) from error
        self.send(PREAMBLE)
        head: dict[str, Any] = {**greeting.head, "direct": True}
        self.send_message(greeting._replace(head=head))

    # -- from the client ---------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._transport is not None:
            self._transport.write(data)

    def send_message(self, message: Message) -> None:
        """Pass on a message that was decoded before it was clear where it goes."""
        pieces = encode(Kind(message.kind), message.id, message.head, [message.payload])
        for piece in pieces:
            self.send(bytes(piece))

    def pause(self, *, is_paused: bool) -> None:
        """Read no answers while the client takes none."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    async def drained(self) -> None:
        """Return when no answer has come for a moment, or the connection has ended."""
        seen = -1
        while seen != self._answers and not self._lost.done():
            seen = self._answers
            await asyncio.wait([self._lost], timeout=_QUIET_SECONDS)

    # -- from the other machine --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass answers back, without the preamble: the client has had one."""
        self._answers += 1
        missing = len(PREAMBLE) - len(self._preamble)
        if missing > 0:
            self._preamble += data[:missing]
            data = data[missing:]
        if data and not self._client.is_closing():
            self._client.write(data)

    def pause_writing(self) -> None:
        """Read no more of the client while the other machine takes nothing."""
        if not self._client.is_closing():
            self._client.pause_reading()

    def resume_writing(self) -> None:
        """Read of the client again."""
        if not self._client.is_closing():
            self._client.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """End the client's connection: it connects again, and is led to the next leader."""
        self._client.close()
        if not self._lost.done():
            self._lost.set_result(None)


def pass_on(tunnel: Tunnel, messages: Sequence[Message], rest: bytes) -> None:
    """Pass on what the client sent behind its greeting."""
    for message in messages:
        tunnel.send_message(message)
    if rest:
        tunnel.send(rest)
