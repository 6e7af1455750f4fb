"""Why a copy does not count: kept, and logged whenever it changes. At the primary, and at the copy's node."""

from __future__ import annotations

import logging
from typing import Final

from walstore.core.files.directory import REMAKE
from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    InvalidSettingsError,
    StorageUnavailableError,
    WalError,
    WalLockedError,
)

logger = logging.getLogger("walstore.replication")

_MOST_CHARACTERS: Final = 500
_OF_THE_COPY: Final = (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    StorageUnavailableError,
    WalLockedError,
)
"""What is wrong with a copy itself. All else is between it and its primary, which may be an old one."""
_OF_A_LOOK: Final = (*_OF_THE_COPY, InvalidSettingsError)


def printable(what: object) -> str:
    """Return what others wrote for the log: printable characters, and not too many."""
    text = str(what)
    shown = "".join(
        one if one.isprintable() else ascii(one)[1:-1] for one in text[:_MOST_CHARACTERS]
    )
    return shown if len(text) <= _MOST_CHARACTERS else f"{shown}…"


class LoggedOnce:
    """A warning that is logged when it changes: what it is about is tried again and again."""

    def __init__(self) -> None:
        """Begin with none."""
        self._last: str | None = None

    def warn(self, text: str) -> None:
        """Log a warning unless it was the last one that was."""
        if text != self._last:
            self._last = text
            logger.warning("%s", text)

    def end(self) -> bool:
        """Take note that there is nothing to warn of; return whether there was."""
        had, self._last = self._last is not None, None
        return had


class CopyTrouble:
    """Why one copy does not count."""

    def __init__(self, which: str, text: str | None = None) -> None:
        """``which`` names the copy in the log; ``text`` is the reason at first."""
        self.text = text
        """The reason, of printable characters; None if the copy counts."""
        self._which = which
        self._logged, self._lack = LoggedOnce(), LoggedOnce()

    def keep(self, why: object) -> None:
        """Keep a reason without logging it."""
        self.text = printable(why)

    def note(self, why: object) -> None:
        """Keep a reason; it is logged unless it was the last one that was."""
        self.keep(why)
        self._logged.warn(f"{self._which} does not count: {self.text}")

    def warn(self, lack: str, why: object) -> None:
        """Log what a copy that counts lacks, unless that was logged last."""
        self._lack.warn(f"{self._which} lacks {lack}: {printable(why)}")

    def end(self) -> None:
        """Take note that the copy counts."""
        self.text = None
        if self._logged.end():
            logger.warning("%s counts again", self._which)


class CopyTroubles:
    """The same of the copies at a node, by the names of their logs."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[str, CopyTrouble] = {}

    def note(self, name: str, error: WalError, *, is_look: bool = False) -> None:
        """Note why a call of a primary failed, and log it if it changes: the copy does not count then.

        Only what is wrong with the copy itself is noted, such as damage, its disk, or another program that
        has it open; what concerns its primary is left out. ``is_look``: the call opens the copy, or looks at
        all of it. Nobody repairs what it finds, so this notes, and raises in place of ``error``, one that
        says what to do.
        """
        if not isinstance(error, _OF_A_LOOK if is_look else _OF_THE_COPY):
            return
        told = _with_advice(error) if is_look else error
        self._of(name).note(told)
        if told is not error:
            raise told from error.__cause__

    def warn(self, name: str, error: WalError) -> None:
        """Log what a copy that counts lacks, unless that was logged last: its primary puts it back."""
        self._of(name).warn("whole segments", error)

    def end(self, name: str) -> None:
        """Take note that a copy takes part."""
        if name in self._known:
            self._known.pop(name).end()

    def forget(self, name: str) -> None:
        """Forget what was noted of a copy."""
        self._known.pop(name, None)

    def _of(self, name: str) -> CopyTrouble:
        return self._known.setdefault(name, CopyTrouble(f"the copy of {name} here"))


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
