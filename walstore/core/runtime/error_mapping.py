"""Maps operating system errors to walstore's own, with the outcome of the data."""

from __future__ import annotations

import copy
import errno
from pathlib import Path

from walstore.errors import (
    DiskFullError,
    InvalidSettingsError,
    Outcome,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)

_SPACE = "bytes or inodes, see df and df -i"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Return whether a call failed because there is no space left."""
    return isinstance(error, OSError) and error.errno in _FULL


def to_wal_error(cause: BaseException, outcome: Outcome) -> WalError:
    """Return the error for a failed call, chained to its cause."""
    if is_full(cause):
        text = (
            f"no space left on the device ({_SPACE}); free some, then open the log again: {cause}"
        )
        return _chained(DiskFullError(text, outcome=outcome), cause)
    if outcome == "unknown":
        text = (
            "a write failed part-way; open the log again and read from its tail before "
            f"submitting anything again: {cause}"
        )
        return _chained(OutcomeUnknownError(text), cause)
    text = f"a write to the disk failed; open the log again: {cause}"
    return _chained(StorageUnavailableError(text, outcome=outcome, retriable=False), cause)


def describe_upkeep(cause: OSError, what: str) -> WalError:
    """Return the error for a failed call that the data does not depend on: the log continues."""
    if is_full(cause):
        text = f"{what}, no space left on the device ({_SPACE}): {cause}; nothing was changed"
        return _chained(DiskFullError(text, retriable=True), cause)
    text = f"{what}: {cause}; nothing was changed, try again later"
    return _chained(StorageUnavailableError(text), cause)


def describe_spill(cause: OSError) -> WalError:
    """Return the error for a transaction that does not fit the disk; the log itself is not affected."""
    if is_full(cause):
        text = f"no space left for the transaction; it was rolled back: {cause}"
        return _chained(DiskFullError(text), cause)
    text = f"the transaction's file cannot be written; it was rolled back: {cause}"
    return _chained(StorageUnavailableError(text), cause)


def copy_error(error: WalError) -> WalError:
    """Return a copy with the same cause, for an error that is raised to more than one caller.

    One instance raised repeatedly collects the tracebacks, and so the locals, of all callers.
    """
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def describe_read(cause: OSError, path: Path) -> WalError:
    """Return the error for a segment that cannot be read now."""
    text = f"{path} cannot be read: {cause.strerror or cause}"
    return _chained(StorageUnavailableError(text), cause)


def describe_open(cause: Exception, path: Path) -> WalError:
    """Return the error for a directory that cannot be opened, written or closed."""
    if not isinstance(cause, OSError):  # a defect, or out of memory
        text = f"the log at {path} failed: {cause!r}"
    elif is_full(cause):
        text = f"no space left for the log at {path} ({_SPACE}): {cause.strerror}"
        return _chained(DiskFullError(text), cause)
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        text = f"the log at {path} cannot be written: {cause}; check owner and mount"
    elif cause.errno in (errno.ENOTDIR, errno.EEXIST):
        text = f"{path} is not a directory; a log needs one of its own"
        return _chained(InvalidSettingsError(text), cause)
    else:
        text = f"the log at {path} failed: {cause}"
    return _chained(StorageUnavailableError(text, retriable=False), cause)


def _chained(error: WalError, cause: BaseException) -> WalError:
    error.__cause__ = cause
    return error
