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
from walstore.net.wire.errors import pack_error

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
_SHORT_BYTES: Final = 1 << 7
"""A head of up to so many bytes has few parts in any case."""
_KEPT_BYTES: Final = 128 << 10
"""Bytes of messages that were taken, and are kept with what follows them."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a message costs its sender's budget, in addition to its bytes."""
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
    or DONE if it was done before this arrived. An append that has begun by then is done."""
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

Clients number their greeting so, and what belongs to it, and nothing else. Later, DONE with this number means
that the server lives and reads nothing now; all clients ignore it."""


_APPEND: Final = Kind.APPEND
_CANCEL: Final = Kind.CANCEL
"""Of each message: to look up a member takes as long as two calls."""


class Message(NamedTuple):
    """One message. The payload is a view of the bytes received."""

    kind: int
    id: int
    head: Any
    payload: memoryview
    size: int = 0
    """Bytes of all of it."""
    parts: int = 0
    """Elements of all arrays and maps of the head of a request; 0 if it is short."""


class PackedAnswer(NamedTuple):
    """An answer with a payload."""

    head: Any
    payload: Sequence[bytes | memoryview]


class _Header(NamedTuple):
    """What is known of a message before it is taken."""

    size: int
    """Bytes of all of it."""
    number: int
    head_bytes: int
    kind: Kind
    problem: str | None
    """Why it is not taken, but dropped."""


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
    """Cuts a stream of bytes into messages, however it is cut up; each one is unpacked when it is taken."""

    def __init__(
        self,
        *,
        most_bytes: int,
        most_head_bytes: int = MOST_HEAD_BYTES,
        is_greeted: bool = True,
        skips: bool = False,
    ) -> None:
        """Refuse messages of more than ``most_bytes``.

        For a server ``is_greeted`` is False: up to :meth:`admit` a message is short. With ``skips``, for
        a client, an answer that is too large becomes the error of its request; the bytes are dropped as they
        come, and the connection goes on. What answers no request, as a greeting, ends the connection.
        """
        self.most_bytes = most_bytes
        self._most_head_bytes = most_head_bytes
        self._skips = skips
        self._skip_bytes = 0
        self._is_greeted = is_greeted
        self._has_begun = False
        # What is not taken yet begins at the position; there is no data once all is taken. Bytes are added
        # to data of this object's own as long as no message refers to it, so that a large one is copied once.
        self._data: bytes | bytearray = b""
        self._position = 0
        self._is_growing = False
        self._header: _Header | None = None
        # So many bytes of what is not taken were looked at for CANCELs, and the numbers of these.
        self._seen_bytes = 0
        self._cancelled: set[int] = set()

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and its end is missing."""
        if not self._has_begun or self._skip_bytes:
            return True
        header = self._header
        return bool(self._data) and (header is None or self.left_bytes < header.size)

    @property
    def coming_bytes(self) -> int:
        """Length of the next message, whether all of it is there or not; 0 if that is not known yet.

        ProtocolViolationError, as :meth:`take`.
        """
        header = (self._header or self._peek()) if self._data else None
        return 0 if header is None else header.size

    @property
    def lengths(self) -> tuple[int, int] | None:
        """Lengths of the next message and of its head; None if not all of the message is there.

        ProtocolViolationError, as :meth:`take`.
        """
        header = (self._header or self._peek()) if self._data else None
        if header is None or header.size > len(self._data) - self._position:
            return None
        return header.size, header.head_bytes

    @property
    def ahead_bytes(self) -> int:
        """How much is there beyond the next message, if all of that is."""
        return 0 if self._header is None else max(0, self.left_bytes - self._header.size)

    @property
    def number(self) -> int:
        """That of the next message; 0 if it is not known yet."""
        return 0 if self._header is None else self._header.number

    def drop_cancelled(self) -> int | None:
        """Drop the next message if it is an append whose CANCEL has arrived, without looking into it.

        Returns its number; None if it is anything else, or not all of it is there by :attr:`lengths`.
        """
        header = self._header
        if header is None or header.kind != _APPEND or header.size > self.left_bytes:
            return None
        self._look_ahead()
        if header.number not in self._cancelled:
            return None
        self._advance(header.size)
        return header.number

    def _look_ahead(self) -> None:
        """Note what is cancelled by the messages that are there, each once."""
        at = self._position + self._seen_bytes
        while len(self._data) - at >= HEADER.size:
            length, number, _, kind = HEADER.unpack_from(self._data, at)
            end = at + _LENGTH.size + length
            if length < _REST_BYTES or end > len(self._data):
                break
            if kind == _CANCEL:
                self._cancelled.add(number)
            at = end
        self._seen_bytes = at - self._position

    def admit(self) -> None:
        """Take messages of any length from now on."""
        self._is_greeted = True

    def take_rest(self) -> bytes:
        """Return, and forget, the bytes of all that was not taken."""
        rest = bytes(memoryview(self._data)[self._position :])
        self.drop()
        return rest

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes and return all messages that are complete; as :meth:`add` and :meth:`take`."""
        self.add(data)
        found = []
        while (message := self.take()) is not None:
            found.append(message)
        return found

    def add(self, data: bytes) -> None:
        """Take bytes."""
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if not self._data:
            self._data, self._position, self._is_growing = data, 0, False
            return
        if not self._is_growing:
            self._data = bytearray(memoryview(self._data)[self._position :])
            self._position, self._is_growing = 0, True
        assert isinstance(self._data, bytearray)
        self._data += data

    def take(self) -> Message | None:
        """Return the next message, if all of it is there.

        ProtocolViolationError for what is none; then the connection can only be closed.
        """
        header = (self._header or self._peek()) if self._data else None
        if header is None:
            return None
        size, number, head_bytes, kind, problem = header
        start, left = self._position, len(self._data) - self._position
        if problem is not None:
            self._skip_bytes = max(0, size - left)
            self._advance(size - self._skip_bytes)
            return Message(Kind.FAILED, number, _not_taken(problem), memoryview(b""))
        if size > left:
            return None
        data = memoryview(self._data)[start : start + size]
        self._advance(size)
        if kind == _CANCEL:
            self._cancelled.discard(number)
        end = HEADER.size + head_bytes
        packed = data[HEADER.size : end]
        if self._skips or head_bytes <= _SHORT_BYTES:
            return Message(kind, number, _unpack(packed), data[end:], size)
        head, parts = _unpack_counted(packed)
        return Message(kind, number, head, data[end:], size, parts)

    @property
    def left_bytes(self) -> int:
        """How much is there that was not taken."""
        return len(self._data) - self._position

    def _advance(self, size: int) -> None:
        """Go to what follows a message, which refers to the data."""
        self._position += size
        if self._seen_bytes:
            self._seen_bytes = max(0, self._seen_bytes - size)
        self._is_growing, self._header = False, None
        if self._position == len(self._data):
            self.drop()
        elif self._position > _KEPT_BYTES:
            # What follows a large message would keep all of it.
            self._data = bytes(memoryview(self._data)[self._position :])
            self._position = 0

    def drop(self) -> None:
        """Forget all that was not taken."""
        self._data, self._position, self._header = b"", 0, None
        self._seen_bytes = 0
        self._cancelled.clear()

    def _peek(self) -> _Header | None:
        """Return the header of the next message, if that is there."""
        if not self._has_begun and not self._begin():
            return None
        if len(self._data) - self._position < HEADER.size:
            return None
        length, number, head_bytes, kind = HEADER.unpack_from(self._data, self._position)
        problem = self._problem(length, head_bytes)
        if problem is not None and (
            not self._skips or number == NO_REQUEST or head_bytes > length - _REST_BYTES
        ):
            raise ProtocolViolationError(problem)
        self._header = _Header(_LENGTH.size + length, number, head_bytes, kind, problem)
        return self._header

    def _begin(self) -> bool:
        """Take the preamble; False if it is not there yet."""
        start = bytes(self._data[: len(PREAMBLE)])
        if not start or not PREAMBLE.startswith(start):
            if start:
                _refuse_preamble(start)
            return False
        if len(start) < len(PREAMBLE):
            return False
        self._has_begun = True
        self._advance(len(PREAMBLE))
        return True

    def _problem(self, length: int, head_bytes: int) -> str | None:
        """Return what is wrong with the lengths of a message."""
        most = self.most_bytes if self._is_greeted else min(self.most_bytes, GREETING_BYTES)
        if length > most:
            return f"a message of {length} bytes; the limit is {most}"
        if head_bytes > length - _REST_BYTES or head_bytes > self._most_head_bytes:
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


def _unpack_counted(data: memoryview) -> tuple[Any, int]:
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

    head = _unpack(
        data,
        list_hook=count,
        object_hook=count,
        max_array_len=MOST_HEAD_PARTS,
        max_map_len=MOST_HEAD_PARTS,
    )
    return head, parts


def _refuse_preamble(data: bytes) -> None:
    if data[: len(PREAMBLE) - 1] == PREAMBLE[:-1]:
        raise ProtocolViolationError(
            f"version {data[len(PREAMBLE) - 1]} of the protocol; this side has version {VERSION}"
        )
    what = "TLS" if data[:1] == b"\x16" else "another protocol"
    raise ProtocolViolationError(f"bytes of {what}: {data[:16]!r}")
