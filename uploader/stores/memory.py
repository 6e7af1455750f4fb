"""Objects in this process's memory, for tests, simulations and trials. Nothing survives the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
    check_key,
    check_keys,
    check_length,
    check_range,
)
from uploader.stores.probe import Proof
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock


@dataclass(slots=True)
class _Bucket:
    objects: dict[str, StoredObject] = field(default_factory=dict)
    puts: int = 0
    proofs: dict[type, Proof] = field(default_factory=dict)


_BUCKETS: dict[str, _Bucket] = {}


class MemoryStore:
    """A dictionary behind the port. Stores of the same name share one, for the life of the process.

    Every call yields to the event loop once, before it reads the dictionary; the rest of the call is
    atomic. ETags count the puts, so no two contents ever have the same one.
    """

    def __init__(self, name: str | None = None, *, clock: Clock | None = None) -> None:
        """Open the objects called ``name``; without a name, a private empty store."""
        self._name = name
        self._bucket = _Bucket() if name is None else _BUCKETS.setdefault(name, _Bucket())
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        """``memory://name``; a store without a name cannot be opened by its URL."""
        return f"memory://{self._name or ''}"

    def __repr__(self) -> str:
        return f"<MemoryStore {self.url}>"

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``."""
        await self._yield(key)
        found = self._bucket.objects.get(key)
        if found is None:
            raise ObjectNotFoundError(f"there is no such object in {self.url}", key=key)
        check_length(key, len(found.data), max_bytes)
        return found

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, cut at the end of the object."""
        check_range(start, limit)
        return (await self.get(key)).data[start:limit]

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag, or None."""
        await self._yield(key)
        found = self._bucket.objects.get(key)
        return None if found is None else ObjectInfo(key, len(found.data), found.etag)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects that exist at the first step, in the order of the keys."""
        await self._yield()
        found = [
            ListedObject(key, len(item.data))
            for key, item in self._bucket.objects.items()
            if key.startswith(prefix) and (after is None or key > after)
        ]
        for listed in sorted(found, key=lambda listed: listed.key):
            yield listed

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object."""
        await self._yield(key)
        if key in self._bucket.objects:
            raise PreconditionFailedError(f"the object exists already in {self.url}", key=key)
        return self._put(key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object."""
        await self._yield(key)
        found = self._bucket.objects.get(key)
        if found is None or found.etag != etag:
            raise PreconditionFailedError(f"the object was changed in {self.url}", key=key)
        return self._put(key, data)

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, all at once."""
        checked = check_keys(keys)
        await self._yield()
        for key in checked:
            self._bucket.objects.pop(key, None)

    async def proof(self) -> Proof:
        """Return what stores of this class have proven with these objects."""
        return self._bucket.proofs.setdefault(type(self), Proof(wants_mark=False))

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release, and other openers keep the objects."""

    async def _yield(self, key: str | None = None) -> None:
        if key is not None:
            check_key(key)
        await self._clock.sleep(0)

    def _put(self, key: str, data: bytes) -> str:
        self._bucket.puts += 1
        etag = f"{self._bucket.puts:016x}"
        self._bucket.objects[key] = StoredObject(bytes(data), etag)
        return etag
