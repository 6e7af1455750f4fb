"""Deleting what was staged."""

from __future__ import annotations

from uploader.partitioned.write_id import is_passing, parse_staged
from uploader.removal import remove
from uploader.stores.port import ObjectStore

_BATCH = 1000


async def delete_staged(store: ObjectStore, prefix: str, *, most_epoch: int | None = None) -> int:
    """Delete the objects below a prefix, with ``most_epoch`` only those of epochs up to that; return how
    many.

    The prefix is that of a query or longer: keys are in the order of their epochs.
    """
    doomed: list[str] = []
    count = 0
    async for listed in store.list(prefix):
        found = parse_staged(listed.key)
        if most_epoch is not None and found is not None and found[1] > most_epoch:
            break
        doomed.append(listed.key)
        if len(doomed) == _BATCH:
            await remove(store, doomed, rule=is_passing)
            count += len(doomed)
            doomed = []
    await remove(store, doomed, rule=is_passing)
    return count + len(doomed)
