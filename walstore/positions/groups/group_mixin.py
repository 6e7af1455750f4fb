"""GroupMixin: the groups of a log; OwnedGroups: those of a log that is open for writing, listed."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.statistics import GroupInfo, GroupStatistics
from walstore.core.runtime.threads import Lane
from walstore.errors import SequenceMismatchError, StorageUnavailableError, WalClosedError, WalError
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.groups.coordinator import GroupCoordinator, GroupLog
from walstore.positions.groups.group import Group, GroupBackend
from walstore.positions.groups.group_settings import GroupSettings, check_group_name
from walstore.positions.groups.journal import (
    CURSOR_PREFIX,
    FileJournal,
    Remembered,
    list_journals,
    look_at_journals,
    remove_journal,
)
from walstore.positions.groups.kept_journal import KeptJournal, RegisterLog, remove_kept
from walstore.records import Durability, Record, Start

_T = TypeVar("_T")


class GroupParts(NamedTuple):
    """What the groups of a log share with it."""

    fs: FileSystem
    clock: Clock
    lane: Callable[[], Lane]
    keeping: RegisterLog | None
    """Of a replicated log, which keeps in itself what groups remember."""


async def _blocking(parts: GroupParts, call: Callable[..., _T], *args: object) -> _T:
    try:
        return await parts.lane().run(call, *args)
    except OSError as error:
        text = f"the groups of the log cannot be listed or removed: {error}"
        raise StorageUnavailableError(text, outcome="unknown", retriable=True) from error


class GroupMixin(Owned):
    """Groups of members that share the records of a log between them."""

    @abstractmethod
    async def _find_group(self, name: str, settings: GroupSettings) -> GroupBackend:
        """Return the group itself, or the way to it."""

    @renamed(is_ordered="ordered")
    def group(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        stream: str | None = None,
        ack_wait_seconds: float = 30.0,
        max_deliver: int | None = None,
        max_ack_pending: int = 1000,
        ordered: bool = False,
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
        ``ordered``, jobs of one key are delivered one after the other, each when the one before it is
        settled.

        Entering raises InvalidSettingsError if the group is in use with other options, and as :meth:`cursor`.
        The options may be others once no member is there and no job is leased.
        """
        settings = GroupSettings(
            start=start,
            stream=stream,
            ack_wait_seconds=ack_wait_seconds,
            max_deliver=max_deliver,
            max_ack_pending=max_ack_pending,
            is_ordered=ordered,
            dead_letters=dead_letters,
        )
        name = check_group_name(name)

        return Group(name, partial(self._find_group, name, settings))


