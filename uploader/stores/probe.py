"""Checks once, before the first write, that a store keeps the two promises a manifest depends on.

Some emulators and older servers accept the conditions of a put and ignore them; two writers would then
silently overwrite each other. The probe writes a small object of its own outside the folders
of a log, tries requests that must be refused, and removes it.

The result is kept for all stores at the same place until the process ends, and for later processes in a
mark next to the log. The mark names the store's URL, so a copy of the log at another place is probed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Hashable
from weakref import WeakKeyDictionary

from uploader.stores.port import (
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
    get_bounded,
)
from uploader.stores.retry import RetryPolicy
from uploader.stores.wrapper import StoreWrapper
from walstore.errors import UnsupportedStoreError, WalError


class Proof:
    """Whether one place, such as a bucket, was found to enforce conditional puts.

    All stores at a place share one, also in several event loops.
    """

    def __init__(self, *, wants_mark: bool = True) -> None:
        """``wants_mark``: whether a mark in the store spares later processes the probe."""
        self.wants_mark = wants_mark
        self._creates = self._swaps = False
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def covers(self, *, with_swaps: bool) -> bool:
        """Return whether put-if-absent, and put-if-match if that is needed, are known to be enforced."""
        return self._swaps if with_swaps else self._creates

    def note(self, *, with_swaps: bool) -> None:
        """Record a passed probe."""
        self._creates = True
        self._swaps |= with_swaps

    def turn(self) -> asyncio.Lock:
        """Return the lock that is held while this loop probes, so that others wait for the result."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


_PLACES: dict[Hashable, Proof] = {}


def proof_of(*place: Hashable, wants_mark: bool = True) -> Proof:
    """Return the one proof of the place that these values name."""
    return _PLACES.setdefault(place, Proof(wants_mark=wants_mark))


PROBE_FOLDER = "walstore-probe"
MARK_FOLDER = "walstore-mark"
_MOST_BYTES = 64 << 10

_LOGGER = logging.getLogger("walstore.stores")
_PROOFS: WeakKeyDictionary[object, Proof] = WeakKeyDictionary()


def parse_probe_key(key: str) -> str:
    """Return the name of a probe or a mark; ValueError if the key belongs to neither.

    Objects in folders below theirs belong to a log of that name.
    """
    folder, _, name = key.rpartition("/")
    if folder not in {PROBE_FOLDER, MARK_FOLDER} or not name:
        raise ValueError(f"not the key of a probe: {key!r}")
    return name


async def require_conditional_puts(
    store: ObjectStore,
    *,
    with_swaps: bool = True,
    is_new: bool = False,
    retry: RetryPolicy | None = None,
) -> None:
    """Return if the store is known to enforce its conditions, else :func:`probe_conditional_puts`.

    It is known if a store at the same place passed in this process, which costs no request, or if there is
    a mark, which costs one. After a passed probe the mark is written, unless that fails.

    Args:
        store: The store to write to.
        with_swaps: Whether put-if-match is needed too.
        is_new: Whether there is no log yet, and so no mark to look for.
        retry: How often to begin again after transient faults.
    """
    proof = await proof_behind(store)
    async with proof.turn():
        if proof.covers(with_swaps=with_swaps):
            return
        mark = _Mark(store, with_swaps=with_swaps)
        if is_new or not (proof.wants_mark and await mark.is_there()):
            await probe_conditional_puts(store, with_swaps=with_swaps, retry=retry)
            if proof.wants_mark:
                await mark.put()
        proof.note(with_swaps=with_swaps)


class _Mark:
    """The object that records that a store at this URL passed the probe."""

    def __init__(self, store: ObjectStore, *, with_swaps: bool) -> None:
        kind = "swaps" if with_swaps else "creates"
        digest = hashlib.sha256(store.url.encode()).hexdigest()[:16]
        self._store = store
        self._key = f"{MARK_FOLDER}/{kind}-{digest}"
        self._data = f"{store.url} enforces the conditions of puts\n".encode()

    async def is_there(self) -> bool:
        """Return whether it exists; also False if the store fails: the probe then reports it."""
        try:
            return (await get_bounded(self._store, self._key, _MOST_BYTES)).data == self._data
        except WalError:
            return False

    async def put(self) -> None:
        """Write it. A failure only costs the next process a probe."""
        with contextlib.suppress(WalError):
            await self._store.put_if_absent(self._key, self._data)


