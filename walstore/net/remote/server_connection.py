"""ServerConnection: one connection of a client. It knows no log; ``client.py`` replaces one that is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from walstore.errors import (
    AccessDeniedError,
    FormatVersionError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from walstore.net.wire.address import Address
from walstore.net.wire.errors import unpack_error
from walstore.net.wire.message import (
    GREETING_BYTES,
    MOST_ANSWER_BYTES,
    MOST_ANSWER_HEAD_BYTES,
    PREAMBLE,
    VERSION,
    Decoder,
    Kind,
    Message,
    ProtocolViolationError,
    encode,
)
from walstore.net.wire.verbs import REGISTERS, Verb

_GREETING: Final = 0
_MOST_TOKEN_CHARS: Final = GREETING_BYTES // 8
_CLOSED: Final = "the server closed the connection"
_BYTES_ACKED: Final = 120
"""Where ``tcpi_bytes_acked`` is in the ``struct tcp_info`` of Linux."""
_TCP_INFO_BYTES: Final = _BYTES_ACKED + 8


class ServerConnection(asyncio.Protocol):
    """A connection to a server. Belongs to one event loop."""

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
        monotonic: Callable[[], float],
    ) -> None:
        """Pass each answer to ``on_message``, and why the connection ended to ``on_lost``, once."""
        self._on_message = on_message
        self._on_lost = on_lost
        self._monotonic = monotonic
        self.heard_at = monotonic()
        """When something of the server arrived last."""
        self.received_bytes = self.sent_bytes = 0
        """Of messages, whole or not; what was sent may still be here."""
        self._decoder = Decoder(
            most_bytes=MOST_ANSWER_BYTES, most_head_bytes=MOST_ANSWER_HEAD_BYTES, skips=True
        )
        self._transport: asyncio.Transport | None = None
        self._welcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._why = _CLOSED

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the preamble."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(PREAMBLE)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived."""
        self.heard_at = self._monotonic()
        self.received_bytes += len(data)
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except ProtocolViolationError as error:
            self._why = f"it is no walstore server of this version: it sent {error}"
            self._fail_greeting(StorageUnavailableError(self._why, retriable=False))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the client."""
        if error is not None:
            self._why = f"the connection failed: {error}"
        if not self._welcome.done():
            self._fail_greeting(StorageUnavailableError(self._why))
        else:
            self._on_lost(self._why)

    # -- messages ----------------------------------------------------------------------------

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a message. After the connection ended it goes nowhere; ``on_lost`` is called."""
        if self._transport is not None and not self._transport.is_closing():
            self.sent_bytes += sum(map(len, pieces))
            self._transport.writelines(pieces)

    async def greet(
        self,
        token: str | None,
        log: str | None,
        service: str | None,
        *,
        exists: bool,
        is_direct: bool,
        after: int,
        again: int,
    ) -> dict[str, Any]:
        """Introduce this client and return what the server says of itself and of the log.

        Raises what the server refuses a client with, or StorageUnavailableError.
        """
        greeting = {"version": VERSION, "token": token, "log": log, "moves": True}
        if service is not None:
            greeting["service"] = service
        if exists:
            greeting["exists"] = True
        if is_direct:
            greeting["direct"] = True
        if after:
            greeting["after"] = after
        if again:
            greeting["again"] = again
        message = encode(Kind.HELLO, _GREETING, greeting)
        if len(message[0]) > GREETING_BYTES:
            if len(token or "") > _MOST_TOKEN_CHARS:
                raise AccessDeniedError(f"no server has a token of {len(token or '')} characters")
            raise InvalidSettingsError(f"no log has a name of {len(log or '')} characters")
        self.send(message)
        welcome = await self._welcome
        if not isinstance(welcome, dict):
            raise StorageUnavailableError("the server's greeting is none")
        about = welcome.get("log")
        while isinstance(about, dict) and about.get("has_more") is True:
            match await self._ask(REGISTERS):
                case [dict(registers), bool(has_more)]:
                    about["registers"].update(registers)
                    about["has_more"] = has_more
                case _:
                    raise StorageUnavailableError("the server's registers are none")
        return welcome

    async def _ask(self, verb: Verb) -> Any:
        """Make a call that belongs to the greeting: nothing else is under way."""
        if self._transport is None or self._transport.is_closing():
            raise StorageUnavailableError(self._why)
        self._welcome = asyncio.get_running_loop().create_future()
        self.send(encode(verb.kind, _GREETING, verb.head(())))
        return await self._welcome

    @property
    def unsent_bytes(self) -> int:
        """What waits in this program until the system takes it."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def has_left(self, end: int) -> bool:
        """Return whether the first ``end`` of the bytes that were sent have left this program."""
        return self.sent_bytes - self.unsent_bytes >= end

    @property
    def moved(self) -> tuple[int, int]:
        """Numbers that change while something leaves this program, or reaches the other side.

        The second one is for TLS, whose transport does not report how much waits below it.
        """
        sock = None
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
        return self.sent_bytes - self.unsent_bytes, 0 if sock is None else _acknowledged_bytes(sock)

    def close(self) -> None:
        """End the connection once what is written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Let go of the socket in a child process: else the parent could not end the connection.

        The number of its descriptor stays taken, since the transport will close it.
        """
        if self._transport is None or self._transport.is_closing():
            return
        descriptor = self._transport.get_extra_info("socket").fileno()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def _take(self, message: Message) -> None:
        if self._welcome.done():
            self._on_message(message)
        elif message.id != _GREETING:
            raise ProtocolViolationError(f"an answer of request {message.id} instead of a greeting")
        elif message.kind == Kind.DONE:
            self._welcome.set_result(message.head)
        elif message.kind == Kind.FAILED and message.head is not None:
            error = unpack_error(message.head)
            if isinstance(
                error, OutcomeUnknownError
            ):  # of a server that failed: nothing was asked yet
                error = StorageUnavailableError(str(error), retriable=False)
            self._fail_greeting(error)
        else:
            self._fail_greeting(StorageUnavailableError("the server is stopping"))

    def _fail_greeting(self, error: Exception) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
            self._welcome.exception()  # the caller may have given up


def _acknowledged_bytes(sock: Any) -> int:
    """Return how much of what was sent the other side's system has, by TCP; 0 if it is not known."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # no TCP, or it is closed
        return 0
    if len(info) < _TCP_INFO_BYTES:
        return 0
    return int.from_bytes(info[_BYTES_ACKED : _BYTES_ACKED + 8], sys.byteorder)


