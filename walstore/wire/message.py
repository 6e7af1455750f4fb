"""Message: the unit of the protocol between a served log and its clients. Pure.

A connection begins with :data:`PREAMBLE` from each side. Then messages follow, in either direction:

    u32 length of the rest | u32 id | u32 length of the head | u8 kind | head (msgpack) | payload

All integers are little-endian. A client numbers its requests; an answer has the id of its request, and
answers come in any order. Records travel in the payload, so msgpack never copies them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

PREAMBLE: Final = b"\x93walstore\r\n\x01"
"""First byte not ASCII, so that no text protocol begins with it; the last one is the version."""
VERSION: Final = PREAMBLE[-1]
HEADER: Final = struct.Struct("<IIIB")
MOST_HEAD_BYTES: Final = 16 << 20
"""Maximum of a head: the options of the records of one message, or a list of all streams."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a message costs in a budget, in addition to its bytes."""
_LENGTH: Final = struct.Struct("<I")
_REST_BYTES: Final = HEADER.size - _LENGTH.size


class Kind(IntEnum):
    """What a message is. Numbers are part of the protocol and never re-used."""

    HELLO = 1
    """Client: its version and token. The first message."""
    APPEND = 2
    """Client: records, each of them an append of its own."""
    READ = 3
    """Client: records from a position, or as soon as there are some."""
    CALL = 4
    """Client: anything else, by the name of a method."""
    CANCEL = 5
    """Client: the answer with that id is no longer wanted. The request has one nevertheless: an error,
    or DONE if it was done before this arrived."""
    DONE = 6
    """Server: the answer of a request that succeeded."""
    FAILED = 7
    """Server: the error of a request that failed."""
    GOODBYE = 8
    """Server: it takes no more requests. The client ends the connection once it has its answers."""


NOT_BEGUN: Final = None
"""Head of FAILED for a request that a stopping server did not begin: the client sends it again elsewhere."""

MOVES: Final = True
"""Head of GOODBYE if the log is closed here: whoever opens it next does so with a later epoch."""

UNDECIDED: Final = False
"""Head of FAILED for a request that may have been done, as if the connection had been lost. Only for clients
whose greeting has ``moves``."""

NO_REQUEST: Final = 0
"""Number of FAILED from a server that ends the connection, as it cannot tell what the client wants of it.

Clients number their greeting so, and nothing else."""


class Message(NamedTuple):
    """One message. The payload is a view of the bytes received."""

    kind: int
    id: int
    head: Any
    payload: memoryview


class ProtocolViolationError(ValueError):
    """The other side sent what no version of the protocol contains."""


def encode(
    kind: Kind, number: int, head: object, payload: Sequence[bytes | memoryview] = ()
) -> list[bytes | memoryview]:
    """Return a message in pieces, for one vectored write; the payload is not copied.

    A number of more than 64 bits is sent as the nearest one that has fewer: neither is one of a log's.
    """
    packed: bytes = msgpack.packb(head, default=_nearest)
    size = sum(map(len, payload))
    start = HEADER.pack(_REST_BYTES + len(packed) + size, number, len(packed), kind)
    return [start + packed, *payload]


class Decoder:
    """Cuts a stream of bytes into messages, however it is cut up."""

    def __init__(self, *, most_bytes: int) -> None:
        """Refuse messages of more than ``most_bytes``."""
        self.most_bytes = most_bytes
        self._greeted = False
        self._partial = bytearray()
        # Bytes that the next step needs; parsing a large message again for each arrival is quadratic.
        self._needed = len(PREAMBLE)

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and its end is missing."""
        return bool(self._partial) or not self._greeted

    def take_rest(self) -> bytes:
        """Return, and forget, the bytes of a message that is not complete."""
        rest = bytes(self._partial)
        self._partial.clear()
        return rest

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return the messages that they complete.

        ProtocolViolationError for anything else; then the connection can only be closed.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return []
            data = bytes(self._partial)
            self._partial.clear()
        position = 0
        if not self._greeted:
            if not data.startswith(PREAMBLE[: len(data)]):
                _refuse_preamble(data)
            if len(data) < len(PREAMBLE):
                self._partial += data
                return []
            self._greeted = True
            position = len(PREAMBLE)
        messages, position = self._messages(memoryview(data), position)
        if position < len(data):
            self._partial += memoryview(data)[position:]
        return messages

    def _messages(self, data: memoryview, position: int) -> tuple[list[Message], int]:
        found: list[Message] = []
        while len(data) - position >= HEADER.size:
            length, number, head_bytes, kind = HEADER.unpack_from(data, position)
            if length > self.most_bytes:
                raise ProtocolViolationError(
                    f"a message of {length} bytes; the limit is {self.most_bytes}"
                )
            if head_bytes > min(length - _REST_BYTES, MOST_HEAD_BYTES):
                raise ProtocolViolationError(f"a head of {head_bytes} bytes in {length}")
            end = position + _LENGTH.size + length
            if end > len(data):
                self._needed = end - position
                return found, position
            start = position + HEADER.size
            head = _unpack(data[start : start + head_bytes])
            found.append(Message(kind, number, head, data[start + head_bytes : end]))
            position = end
        self._needed = HEADER.size
        return found, position


def _nearest(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} cannot be sent")
    return max(-(1 << 63), min(value, (1 << 64) - 1))


def _unpack(data: memoryview) -> Any:
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, RecursionError, TypeError) as error:  # msgpack's own errors are ValueErrors
        raise ProtocolViolationError(f"a head that is not msgpack: {error}") from None


def _refuse_preamble(data: bytes) -> None:
    if data[: len(PREAMBLE) - 1] == PREAMBLE[:-1]:
        raise ProtocolViolationError(
            f"version {data[len(PREAMBLE) - 1]} of the protocol; this side has version {VERSION}"
        )
    what = "TLS" if data[:1] == b"\x16" else "another protocol"
    raise ProtocolViolationError(f"the other side speaks {what}: {data[:16]!r}")
