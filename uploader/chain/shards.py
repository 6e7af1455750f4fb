"""Shards: lists the prefixes that fragments are spread over."""

from __future__ import annotations

from uploader.format.layout import (
    FIRST_SEQ_NO,
    MOST_SHARDS,
    SHARD_PREFIX,
    FragmentName,
    last_before,
    shard_folder,
)
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ListedObject, ObjectStore


async def list_shards(store: ObjectStore) -> list[tuple[FragmentName, ListedObject]]:
    """Return all fragments of all shards, by number; other objects are left out."""
    return await list_behind_names(store, 0)


async def list_behind(
    store: ObjectStore, seq_no: int, *, is_spread: bool = True
) -> list[ListedObject]:
    """Return the fragments with that number and higher ones, of all shards, by number.

    All possible shards are listed, since an earlier writer may have used more. One request is enough if all
    fragments are in the first one. That is tried unless ``is_spread``, and costs a request if wrong.
    """
    found = None
    if seq_no == FIRST_SEQ_NO or not is_spread:  # of a new log there is little to list
        found = await _list_first_shard(store, seq_no)
    if found is None:
        found = await list_behind_names(store, seq_no)
    return [listed for _, listed in sorted(found, key=_by_number)]


async def list_behind_names(
    store: ObjectStore, seq_no: int
) -> list[tuple[FragmentName, ListedObject]]:
    """Return what :func:`list_behind` does, with the parsed names."""
    shards = range(1, MOST_SHARDS + 1)
    folders = [_list(store, shard_folder(shard), last_before(shard, seq_no)) for shard in shards]
    found = await gather_all(folders)
    return sorted((item for listing in found for item in listing), key=_by_number)


async def _list_first_shard(
    store: ObjectStore, seq_no: int
) -> list[tuple[FragmentName, ListedObject]] | None:
    """Return what one listing names from there on; None if other keys follow.

    Those may be of the other shards, from their beginning, or of any object with such a prefix.
    """
    found = []
    folder = shard_folder(1)
    async for listed in store.list(SHARD_PREFIX, after=last_before(1, seq_no)):
        name = _parse(listed)
        if name is not None and name.seq_no >= seq_no:
            found.append((name, listed))
        elif not listed.key.startswith(folder):
            return None
    return found


async def _list(
    store: ObjectStore, prefix: str, after: str | None
) -> list[tuple[FragmentName, ListedObject]]:
    listing = [(_parse(listed), listed) async for listed in store.list(prefix, after=after)]
    return [(name, listed) for name, listed in listing if name is not None]


def _parse(listed: ListedObject) -> FragmentName | None:
    try:
        return FragmentName.parse(listed.key)
    except ValueError:
        return None


def _by_number(item: tuple[FragmentName, ListedObject]) -> tuple[int, int, int, str]:
    name, listed = item
    return name.seq_no, name.start, name.limit, listed.key
