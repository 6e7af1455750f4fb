"""Making a partitioned log, or agreeing with the one that is there."""

from __future__ import annotations

from uploader.layouts.open_root import find_root
from uploader.partitioned.partitions import create_partitions, read_partitions
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from walstore.errors import InvalidSettingsError
from walstore.runtime.threads import Worker


async def open_partitions(
    store: ObjectStore, partitions: int | None, *, retry: RetryPolicy, worker: Worker
) -> int:
    """Return how many logs there are under a prefix, making a partitioned log of ``partitions`` if there
    is none.

    One, if that is None. The logs themselves are made when something is written to them. Raises
    InvalidSettingsError if there is another number of logs, or a log that is not partitioned;
    UnsupportedStoreError if the store ignores the conditions of puts.
    """
    found = await read_partitions(store)
    if found is None:
        root = await find_root(store, retry=retry, worker=worker)
        await root.aclose()
        if root.is_known:
            raise InvalidSettingsError(
                f"a log that is not partitioned lies at {store.url}; write to another place"
            )
        await require_conditional_puts(store, is_new=True, retry=retry)
        found = await create_partitions(store, 1 if partitions is None else partitions, retry=retry)
    if partitions not in {None, found}:
        raise InvalidSettingsError(
            f"the log at {store.url} has {found} partitions, not {partitions}; their number cannot be changed"
        )
    return found