async def connect_to(
    address: Address,
    *,
    token: str | None,
    log: str | None,
    tls: ssl.SSLContext | None,
    on_message: Callable[[Message], None],
    on_lost: Callable[[str], None],
    monotonic: Callable[[], float],
    seconds: float,
    service: str | None = None,
    exists: bool = False,
    is_direct: bool = False,
    after: int = 0,
    again: int = 0,
) -> tuple[ServerConnection, dict[str, Any]]:
    """Connect, greet, and return the connection and the server's answer.

    ``service`` asks for something else than a log, ``exists`` for one that need not be made,
    ``is_direct`` for a server that has the log itself, and ``after`` for a log of a later epoch. ``again`` is
    the highest number of a write that may have been sent before.

    Raises StorageUnavailableError if no server answers within ``seconds``, AccessDeniedError,
    FormatVersionError for a server of another version, and what the server refuses the log with.
    """
    loop = asyncio.get_running_loop()
    link: ServerConnection | None = None

    def make() -> ServerConnection:
        return ServerConnection(on_message, on_lost, monotonic)

    try:
        async with asyncio.timeout(seconds):
            if address.scheme == "unix":
                _, link = await loop.create_unix_connection(make, address.path)
            elif address.scheme == "tls":
                _, link = await loop.create_connection(
                    make, address.host, address.port, ssl=tls or ssl.create_default_context()
                )
            else:
                _, link = await loop.create_connection(make, address.host, address.port)
            welcome = await link.greet(
                token,
                log,
                service,
                exists=exists,
                is_direct=is_direct,
                after=after,
                again=again,
            )
            return link, welcome
    except BaseException as error:
        if link is not None:
            link.abort()
        if isinstance(error, StorageUnavailableError) and str(error) == _CLOSED:
            text = f"{_CLOSED} at once; is {address.scheme}:// right, or does it take tls://?"
            raise StorageUnavailableError(text) from None
        if isinstance(error, ssl.SSLError):
            raise AccessDeniedError(f"no trusted connection to {address}: {error}") from error
        if isinstance(error, TimeoutError):
            text = f"no server answered at {address} within {seconds:.3g} s"
            raise StorageUnavailableError(text) from error
        if isinstance(error, OSError):
            text = f"no server at {address}: {error.strerror or error}; start one with 'walstore serve'"
            raise StorageUnavailableError(text) from error
        raise


def check_version(welcome: dict[str, Any], address: Address) -> None:
    """Raise FormatVersionError unless the server speaks this version of the protocol."""
    about = welcome.get("log") or {}
    # Servers of before 2026-11-28 gave another protocol the same number.
    is_older = "registers" in about and "producer_window" not in about
    if welcome.get("version") != VERSION or is_older:
        raise FormatVersionError(
            "the server speaks another version of the protocol; update the older of the two",
            path=str(address),
            found=f"{welcome.get('version')}{' of an older walstore' if is_older else ''}",
            supported=VERSION,
        )
