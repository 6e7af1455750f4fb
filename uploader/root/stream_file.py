"""StreamFile: the table of a log's streams in the store. Every change of it is one compare-and-swap.

Owns the object ``streams/TABLE``. Never reads manifests or fragments: the writers decide what a change means
for appends in flight (``write/stream_guard.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from uploader.format import layout
from uploader.format.stream_table import StreamTable
from uploader.root import cas
from uploader.root.stored_document import find_stored, find_stored_or_damaged
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from walstore.core.batches.conditions import MAX_LEDGER_BYTES
from walstore.core.runtime.threads import Worker

Change = Callable[[StreamTable], StreamTable | None]
"""Makes the next table of the newest one; None if there is nothing to do. Pure: it may be called several
times. After a lost answer the newest one may be what an earlier call made."""


class StreamFile:
    """The table of one log, as one program sees it. Any number of tasks may call it."""

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, worker: Worker) -> None:
        self._store = store
        self._retry = retry
        self._worker = worker
        self.table: StreamTable | None = None
        """The newest that was read or written; None before the first time."""

    async def load(self) -> StreamTable:
        """Read the table; an empty one if there is none. CorruptionError, and the store's errors."""
        table, _ = await self._load()
        return table

    async def change(self, make: Change) -> StreamTable:
        """Replace the newest table by the result of ``make``, despite concurrent changes; return it.

        Passes on what ``make`` raises. UnsupportedStoreError if the store has no swaps.
        OutcomeUnknownError if it does not answer: call again.
        """
        while True:
            table, etag = await self._load()
            made = make(table)
            if made is None:
                return table
            data = await self._worker.run(made.serialise)
            # A chain of manifests needs no swaps, so they may not have been probed yet.
            await require_conditional_puts(self._store, with_swaps=True, retry=self._retry)
            result = await cas.put(self._store, layout.STREAMS, data, etag, retry=self._retry)
            result.decided(self._store.url, f"{layout.STREAMS} was written; call again")
            if result.outcome is cas.PutOutcome.COMMITTED:
                return self._note(made)

    # -- inside ------------------------------------------------------------------------------

    async def _load(self) -> tuple[StreamTable, str | None]:
        found = await find_stored(
            self._store, layout.STREAMS, StreamTable.parse, worker=self._worker
        )
        if found is None:
            return self._note(StreamTable()), None
        return self._note(found.value), found.etag

    def _note(self, table: StreamTable) -> StreamTable:
        """Remember a table, unless a newer one was seen meanwhile."""
        if self.table is None or table.revision >= self.table.revision:
            self.table = table
        return table


async def read_closings(store: ObjectStore) -> int:
    """Return how many closings of streams a log's table records; 0 if it is missing or damaged."""
    found = await find_stored_or_damaged(
        store, layout.STREAMS, StreamTable.parse, most_bytes=MAX_LEDGER_BYTES
    )
    return 0 if found is None or found.value is None else found.value.closings
