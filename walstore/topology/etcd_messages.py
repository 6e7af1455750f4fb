"""What is said to etcd and what it answers, as JSON: etcd's version 3 over its gateway. Pure.

Keys and values are base64; numbers of 64 bits are text. What is 0, empty or false is left out of answers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from walstore.errors import (
    AccessDeniedError,
    LimitExceededError,
    StorageUnavailableError,
    WalError,
)
from walstore.topology.key_values import (
    MOST_VALUE_BYTES,
    Event,
    Events,
    KeySnapshot,
    KeyValue,
    LeaseLostError,
    Swap,
)

Body = Mapping[str, Any]
"""A message: a JSON object."""
_T = TypeVar("_T")

INVALID, NOT_FOUND, DENIED, EXHAUSTED, PRECONDITION, OUT_OF_RANGE = 3, 5, 7, 8, 9, 11
_UNIMPLEMENTED, _UNAUTHENTICATED = 12, 16
_NOT_EXECUTED: Final = frozenset(
    {INVALID, NOT_FOUND, DENIED, EXHAUSTED, PRECONDITION, OUT_OF_RANGE}
    | {_UNIMPLEMENTED, _UNAUTHENTICATED}
)
"""Codes of gRPC with which etcd refuses a request before it does anything."""
_OF_STATUS: Final = {401: _UNAUTHENTICATED, 403: DENIED}
_GARBAGE: Final = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What parsing an answer raises that etcd never gives."""


class EtcdEndpointError(Exception):
    """One node did not do what it was asked; another one may."""

    def __init__(self, message: str, *, is_open: bool) -> None:
        """``is_open`` says whether it may have done it, or may do it later."""
        super().__init__(message)
        self.is_open = is_open


class EtcdRefusalError(Exception):
    """The cluster refused a request, and did nothing."""

    def __init__(self, code: int, text: str) -> None:
        """``code`` is gRPC's."""
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def is_about_token(self) -> bool:
        """Whether a new token may help."""
        return self.code == _UNAUTHENTICATED or any(
            part in self.text for part in ("user name is empty", "auth store is old", "auth token")
        )

    @property
    def is_denied(self) -> bool:
        """Whether it concerns the credentials of the client."""
        return self.is_about_token or self.code == DENIED or "authentication failed" in self.text

    def as_error(self, lease: int = 0) -> WalError:
        """Return it as an error for callers; ``lease`` is the one of the request."""
        if self.is_denied:
            return AccessDeniedError(f"etcd refuses this client: {self.text}")
        if self.code == NOT_FOUND and lease:
            return LeaseLostError(f"there is no lease {lease}: it ended", lease=lease)
        if "too large" in self.text:
            return LimitExceededError(f"etcd refuses: {self.text}", limit=MOST_VALUE_BYTES)
        is_passing = self.code in {EXHAUSTED, PRECONDITION}
        return StorageUnavailableError(f"etcd refuses: {self.text}", retriable=is_passing)


class WatchMessage(NamedTuple):
    """Part of a watch."""

    events: Events
    is_partial: bool
    """Whether more events of the last one's revision follow."""
    is_ended: bool
    """Whether nothing more comes."""
    compacted: int
    """Why it ended: what it would begin with is compacted up to this revision; 0 for another reason."""
    reason: str


# -- requests --------------------------------------------------------------------------------


def range_body(key: str, *, revision: int = 0) -> Body:
    """Ask for a key, as of a revision or now."""
    return {"key": _encode(key.encode()), "revision": str(revision)}


def prefix_body(prefix: str) -> Body:
    """Ask for the keys with a prefix."""
    begin = prefix.encode()
    return {"key": _encode(begin or b"\0"), "range_end": _encode(prefix_end(begin))}


def newest_body(prefix: str) -> Body:
    """Ask for the newest key with a prefix."""
    order = {"sort_target": "MOD", "sort_order": "DESCEND", "limit": "1", "keys_only": True}
    return {**prefix_body(prefix), **order}


def watch_body(prefix: str, start_revision: int) -> Body:
    """Watch the keys with a prefix; large answers come in parts."""
    start = {"start_revision": str(start_revision), "fragment": True}
    return {"create_request": {**prefix_body(prefix), **start}}


def swap_body(key: str, value: bytes | None, expected: int, lease: int) -> Body:
    """Write or delete a key if it has a revision, and else return it."""
    place = _encode(key.encode())
    condition = {"key": place, "target": "MOD", "result": "EQUAL", "mod_revision": str(expected)}
    change: Body = {"request_delete_range": {"key": place}}
    if value is not None:
        change = {"request_put": {"key": place, "value": _encode(value), "lease": str(lease)}}
    return {
        "compare": [condition],
        "success": [change],
        "failure": [{"request_range": {"key": place}}],
    }


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind all keys with a prefix; for etcd a zero byte means the end of all."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b"\0"


