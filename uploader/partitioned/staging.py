"""Deleting what was staged, and with it what kept logs from being collected meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from uploader.partitioned.write_id import hold_of, is_passing, parse_staged
from uploader.stores.port import ObjectStore
from uploader.stores.removal import remove

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
            await forget_staged(store, doomed)
            count += len(doomed)
            doomed = []
    await forget_staged(store, doomed)
    return count + len(doomed)


async def forget_staged(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete staged objects of jobs that are over. Their holds go first, for the keys tell of them."""
    holds = dict.fromkeys(hold for hold in map(hold_of, keys) if hold is not None)
    await remove(store, holds, rule=is_passing)
    await remove(store, keys, rule=is_passing)
