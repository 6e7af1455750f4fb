"""SwappedDocument: one small object of a store that any program may change, by compare-and-swap.

The loop around a swap is here, and once more around a log's root: read the object, put the next value in its
place, and go on with what is there if another program was first. The owners, which derive from it, have the
key, the format, and what a change means.

Nothing of a call is kept. A cancelled one leaves the outcome of its put open: the change may have happened,
or may still happen, unless another one is seen first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final, Generic, TypeVar

from uploader.format.document import MOST_BYTES
from uploader.root import cas
from uploader.root.stored_document import (
    StoredDocument,
    find_stored,
    find_stored_or_damaged,
    parse_stored,
)
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Lane
from walstore.errors import (
    ContentionError,
    CorruptionError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

MOST_ROUNDS: Final = 200
"""So many times a change is made of a newer value before it gives up."""
_LONGEST_PAUSE: Final = 4
"""The pause between rounds is at most the one after so many attempts of the retry policy."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DocumentSwap(Generic[_T]):
    """What became of one swap."""

    newest: StoredDocument[_T]
    """What is there now."""
    put: _T | None = None
    """Our value; None if another program's change came first."""
    was_unanswered: bool = False
    """Whether an attempt was not answered, so that a lost one may have been there in between."""


class SwappedDocument(Generic[_T]):
    """One object, as one program sees it. Any number of tasks may call it.

    All methods pass on the store's errors, and raise CorruptionError for a damaged object.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        parse: Callable[[bytes], _T],
        *,
        retry: RetryPolicy,
        question: str | None = None,
        serialise: Callable[[Any], bytes] = methodcaller("serialise"),
        nothing: Callable[[], Any] = lambda: None,
        damaged: Callable[[CorruptionError], _T] | None = None,
        is_mine: Callable[[_T, _T], bool | None] | None = None,
        most_bytes: int = MOST_BYTES,
        worker: Lane | None = None,
    ) -> None:
        """Of the object at ``key``, of at most ``most_bytes``, which a thread of ``worker`` reads and makes.

        ``nothing`` returns the value without an object, ``damaged`` that of a damaged one, which is then
        replaced. ``question`` ends the message of OutcomeUnknownError: what the store did not say.
        ``is_mine`` returns whether a value that was put is in the one that is there, which may have been made
        from it, or None if that does not show it; it decides what the store does not.
        """
        self.key = key
        self._store = store
        self._parse = parse
        self._retry = retry
        self._question = question or f"{key} was put; call again"
        self._serialise = serialise
        self._nothing = nothing
        self._damaged = damaged
        self._is_mine = is_mine
        self._most_bytes = most_bytes
        self._worker = worker

    async def read(self) -> StoredDocument[_T]:
        """Return the value, and the ETag of the object; None as the ETag if there is none."""
        store, key, parse, most_bytes = self._store, self.key, self._parse, self._most_bytes
        found: StoredDocument[Any] | None
        if self._damaged is None:
            found = await find_stored(store, key, parse, most_bytes=most_bytes, worker=self._worker)
        else:
            found = await find_stored_or_damaged(store, key, parse, most_bytes=most_bytes)
            if found is not None and found.damage is not None:
                return StoredDocument(self._damaged(found.damage), found.etag, found.damage)
        return found or StoredDocument(self._nothing(), None)

    async def swap(self, value: _T, before: StoredDocument[_T]) -> DocumentSwap[_T]:
        """Put a value in the place of what was read or put ``before``.

        OutcomeUnknownError if the store does not report the outcome.
        """
        data = await self._encode(value)
        result = await cas.put(self._store, self.key, data, before.etag, retry=self._retry)
        if result.outcome is cas.PutOutcome.COMMITTED and not result.is_late:
            return DocumentSwap(StoredDocument(value, result.etag), value)
        is_lost = result.outcome is cas.PutOutcome.LOST
        with suppress(StorageUnavailableError):  # of the read: it says nothing of the put
            if is_lost or self._is_mine is not None:
                newest = await (self._found(result) if is_lost else self.read())
                was_unanswered = result.was_unanswered or not is_lost
                is_mine = self._judge(value, newest) if newest.etag != before.etag else None
                if is_mine is not None or not was_unanswered:
                    return DocumentSwap(newest, value if is_mine else None, was_unanswered)
        raise OutcomeUnknownError(
            f"{self._store.url} did not say whether {self._question}", retriable=True
        ) from result.cause

    async def change(
        self, make: Callable[[_T], _T | None], *, seen: StoredDocument[_T] | None = None
    ) -> _T:
        """Replace the newest value by what ``make`` makes of it, despite other programs; return that.

        Args:
            make: Pure: it is called with a newer value if another change came first, which after a lost
                answer may have been made from its own. Returns None, or what it was given, if there is
                nothing to do.
            seen: What the caller knows, perhaps no longer the newest; it saves a request. The object is read
                if ``make`` refuses that or has nothing to do.

        Passes on what ``make`` raises. OutcomeUnknownError if the store does not report the outcome: call
        again. ContentionError if other changes came first :data:`MOST_ROUNDS` times.
        """
        lost, is_newest = 0, seen is None
        seen = seen or await self.read()
        while True:
            try:
                made = make(seen.value)
            except Exception:
                if is_newest:
                    raise
                made = None
            if made is not None and made is not seen.value:
                swap = await self.swap(made, seen)
                if swap.put is not None:
                    return swap.put
                lost += 1
                seen = await self.read() if await self.pause(lost) else swap.newest
            elif is_newest:
                return seen.value
            else:
                seen = await self.read()
            is_newest = True

    async def pause(self, lost: int) -> bool:
        """Wait before the next round of a change, except after its first lost swap; return whether it did.

        ContentionError after :data:`MOST_ROUNDS`.
        """
        if lost >= MOST_ROUNDS:
            raise ContentionError(
                f"the {self.key} at {self._store.url} changes all the time; try again later"
            )
        if lost > 1:
            seconds = self._retry.wait_seconds(min(lost - 1, _LONGEST_PAUSE))
            await self._retry.clock.sleep(seconds)
        return lost > 1

    # -- inside ------------------------------------------------------------------------------

    def _judge(self, value: _T, newest: StoredDocument[_T]) -> bool | None:
        """Return whether what was put is in the object that is there; None if that is not known."""
        return False if self._is_mine is None else self._is_mine(value, newest.value)

    async def _encode(self, value: _T) -> bytes:
        if self._worker is None:
            return self._serialise(value)
        return await self._worker.run(self._serialise, value)

    async def _found(self, result: cas.PutResult) -> StoredDocument[_T]:
        """Return what was found in the way of a put."""
        if result.data is None:
            return StoredDocument(self._nothing(), None)
        try:
            value = await parse_stored(self._parse, self.key, result.data, worker=self._worker)
        except CorruptionError as error:
            if self._damaged is None:
                raise
            return StoredDocument(self._damaged(error), result.etag, error)
        return StoredDocument(value, result.etag)