# -- answers ---------------------------------------------------------------------------------


def parse(endpoint: str, answer: bytes, decode: Callable[[Body], _T], *, status: int = 200) -> _T:
    """Return what ``decode`` makes of an answer, or of the result in a line of a stream.

    EtcdRefusalError if it is an error after which nothing was done, EtcdEndpointError for others, and for
    what is no answer of etcd.
    """
    if status != 200:
        raise failure_of(endpoint, answer, status)
    try:
        body = json.loads(answer)
        if not (isinstance(body, dict) and "error" in body):
            return decode(body.get("result", body))
    except _GARBAGE as error:
        raise EtcdEndpointError(
            f"{endpoint}: not an answer of etcd: {answer[:80]!r}", is_open=True
        ) from error
    raise _failure(endpoint, body, status)


def failure_of(endpoint: str, answer: bytes, status: int) -> Exception:
    """Return the error that an answer with a status other than 200 is."""
    try:
        return _failure(endpoint, json.loads(answer), status)
    except _GARBAGE:
        return _failure(endpoint, {}, status)


def _failure(endpoint: str, body: Any, status: int) -> Exception:
    """Return the error that an answer is."""
    found = body if isinstance(body, dict) else {}
    if isinstance(found.get("error"), dict):  # in a stream
        found = found["error"]
    text = found.get("message") or found.get("error") or f"HTTP status {status}"
    code = found.get("code", found.get("grpc_code", _OF_STATUS.get(status)))
    # Of gRPC itself, not of etcd, it is about an answer that is too large.
    is_grpc = code == EXHAUSTED and not str(text).startswith("etcdserver:")
    if not isinstance(code, int) or code not in _NOT_EXECUTED or is_grpc:
        # 404 without a code is no gateway of etcd's.
        return EtcdEndpointError(f"{endpoint}: {text}", is_open=status != 404)
    if code == EXHAUSTED and "too many requests" in str(text):
        return EtcdEndpointError(f"{endpoint}: {text}", is_open=False)
    return EtcdRefusalError(code, str(text))


def found_of(body: Body) -> tuple[KeyValue | None, int]:
    """Return the only key of an answer, and the store's revision."""
    items = [_key_value(item) for item in body.get("kvs", ())]
    return (items[0] if items else None), revision_of(body)


def snapshot_of(body: Body) -> KeySnapshot:
    """Return the keys of an answer."""
    items = [_key_value(item) for item in body.get("kvs", ())]
    return KeySnapshot({item.key: item for item in items}, revision_of(body))


def swap_of(key: str, value: bytes | None, lease: int, body: Body) -> Swap:
    """Return what became of a swap of these."""
    revision = revision_of(body)
    if body.get("succeeded"):
        now = None if value is None else KeyValue(key, value, revision, lease)
        return Swap(happened=True, found=now, revision=revision)
    (response,) = body["responses"]
    items = [_key_value(item) for item in response["response_range"].get("kvs", ())]
    return Swap(happened=False, found=items[0] if items else None, revision=revision)


def revision_of(body: Body) -> int:
    """Return the store's revision."""
    return int(body["header"]["revision"])


def lease_of(body: Body) -> int:
    """Return the id of a new lease."""
    return int(body["ID"])


def seconds_of(body: Body) -> float:
    """Return how long a lease now is; 0 if it ended."""
    revision_of(body)  # an answer without a header is none
    return float(body.get("TTL", 0))


def token_of(body: Body) -> str:
    """Return the token of a user."""
    token = body["token"]
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ValueError("not a token")
    return token


def watch_message_of(body: Body) -> WatchMessage:
    """Return a part of a watch."""
    return WatchMessage(
        [_event(event) for event in body.get("events", ())],
        bool(body.get("fragment")),
        bool(body.get("canceled")),
        int(body.get("compact_revision", 0)),
        str(body.get("cancel_reason", "")),
    )


def _event(event: Body) -> Event:
    item = event["kv"]
    if event.get("type", "PUT") == "DELETE":
        return Event(_text(item["key"]), None, int(item["mod_revision"]))
    now = _key_value(item)
    return Event(now.key, now, now.revision)


def _key_value(item: Body) -> KeyValue:
    return KeyValue(
        _text(item["key"]),
        base64.b64decode(item.get("value", ""), validate=True),
        int(item["mod_revision"]),
        int(item.get("lease", 0)),
    )


def _text(key: str) -> str:
    """Return a key. One of another program, which is not UTF-8, gets lone surrogates."""
    return base64.b64decode(key, validate=True).decode(errors="surrogateescape")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
