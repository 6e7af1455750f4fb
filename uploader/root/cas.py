"""Conditional puts with three outcomes: committed, lost, unknown.

A put whose answer is lost may have happened. A 412 may be about the caller's own earlier attempt. A 409
means that nothing was decided. This module repeats and reads back until the outcome is certain, and else
returns "unknown". It knows the ``ObjectStore`` port but not the meaning of the objects.

It relies on two facts: the same bytes under the same condition may be put any number of times, since at most
one of these puts takes effect before the condition fails; and an object that holds exactly our bytes is
our put (or indistinguishable from it).

That ends where keys are removed: an object that was put, used by another program and then collected leaves
its key free, and the store accepts the same put again. So the result of a create is about the object that is
there now. A result long after the first attempt is late (:attr:`PutResult.is_late`): it proves nothing about
the earlier attempts. A late result never acknowledges an append; the manifest that names the fragment does.

Cancellation: a cancelled call leaves the outcome of its put open. The put may have happened, or may
still happen; the caller must treat it as unknown and call again, or read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tenacity import retry_if_result

from uploader.root.stored_document import most_bytes_at, read_object
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ObjectNotFoundError, ObjectStore, PreconditionFailedError
from uploader.stores.retry import RetryPolicy
from walstore.errors import OutcomeUnknownError, StorageUnavailableError, WalError

TRUSTED_SECONDS: Final = 600.0
"""For this long no key is assumed to have been used and removed; collectors wait much longer."""


class PutOutcome(Enum):
    """The outcome of a conditional put."""

    COMMITTED = "committed"
    """The object holds our bytes now; the store calls them durable. See :attr:`PutResult.is_late`."""

    LOST = "lost"
    """The object is there with other bytes, or is gone. See :class:`PutResult`."""

    UNKNOWN = "unknown"
    """The put may have happened, or may still happen. Read; or call again with the same arguments, a create
    with this result as ``again``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """The outcome and what is known about the object.

    LOST after a lost answer leaves one question open: our object may have been there until another program
    read and replaced it. Such a successor was made from ours and its content shows that:
    check ``data`` before concluding that nothing of ours was taken over.
    """

    outcome: PutOutcome

    etag: str | None = None
    """COMMITTED: of our object. LOST: of the other's, None if there is no object."""

    data: bytes | None = field(default=None, repr=False)
    """LOST: the other's bytes, None if there is no object. Otherwise None."""

    cause: WalError | None = None
    """UNKNOWN: the last error. Otherwise None."""

    was_unanswered: bool = False
    """LOST: whether an attempt was not answered, so that our object may have been there and been replaced."""

    is_late: bool = False
    """COMMITTED by a create: it is there now, but the outcome of earlier attempts was left open, by an
    earlier call or for :data:`TRUSTED_SECONDS`. If such keys are ever removed, our object, or another one,
    may have been there, used and removed. The document that names the object decides."""

    def decided(self, url: str, question: str) -> PutResult:
        """Return the result; OutcomeUnknownError, naming ``url``, if it is UNKNOWN or late."""
        if self.outcome is PutOutcome.UNKNOWN or self.is_late:
            raise OutcomeUnknownError(
                f"{url} did not say whether {question}", retriable=True
            ) from self.cause
        return self


async def create(
    store: ObjectStore,
    key: str,
    data: bytes,
    *,
    retry: RetryPolicy | None = None,
    again: PutResult | None = None,
) -> PutResult:
    """Put an object if there is none; committed also if exactly these bytes are there already.

    ``again`` is the UNKNOWN result of an earlier call with the same arguments.

    Raises the store's error when nothing was written and a retry would not help (permissions, a
    missing bucket, a full disk), or did not help until the attempts were used up. When an attempt may
    have happened, the outcome is UNKNOWN instead.
    """
    attempt = _Attempts(store, key, data, expected=None, again=again)
    return await attempt.run(lambda: store.put_if_absent(key, data), retry or RetryPolicy())


async def swap(
    store: ObjectStore, key: str, data: bytes, etag: str, *, retry: RetryPolicy | None = None
) -> PutResult:
    """Replace the object that has this ETag; committed also if it holds exactly these bytes already.

    Errors as for :func:`create`.
    """
    attempt = _Attempts(store, key, data, expected=etag)
    return await attempt.run(lambda: store.put_if_match(key, data, etag), retry or RetryPolicy())


