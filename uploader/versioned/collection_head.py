"""CollectionHead: reads a collection's head and changes it by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from uploader.root import cas
from uploader.root.stored_document import read_stored
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.versioned import transitions
from uploader.versioned.head import MOST_COMMITS, MOST_HEAD_BYTES, Head, parse_head
from uploader.versioned.names import HEAD, new_id
from uploader.versioned.version import MOST_VERSION_BYTES, Version
from walstore.core.ports import Clock
from walstore.errors import (
    CollectionNotFoundError,
    ContentionError,
    LimitExceededError,
    OutcomeUnknownError,
)

MOST_ROUNDS: Final = 200
"""So many times a change is applied to a newer head before it gives up."""

_FRESH_SECONDS: Final = 5.0
"""A change begins with a head that was read since; an older one has probably changed."""

Transition = Callable[[Head], Head]
"""Returns the next head, or the same if there is nothing to change; raises what forbids the change."""


@dataclass(frozen=True, slots=True)
class SeenHead:
    """A head and when the request that read it began."""

    head: Head
    etag: str
    at: TwoClockTime


class CollectionHead:
    """The head of one collection. Any number of tasks may call it.

    All methods raise CollectionNotFoundError if there is none, or if it was deleted (except
    :meth:`load_any`), and pass on the store's errors.
    """

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, clock: Clock) -> None:
        self._store = store
        self._retry = retry
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
        return (await self.load()).head

    async def load(self) -> SeenHead:
        """Read the newest head; CollectionNotFoundError also for a deleted collection."""
        seen = await self.load_any()
        if seen.head.is_deleted:
            raise CollectionNotFoundError(
                f"the collection at {self._store.url} was deleted", location=self._store.url
            )
        return seen

    async def load_any(self) -> SeenHead:
        """Read the newest head, also of a deleted collection."""
        at = TwoClockTime.now(self._clock)
        try:
            stored = await read_stored(self._store, HEAD, parse_head, most_bytes=MOST_HEAD_BYTES)
        except ObjectNotFoundError:
            raise CollectionNotFoundError(
                f"there is no collection at {self._store.url}; create it with create=True",
                location=self._store.url,
            ) from None
        assert stored.etag is not None
        head = stored.value.head
        if stored.value.missing_version is not None and not head.is_deleted:
            version = await self.version(stored.value.missing_version)
            head = replace(head, version=version)
        seen = SeenHead(head, stored.etag, at)
        # Of two reads at once, the older may be answered last.
        if self._seen is None or head.serial >= self._seen.head.serial:
            self._seen = seen
        return seen

    async def settle(self, positions: Collection[int]) -> Head:
        """Return the newest head, which no longer lets a controller purge pending batches at ``positions``.

        Those before its ``purged`` count for nothing. The others were put before, or are kept now. Costs one
        read, and a change of the head if a controller is about to purge them.
        """
        head = (await self.load()).head
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

    async def change(self, transition: Transition) -> Head:
        """Apply ``transition`` to the newest head until it is the newest, and return what it made.

        Cancellation: the change may still happen, unless another change is seen first.

        OutcomeUnknownError if the store does not report whether it happened, ContentionError if others'
        changes came first :data:`MOST_ROUNDS` times; and whatever ``transition`` raises.
        """
        seen = self._seen
        if seen is None or seen.at.age_seconds(self._clock) >= _FRESH_SECONDS:
            seen = await self.load()
        for round_ in range(MOST_ROUNDS):
            try:
                wanted = transition(seen.head)
            except Exception:
                # The head in memory may be an old one.
                seen, before = await self.load(), seen
                if seen.etag == before.etag:
                    raise
                continue
            if wanted is seen.head:
                newest = await self.load()
                if newest.etag == seen.etag:
                    return seen.head
                seen = newest
                continue
            made = await self._swap(seen, wanted)
            if made is not None:
                return made
            await self._clock.sleep(self._retry.wait_seconds(min(round_ + 1, 4)))
            seen = await self.load()
        raise ContentionError(
            f"the head at {self._store.url} changes all the time; try again later"
        )

    async def _swap(self, seen: SeenHead, wanted: Head) -> Head | None:
        """Put ``wanted`` in the place of what was seen; return what was put, None if it did not happen.

        Not what followed it: that may have another controller's epoch. OutcomeUnknownError.
        """
        commit_id = new_id()
        commits = (*seen.head.commits, commit_id)[-MOST_COMMITS:]
        put = replace(wanted, serial=seen.head.serial + 1, commits=commits)
        at = TwoClockTime.now(self._clock)
        data = put.serialise()
        if len(data) > MOST_HEAD_BYTES:
            raise LimitExceededError(
                f"the head of the collection would have {len(data)} bytes; nothing was changed",
                limit=MOST_HEAD_BYTES,
            )
        result = await cas.swap(self._store, HEAD, data, seen.etag, retry=self._retry)
        if result.outcome is cas.PutOutcome.COMMITTED:
            assert result.etag is not None
            self._seen = SeenHead(put, result.etag, at)
            return put
        if result.data is not None:
            # A refusal may be about our own put that was made twice: the other's head was made from it then.
            # Not if all attempts were answered and more changes came than a request takes time for.
            other = parse_head(result.data).head
            is_known = other.serial - put.serial < MOST_COMMITS or not result.was_unanswered
            if commit_id not in other.commits and is_known:
                return None
        found = await self.load_any()
        if commit_id in found.head.commits:
            return put
        if found.etag != seen.etag and found.head.serial - put.serial < MOST_COMMITS:
            # Another change took its place; a late swap of ours finds another ETag.
            return None
        raise OutcomeUnknownError(
            f"{self._store.url} did not say whether the collection's head was changed; open it again",
            retriable=True,
        ) from result.cause
