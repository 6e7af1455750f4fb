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

from walstore.errors import LimitExceededError
from walstore.wire.errors import pack_error

PREAMBLE: Final = b"\x93walstore\r\n\x01"
"""First byte not ASCII, so that no text protocol begins with it; the last one is the version."""
VERSION: Final = PREAMBLE[-1]
HEADER: Final = struct.Struct("<IIIB")
MOST_HEAD_BYTES: Final = 16 << 20
"""Maximum of a head of a request: the options of the records of one message."""
MOST_ANSWER_BYTES: Final = 1 << 30
"""Maximum of an answer."""
MOST_ANSWER_HEAD_BYTES: Final = 64 << 20
"""Maximum of a head of an answer: a list of all streams, or all registers."""
GREETING_BYTES: Final = 16 << 10
"""Maximum of the first message of a client, of which nobody knows yet who it is."""
MOST_HEAD_PARTS: Final = 1 << 20
"""Elements of all arrays and maps of the head of a request: options of a quarter as many records."""
MOST_HEAD_CONTAINERS: Final = 1 << 15
"""Arrays and maps in it: a member's jobs, 10 000 at once, have one each. They take 20 times as long."""
_SHORT_BYTES: Final = 1 << 14
"""A head of up to so many bytes has few parts in any case."""
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
    size: int = 0
    """Bytes of all of it."""


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

    def __init__(
        self,
        *,
        most_bytes: int,
        most_head_bytes: int = MOST_HEAD_BYTES,
        is_greeted: bool = True,
        skips: bool = False,
    ) -> None:
        """Refuse messages of more than ``most_bytes``.

        ``is_greeted`` is False for a server: the first message is a short one, and what follows it is kept
        undecoded until :meth:`admit`. With ``skips``, for a client, an answer that is too large becomes the
        error of its request; the bytes are dropped as they come, and the connection goes on.
        """
        self.most_bytes = most_bytes
        self._most_head_bytes = most_head_bytes
        self._skips = skips
        self._skip_bytes = 0
        self._is_greeted = is_greeted
        self._is_held = False
        self._has_begun = False
        self._partial = bytearray()
        # Bytes that the next step needs; parsing a large message again for each arrival is quadratic.
        self._needed = len(PREAMBLE)

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and its end is missing."""
        return bool(self._partial) or not self._has_begun or bool(self._skip_bytes)

    @property
    def coming_bytes(self) -> int:
        """Length of the message whose end is missing; 0 if that is not known yet, or there is none."""
        return self._needed if len(self._partial) >= HEADER.size else 0

    def take_rest(self) -> bytes:
        """Return, and forget, the bytes of a message that is not complete."""
        rest = bytes(self._partial)
        self._partial.clear()
        return rest

    def admit(self) -> list[Message]:
        """Take all that the first message was followed by, and will be; as :meth:`feed`."""
        self._is_greeted, self._is_held = True, False
        rest, self._partial = self._partial, bytearray()
        return self.feed(bytes(rest))

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return the messages that they complete.

        ProtocolViolationError for anything else; then the connection can only be closed.
        """
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        whole: bytes | bytearray = data
        if self._is_held:
            self._partial += data
            return []
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return []
            whole, self._partial = self._partial, bytearray()
        position = 0
        if not self._has_begun:
            if not whole.startswith(PREAMBLE[: len(whole)]):
                _refuse_preamble(bytes(whole[: len(PREAMBLE)]))
            if len(whole) < len(PREAMBLE):
                self._partial += whole
                return []
            self._has_begun = True
            position = len(PREAMBLE)
        messages, position = self._messages(memoryview(whole), position)
        if position < len(whole):
            self._partial += memoryview(whole)[position:]
        return messages

    def _messages(self, data: memoryview, position: int) -> tuple[list[Message], int]:
        found: list[Message] = []
        self._needed = HEADER.size
        while len(data) - position >= HEADER.size:
            length, number, head_bytes, kind = HEADER.unpack_from(data, position)
            end = position + _LENGTH.size + length
            problem = self._problem(length, head_bytes)
            if problem is not None:
                if not self._skips or head_bytes > length - _REST_BYTES:
                    raise ProtocolViolationError(problem)
                found.append(Message(Kind.FAILED, number, _not_taken(problem), memoryview(b"")))
                self._skip_bytes = max(0, end - len(data))
                position = min(end, len(data))
                continue
            if end > len(data):
                self._needed = end - position
                break
            start = position + HEADER.size
            packed = data[start : start + head_bytes]
            is_short = self._skips or head_bytes <= _SHORT_BYTES
            head = _unpack(packed) if is_short else _unpack_counted(packed)
            payload = data[start + head_bytes : end]
            found.append(Message(kind, number, head, payload, end - position))
            position = end
            if not self._is_greeted:
                self._is_held = True
                break
        return found, position

    def _problem(self, length: int, head_bytes: int) -> str | None:
        """Return what is wrong with the lengths of a message."""
        most = self.most_bytes if self._is_greeted else min(self.most_bytes, GREETING_BYTES)
        if length > most:
            return f"a message of {length} bytes; the limit is {most}"
        if head_bytes > min(length - _REST_BYTES, self._most_head_bytes):
            return f"a head of {head_bytes} bytes in {length}"
        return None


def _not_taken(problem: str) -> list[Any]:
    """Return the error of a request whose answer was too large to be taken."""
    text = f"the server did what it was asked and answered with {problem}; the answer was not taken"
    error = LimitExceededError(text, limit=MOST_ANSWER_HEAD_BYTES)
    error.outcome = "unknown"
    return pack_error(error)


def _nearest(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} cannot be sent")
    return max(-(1 << 63), min(value, (1 << 64) - 1))


def _unpack(data: memoryview, **options: Any) -> Any:
    try:
        return msgpack.unpackb(data, strict_map_key=False, **options)
    except (ValueError, RecursionError, TypeError) as error:  # msgpack's own errors are ValueErrors
        raise ProtocolViolationError(f"a head that is not msgpack: {error}") from None


def _unpack_counted(data: memoryview) -> Any:
    """Unpack a head that may have many parts: a byte each at the sender, an object each here."""
    parts = containers = 0

    def count(found: Any) -> Any:
        nonlocal parts, containers
        parts += len(found)
        containers += 1
        if parts > MOST_HEAD_PARTS:
            raise ValueError(f"it has more than {MOST_HEAD_PARTS} parts")
        if containers > MOST_HEAD_CONTAINERS:
            raise ValueError(f"it has more than {MOST_HEAD_CONTAINERS} arrays and maps")
        return found

    return _unpack(
        data,
        list_hook=count,
        object_hook=count,
        max_array_len=MOST_HEAD_PARTS,
        max_map_len=MOST_HEAD_PARTS,
    )


def _refuse_preamble(data: bytes) -> None:
    if data[: len(PREAMBLE) - 1] == PREAMBLE[:-1]:
        raise ProtocolViolationError(
            f"version {data[len(PREAMBLE) - 1]} of the protocol; this side has version {VERSION}"
        )
    what = "TLS" if data[:1] == b"\x16" else "another protocol"
    raise ProtocolViolationError(f"the other side speaks {what}: {data[:16]!r}")
