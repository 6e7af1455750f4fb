"""Maps operating system errors to walstore's own, with the outcome of the data."""

from __future__ import annotations

import copy
import errno
from pathlib import Path

from walstore.errors import (
    DiskFullError,
    Outcome,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Return whether a call failed because there is no space left."""
    return isinstance(error, OSError) and error.errno in _FULL


def to_wal_error(cause: BaseException, outcome: Outcome) -> WalError:
    """Return the error for a failed call, chained to its cause."""
    error: WalError
    if is_full(cause):
        error = DiskFullError(
            f"no space left on the device; free some, then open the log again: {cause}",
            outcome=outcome,
        )
    elif outcome == "unknown":
        error = OutcomeUnknownError(
            f"a write failed part-way; open the log again and read from its tail before "
            f"submitting anything again: {cause}"
        )
    else:
        error = StorageUnavailableError(
            f"a write to the disk failed; open the log again: {cause}",
            outcome=outcome,
            retriable=False,
        )
    error.__cause__ = cause
    return error


def describe_upkeep(cause: OSError, what: str) -> WalError:
    """Return the error for a failed call that the data does not depend on: the log continues."""
    error: WalError
    if is_full(cause):
        error = DiskFullError(f"{what}, no space left on the device: {cause}; nothing was changed")
        error.retriable = True
    else:
        error = StorageUnavailableError(f"{what}: {cause}; nothing was changed, try again later")
    error.__cause__ = cause
    return error


def describe_spill(cause: OSError) -> WalError:
    """Return the error for a transaction that does not fit the disk; the log itself is not affected."""
    error: WalError
    if is_full(cause):
        error = DiskFullError(f"no space left for the transaction; it was rolled back: {cause}")
    else:
        error = StorageUnavailableError(
            f"the transaction's file cannot be written; it was rolled back: {cause}"
        )
    error.__cause__ = cause
    return error


def copy_error(error: WalError) -> WalError:
    """Return a copy with the same cause, for an error that is raised to more than one caller.

    One instance raised repeatedly collects the tracebacks, and so the locals, of all callers.
    """
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def describe_read(cause: OSError, path: Path) -> WalError:
    """Return the error for a segment that cannot be read now."""
    error = StorageUnavailableError(f"{path} cannot be read: {cause.strerror or cause}")
    error.__cause__ = cause
    return error


def describe_open(cause: Exception, path: Path) -> WalError:
    """Return the error for a directory that cannot be opened, written or closed."""
    error: WalError
    if not isinstance(cause, OSError):  # a defect, or out of memory
        error = StorageUnavailableError(f"the log at {path} failed: {cause!r}", retriable=False)
    elif is_full(cause):
        error = DiskFullError(f"no space left for the log at {path}: {cause.strerror}")
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        error = StorageUnavailableError(
            f"the log at {path} cannot be written: {cause.strerror}; check owner and mount",
            retriable=False,
        )
    elif cause.errno in (errno.ENOTDIR, errno.EEXIST):
        error = StorageUnavailableError(
            f"{path} is not a directory; a log needs one of its own", retriable=False
        )
    else:
        error = StorageUnavailableError(f"the log at {path} failed: {cause}", retriable=False)
    error.__cause__ = cause
    return error
