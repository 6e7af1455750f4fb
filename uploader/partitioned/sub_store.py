"""SubStore: one of the logs under a common prefix, seen as a store of its own.

All logs of a partitioned log share the connections of the inner store, and its faults in tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from uploader.partitioned.partitions import partition_url
from uploader.stores.port import ListedObject, ObjectInfo, ObjectStore, StoredObject, get_bounded
from uploader.stores.probe import Proof, proof_behind


class SubStore:
    """The objects below ``{partition}/`` of another store, which stays open when this one is closed."""

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
