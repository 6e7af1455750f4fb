"""The members of a group that are there, and when its options may change: the rule of every kind of log."""

from __future__ import annotations

from typing import Any, Protocol

from walstore.errors import InvalidSettingsError


class Roster:
    """The members of a group that are there, each once, whatever connections it had."""

    def __init__(self) -> None:
        self._via: dict[bytes, object] = {}

    def __len__(self) -> int:
        return len(self._via)

    def enter(self, member: bytes, via: object = None) -> None:
        """Note that a member is there: of this process, or over a connection, its newest one."""
        self._via[member] = via

    def leave(self, member: bytes) -> None:
        """Note that a member has left; one that is not there is no error."""
        self._via.pop(member, None)

    def lose(self, via: object) -> None:
        """Note that the members of a connection are gone, but for those that have a newer one."""
        self._via = {member: one for member, one in self._via.items() if one is not via}


class GroupInUse(Protocol):
    """A group as one process has it."""

    @property
    def name(self) -> str:
        """Name of the group."""

    @property
    def options(self) -> Any:
        """What its first member gave; the same for all of them."""

    @property
    def members(self) -> Roster:
        """Those that are there."""

    @property
    def leased(self) -> int:
        """How many jobs are with members, also with some that have gone."""

    def is_free(self) -> bool:
        """Whether no member is there or about to be, no job is leased, and nothing is in progress."""


def is_kept(group: GroupInUse, options: object) -> bool:
    """Return whether a further member uses a group as it is; if not, the options of the group change.

    InvalidSettingsError if they are others and the group is not free.
    """
    if group.options == options:
        return True
    if group.is_free():
        return False
    raise InvalidSettingsError(
        f"group {group.name!r} is in use with other options: {group.options}, not {options}; "
        f"{len(group.members)} members are there and {group.leased} jobs are leased; the options can change "
        "when there is none of either"
    )
