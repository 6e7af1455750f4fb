"""CollectionSession: what all handles of one collection share: store, head, pending area, threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import pyarrow as pa

from uploader.root.stored_document import read_object
from uploader.runtime.shared_worker import SharedWorker
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.collection_head import CollectionHead
from uploader.versioned.pending import PendingArea
from uploader.versioned.pending_batch import check_schema
from uploader.versioned.schema import MAX_TIME, CollectionSchema
from uploader.versioned.version import MergedBatch
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import LoopGuard, MustClose, Unclosed
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, WalClosedError

_MICROSECONDS: Final = 1_000_000


class CollectionSession(MustClose):
    """Opens a collection's store and closes it with the last handle that uses it.

    Its methods pass on the store's errors, and raise CorruptionError for objects that are damaged.
    """

    def __init__(
        self,
        url: str,
        *,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Name the collection. A given ``store`` replaces the one of the URL and stays open."""
        self.url = url
        """As it was given, with the store's options."""
        self.store = chosen_store(url, store)
        self.clock = clock or SystemClock()
        self.retry = retry or RetryPolicy(clock=self.clock)
        self.worker: Worker = SharedWorker("cloud", 4)
        self.head = CollectionHead(self.store, retry=self.retry, clock=self.clock)
        self._owns_store = store is None
        self._pending: PendingArea | None = None
        self.closing: set[Callable[[], Awaitable[None]]] = set()
        """What closes the readers that are open."""
        self._guard = LoopGuard("collection")
        self._is_closed = False

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_is_closed", True) or self._guard.is_inherited:
            return None
        return Unclosed(f"the collection at {self.store.url}")

    @property
    def pending(self) -> PendingArea:
        """The pending area; the head must have been read."""
        if self._pending is None:
            self._pending = PendingArea(self.store, head=self.head, worker=self.worker)
        return self._pending

    def check_loop(self) -> None:
        """Raise WrongLoopError for a caller from another thread or event loop."""
        self._guard.check()

    def check_home(self) -> None:
        """Raise WrongLoopError as :meth:`check_loop` does, WalClosedError once closed."""
        self.check_loop()
        if self._is_closed:
            raise WalClosedError(f"the collection at {self.store.url} is closed; open it again")

    def after_us(self, seconds: float) -> int:
        """Return the time ``seconds`` from now, in microseconds since 1970."""
        return self.clock.now_us() + round(seconds * _MICROSECONDS)

    async def read_merged(
        self, batches: Iterable[MergedBatch], schema: CollectionSchema, *, start: int = 0
    ) -> list[pa.Table]:
        """Return the updates of merged batches, one table for each object, in the newest schema.

        Only those at ``start`` or later; a batch must not be compacted that far.
        """

        async def one(batch: MergedBatch, key: str) -> tuple[BatchFooter, pa.Table]:
            stored = await read_object(self.store, key)
            return await self.worker.run(self._decode, stored.data, key, batch, schema, start)

        pairs = [(batch, key) for batch in batches for key in batch.keys]
        found = await gather_all(one(batch, key) for batch, key in pairs)
        footers: dict[MergedBatch, list[BatchFooter]] = {}
        for (batch, _), (footer, _) in zip(pairs, found, strict=True):
            footers.setdefault(batch, []).append(footer)
        for batch, parts in footers.items():
            _check_whole(batch, parts)
        return [table for _, table in found]

    def _decode(
        self, data: bytes, key: str, batch: MergedBatch, schema: CollectionSchema, start: int
    ) -> tuple[BatchFooter, pa.Table]:
        footer, table = batch_file.decode(data, path=key)
        found = (footer.collection, footer.lower, footer.upper, footer.since)
        expected = (self.head.seen.head.collection, batch.lower, batch.upper, batch.since)
        if found != expected:
            raise CorruptionError(
                "a merged batch is not the one of its version",
                path=key,
                expected=expected,
                found=found,
            )
        check_schema(footer, schema, key)
        table = updates.upgrade(table, schema, path=key)
        return footer, updates.between(table, start, MAX_TIME) if start else table

    async def aclose(self) -> None:
        """Close all readers, the threads and the store; idempotent.

        Every reader is closed, also if the release of another one fails; then that error is raised.
        WrongLoopError for a caller from another thread or event loop; nothing is closed.
        """
        self.check_loop()
        try:
            async with AsyncExitStack() as stack:
                for close in list(self.closing):
                    stack.push_async_callback(close)
        finally:
            self._is_closed = True
            self.worker.close()
            if self._owns_store:
                await self.store.aclose()


def _check_whole(batch: MergedBatch, footers: Sequence[BatchFooter]) -> None:
    """Raise CorruptionError unless these are all objects of the batch, each of them once."""
    expected = (batch.rows, batch.digest)
    found = (
        sum(footer.rows for footer in footers),
        sum(footer.digest for footer in footers) % (1 << 64),
    )
    if found != expected:
        raise CorruptionError(
            "the objects of a merged batch are not those of its version",
            path=batch.keys[0],
            expected=expected,
            found=found,
        )
