"""Answer: what a request is answered with, and the one place where answers become messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from walstore.errors import LimitExceededError
from walstore.net.wire.message import (
    MOST_ANSWER_BYTES,
    MOST_ANSWER_HEAD_BYTES,
    Kind,
    PackedAnswer,
    encode,
)

_DONE: Final = Kind.DONE
"""Of each answer: to look up a member takes as long as two calls."""


class PreparedAnswer(NamedTuple):
    """An answer that is made once there is room for it: nothing is held for a client that takes nothing."""

    make: Callable[[int], Awaitable[Any]]
    """Returns the answer, of about so many bytes; may be called again, with more room."""
    most_bytes: int
    """About what it may have, unless one record is larger."""


def encode_answer(number: int, answer: Any) -> list[bytes | memoryview]:
    """Return the answer of a request as a message; LimitExceededError if no client would take it."""
    head, payload = answer if isinstance(answer, PackedAnswer) else (answer, ())
    pieces = encode(_DONE, number, head, payload)
    size, most = len(pieces[0]), MOST_ANSWER_HEAD_BYTES
    if size <= most:
        size, most = size_of(pieces), MOST_ANSWER_BYTES
    if size > most:
        raise LimitExceededError(
            f"the answer has {size} bytes, and one has at most {most}; ask for less, or ask the process "
            "that has the log open",
            limit=most,
        )
    return pieces


def size_of(pieces: Sequence[bytes | memoryview]) -> int:
    """Return the bytes of a message."""
    return len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