async def put(
    store: ObjectStore, key: str, data: bytes, etag: str | None, *, retry: RetryPolicy | None = None
) -> PutResult:
    """:func:`swap` the object with this ETag, or :func:`create` it if there is none."""
    if etag is None:
        return await create(store, key, data, retry=retry)
    return await swap(store, key, data, etag, retry=retry)


async def fill(
    store: ObjectStore,
    key: str,
    data: bytes,
    *,
    nothing: bytes,
    retry: RetryPolicy | None = None,
) -> PutResult:
    """:func:`create` an object, or replace one that holds the bytes ``nothing``."""
    result = await create(store, key, data, retry=retry)
    while result.outcome is PutOutcome.LOST and result.data in {None, nothing}:
        result = await put(store, key, data, result.etag, retry=retry)
    return result


class _Attempts:
    """The state of one call: what its attempts so far have left open."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        data: bytes,
        *,
        expected: str | None,
        again: PutResult | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._data = data
        self._expected = expected
        # Whether an earlier call left it open, and whether an attempt of this one did.
        self._was_open = again is not None
        self._may_have_happened = self._was_open
        self._cause: WalError | None = None

    async def run(self, put: Callable[[], Awaitable[str]], policy: RetryPolicy) -> PutResult:
        """Repeat until decided, or until the attempts are used up; return what is known."""
        retrying = policy.retrying(
            retry=retry_if_result(lambda result: result is None),
            retry_error_callback=lambda _: None,
        )
        began = TwoClockTime.now(policy.clock)
        result: PutResult | None = None
        try:
            result = await retrying(self._attempt, put)
        except WalError as error:
            self._cause = error
        if result is not None and result.outcome is PutOutcome.LOST:
            return dataclasses.replace(result, was_unanswered=self._may_have_happened)
        if result is not None:
            is_old = began.age_seconds(policy.clock) >= TRUSTED_SECONDS
            return self._judged(result, is_old=is_old)
        assert self._cause is not None  # every undecided attempt leaves its reason
        if not self._may_have_happened:
            raise self._cause
        return PutResult(outcome=PutOutcome.UNKNOWN, cause=self._cause)

    def _judged(self, result: PutResult, *, is_old: bool) -> PutResult:
        """Return the result of a create as late, if its key may have been used and removed meanwhile."""
        is_late = self._was_open or (self._may_have_happened and is_old)
        if self._expected is not None or result.outcome is not PutOutcome.COMMITTED or not is_late:
            return result
        return dataclasses.replace(result, is_late=True)

    async def _attempt(self, put: Callable[[], Awaitable[str]]) -> PutResult | None:
        """Put once. None: not decided, and worth another attempt."""
        try:
            return PutResult(outcome=PutOutcome.COMMITTED, etag=await put())
        except PreconditionFailedError as error:
            self._cause = error
        except StorageUnavailableError as error:
            self._cause = error
            if error.outcome == "not_written":
                if error.retriable:
                    return None
                raise
            self._may_have_happened = True
        except WalError as error:
            self._may_have_happened |= error.outcome != "not_written"
            raise
        return await self._read_back()

    async def _read_back(self) -> PutResult | None:
        """Decide from the object whose it is. None: it is unreadable, or as if nothing had been put."""
        try:
            # Whatever we have put can be read back.
            most_bytes = max(most_bytes_at(self._key), len(self._data))
            found = await read_object(self._store, self._key, most_bytes=most_bytes)
        except ObjectNotFoundError:
            return None if self._expected is None else PutResult(outcome=PutOutcome.LOST)
        except StorageUnavailableError as error:
            # Without the object, the refusal may have been about an earlier put of ours.
            self._may_have_happened = True
            self._cause = error
            if error.retriable:
                return None
            raise
        if found.data == self._data:
            return PutResult(outcome=PutOutcome.COMMITTED, etag=found.etag)
        if found.etag == self._expected:
            return None
        return PutResult(outcome=PutOutcome.LOST, etag=found.etag, data=found.data)
