"""CursorState: what a cursor is at one moment, wherever it is; CursorInfo: the same in a listing. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from walstore.core.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US
from walstore.core.validation.arguments import as_text
from walstore.errors import WalError

TAG_BYTES: Final = 8
NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class CursorState:
    """The content of a cursor's file."""

    position: int
    """Offset of the next record to read; 1 or more."""
    revision: int
    """Counts the commits, from 1."""
    writer: bytes
    """Eight bytes that name the handle that made this revision; no two handles have the same."""
    updated_us: int
    """When the file was written."""
    lease_us: int
    """How long a commit or renewal keeps the cursor's pin; 0: without end."""
    deadline_us: int
    """When the lease ends; 0 without one."""
    owner: str
    """The writer of the file, for operators."""

    @property
    def tag(self) -> tuple[int, bytes]:
        """The value that a compare-and-swap compares: unique to one commit."""
        return self.revision, self.writer

    def is_expired(self, now_us: int) -> bool:
        """Whether the lease has ended, so that the cursor pins nothing."""
        return 0 < self.deadline_us <= now_us

    def renewed(self, now_us: int, owner: str, lease_us: int | None = None) -> CursorState:
        """Return the state with its lease extended from now, if it has one or gets one."""
        lease_us = self.lease_us if lease_us is None else lease_us
        return replace(
            self,
            updated_us=now_us,
            lease_us=lease_us,
            deadline_us=now_us + lease_us if lease_us else 0,
            owner=owner,
        )


def is_possible(state: CursorState) -> bool:
    """Return whether a correct program could have written these numbers."""
    return (
        state.position >= 1
        and 1 <= state.revision <= MOST_OFFSET
        and max(state.updated_us, state.lease_us, state.deadline_us) <= MOST_TIMESTAMP_US
    )


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A cursor for retention and listings."""

    name: str
    position: int
    """Nothing at or above it may be removed while the cursor pins. 0 if the file is unreadable."""
    is_expired: bool
    """Whether the cursor's lease has ended, so that it pins nothing."""
    state: CursorState | None
    """The file's content; None if it is unreadable."""
    problem: WalError | None = None
    """Why the file is unreadable: CorruptionError or FormatVersionError."""


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a cursor; TypeError or ValueError otherwise."""
    name = as_text(name, "a cursor's name")
    if not NAME.fullmatch(name):
        raise ValueError(
            "a cursor's name has 1 to 128 of the characters A-Z a-z 0-9 _ . - "
            f"and does not begin with a dot, unlike {name!r}"
        )
    return name
