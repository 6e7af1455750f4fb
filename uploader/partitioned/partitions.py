"""Partitions: how many logs a partitioned log has, where each of them is, and each as a store of its own.

One small object under the common prefix contains their number. It is put once, by the first writer, so that
readers and writers agree on which log a key belongs to. The logs are below it, ``{prefix}/{number}``, each
with its own manifest, and are complete without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final

from uploader.format.document import MOST_SMALL_BYTES, Fields, read_document, serialise
from uploader.layouts.log_session import find_root
from uploader.root import cas
from uploader.root.stored_document import find_stored
from uploader.stores.port import ListedObject, ObjectInfo, ObjectStore, StoredObject, get_bounded
from uploader.stores.probe import Proof, proof_behind, require_conditional_puts
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, InvalidSettingsError

PARTITIONS: Final = "partitioned/PARTITIONS"
"""Key of the object, relative to the common prefix: ``{"partitions":4}``."""
MOST_PARTITIONS: Final = 1024


def partition_url(url: str, partition: int) -> str:
    """Return the URL of one of the logs; what follows a ``?`` stays."""
    bare, mark, query = url.partition("?")
    return f"{bare.rstrip('/')}/{partition}{mark}{query}"


async def read_partitions(store: ObjectStore) -> int | None:
    """Return how many logs there are, or None if there is no partitioned log.

    CorruptionError if the object is damaged; else the store's errors.
    """
    parse = partial(read_document, build=_partitions, path=PARTITIONS, most_bytes=MOST_SMALL_BYTES)
    found = await find_stored(store, PARTITIONS, parse, most_bytes=MOST_SMALL_BYTES)
    return None if found is None else found.value


async def create_partitions(store: ObjectStore, partitions: int, *, retry: RetryPolicy) -> int:
    """Make a partitioned log of so many logs, unless there is one; return how many it has.

    InvalidSettingsError unless ``partitions`` is 1 to 1024. OutcomeUnknownError if the store does not
    answer; call again.
    """
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidSettingsError(f"partitions must be 1 to {MOST_PARTITIONS}, not {partitions}")
    found = await read_partitions(store)
    while found is None:
        data = serialise({"partitions": partitions})
        result = await cas.create(store, PARTITIONS, data, retry=retry)
        result.decided(store.url, f"{PARTITIONS} was put; call again")
        found = await read_partitions(store)
    return found


async def open_partitions(
    store: ObjectStore,
    partitions: int | None,
    *,
    retry: RetryPolicy,
    worker: Worker,
    creates: bool = True,
) -> int:
    """Return how many logs there are under a prefix; create a partitioned log of ``partitions`` if there is
    none.

    None means a single log. Without ``creates`` the same is checked, and nothing is fixed yet. The logs
    themselves are created when something is written to them.
    Raises InvalidSettingsError if there is another number of logs, or a log that is not partitioned;
    UnsupportedStoreError if the store ignores the conditions of puts.
    """
    found = await read_partitions(store)
    if found is None:
        root = await find_root(store, retry=retry, worker=worker)
        await root.aclose()
        if root.is_known:
            raise InvalidSettingsError(
                f"a log that is not partitioned is at {store.url}; write to another place"
            )
        await require_conditional_puts(store, is_new=True, retry=retry)
        found = 1 if partitions is None else partitions
        if creates:
            found = await create_partitions(store, found, retry=retry)
    if partitions not in {None, found}:
        raise InvalidSettingsError(
            f"the log at {store.url} has {found} partitions, not {partitions}; their number cannot be changed"
        )
    return found


def _partitions(fields: Fields) -> int:
    partitions = fields.number("partitions", maximum=MOST_PARTITIONS)
    if not partitions:
        raise CorruptionError("a partitioned log has at least one log", path=fields.path)
    return partitions


class SubStore:
    """The objects below ``{partition}/`` of another store, which stays open when this one is closed.

    All logs of a partitioned log share the connections of the inner store, and its faults in tests.
    """

    def __init__(self, inner: ObjectStore, partition: int) -> None:
        self._inner = inner
        self._prefix = f"{partition}/"
        self._url = partition_url(inner.url, partition)

    @property
    def url(self) -> str:
        """Location of the log."""
        return self._url

    def __repr__(self) -> str:
        return f"<SubStore {self._url}>"

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """As the port says."""
        return await get_bounded(self._inner, self._prefix + key, max_bytes)

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """As the port says."""
        return await self._inner.get_range(self._prefix + key, start, limit)

    async def head(self, key: str) -> ObjectInfo | None:
        """As the port says."""
        found = await self._inner.head(self._prefix + key)
        return None if found is None else ObjectInfo(key, found.size_bytes, found.etag)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """As the port says."""
        behind = None if after is None else self._prefix + after
        async for listed in self._inner.list(self._prefix + prefix, after=behind):
            yield ListedObject(listed.key.removeprefix(self._prefix), listed.size_bytes)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """As the port says."""
        return await self._inner.put_if_absent(self._prefix + key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """As the port says."""
        return await self._inner.put_if_match(self._prefix + key, data, etag)

    async def delete(self, keys: Iterable[str]) -> None:
        """As the port says."""
        await self._inner.delete([self._prefix + key for key in keys])

    async def proof(self) -> Proof:
        """Return what the inner store's place has proven."""
        return await proof_behind(self._inner)

    async def aclose(self) -> None:
        """Do nothing: the inner store belongs to the caller."""
