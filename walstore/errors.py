"""Errors: one root, coarse kinds, and the fate of the data.

WalError
├ WalClosedError          clean, fenced or failed (cause chained)
├ WalLockedError, FencedError
├ CorruptionError         path, position, expected, found
├ OffsetError             requested, head, tail → OffsetTrimmedError, OffsetNotWrittenError
├ ExpectationError        expected, actual → RegisterMismatchError, OffsetMismatchError,
│                         SequenceMismatchError, CursorMovedError, UpperMismatchError
├ StreamClosedError, LimitExceededError
├ RecordTooLargeError, WouldBlock
├ WrongLoopError (RuntimeError)
├ DiskFullError, StorageUnavailableError
├ OutcomeUnknownError
├ ContentionError         another writer moved the manifest
├ LogSealedError          the log takes no more records, permanently
├ LogSuspendedError       nobody leads the log of a cluster until it is resumed
├ CollectionRefusedError  a collection would remove too much
├ AccessDeniedError       a server refused the token
├ LogNotFoundError        no log, bucket or prefix at that location
├ UnsupportedStoreError   the object store does not enforce conditional puts
├ CollectionNotFoundError no versioned collection there, or one that was deleted
├ SinceViolationError     a time of a collection whose updates were compacted
├ LeaseExpiredError       a reader of a collection that holds nothing any more
├ IndefiniteError         two writers of a collection disagree about the same times
└ InvalidSettingsError (ValueError), FormatVersionError

Every error carries two facts that a program can act on. ``outcome`` is the fate of the records of the
failed call: ``"not_written"`` (safe to submit again), ``"durable"`` (they are in the log) or
``"unknown"`` (reopen and read before submitting again). ``retriable`` is true if the same call may
succeed later without intervention.

All errors can be pickled (they cross Spark's processes); tests/walstore/test_errors.py pickles each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

Outcome = Literal["not_written", "durable", "unknown"]
CloseReason = Literal["clean", "fenced", "failed"]

_E = TypeVar("_E", bound="WalError")


def _restore(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    """Rebuild an error without calling its constructor, whose arguments are not its ``args``."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class WalError(Exception):
    """Root of all errors raised by walstore and uploader."""

    retriable: bool = False
    outcome: Outcome = "not_written"

    def __init__(
        self, message: str, *, outcome: Outcome | None = None, retriable: bool | None = None
    ) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome
        if retriable is not None:
            self.retriable = retriable

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__.copy())


class WalClosedError(WalError):
    """The log is closed: cleanly, because another owner fenced it, or because it failed.

    After a failure the cause is chained, and the log stays closed until it is opened again. No record
    acknowledged at level ``disk`` is lost.
    """

    def __init__(
        self, message: str, *, reason: CloseReason = "clean", outcome: Outcome = "not_written"
    ) -> None:
        super().__init__(message, outcome=outcome)
        self.reason = reason


