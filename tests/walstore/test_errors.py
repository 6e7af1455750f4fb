"""The errors: their tree, what they carry, and that they survive pickling."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from tests.cases import case
from walstore import errors
from walstore.errors import (
    AccessDeniedError,
    CollectionNotFoundError,
    CollectionRefusedError,
    ContentionError,
    CorruptionError,
    CursorMovedError,
    DiskFullError,
    ExpectationError,
    FencedError,
    FormatVersionError,
    IndefiniteError,
    InvalidSettingsError,
    LeaseExpiredError,
    LimitExceededError,
    LogNotFoundError,
    LogSealedError,
    LogSuspendedError,
    OffsetError,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RegisterMismatchError,
    SequenceMismatchError,
    SinceViolationError,
    StorageUnavailableError,
    StreamClosedError,
    UnsupportedStoreError,
    UpperMismatchError,
    WalClosedError,
    WalError,
    WalLockedError,
    WouldBlock,
    WrongLoopError,
)

PARENTS = {
    WalError: Exception,
    WalClosedError: WalError,
    WalLockedError: WalError,
    FencedError: WalError,
    CorruptionError: WalError,
    OffsetError: WalError,
    OffsetTrimmedError: OffsetError,
    OffsetNotWrittenError: OffsetError,
    ExpectationError: WalError,
    RegisterMismatchError: ExpectationError,
    OffsetMismatchError: ExpectationError,
    SequenceMismatchError: ExpectationError,
    CursorMovedError: ExpectationError,
    StreamClosedError: WalError,
    LimitExceededError: WalError,
    RecordTooLargeError: WalError,
    WouldBlock: WalError,
    WrongLoopError: WalError,
    DiskFullError: WalError,
    StorageUnavailableError: WalError,
    OutcomeUnknownError: WalError,
    ContentionError: WalError,
    CollectionRefusedError: WalError,
    LogNotFoundError: WalError,
    LogSealedError: WalError,
    LogSuspendedError: WalError,
    AccessDeniedError: WalError,
    UnsupportedStoreError: WalError,
    UpperMismatchError: ExpectationError,
    CollectionNotFoundError: WalError,
    SinceViolationError: WalError,
    LeaseExpiredError: WalError,
    IndefiniteError: WalError,
    InvalidSettingsError: WalError,
    FormatVersionError: WalError,
}

EXAMPLES = [
    WalError("plain", outcome="durable", retriable=True),
    WalClosedError("closed", reason="failed", outcome="unknown"),
    WalLockedError("locked", path="/log", owner="pid 7"),
    FencedError("fenced"),
    CorruptionError("bad crc", path="/log/1.wal", position=80, expected=1, found=2),
    CorruptionError("bad file", path="/log/1.wal"),
    OffsetError("outside", requested=5, head=10, tail=20),
    OffsetTrimmedError("trimmed", requested=5, head=10, tail=20),
    OffsetNotWrittenError("too far", requested=25, head=10, tail=20),
    ExpectationError("no", expected=1, actual=2),
    RegisterMismatchError("owner", expected={"owner": "a"}, actual={"owner": "b"}),
    OffsetMismatchError("tail", expected=3, actual=4),
    SequenceMismatchError("gap", expected=3, actual=5, outcome="durable"),
    CursorMovedError("moved", expected=3, actual=4, cursor="billing"),
    StreamClosedError("closed", stream="eu"),
    LimitExceededError("too many", limit=1024),
    RecordTooLargeError("too large", size_bytes=11, limit_bytes=10),
    WouldBlock("full"),
    WrongLoopError("another thread"),
    DiskFullError("full", outcome="unknown"),
    StorageUnavailableError("gone", retriable=False),
    OutcomeUnknownError("who knows"),
    ContentionError("moved"),
    CollectionRefusedError("it would remove 99 % of the log"),
    LogNotFoundError("none", location="s3://bucket/orders"),
    AccessDeniedError("no"),
    LogSealedError("sealed", location="s3://bucket/orders"),
    LogSuspendedError("suspended", location="orders"),
    UnsupportedStoreError("no conditional puts"),
    UpperMismatchError("it ends elsewhere", expected=5, actual=9),
    CollectionNotFoundError("none", location="s3://bucket/people"),
    SinceViolationError("compacted", as_of=4, since=5),
    LeaseExpiredError("expired", reader="report"),
    IndefiniteError("they differ", writers=("one", "two"), lower=5, upper=9),
    InvalidSettingsError("cache_bytes must be at least 0, not -1"),
    FormatVersionError("newer", path="/log/1.wal", found=2, supported=1),
]


def test_the_tree_is_complete_and_as_documented() -> None:
    found = {
        item
        for item in vars(errors).values()
        if inspect.isclass(item) and issubclass(item, BaseException)
    }
    assert found == PARENTS.keys()
    for error, parent in PARENTS.items():
        assert error.__bases__[0] is parent
        assert error.__name__ in (errors.__doc__ or "")
        assert error.__doc__


def test_there_is_an_example_of_every_error() -> None:
    assert {type(error) for error in EXAMPLES} == PARENTS.keys()


def test_errors_survive_pickling() -> None:
    for clone in (
        *(lambda error, at=at: pickle.loads(pickle.dumps(error, at)) for at in range(6)),
        copy.copy,
        copy.deepcopy,
    ):
        for error in EXAMPLES:
            with case(clone, error):
                twin = clone(error)
                assert type(twin) is type(error)
                assert (str(twin), twin.args) == (str(error), error.args)
                assert vars(twin) == vars(error)
                assert (twin.outcome, twin.retriable) == (error.outcome, error.retriable)


def test_every_error_says_what_became_of_the_data() -> None:
    for error in EXAMPLES:
        assert error.outcome in ("not_written", "durable", "unknown")
        assert isinstance(error.retriable, bool)
    assert OutcomeUnknownError("?").outcome == "unknown"
    assert {type(error) for error in EXAMPLES if type(error).retriable} == {
        WouldBlock,
        StorageUnavailableError,
    }
    assert StorageUnavailableError("gone", outcome="unknown").outcome == "unknown"
    assert WalError.outcome == "not_written", "one instance must not change its class"


def test_builtin_bases() -> None:
    with pytest.raises(ValueError, match="cache_bytes"):
        raise InvalidSettingsError("cache_bytes must be at least 0, not -1")
    assert not issubclass(WalError, OSError | ValueError)


def test_messages_carry_the_facts() -> None:
    assert str(CorruptionError("bad crc", path="/a", position=80)) == "bad crc: /a at byte 80"
    assert str(CorruptionError("bad crc", path="/a")) == "bad crc: /a"
    error = OffsetTrimmedError("offset is gone", requested=5, head=10, tail=20)
    assert str(error) == "offset is gone (requested=5 head=10 tail=20)"
    assert (error.requested, error.head, error.tail) == (5, 10, 20)
    newer = FormatVersionError("newer", path="/a", found=2, supported=1)
    assert str(newer) == "newer: /a (found 2, supported 1)"
