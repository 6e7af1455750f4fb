"""What the parts of ``uploader.testing.suite`` share."""

from __future__ import annotations

from collections.abc import Awaitable

from uploader.root import cas
from uploader.stores.port import ObjectStore


async def keys(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    """Return the keys of a listing."""
    return [listed.key async for listed in store.list(prefix, after=after)]


async def fill(store: ObjectStore, *names: str) -> None:
    """Create objects whose content is their key."""
    for name in names:
        await store.put_if_absent(name, name.encode())


async def won(putting: Awaitable[cas.PutResult]) -> str | None:
    """Return the ETag of a put that won, None for one that lost; a store may not leave it open."""
    result = await putting
    assert result.outcome is not cas.PutOutcome.UNKNOWN, result.cause
    return result.etag if result.outcome is cas.PutOutcome.COMMITTED else None


async def append_word(store: ObjectStore, word: str) -> None:
    """Add a word to the object ``words`` by a swap, in parallel with other tasks that do so."""
    while True:
        found = await store.get("words")
        # An earlier swap of ours may have been taken over by the one that overtook it.
        if word.encode() in found.data.split():
            return
        await won(cas.swap(store, "words", found.data + b" " + word.encode(), found.etag))