class WalLockedError(WalError):
    """Another process (or another object in this one) has this log open for writing."""

    def __init__(self, message: str, *, path: str, owner: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.owner = owner


class FencedError(WalError):
    """A newer owner took over; this one may no longer write.

    Raised for a fence of the log, or for the cloud prefix that a local log ships to. In the second case
    the log is closed, and the records on its disk stay there. ``outcome`` is ``"unknown"`` for a record that
    is on this disk: only the log that continues elsewhere shows whether it also has the record. For a
    replicated log, ``epoch`` is the newer owner's; None if it is not known.
    """

    epoch: int | None = None


class CorruptionError(WalError):
    """Stored bytes differ from what was written. Nothing was changed; see ``walstore verify``.

    A copy of a replicated log that lost synced records, or has a damaged file ``PROMISE`` or ``SYNCED``, does
    not count until its directory is emptied and the copy is made again. A copy with records that it knows to
    be replicated and its leader lacks keeps them: ``walstore logs give-up`` or ``reset-head`` decides.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        where = path if position is None else f"{path} at byte {position}"
        super().__init__(f"{message}: {where}")
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found


class OffsetError(WalError):
    """The requested offset is outside ``[head, tail)``."""

    _message = "the offset is not in the log"

    def __init__(self, message: str = "", *, requested: int, head: int, tail: int) -> None:
        message = message or self._message
        super().__init__(f"{message} (requested={requested} head={head} tail={tail})")
        self.requested = requested
        self.head = head
        self.tail = tail


class OffsetTrimmedError(OffsetError):
    """Retention or trim removed the offset from the log."""

    _message = "the offset was removed from the log"


class OffsetNotWrittenError(OffsetError):
    """The offset has not been assigned yet."""

    _message = "the offset has not been written yet"


class ExpectationError(WalError):
    """A condition given with an append did not hold; nothing was written."""

    def __init__(self, message: str, *, expected: object, actual: object) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class RegisterMismatchError(ExpectationError):
    """A register had another value than expected; ``actual`` contains all registers.

    ``expected`` contains the given conditions; for a served log, choices of values are given as text.
    """

    expected: Mapping[str, object]
    actual: Mapping[str, str]


class OffsetMismatchError(ExpectationError):
    """The log's tail was not the expected offset."""

    expected: int
    actual: int


class SequenceMismatchError(ExpectationError):
    """A producer's sequence number leaves a gap, or is older than the log remembers.

    In the second case ``outcome`` is ``"durable"``: it is in the log, but its offset is no longer known.
    """

    expected: int
    actual: int

    def __init__(
        self, message: str, *, expected: object, actual: object, outcome: Outcome = "not_written"
    ) -> None:
        super().__init__(message, expected=expected, actual=actual)
        self.outcome = outcome


class CursorMovedError(ExpectationError):
    """Another handle committed to the cursor, or the cursor was deleted (then ``actual`` is None).

    ``expected`` and ``actual`` are positions; they may be equal even though the cursor was moved.
    """

    expected: int | None
    actual: int | None

    def __init__(self, message: str, *, expected: object, actual: object, cursor: str) -> None:
        super().__init__(message, expected=expected, actual=actual)
        self.cursor = cursor


class StreamClosedError(WalError):
    """The stream accepts no more records, or there is none to close."""

    def __init__(self, message: str, *, stream: str) -> None:
        super().__init__(message)
        self.stream = stream


class LimitExceededError(WalError):
    """A log's registers or streams, a server's requests or open transactions, or a row's count reached their
    maximum.

    Nothing was written. ``retriable`` is true if there is room again once other transactions end.
    """

    def __init__(self, message: str, *, limit: int, retriable: bool | None = None) -> None:
        super().__init__(message, retriable=retriable)
        self.limit = limit


class RecordTooLargeError(WalError):
    """The record (or atomic group) exceeds a limit; no offset was assigned."""

    def __init__(self, message: str, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class WrongLoopError(WalError, RuntimeError):
    """A log was used from another thread or event loop than the one that opened it; nothing was done."""


class WouldBlock(WalError):  # noqa: N818 - the name asyncio and trio users know
    """The channel is full, or the log's rate is reached; await ``append`` instead, or try again later."""

    retriable = True


class DiskFullError(WalError):
    """No space is left on the device, or less than ``min_free_bytes``.

    If ``retriable`` is true, the log refused the append before the disk was full, and accepts appends again
    once space is available. Otherwise the log has failed: free some space and open it again.
    """


class StorageUnavailableError(WalError):
    """A disk or object store failed to answer correctly; retrying may help."""

    retriable = True


class OutcomeUnknownError(WalError):
    """A write failed while in progress: the records may or may not survive.

    Open the log again and read from the offsets in question before submitting anything again.
    """

    outcome: Outcome = "unknown"


class ContentionError(WalError):
    """Another writer moved the manifest, or put a foreign fragment where ours belongs."""


class LogSealedError(WalError):
    """The log was sealed permanently: no writer can append to it again. It can still be read."""

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location


class LogSuspendedError(WalError):
    """The log of a cluster is suspended: it has no leader, and its copies keep all acknowledged records.

    Resume it with ``walstore logs resume NAME``, then call again. A client stays usable.
    """

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location


class AccessDeniedError(WalError):
    """A server refused this client's token or request, or only reads the log; nothing was done."""


class CollectionRefusedError(WalError):
    """A collection would remove more than allowed, or something it must keep; nothing was removed."""


class LogNotFoundError(WalError):
    """There is no log (or no bucket) at the given location."""

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location


class UpperMismatchError(ExpectationError):
    """The interval of an append does not begin at the end of the writer's shard; nothing was written.

    ``expected`` is the ``lower`` of the call, ``actual`` the upper frontier of the shard.
    """

    expected: int
    actual: int


class SinceViolationError(WalError):
    """A collection no longer distinguishes the updates up to ``since``, so it cannot be read as of ``as_of``.

    Read as of ``since`` or later. To read earlier times, register a reader before they are compacted.
    """

    def __init__(self, message: str, *, as_of: int, since: int) -> None:
        super().__init__(f"{message} (as_of={as_of} since={since})")
        self.as_of = as_of
        self.since = since


class LeaseExpiredError(WalError):
    """The reader's lease expired, it was removed, or another handle took its name; it holds nothing now.

    Register a reader again, and begin with a snapshot: updates may have been compacted since.
    """

    def __init__(self, message: str, *, reader: str) -> None:
        super().__init__(message)
        self.reader = reader


class IndefiniteError(WalError):
    """Two writers of a collection published different updates for the same times.

    None of the later writer's updates were taken over. The contents of the collection for these times are
    undefined until one of the shards is corrected: writers of the same collection must derive their updates
    from the same input.
    """

    def __init__(self, message: str, *, writers: tuple[str, str], lower: int, upper: int) -> None:
        super().__init__(f"{message} (writers={', '.join(writers)} lower={lower} upper={upper})")
        self.writers = writers
        self.lower = lower
        self.upper = upper


class CollectionNotFoundError(WalError):
    """There is no versioned collection at the given location, or it was deleted."""

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location


class UnsupportedStoreError(WalError):
    """The object store ignores or refuses conditional puts, so it cannot hold a manifest."""


class InvalidSettingsError(WalError, ValueError):
    """A setting, option or URL is out of range or contradicts another."""


class FormatVersionError(WalError):
    """The file was written by a newer version, or uses a feature this version lacks."""

    def __init__(self, message: str, *, path: str, found: int | str, supported: int | str) -> None:
        super().__init__(f"{message}: {path} (found {found}, supported {supported})")
        self.path = path
        self.found = found
        self.supported = supported
