"""Answer: what a request is answered with, where that is more than values of msgpack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple


class Packed(NamedTuple):
    """An answer with a payload."""

    head: Any
    payload: Sequence[bytes | memoryview]


class Prepared(NamedTuple):
    """An answer that is made once there is room for it: nothing is held for a client that takes nothing."""

    make: Callable[[int], Awaitable[Any]]
    """Returns the answer, of about so many bytes at most; may be called again with more room."""
    most_bytes: int
    """What it may have at most, unless a single record is larger."""
