"""Shards: what lies in the prefixes that fragments are spread over."""

from __future__ import annotations

from uploader.chain.names import (
    MOST_SHARDS,
    SHARD_PREFIX,
    FragmentName,
    last_before,
    shard_folder,
)
from uploader.layout import FIRST_SEQ_NO
from uploader.stores.port import ListedObject, ObjectStore
from uploader.together import all_of


async def list_shards(store: ObjectStore) -> list[tuple[FragmentName, ListedObject]]:
    """Return all fragments of all shards, by number; what is none by its name is left out."""
    return await list_behind_names(store, 0)


async def list_behind(store: ObjectStore, seq_no: int) -> list[ListedObject]:
    """Return the fragments with that number and higher ones, of all shards, by number.

    All shards that there may be are looked into, since a writer before may have used more.
    """
    return [listed for _, listed in await list_behind_names(store, seq_no)]


async def list_behind_names(
    store: ObjectStore, seq_no: int
) -> list[tuple[FragmentName, ListedObject]]:
    """Return what :func:`list_behind` does, with what the names say."""
    if seq_no == FIRST_SEQ_NO:  # of a new log there is little to list, mostly nothing
        found = [await _list(store, SHARD_PREFIX, None)]
    else:
        shards = range(1, MOST_SHARDS + 1)
        listings = [(shard_folder(shard), last_before(shard, seq_no)) for shard in shards]
        found = await all_of(_list(store, *listing) for listing in listings)
    return sorted(
        (item for listing in found for item in listing),
        key=lambda item: (item[0].seq_no, item[0].start, item[0].limit, item[1].key),
    )


async def _list(
    store: ObjectStore, prefix: str, after: str | None
) -> list[tuple[FragmentName, ListedObject]]:
    found = []
    async for listed in store.list(prefix, after=after):
        try:
            found.append((FragmentName.parse(listed.key), listed))
        except ValueError:
            continue
    return found