class OwnedGroups(GroupMixin):
    """The groups of a log that this process has open for writing."""

    _groups: dict[str, GroupCoordinator] | None = None
    _last_number = 0
    """That of the group that came into use last."""
    _doomed: frozenset[str] = frozenset()
    """Names of groups that are being deleted."""

    @abstractmethod
    def _group_parts(self) -> GroupParts:
        """Return what a group needs; raises where the log refuses to be used."""

    async def _find_group(self, name: str, settings: GroupSettings) -> GroupBackend:
        return self.coordinator(name, settings)

    def coordinator(
        self, name: str, settings: GroupSettings, *, enters: bool = True
    ) -> GroupCoordinator:
        """Not for callers: return the group itself, for its members and a server.

        Unless a member ``enters``, the group in use keeps its options, which may have changed meanwhile.
        """
        parts = self._group_parts()
        if name in self._doomed:
            raise WalClosedError(f"the group {name!r} is being deleted; try again")
        if self._groups is None:
            self._groups = {}
        found = self._groups.get(name)
        if found is not None and (not enters or found.is_kept(settings)):
            return found
        log = cast(GroupLog, self)
        journal = (
            FileJournal(parts.fs, log.path, name, parts.lane)
            if parts.keeping is None
            else KeptJournal(parts.keeping, name)
        )
        if found is None:
            self._last_number += 1
        number = self._last_number if found is None else found.number
        made = GroupCoordinator(
            log, name, settings, clock=parts.clock, journal=journal, number=number, before=found
        )
        self._groups[name] = made
        return made

    async def has_group(self, name: str) -> bool:
        """Not for callers: whether a group is there; a member of a deleted one must not make it anew."""
        if name in (self._groups or ()):
            return True
        parts, log = self._group_parts(), cast(GroupLog, self)
        if parts.keeping is not None:
            return any(one.name == CURSOR_PREFIX + name for one in await log.cursors())
        return name in await _blocking(parts, list_journals, parts.fs, log.path)

    def group_number(self, name: str) -> int:
        """Not for callers: that of the group with this name; 0 if none is in use."""
        self._group_parts()  # raises where the log refuses to be used
        found = (self._groups or {}).get(name)
        return 0 if found is None else found.number

    async def groups(self) -> list[GroupInfo]:
        """Return all groups of the log by name, also those that are not in use. Raises as :meth:`cursors`."""
        parts, log = self._group_parts(), cast(GroupLog, self)
        found, journals = await log.cursors(), None
        if parts.keeping is None:
            journals = await _blocking(parts, look_at_journals, parts.fs, log.path)
        return list_groups(found, journals, self._group_statistics(), log.visible_limit)

    async def delete_group(self, name: str) -> bool:
        """Remove a group and all that it remembers; return whether there was one.

        Its members raise WalClosedError. Records stay, dead letters too. A group that is made with this name
        later begins anew. If cancelled or after an error it may be deleted in part: delete it again. Raises
        as :meth:`delete_cursor`.
        """
        name = check_group_name(name)
        parts, log = self._group_parts(), cast(GroupLog, self)
        if name in self._doomed:
            raise WalClosedError(f"the group {name!r} is being deleted; try again")
        self._doomed |= {name}
        try:
            found = (self._groups or {}).get(name)
            if found is not None:
                await found.end()
            had_journal = False
            if parts.keeping is not None:
                # Before the cursor, by which it is found: else one made again would know what this one did.
                had_journal = await remove_kept(parts.keeping, name)
            # Before the file of a journal: that alone is found by whoever deletes again.
            had_cursor = await log.delete_cursor(CURSOR_PREFIX + name)
            if parts.keeping is None:
                had_journal = await _blocking(parts, remove_journal, parts.fs, log.path, name)
            if self._groups is not None:
                self._groups.pop(name, None)
        finally:
            self._doomed -= {name}
        return had_journal or had_cursor

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
        log = cast(GroupLog, self)
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


def list_groups(
    found: Iterable[CursorInfo],
    journals: Mapping[str, Remembered | WalError] | None,
    used: Mapping[str, GroupStatistics],
    limit: int,
) -> list[GroupInfo]:
    """Return the groups of a log by name.

    Args:
        found: The cursors of the log.
        journals: What the groups' files say, or what is wrong with them; None for a log that keeps in
            itself what its groups remember: there a group is known by its cursor.
        used: The groups that are in use.
        limit: Where the log ends, for what is behind.
    """
    cursors = {one.name: one for one in found}
    if journals is None:
        names = sorted(
            name.removeprefix(CURSOR_PREFIX) for name in cursors if name.startswith(CURSOR_PREFIX)
        )
        journals = {}
    else:
        names = list(journals)
    return [
        _info(name, cursors.get(CURSOR_PREFIX + name), used.get(name), journals.get(name), limit)
        for name in names
    ]


def _info(
    name: str,
    cursor: CursorInfo | None,
    used: GroupStatistics | None,
    journal: Remembered | WalError | None,
    limit: int,
) -> GroupInfo:
    """A group that is in use says itself where it is."""
    problem = journal if isinstance(journal, WalError) else None
    if used is not None:
        floor, problem = used.floor, None
    elif cursor is None:
        floor = None
    else:
        problem = problem or cursor.problem
        floor = None if cursor.problem else cursor.position
    behind = None if floor is None else max(0, limit - floor)
    return GroupInfo(name, floor, behind, used, problem)
