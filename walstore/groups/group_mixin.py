"""GroupMixin: the groups of a log; OwnedGroups: those of a log that is open for writing."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from walstore.errors import SequenceMismatchError, WalError
from walstore.groups.coordinator import GroupCoordinator, GroupLog
from walstore.groups.group import Group, GroupBackend
from walstore.groups.settings import GroupSettings, check_group_name
from walstore.ports import Clock, FileSystem
from walstore.records import Durability, Record, Start
from walstore.runtime.statistics import GroupStatistics
from walstore.runtime.threads import Lane


class GroupParts(NamedTuple):
    """What the groups of a log share with it."""

    fs: FileSystem
    clock: Clock
    lane: Callable[[], Lane]


class _AppendingLog(Protocol):
    """What dead letters need of the log."""

    @property
    def producer(self) -> Callable[[str], Any]: ...

    @property
    def append(self) -> Callable[..., Any]: ...


class GroupMixin:
    """Groups of members that share the records of a log between them."""

    @abstractmethod
    async def _find_group(self, name: str, settings: GroupSettings) -> GroupBackend:
        """Return the group itself, or the way to it."""

    def group(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        stream: str | None = None,
        ack_wait_seconds: float = 30.0,
        max_deliver: int | None = None,
        max_ack_pending: int = 1000,
        is_ordered: bool = False,
        dead_letters: str | None = None,
    ) -> Group:
        """Return a new member of the group ``name``; each record goes to one member at a time.

        ``async with wal.group("workers") as group: async for job in group: ...; await job.ack()``. A new
        group begins at ``start``. It holds retention back from its first record that is not settled, by a
        cursor named ``group.`` and its name. ``stream`` gives it only the records of that stream.

        A member has a job for ``ack_wait_seconds``, 0.001 to 30 days; then it comes again, to any member.
        After ``max_deliver`` deliveries, 1 to 10 000, it is appended to the stream ``dead_letters``
        instead, by default the group's name and ``.dead``, with headers that tell its origin; None
        delivers without end. At most ``max_ack_pending`` jobs are with members, 1 to 1 000 000. With
        ``is_ordered``, jobs of one key are delivered one after the other, each when the one before it is
        settled.

        Entering raises InvalidSettingsError if the group is in use with other options, and as :meth:`cursor`.
        """
        settings = GroupSettings(
            start=start,
            stream=stream,
            ack_wait_seconds=ack_wait_seconds,
            max_deliver=max_deliver,
            max_ack_pending=max_ack_pending,
            is_ordered=is_ordered,
            dead_letters=dead_letters,
        )
        name = check_group_name(name)

        return Group(name, partial(self._find_group, name, settings))


class OwnedGroups(GroupMixin):
    """The groups of a log that this process has open for writing."""

    _groups: dict[str, GroupCoordinator] | None = None

    @abstractmethod
    def _group_parts(self) -> GroupParts:
        """Return what a group needs; raises where the log refuses to be used."""

    async def _find_group(self, name: str, settings: GroupSettings) -> GroupBackend:
        return self.coordinator(name, settings)

    def coordinator(self, name: str, settings: GroupSettings) -> GroupCoordinator:
        """Not for callers: return the group itself, for its members and a server."""
        parts = self._group_parts()
        if self._groups is None:
            self._groups = {}
        found = self._groups.get(name)
        if found is not None:
            found.check_settings(settings)
            return found
        log = cast(GroupLog, self)
        made = GroupCoordinator(
            log, name, settings, fs=parts.fs, clock=parts.clock, lane=parts.lane
        )
        self._groups[name] = made
        return made

    def _group_statistics(self) -> dict[str, GroupStatistics]:
        """Return the groups in use at this moment, on any thread."""
        groups = (self._groups or {}).copy()
        return {name: found for name, one in groups.items() if (found := one.look()) is not None}

    async def _close_groups(self) -> None:
        """Close the groups. One that fails only forgets what nobody was told is remembered."""
        for group in list((self._groups or {}).values()):
            with contextlib.suppress(WalError):
                await group.aclose()

    async def append_letter(self, producer: str, number: int, letter: Record, stream: str) -> None:
        """Not for callers: append a group's dead letter once, whatever is done twice."""
        log = cast(_AppendingLog, self)
        options: dict[str, Any] = {
            "key": letter.key,
            "stream": stream,
            "headers": letter.headers,
            "durability": Durability.DISK,
        }
        try:
            await log.producer(producer).append(letter.value, sequence=number, **options)
        except SequenceMismatchError as error:
            if (
                error.outcome != "durable"
            ):  # the producer was forgotten for newer ones: max_producers
                await log.append(letter.value, **options)
