"""What the cloud tier requires of an object store, and the values it returns.

Owns the ``ObjectStore`` Protocol, the rules for keys and ranges that all stores share, and the one way to
delete objects of a log (:func:`remove`). Test other implementations of the Protocol with
``uploader.testing.suite``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import Final, Protocol, cast

from walstore.core.validation.arguments import as_texts
from walstore.errors import CollectionRefusedError, CorruptionError, InvalidSettingsError, WalError


class ObjectNotFoundError(WalError):
    """There is no object under ``key``."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key


class PreconditionFailedError(WalError):
    """The object under ``key`` already exists, or is not the one the caller expected.

    The request that got this answer changed nothing. Over a network the object may still be the caller's
    own, from an earlier attempt with a lost answer.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key


MAX_KEY_BYTES = 1024
FIRST_PAGE: Final = 100
"""Objects of the first page of a listing: few callers need more, and some stop before."""
NEXT_PAGE: Final = 1000
"""Objects of each further page."""
ORDER_PROOF: Final = 66
"""So many keys in a row are not in order by chance; the head of a chain needs as many anyway."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object, and the ETag that names this content in a swap."""

    data: bytes = field(repr=False)
    etag: str


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One line of a listing. It has no ETag: a directory would have to read every file for that."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectInfo(ListedObject):
    """Everything about an object except its content."""

    etag: str


class ObjectStore(Protocol):
    """A flat map from keys to bytes with two conditional writes. Safe to call from many tasks at once.

    Keys are relative to the store's prefix, of the form ``a/b/c``, see :func:`check_key`. ETags are opaque
    strings without surrounding quotes; they come from this store and go back to it. Reads see every
    put that has returned, from any client. All methods raise what ``uploader.stores.port`` lists.

    Cancellation: an abandoned read has no effect; an abandoned put or delete may still happen, now or
    later. Treat it as an unknown outcome.
    """

    @property
    def url(self) -> str:
        """The store's location, in the form ``open_store`` takes, normalised, without credentials."""

    async def get(self, key: str) -> StoredObject:
        """Return a whole object; ObjectNotFoundError if there is none.

        It may also take ``max_bytes``, see :class:`BoundedStore`.
        """

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)`` with ``0 <= start < limit``, cut at the end of the object,
        so the answer may be shorter or empty. ObjectNotFoundError if there is no object."""

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag of an object, or None if there is none (or no such bucket)."""

    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield all objects whose key begins with ``prefix`` (any string, "" for all), in the order of
        their keys as UTF-8 bytes, leaving out keys up to and including ``after``.

        Objects put or deleted meanwhile may or may not be seen. Some servers keep no order. Logs also work
        on those, with longer listings: nothing relies on the order unless :class:`ListingOrder` proves it.
        """

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object and return its ETag; PreconditionFailedError if the key is taken.

        When it returns, the object is as durable as the store can make it.
        """

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object if its ETag is still ``etag``, and return the new ETag.

        PreconditionFailedError if it has another ETag, or is gone.
        """

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are not an error. After an error some may be gone."""

    async def aclose(self) -> None:
        """Release connections and threads; idempotent. Calls in flight may fail."""


class BoundedStore(ObjectStore, Protocol):
    """A store that can refuse to read an object that is too long, as all stores here can. Others need not.

    Callers use :func:`get_bounded`, which works with either kind.
    """

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object; ObjectNotFoundError if there is none.

        CorruptionError if it has more than ``max_bytes``; about that much is held in memory at most.
        """


async def get_bounded(store: ObjectStore, key: str, max_bytes: int | None) -> StoredObject:
    """Return a whole object of at most ``max_bytes``; None for any length. CorruptionError if it has more.

    A store whose ``get`` does not take the limit reads all of it first.
    """
    if max_bytes is None:
        return await store.get(key)
    if not takes_limit(type(store)):
        found = await store.get(key)
    else:
        found = await cast("BoundedStore", store).get(key, max_bytes=max_bytes)
    check_length(key, len(found.data), max_bytes)
    return found


@lru_cache(maxsize=256)
def takes_limit(kind: type[ObjectStore]) -> bool:
    """Return whether a store's ``get`` takes ``max_bytes``; an override may not."""
    try:
        return "max_bytes" in signature(kind.get).parameters
    except (AttributeError, TypeError, ValueError):
        return False  # it is passed on to another one, or not written in Python


class ListingOrder:
    """Whether a listing comes in the order of its keys, judged by its first :data:`ORDER_PROOF` keys.

    A shorter listing proves nothing, and need not: a caller that has all of it can sort it.
    """

    __slots__ = ("_count", "_is_broken", "_last")

    def __init__(self) -> None:
        self._count = 0
        self._last = b""
        self._is_broken = False

    @property
    def is_proven(self) -> bool:
        """Whether all keys came in order so far, too many for chance."""
        return not self._is_broken and self._count >= ORDER_PROOF

    def note(self, key: str) -> None:
        """Record the next key of the listing."""
        encoded = key.encode()
        self._is_broken |= encoded <= self._last
        self._last = encoded
        self._count += 1


def check_key(key: str) -> str:
    """Return ``key`` if every store can hold it, else raise InvalidSettingsError.

    One to 1024 bytes of UTF-8; segments between slashes are neither empty nor ``.`` nor ``..``, none
    starts with a dot, and there are no control characters.
    """
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        size_bytes = 0
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise InvalidSettingsError(
            f"an object's key must be 1 to {MAX_KEY_BYTES} bytes of UTF-8: {key[:80]!r}"
        )
    if any(not part or part.startswith(".") for part in key.split("/")) or not key.isprintable():
        raise InvalidSettingsError(
            "an object's key must be of the form a/b/c, without empty segments, segments that begin"
            f" with a dot, or control characters: {key[:80]!r}"
        )
    return key


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys as a list; TypeError for one text, InvalidSettingsError as :func:`check_key`."""
    return [check_key(key) for key in as_texts(keys, "keys")]


def check_range(start: int, limit: int) -> None:
    """Raise InvalidSettingsError unless ``0 <= start < limit``."""
    if not 0 <= start < limit:
        raise InvalidSettingsError(
            f"a byte range needs 0 <= start < limit (start={start} limit={limit})"
        )


def check_length(key: str, size_bytes: int, max_bytes: int | None) -> None:
    """Raise CorruptionError if an object has more than ``max_bytes``; None for any length."""
    if max_bytes is not None and size_bytes > max_bytes:
        raise CorruptionError(
            "an object is longer than anything that belongs there",
            path=key,
            expected=f"at most {max_bytes} bytes",
            found=size_bytes,
        )


Rule = Callable[[str], bool]
"""Returns whether the object with that key may be deleted. Pure, and still right at any later time."""


async def remove(store: ObjectStore, keys: Iterable[str], *, rule: Rule) -> None:
    """Delete objects of a log, each of which the rule admits; missing ones are not an error.

    A document that calls an object garbage may be wrong or forged: anyone may have put an announced
    collection or a record of heads, and a program may have a fault. A rule decides by the key, and by what
    the newest manifest names. No other module calls a store's ``delete`` for a log's objects
    (tests/uploader/stores/test_removal.py), except for cursors, which their owners delete by name.

    CollectionRefusedError, and nothing is deleted, if the rule does not admit one of them. After one of the
    store's errors some may be gone.
    """
    doomed = list(keys)
    for key in doomed:
        if not rule(key):
            raise CollectionRefusedError(f"{key} in {store.url} is nothing that may be removed")
    if doomed:
        await store.delete(doomed)
