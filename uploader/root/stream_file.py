"""StreamFile: the table of a log's streams in the store. Every change of it is one compare-and-swap.

Owns the object ``streams/TABLE``. Never reads manifests or fragments: the writers decide what a change means
for appends in flight (``write/stream_guard.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from uploader.format import layout
from uploader.format.stream_table import StreamTable
from uploader.root.stored_document import StoredDocument, find_stored_or_damaged
from uploader.root.swapped_document import DocumentSwap, SwappedDocument
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from walstore.core.batches.conditions import MAX_LEDGER_BYTES
from walstore.core.runtime.threads import Worker

Change = Callable[[StreamTable], StreamTable | None]
"""Makes the next table of the newest one; None if there is nothing to do. Pure: it may be called several
times. After a lost answer the newest one may be what an earlier call made."""


class StreamFile(SwappedDocument[StreamTable]):
    """The table of one log, as one program sees it; empty without an object.

    A change raises UnsupportedStoreError if the store has no swaps.
    """

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, worker: Worker) -> None:
        super().__init__(
            store,
            layout.STREAMS,
            StreamTable.parse,
            nothing=StreamTable,
            retry=retry,
            question=f"{layout.STREAMS} was written; call again",
            worker=worker,
        )
        self.table: StreamTable | None = None
        """The newest that was read or written; None before the first time."""

    async def read(self) -> StoredDocument[StreamTable]:
        """As of :class:`SwappedDocument`; remembers the table."""
        return self._note(await super().read())

    async def load(self) -> StreamTable:
        """Read the table. CorruptionError, and the store's errors."""
        return (await self.read()).value

    async def swap(
        self, value: StreamTable, before: StoredDocument[StreamTable]
    ) -> DocumentSwap[StreamTable]:
        """As of :class:`SwappedDocument`; remembers the table."""
        # A chain of manifests needs no swaps, so they may not have been probed yet.
        await require_conditional_puts(self._store, with_swaps=True, retry=self._retry)
        swap = await super().swap(value, before)
        self._note(swap.newest)
        return swap

    def _note(self, found: StoredDocument[StreamTable]) -> StoredDocument[StreamTable]:
        """Remember a table, unless a newer one was seen meanwhile."""
        if self.table is None or found.value.revision >= self.table.revision:
            self.table = found.value
        return found


async def read_closings(store: ObjectStore) -> int:
    """Return how many closings of streams a log's table records; 0 if it is missing or damaged."""
    found = await find_stored_or_damaged(
        store, layout.STREAMS, StreamTable.parse, most_bytes=MAX_LEDGER_BYTES
    )
    return 0 if found is None or found.value is None else found.value.closings
