"""Why a copy does not count: kept, and logged whenever it changes. At the primary, and at the copy's node."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    InvalidSettingsError,
    StorageUnavailableError,
    WalError,
    WalLockedError,
)
from walstore.files.directory import REMAKE
from walstore.runtime.error_mapping import copy_error

logger = logging.getLogger("walstore")

_MOST_CHARACTERS: Final = 500
_OF_THE_COPY: Final = (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    StorageUnavailableError,
    WalLockedError,
)
"""What is wrong with a copy itself. All else is between it and its primary, which may be an old one."""


def printable(what: object) -> str:
    """Return what others wrote for the log: printable characters, and not too many."""
    text = str(what)
    shown = "".join(
        one if one.isprintable() else ascii(one)[1:-1] for one in text[:_MOST_CHARACTERS]
    )
    return shown if len(text) <= _MOST_CHARACTERS else f"{shown}…"


class CopyTrouble:
    """Why one copy does not count."""

    def __init__(self, which: str, text: str | None = None) -> None:
        """``which`` names the copy in the log; ``text`` is the reason at first."""
        self.text = text
        """The reason, of printable characters; None if the copy counts."""
        self._which = which
        self._told: str | None = None

    def keep(self, why: object) -> None:
        """Keep a reason without logging it."""
        self.text = printable(why)

    def note(self, why: object) -> None:
        """Keep a reason; it is logged unless it was the last one that was."""
        self.keep(why)
        text = self.text
        if text != self._told:
            self._told = text
            logger.warning("%s does not count: %s", self._which, text)

    def end(self) -> None:
        """Take note that the copy counts."""
        self.text = None
        if self._told is not None:
            self._told = None
            logger.warning("%s counts again", self._which)


class CopyTroubles:
    """The same of the copies at a node, by the names of their logs."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[str, CopyTrouble] = {}

    @contextmanager
    def noting(self, name: str, *, is_end: bool = False, is_look: bool = False) -> Iterator[None]:
        """Note what is wrong with a copy when the block fails for that.

        ``is_end``: what the block does is only done of a copy that takes part, so with it the trouble ends.
        ``is_look``: it opens the copy, or looks at all of it. Nobody repairs what it finds, so the error that
        is noted, and raised, says what to do.
        """
        kinds = (*_OF_THE_COPY, InvalidSettingsError) if is_look else _OF_THE_COPY
        try:
            yield
        except kinds as error:
            told = _with_advice(error) if is_look else error
            which = f"the copy of {name} here"
            self._known.setdefault(name, CopyTrouble(which)).note(told)
            if told is error:
                raise
            raise told from error.__cause__
        if is_end and name in self._known:
            self._known.pop(name).end()

    def forget(self, name: str) -> None:
        """Forget what was noted of a copy."""
        self._known.pop(name, None)


def _with_advice(error: WalError) -> WalError:
    """Return an error of a copy that cannot be used as it is, with what its operator should do."""
    cause = error.__cause__
    if isinstance(error, FormatVersionError):
        advice = f"update walstore on this machine, or {REMAKE}"
    elif isinstance(error, CorruptionError):
        advice = REMAKE
    elif isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | PermissionError):
        advice = f"check that file and its disk, or {REMAKE}"
    else:  # it says so itself, or passes
        return error
    twin = copy_error(error)
    twin.args = (str(error) if REMAKE in str(error) else f"{error}; {advice}",)
    return twin
