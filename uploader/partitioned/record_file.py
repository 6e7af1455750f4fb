"""RecordFile: the commit record of one query in the store, and the compare-and-swap that replaces it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from uploader.partitioned.commit_record import CommitRecord
from uploader.root import cas
from uploader.root.stored_document import read_stored
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.write.stall_guard import StallGuard


@dataclass(frozen=True, slots=True)
class Known:
    """A version of the record, and the ETag that replaces it."""

    record: CommitRecord
    etag: str


class RecordFile:
    """Reads and replaces one record. Belongs to one event loop."""

    def __init__(
        self, store: ObjectStore, key: str, *, retry: RetryPolicy, stall_guard: StallGuard
    ) -> None:
        self.key = key
        self._store = store
        self._retry = retry
        self._stall_guard = stall_guard

    async def read(self) -> Known | None:
        """Return the newest version; None if there is none. CorruptionError if it is damaged."""
        return await self._stall_guard.call(self._read)

    async def write(self, record: CommitRecord, before: Known | None) -> Known | None:
        """Put a version in the place of ``before``; None if another one lies there by now.

        Then ours may have been there in between: read it.
        """
        data = record.serialise()

        async def attempt() -> cas.PutResult:
            etag = None if before is None else before.etag
            found = await cas.put(self._store, self.key, data, etag, retry=self._retry)
            return found.decided(self._store.url, f"{self.key} was put; call again")

        result = await self._stall_guard.call(attempt)
        if result.outcome is cas.PutOutcome.LOST:
            return None
        assert result.etag is not None
        return Known(record, result.etag)

    async def _read(self) -> Known | None:
        try:
            found = await read_stored(
                self._store, self.key, partial(CommitRecord.parse, path=self.key)
            )
        except ObjectNotFoundError:
            return None
        return Known(found.value, found.etag)
