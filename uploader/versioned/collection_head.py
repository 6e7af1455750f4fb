"""CollectionHead: reads a collection's head and changes it by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from uploader.root import cas
from uploader.root.stored_document import StoredDocument, read_stored
from uploader.root.swapped_document import DocumentSwap, SwappedDocument
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.versioned import transitions
from uploader.versioned.head import MOST_COMMITS, MOST_HEAD_BYTES, Head, parse_head
from uploader.versioned.names import HEAD, new_id
from uploader.versioned.version import MOST_VERSION_BYTES, Version
from walstore.core.ports import Clock
from walstore.errors import CollectionNotFoundError, LimitExceededError

_FRESH_SECONDS: Final = 5.0
"""A change begins with a head that was read since; an older one has probably changed."""


@dataclass(frozen=True, slots=True)
class SeenHead:
    """A head and when the request that read it began."""

    head: Head
    etag: str | None
    at: TwoClockTime


class CollectionHead(SwappedDocument[Head]):
    """The head of one collection. Any number of tasks may call it.

    All methods raise CollectionNotFoundError if there is none, or if it was deleted (except :meth:`read`),
    and pass on the store's errors. A change whose outcome the store does not report is found by its id in
    the heads that follow, as far as they remember.
    """

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, clock: Clock) -> None:
        super().__init__(
            store,
            HEAD,
            parse_head,
            serialise=_serialise,
            nothing=self._missing,
            retry=retry,
            question="the collection's head was changed; open it again",
            most_bytes=MOST_HEAD_BYTES,
            is_mine=_is_mine,
        )
        self._clock = clock
        self._seen: SeenHead | None = None
        self._versions: dict[str, Version] = {}

    @property
    def seen(self) -> SeenHead:
        """The newest head that was read or put; one must have been."""
        assert self._seen is not None
        return self._seen

    async def create(self, head: Head) -> Head:
        """Put the first head, and return it; or the one that is there already."""
        head = replace(head, commits=(new_id(),))
        result = await cas.create(self._store, HEAD, head.serialise(), retry=self._retry)
        if result.outcome is cas.PutOutcome.UNKNOWN:
            result.decided(self._store.url, "the collection was created; open it again")
        return await self.load()

    async def load(self) -> Head:
        """Return the newest head; CollectionNotFoundError also for a deleted collection."""
        return self._checked((await self.read()).value)

    async def read(self) -> StoredDocument[Head]:
        """Read the newest head, also of a deleted collection."""
        at = TwoClockTime.now(self._clock)
        return await self._noted(await super().read(), at)

    async def settle(self, positions: Collection[int]) -> Head:
        """Return the newest head, which no longer lets a controller purge pending batches at ``positions``.

        Those before its ``purged`` count for nothing. The others were put before, or are kept now. Costs one
        read, and a change of the head if a controller is about to purge them.
        """
        head = await self.load()
        if transitions.keep(head, positions) is not head:
            head = await self.change(lambda head: transitions.keep(head, positions))
        return head

    async def version(self, key: str) -> Version:
        """Return the version whose document has that key; ObjectNotFoundError if it was collected."""
        found = self._versions.get(key)
        if found is None:
            parse = partial(Version.parse, path=key)
            stored = await read_stored(self._store, key, parse, most_bytes=MOST_VERSION_BYTES)
            found = stored.value
            if len(self._versions) >= 16:
                self._versions.pop(next(iter(self._versions)))
            self._versions[key] = found
        return found

    async def change(
        self, make: Callable[[Head], Head | None], *, seen: StoredDocument[Head] | None = None
    ) -> Head:
        """As of :class:`SwappedDocument`, from the head that was seen last if that is recent.

        Returns what was put, not what followed it: that may have another controller's epoch.
        """
        known = self._seen
        if seen is None and known and known.at.age_seconds(self._clock) < _FRESH_SECONDS:
            seen = StoredDocument(known.head, known.etag)
        return await super().change(lambda head: make(self._checked(head)), seen=seen)

    async def swap(self, value: Head, before: StoredDocument[Head]) -> DocumentSwap[Head]:
        """As of :class:`SwappedDocument`; the head gets a number and the id of its change."""
        commits = (*before.value.commits, new_id())[-MOST_COMMITS:]
        put = replace(value, serial=before.value.serial + 1, commits=commits)
        at = TwoClockTime.now(self._clock)
        swap = await super().swap(put, before)
        return replace(swap, newest=await self._noted(swap.newest, at))

    # -- inside ------------------------------------------------------------------------------

    async def _noted(self, found: StoredDocument[Head], at: TwoClockTime) -> StoredDocument[Head]:
        """Return a head with its version, and remember it."""
        head = found.value
        if head.lacks_version and not head.is_deleted:
            assert head.version_key is not None
            head = replace(head, version=await self.version(head.version_key))
        # Of two reads at once, the older may be answered last.
        if self._seen is None or head.serial >= self._seen.head.serial:
            self._seen = SeenHead(head, found.etag, at)
        return replace(found, value=head)

    def _checked(self, head: Head) -> Head:
        if head.is_deleted:
            raise CollectionNotFoundError(
                f"the collection at {self._store.url} was deleted", location=self._store.url
            )
        return head

    def _missing(self) -> Head:
        raise CollectionNotFoundError(
            f"there is no collection at {self._store.url}; create it with create=True",
            location=self._store.url,
        )


def _serialise(head: Head) -> bytes:
    data = head.serialise()
    if len(data) > MOST_HEAD_BYTES:
        raise LimitExceededError(
            f"the head of the collection would have {len(data)} bytes; nothing was changed",
            limit=MOST_HEAD_BYTES,
        )
    return data


def _is_mine(put: Head, newest: Head) -> bool | None:
    """Return whether a change is in the newest head; None if that may have forgotten it."""
    if put.commits[-1] in newest.commits:
        return True
    return False if newest.serial - put.serial < MOST_COMMITS else None
