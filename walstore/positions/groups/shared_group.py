"""SharedGroup: what a group has of its members in one process, wherever its jobs are kept."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from walstore.core.ports import Clock
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.statistics import GroupStatistics
from walstore.errors import InvalidSettingsError, LeaseExpiredError, WalClosedError, WalError
from walstore.positions.groups.group_settings import GroupSettings


class Roster:
    """The members of a group that are there, each once, whatever connections it had."""

    def __init__(self) -> None:
        self._via: dict[bytes, object] = {}
        self._last: dict[bytes, object] = {}
        """The newest connection of each, also of those that are lost and may come back."""

    def __len__(self) -> int:
        return len(self._via)

    def enter(self, member: bytes, via: object = None) -> None:
        """Note that a member is there: of this process, or over a connection, its newest one."""
        self._via[member] = self._last[member] = via

    def leave(self, member: bytes) -> None:
        """Note that a member has left; one that is not there is no error."""
        self._via.pop(member, None)
        self._last.pop(member, None)

    def lose(self, via: object) -> None:
        """Note that the members of a connection are gone, but for those that have a newer one."""
        self._via = {member: one for member, one in self._via.items() if one is not via}

    def newest(self, member: bytes) -> object:
        """Return the newest connection of a member; None if it has none, or is forgotten."""
        return self._last.get(member)

    def forget(self, via: object) -> None:
        """Expect nobody of a lost connection any more."""
        self._last = {member: one for member, one in self._last.items() if one is not via}


class SharedGroup:
    """A group as one process has it. Belongs to the event loop."""

    def __init__(self, name: str, settings: GroupSettings, clock: Clock) -> None:
        self.name = name
        """Name of the group."""
        self.settings = settings
        """As the first member in this process gave them."""
        self.members = Roster()
        """Those that are there, of this process and over connections to it."""
        self._clock = clock
        self._opening = asyncio.Lock()
        self._failure: WalError | None = None
        """What ended the group in this process."""
        self._delivered = self._redelivered = self._dead = 0

    @property
    def options(self) -> object:
        """What the first member gave; the same for all of them."""
        return self.settings

    @property
    @abstractmethod
    def leased(self) -> int:
        """How many jobs are with members, also with some that have gone."""

    @abstractmethod
    def is_free(self) -> bool:
        """Return whether no member is there or about to be, no job is leased, and nothing is in progress."""

    def is_kept(self, options: object) -> bool:
        """Return whether a further member uses it as it is; if not, the options of the group change.

        InvalidSettingsError if they are others and the group is not free.
        """
        if self.options == options:
            return True
        if self.is_free():
            return False
        raise InvalidSettingsError(
            f"group {self.name!r} is in use with other options: {self.options}, not {options}; "
            f"{len(self.members)} members are there and {self.leased} jobs are leased; the options can "
            "change when there is none of either"
        )

    def _check_unfailed(self) -> None:
        if self._failure is not None:
            raise copy_error(self._failure)

    def _ended(self, how: str) -> WalClosedError:
        return WalClosedError(f"the group {self.name!r} {how}")

    def _expired(self, offset: int) -> LeaseExpiredError:
        return LeaseExpiredError(
            f"the lease on offset {offset} of group {self.name!r} ended; another member may have it",
            reader=self.name,
        )

    def _statistics(self, *, floor: int, pending: int, unsettled: int, lag: int) -> GroupStatistics:
        return GroupStatistics(
            name=self.name,
            floor=floor,
            pending=pending,
            unsettled=unsettled,
            lag=max(0, lag),
            delivered=self._delivered,
            redelivered=self._redelivered,
            dead=self._dead,
        )
