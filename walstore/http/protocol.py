"""The words of the Durable Streams protocol: offsets, cursors, lifetimes, producers. Pure.

The protocol is version 1.0 of ``PROTOCOL.md`` in durable-streams/durable-streams.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

PREFIX: Final = "/v1/stream/"
"""Of the path of every stream."""
CONTENT_POLICY: Final = "Content-Security-Policy"
NAME_PATTERN: Final = r"[\s\S]+"
"""Of names in paths: also those that are refused, with control characters."""

TICKET: Final = "ticket"
"""Ours, in the query of a read: stands for the token."""

NEXT_OFFSET: Final = "Stream-Next-Offset"
UP_TO_DATE: Final = "Stream-Up-To-Date"
CLOSED: Final = "Stream-Closed"
CURSOR: Final = "Stream-Cursor"
TTL: Final = "Stream-TTL"
EXPIRES_AT: Final = "Stream-Expires-At"
SEQUENCE: Final = "Stream-Seq"
FORKED_FROM: Final = "Stream-Forked-From"
FORK_OFFSET: Final = "Stream-Fork-Offset"
FORK_SUB_OFFSET: Final = "Stream-Fork-Sub-Offset"
SSE_ENCODING: Final = "Stream-SSE-Data-Encoding"
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQUENCE: Final = "Producer-Seq"
EXPECTED_SEQUENCE: Final = "Producer-Expected-Seq"
RECEIVED_SEQUENCE: Final = "Producer-Received-Seq"
DURABILITY: Final = "Stream-Durability"
"""Ours: the durability of one append, as ``durability`` of :meth:`walstore.Wal.append`."""

MOST_NUMBER: Final = 2**53 - 1
"""Largest number that a JavaScript client can send."""
MOST_NAME_CHARS: Final = 200
"""Of a producer's id and of a Stream-Seq; both become registers of the log."""

_ONCE: Final = frozenset(
    ("authorization", "origin", "host", "content-type", "content-length", "transfer-encoding")
)
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_OFFSET: Final = re.compile(r"([0-9]{16})_0{16}")
_COUNT: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_ENTITY_TAG: Final = re.compile(r'"[^"]*"')
_CURSOR_SECONDS: Final = 20
_CURSOR_EPOCH_SECONDS: Final = 1_728_432_000
"""2024-10-09T00:00:00Z, from which the protocol counts its cursors."""
MOST_JITTER: Final = 3600 // _CURSOR_SECONDS


class RefusedError(Exception):
    """A request that is answered with an error; not for callers of this package."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


class ProducerMark(NamedTuple):
    """What an append of an idempotent producer says of itself."""

    id: str
    epoch: int
    sequence: int


def check_once(headers: Mapping[str, str]) -> None:
    """RefusedError for a header that is there twice, and of which a proxy may see another one than we do."""
    seen = Counter(name.lower() for name in headers)
    for name, count in seen.items():
        if count > 1 and (name in _ONCE or name.startswith(("producer-", "stream-"))):
            raise RefusedError(400, f"the header {name} is there {count} times; send it once")


def check_path(path: str) -> None:
    """RefusedError for a path with an escape that is none, or of bytes that are not UTF-8."""
    escaped = path.partition("?")[0]
    try:
        is_right = not _NO_ESCAPE.search(escaped) and unquote_to_bytes(escaped).decode() is not None
    except UnicodeDecodeError:
        is_right = False
    if not is_right:
        raise RefusedError(400, f"the path is not text in UTF-8 with %XX escapes: {path[:100]!r}")


def format_offset(offset: int) -> str:
    """Return the token of an offset: its digits, so that tokens are ordered as text."""
    return f"{offset:016d}_{0:016d}"


def parse_offset(token: str) -> int:
    """Return the offset that a token means; RefusedError for a text that is none.

    A log begins at 1; the token of 0, where other servers begin, means the same.
    """
    found = _OFFSET.fullmatch(token)
    if found is None:
        raise RefusedError(400, f"not an offset of this server: {token[:100]!r}")
    return max(1, int(found[1]))


def cursor(now_seconds: float, given: str | None, jitter: int) -> str:
    """Return the cursor of an answer, always beyond the one that the client sent."""
    current = int(now_seconds - _CURSOR_EPOCH_SECONDS) // _CURSOR_SECONDS
    if given is not None and _COUNT.fullmatch(given) and int(given) >= current:
        return str(int(given) + max(1, jitter))
    return str(current)


def is_match(fields: Iterable[str], tag: str) -> bool:
    """Return whether ``If-None-Match`` names the entity tag of what is there, by RFC 9110, section 13.1.2."""
    text = ",".join(fields)
    if text.strip() == "*":
        return True
    return tag in _ENTITY_TAG.findall(text)  # W/ in front of a tag counts for nothing


def is_true(value: str | None) -> bool:
    """Return whether a header is set: anything but ``true`` counts as absent."""
    return value is not None and value.lower() == "true"


def parse_ttl(text: str | None) -> int | None:
    """Return a time to live in seconds; RefusedError unless it is a plain whole number."""
    if text is None:
        return None
    if not _COUNT.fullmatch(text):
        raise RefusedError(400, f"{TTL} must be whole seconds, not {text[:100]!r}")
    return int(text)


def parse_expiry(text: str | None) -> datetime | None:
    """Return a time with its zone; RefusedError unless it is one of RFC 3339."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or len(text) > 64 or "T" not in text.upper():
        raise RefusedError(400, f"{EXPIRES_AT} must be a time of RFC 3339, not {text[:100]!r}")
    return found


def parse_sub_offset(text: str | None) -> int:
    """Return how far into a message a fork goes, 0 if nothing is said."""
    if text is None:
        return 0
    if not _COUNT.fullmatch(text):
        raise RefusedError(400, f"{FORK_SUB_OFFSET} must be a whole number, not {text[:100]!r}")
    return int(text)


def parse_producer(headers: Mapping[str, str]) -> ProducerMark | None:
    """Return what the three headers of a producer say, or None without them."""
    given = [headers.get(name) for name in (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQUENCE)]
    if given == [None, None, None]:
        return None
    producer_id, epoch, sequence = given
    if producer_id is None or epoch is None or sequence is None:
        raise RefusedError(
            400, f"{PRODUCER_ID}, {PRODUCER_EPOCH} and {PRODUCER_SEQUENCE} go together"
        )
    check_text(producer_id, PRODUCER_ID)
    return ProducerMark(
        producer_id, _number(epoch, PRODUCER_EPOCH), _number(sequence, PRODUCER_SEQUENCE)
    )


def check_text(text: str, name: str) -> str:
    """Return a text that may become part of a register; RefusedError otherwise."""
    if not 0 < len(text) <= MOST_NAME_CHARS or not text.isprintable():
        raise RefusedError(400, f"{name} has 1 to {MOST_NAME_CHARS} printable characters")
    return text


def media_type(text: str | None) -> str:
    """Return a content type without parameters, in lower case, the default if there is none."""
    plain = (text or "").split(";", 1)[0].strip().lower()
    if not plain:
        return "application/octet-stream"
    if len(plain) > MOST_NAME_CHARS or not re.fullmatch(r"[!-~]+/[!-~]+", plain):
        raise RefusedError(400, f"not a content type: {plain[:100]!r}")
    return plain


def _number(text: str, name: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > MOST_NUMBER:
        raise RefusedError(400, f"{name} must be a whole number up to 2^53-1, not {text[:100]!r}")
    return int(text)
