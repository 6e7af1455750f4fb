"""GarbageFile: the object ``gc/GARBAGE``, by which collectors agree: one announces, any may finish.

Owns its compare-and-swap. It is created by the first collection, and never deleted: an empty document says
that no collection is under way, as in wal3, since stores have no conditional delete.
"""

from __future__ import annotations

from uploader.format import layout
from uploader.format.garbage import Garbage
from uploader.root import cas
from uploader.root.stored_document import read_stored
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.runtime.threads import Worker


async def announced_head(store: ObjectStore) -> int:
    """Return where a log is going to begin, if a collection is announced; else its first offset.

    CorruptionError if the document is damaged.
    """
    try:
        found = await read_stored(store, layout.GARBAGE, Garbage.parse)
    except ObjectNotFoundError:
        return layout.FIRST_OFFSET
    return found.value.first_to_keep


class GarbageFile:
    """The announced collection of one log."""

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, worker: Worker) -> None:
        self._store = store
        self._retry = retry
        self._worker = worker

    async def load(self) -> tuple[Garbage, str | None]:
        """Return the announced garbage, empty if there is none, and the ETag, None without an object.

        CorruptionError if the document is damaged, or names what no collector may take.
        """
        try:
            found = await read_stored(self._store, layout.GARBAGE, _parse, worker=self._worker)
        except ObjectNotFoundError:
            return Garbage(), None
        return found.value, found.etag

    async def swap(self, garbage: Garbage, etag: str | None) -> str | None:
        """Announce garbage in the place of what ``etag`` names; return the new ETag.

        None if another collector was first. OutcomeUnknownError if the store does not report the outcome.
        """
        data = await self._worker.run(garbage.serialise)
        result = await cas.put(self._store, layout.GARBAGE, data, etag, retry=self._retry)
        result.decided(self._store.url, f"{layout.GARBAGE} was written; collect again")
        return result.etag if result.outcome is cas.PutOutcome.COMMITTED else None

    async def clear(self, etag: str) -> bool:
        """Mark the collection that ``etag`` names as finished; False if another collector did."""
        return await self.swap(Garbage(), etag) is not None


def _parse(data: bytes) -> Garbage:
    garbage = Garbage.parse(data)
    garbage.scrub()
    return garbage