async def proof_behind(store: ObjectStore) -> Proof:
    """Return the proof of a store's place. Wrappers do not change it."""
    while isinstance(store, StoreWrapper):
        store = store.inner
    find = getattr(store, "proof", None)
    if find is not None:
        found = await find()
        assert isinstance(found, Proof)
        return found
    try:
        return _PROOFS.setdefault(store, Proof())
    except TypeError:  # it cannot be remembered
        return Proof()


async def probe_conditional_puts(
    store: ObjectStore,
    *,
    with_swaps: bool = True,
    probe_id: str | None = None,
    retry: RetryPolicy | None = None,
) -> None:
    """Return if the store enforces put-if-absent and put-if-match; six requests and a delete.

    Raises UnsupportedStoreError, which names what the store ignored, and the store's own errors: a
    missing bucket, missing credentials or a read-only place show here first. Transient faults are
    retried with a fresh object. A failure to remove the object is only logged. If cancelled or
    interrupted, the probe may leave the object behind, which is harmless.

    Args:
        store: The store to try.
        with_swaps: Whether put-if-match is needed too. A chain of manifests does not need it; the probe
            then takes two requests and a delete.
        probe_id: Names the object, unique among the probes of this store. Default: random.
        retry: How often to begin again after transient faults.
    """
    name = probe_id or secrets.token_hex(8)
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        key = f"{PROBE_FOLDER}/{name}-{attempts}"
        etag = await _create(store, key)
        try:
            await _check(store, key, etag, with_swaps=with_swaps)
        except WalError:
            await _remove(store, key)
            raise
        await _remove(store, key)

    await (retry or RetryPolicy()).call(attempt)


async def _create(store: ObjectStore, key: str) -> str:
    data = secrets.token_bytes(16)
    try:
        return await store.put_if_absent(key, data)
    except PreconditionFailedError as error:
        if (etag := await _etag_of(store, key, data)) is not None:
            return etag
        raise UnsupportedStoreError(
            f"{store.url} refuses to create an object that is not there; use another store"
        ) from error


async def _etag_of(store: ObjectStore, key: str, data: bytes) -> str | None:
    """Return the ETag of our own object, or None if the key holds another one or none.

    A proxy may send a put a second time, and then returns the refusal of the second one.
    """
    try:
        found = await get_bounded(store, key, _MOST_BYTES)
    except ObjectNotFoundError:
        return None
    return found.etag if found.data == data else None


async def _check(store: ObjectStore, key: str, first: str, *, with_swaps: bool) -> None:
    if await _accepts(store, key, b"2", None):
        raise _ignored(store, "a put with If-None-Match: * replaced an existing object")
    if not with_swaps:
        return
    if await _accepts(store, key, b"3", "0" * len(first)):
        raise _ignored(store, "a put with If-Match and a wrong ETag was accepted")
    data = secrets.token_bytes(16)
    try:
        second = await store.put_if_match(key, data, first)
    except PreconditionFailedError as error:
        own = await _etag_of(store, key, data)
        if own is None:
            raise UnsupportedStoreError(
                f"{store.url} refuses a put with If-Match and the ETag it gave itself; use another store"
            ) from error
        second = own
    if await _accepts(store, key, b"5", first):
        raise _ignored(store, "a put with If-Match and an outdated ETag was accepted")
    found = await get_bounded(store, key, _MOST_BYTES)
    if found.data != data or found.etag != second:
        raise UnsupportedStoreError(
            f"{store.url} does not return what was put last, under the ETag it gave for it;"
            " use another store"
        )


async def _accepts(store: ObjectStore, key: str, data: bytes, etag: str | None) -> bool:
    try:
        if etag is None:
            await store.put_if_absent(key, data)
        else:
            await store.put_if_match(key, data, etag)
    except PreconditionFailedError:
        return False
    return True


def _ignored(store: ObjectStore, what: str) -> UnsupportedStoreError:
    return UnsupportedStoreError(
        f"{store.url} ignores the conditions of puts ({what}), so two writers would overwrite each"
        " other; use a store that enforces them"
    )


async def _remove(store: ObjectStore, key: str) -> None:
    try:
        await store.delete([key])
    except WalError as error:
        _LOGGER.warning("the probe's object %s was left in %s: %s", key, store.url, error)
