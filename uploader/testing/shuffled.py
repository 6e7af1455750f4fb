"""ShuffledStore: lists objects in any order, as S3 Express directory buckets and Storj do.

    store = ShuffledStore(MemoryStore(), random.Random(7).shuffle)

For tests that a program does not rely on the order of a listing. Owns no randomness.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.wrapper import StoreWrapper


class ShuffledStore(StoreWrapper):
    """The port over another store, except for the order of listings, which are still complete."""

    def __init__(
        self, inner: ObjectStore, shuffle: Callable[[list[ListedObject]], object] = list.reverse
    ) -> None:
        """Wrap ``inner``; ``shuffle`` reorders the objects of one listing in place. Default: backwards."""
        super().__init__(inner)
        self._shuffle = shuffle

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the inner store's objects, once it has listed all."""
        found = [listed async for listed in self.inner.list(prefix, after=after)]
        self._shuffle(found)
        for listed in found:
            yield listed
