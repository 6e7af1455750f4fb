"""Reads objects of a log with a length limit, and parses them off the event loop.

Any program may have put the objects in a bucket. So no other module of the cloud tier reads a whole object
from a store or parses one on the event loop: that takes a second for the longest manifest, and would block
all logs of the process (tests/test_architecture.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from uploader.format.document import MOST_BYTES
from uploader.format.entries import Fragment
from uploader.runtime.shared_worker import SharedWorker
from uploader.stores.port import ObjectNotFoundError, ObjectStore, StoredObject, get_bounded
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, WalError

MOST_FRAGMENT_BYTES: Final = 5 << 30
"""Longest object that one put can make in S3, and so the longest fragment."""
_SHORT_BYTES: Final = 16 << 10
"""Parsing a document up to this length takes about as long as waking a thread, or less."""

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[_T_co]):
    """The value of a document, and the ETag of its object."""

    value: _T_co
    etag: str | None
    """None if there is no object."""
    damage: CorruptionError | None = None
    """Why there is no value."""


async def read_object(
    store: ObjectStore, key: str, *, most_bytes: int | None = None
) -> StoredObject:
    """Return a whole object; ObjectNotFoundError if there is none, else the store's errors.

    CorruptionError if it has more than ``most_bytes``. Default: the longest fragment for the
    key of a Parquet file, else the longest document.
    """
    return await get_bounded(store, key, most_bytes_at(key) if most_bytes is None else most_bytes)


async def read_fragment(store: ObjectStore, entry: Fragment) -> bytes:
    """Return all bytes of the object that an entry names, unchecked; errors as :func:`read_object`.

    A range costs less than a get, which may have to hash the object for its ETag. One byte more than there
    should be is requested, to detect a longer object, which takes a second request.
    """
    data = await store.get_range(entry.path, 0, entry.num_bytes + 1)
    return data if len(data) <= entry.num_bytes else (await read_object(store, entry.path)).data


def most_bytes_at(key: str) -> int:
    """Return the greatest length of an object, by its key alone."""
    return MOST_FRAGMENT_BYTES if key.endswith(".parquet") else MOST_BYTES


async def read_stored(
    store: ObjectStore,
    key: str,
    parse: Callable[[bytes], _T],
    *,
    most_bytes: int = MOST_BYTES,
    worker: Lane | None = None,
) -> StoredDocument[_T]:
    """Return what ``parse`` makes of a document; see :func:`read_object` and :func:`parse_aside`.

    CorruptionError also if ``parse`` raises ValueError: what the document says has no meaning.
    """
    stored = await read_object(store, key, most_bytes=most_bytes)
    return StoredDocument(await parse_stored(parse, key, stored.data, worker=worker), stored.etag)


async def find_stored(
    store: ObjectStore,
    key: str,
    parse: Callable[[bytes], _T],
    *,
    most_bytes: int = MOST_BYTES,
    worker: Lane | None = None,
) -> StoredDocument[_T] | None:
    """Return what :func:`read_stored` does; None if there is no object."""
    try:
        return await read_stored(store, key, parse, most_bytes=most_bytes, worker=worker)
    except ObjectNotFoundError:
        return None


async def find_stored_or_damaged(
    store: ObjectStore, key: str, parse: Callable[[bytes], _T], *, most_bytes: int = MOST_BYTES
) -> StoredDocument[_T | None] | None:
    """Return what :func:`find_stored` does, with None as the value of a damaged document.

    This allows replacing exactly the damaged object, which the ETag names.
    """
    try:
        try:
            stored = await read_object(store, key, most_bytes=most_bytes)
        except CorruptionError as error:
            found = await store.head(key)
            if found is not None and found.size_bytes > most_bytes:
                return StoredDocument(None, found.etag, error)
            # Another program replaced it.
            stored = await read_object(store, key, most_bytes=most_bytes)
    except ObjectNotFoundError:
        return None
    try:
        return StoredDocument(await parse_stored(parse, key, stored.data), stored.etag)
    except CorruptionError as error:
        return StoredDocument(None, stored.etag, error)


async def parse_stored(
    parse: Callable[[bytes], _T], key: str, data: bytes, *, worker: Lane | None = None
) -> _T:
    """Return what ``parse`` makes of the document at ``key``; see :func:`parse_aside`.

    CorruptionError also if it raises ValueError.
    """
    return await parse_aside(partial(_checked, parse, key), data, worker=worker)


def _checked(parse: Callable[[bytes], _T], key: str, data: bytes) -> _T:
    try:
        return parse(data)
    except WalError:
        raise
    except ValueError as error:
        raise CorruptionError(f"a value is out of range ({error})", path=key) from error


async def parse_aside(
    parse: Callable[[bytes], _T], data: bytes, *, worker: Lane | None = None
) -> _T:
    """Return ``parse(data)``, made on a thread of ``worker``.

    Without one, on a thread that all logs share if the document is long, else at once.
    """
    if worker is not None:
        return await worker.run(parse, data)
    return await run_aside(partial(parse, data), size_bytes=len(data))


async def run_aside(parse: Callable[[], _T], *, size_bytes: int) -> _T:
    """Return ``parse()``, made at once or, if it reads many bytes, on a thread that all logs share."""
    if size_bytes <= _SHORT_BYTES:
        return parse()
    shared = SharedWorker("cloud", 1)
    try:
        return await shared.run(parse)
    finally:
        shared.close()
