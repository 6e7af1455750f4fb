"""Does a store keep the two promises a manifest rests on? Asked once, before the first write.

Some emulators and older servers accept the conditions of a put and ignore them; two writers would then
overwrite each other without a word. The probe writes a small object of its own outside the folders
of a log, tries what must be refused, and removes it.
"""

from __future__ import annotations

import logging
import secrets

from uploader.stores.errors import PreconditionFailedError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import UnsupportedStoreError, WalError

PROBE_FOLDER = "walstore-probe"

_LOGGER = logging.getLogger(__name__)


async def probe_conditional_puts(
    store: ObjectStore,
    *,
    with_swaps: bool = True,
    probe_id: str | None = None,
    retry: RetryPolicy | None = None,
) -> None:
    """Return if the store enforces put-if-absent and put-if-match; six requests and a delete.

    Raises UnsupportedStoreError that says what the store ignored, and what the store raises itself: a
    missing bucket, missing credentials or a read-only place show here first. Passing faults are
    retried with a fresh object. A failure to remove the object is only logged. Cancelled or cut
    off half-way, it may leave the object behind, which does no harm.

    Args:
        store: The store to try.
        with_swaps: Whether put-if-match is needed too. A chain of manifests does without; then it is two
            requests and a delete.
        probe_id: Names the object, unique among the probes of this store. Default: random.
        retry: How often to begin again after passing faults.
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
    try:
        return await store.put_if_absent(key, b"1")
    except PreconditionFailedError as error:
        raise UnsupportedStoreError(
            f"{store.url} refuses to create an object that is not there; use another store"
        ) from error


async def _check(store: ObjectStore, key: str, first: str, *, with_swaps: bool) -> None:
    if await _accepts(store, key, b"2", None):
        raise _ignored(store, "a put with If-None-Match: * replaced an existing object")
    if not with_swaps:
        return
    if await _accepts(store, key, b"3", "0" * len(first)):
        raise _ignored(store, "a put with If-Match and a wrong ETag was accepted")
    try:
        second = await store.put_if_match(key, b"4", first)
    except PreconditionFailedError as error:
        raise UnsupportedStoreError(
            f"{store.url} refuses a put with If-Match and the ETag it gave itself; use another store"
        ) from error
    if await _accepts(store, key, b"5", first):
        raise _ignored(store, "a put with If-Match and an outdated ETag was accepted")
    found = await store.get(key)
    if found.data != b"4" or found.etag != second:
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
