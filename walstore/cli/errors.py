"""An error on the command line: one line and an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from walstore import MissingExtraError
from walstore.core.runtime.extras import extra_of, hidden_by, missing_extra
from walstore.errors import (
    CollectionNotFoundError,
    ContentionError,
    CorruptionError,
    FencedError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSealedError,
    LogSuspendedError,
    WalClosedError,
    WalError,
    WalLockedError,
)

OK: Final = 0
FAILED: Final = 1
"""Bad usage, or the operation did not succeed."""
CORRUPTION: Final = 2
NOT_FOUND: Final = 3
LOCKED: Final = 4
"""The log is open for writing elsewhere, another owner took over, or it is sealed or suspended."""


class UsageError(InvalidSettingsError):
    """The command line is wrong; the message contains what to give instead."""


class InputError(WalError):
    """Stdin cannot be read; the message contains the reason."""


class OutputError(WalError):
    """Stdout cannot be written; the message contains the reason. What the command did is done."""

    outcome = "unknown"


class ChildFailedError(WalError):
    """A child process ended with ``code``; its stderr contains the reason."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


def is_expected(error: BaseException) -> bool:
    """Return whether the error comes from the user or the environment, not from a bug here."""
    if isinstance(error, ImportError) and hidden_by(error) is not None:
        return True
    if isinstance(error, ModuleNotFoundError):
        return extra_of(error) is not None
    return isinstance(error, WalError | OSError | UsageError)


def unwrap(error: BaseException) -> BaseException:
    """Return the one error in a group, however deep.

    The first if there are several and all are expected; the group itself if one is not.
    """
    found = list(leaves(error))
    if len(found) == 1 or all(map(is_expected, found)):
        return found[0]
    return error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, however deep; of another error only itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


def exit_code(error: BaseException) -> int:
    """Return the code with which the command ends after this error."""
    if isinstance(error, ChildFailedError):
        return error.code if OK < error.code <= LOCKED else FAILED
    if isinstance(error, CorruptionError):
        return CORRUPTION
    if isinstance(
        error,
        LogNotFoundError | CollectionNotFoundError | FileNotFoundError | NotADirectoryError,
    ):
        return NOT_FOUND
    if isinstance(
        error,
        WalLockedError | FencedError | ContentionError | LogSealedError | LogSuspendedError,
    ):
        return LOCKED
    if isinstance(error, WalClosedError) and error.reason == "fenced":
        return LOCKED
    return FAILED


def explain(error: BaseException) -> str:
    """Return the error in a sentence, with what to do about it.

    A name in it is as it is: :func:`walstore.cli.output.visible` shows what it contains, in one line.
    """
    if isinstance(error, ImportError) and (hidden := hidden_by(error)) is not None:
        return hidden
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, MissingExtraError):
        return str(missing_extra(error.name or "", extra_of(error) or ""))
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror.lower()
        return f"{text}: {error.filename}" if error.filename is not None else text
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted"
    text = str(error)
    # Closing a failed log fails for the same reason; the reason appears once.
    notes = [text, *(note for note in getattr(error, "__notes__", ()) if text not in note)]
    return " ".join(filter(None, notes)) or type(error).__name__


def described(error: BaseException, code: int) -> dict[str, object]:
    """Return what a program that asked for JSON is told of an error."""
    return {
        "error": explain(error),
        "type": type(error).__name__,
        "outcome": getattr(error, "outcome", None),
        "retriable": bool(getattr(error, "retriable", False)),
        "exit_code": code,
    }
