"""StoreWrapper: an object store that passes every call on to another one.

The base of all wrappers. Each overrides what it changes: :meth:`StoreWrapper._call` for all calls alike,
or single methods. Owns no policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from uploader.stores.port import ListedObject, ObjectInfo, ObjectStore, StoredObject, get_bounded
from walstore.core.validation.arguments import as_texts

Kind = Literal["get", "get_range", "head", "list", "put_if_absent", "put_if_match", "delete"]
KINDS: tuple[Kind, ...] = (
    "get",
    "get_range",
    "head",
    "list",
    "put_if_absent",
    "put_if_match",
    "delete",
)
"""The kinds of calls, which are named as the methods of the port."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request(Generic[_T]):
    """One call to the inner store. Each awaited ``request()`` makes it again."""

    kind: Kind
    """Which method was called."""

    key: str
    """The object's key; a listing's prefix; a delete's first key ("" if there is none)."""

    sent_bytes: int
    """Content of a put."""

    wanted_bytes: int
    """Content requested by a range."""

    make: Callable[[], Awaitable[_T]]
    """Makes the call."""

    def __call__(self) -> Awaitable[_T]:
        """Make the call."""
        return self.make()


def content_bytes(answer: object) -> int:
    """Return the length of the content that a call returned; 0 if it returns none."""
    if isinstance(answer, StoredObject):
        return len(answer.data)
    return len(answer) if isinstance(answer, bytes) else 0


class StoreWrapper:
    """The port over another store. Without a subclass it changes nothing."""

    def __init__(self, inner: ObjectStore) -> None:
        """Wrap ``inner``, which is closed with the wrapper."""
        self.inner = inner

    @property
    def url(self) -> str:
        """The URL of the inner store: a wrapper does not move objects."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner!r}>"

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``."""
        return await self._call(
            Request("get", key, 0, 0, lambda: get_bounded(self.inner, key, max_bytes))
        )

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)`` as far as there are any."""
        return await self._call(
            Request(
                "get_range",
                key,
                0,
                limit - start,
                lambda: self.inner.get_range(key, start, limit),
            )
        )

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag, or None."""
        return await self._call(Request("head", key, 0, 0, lambda: self.inner.head(key)))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects as the inner store does; not a call for :meth:`_call`."""
        async for listed in self.inner.list(prefix, after=after):
            yield listed

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object."""
        return await self._call(
            Request("put_if_absent", key, len(data), 0, lambda: self.inner.put_if_absent(key, data))
        )

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object."""
        return await self._call(
            Request(
                "put_if_match", key, len(data), 0, lambda: self.inner.put_if_match(key, data, etag)
            )
        )

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        doomed = as_texts(keys, "keys")
        first = doomed[0] if doomed else ""
        await self._call(Request("delete", first, 0, 0, lambda: self.inner.delete(doomed)))

    async def aclose(self) -> None:
        """Close the inner store."""
        await self.inner.aclose()

    async def _call(self, request: Request[_T]) -> _T:
        """Make one call that is not a listing; what subclasses override."""
        return await request()
