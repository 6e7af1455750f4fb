"""CloudGroups: the groups of a log in object storage, as one program uses them."""

from __future__ import annotations

import contextlib
import inspect
import secrets
from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

from uploader.format import layout
from uploader.positions.groups.cloud_group import CloudGroup
from uploader.positions.groups.group_place import GroupPlace, LetterWriter, remove
from uploader.runtime.task_groups import settle_all
from uploader.stores.probe import require_conditional_puts
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.statistics import GroupInfo
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
    WalClosedError,
    WalError,
)
from walstore.positions.groups.group import Group, GroupBackend
from walstore.positions.groups.group_settings import GroupSettings
from walstore.records import Start

MOST_PENDING: Final = 10_000
"""Most jobs that the members of a group in a store may have: all of them are in one object."""
_TAG_BYTES: Final = 8
_AT_ONCE: Final = 10
_LETTERS: Final = "where dead letters are appended: an open CloudWriter or Wal"


def _make_tag() -> str:
    return secrets.token_hex(_TAG_BYTES)


class CloudGroups(Owned):
    """Groups of members, in any number of processes, that share the records of a log in a store."""

    _used_groups: dict[str, CloudGroup] | None = None
    make_group_tag: Callable[[], str] = staticmethod(_make_tag)
    """Not for callers: names processes and groups; a simulation replaces it."""

    @abstractmethod
    def _group_place(self) -> GroupPlace:
        """Return what groups need of the log; raises WalClosedError if it is closed."""

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
        letters: LetterWriter | None = None,
    ) -> Group:
        """Return a new member of the group ``name``; each record goes to one member at a time.

        As :meth:`walstore.Wal.group`, for members in any number of processes and machines: what they share
        is an object in the store, ``group/{name}.json``, which they replace by compare-and-swap. Needs
        write access. Every change takes a request or two; those of one process that come together share
        them.

        The name has 1 to 100 letters, digits and ``_``. ``max_ack_pending`` is at most 10 000.
        ``max_deliver`` needs ``letters``, where dead letters are appended: a :class:`uploader.CloudWriter`
        of this log or another, or an open :class:`walstore.Wal`. A process that dies between a dead letter
        and its settlement leaves it to another, which appends it again. ``stream`` and ``ordered`` are
        those of the group for good; the other options may differ between processes, and each applies to
        what its process does. Those of a process may be others once none of its members is there and it has
        no job leased.

        After a process died, its jobs come again once another has seen them leased for ``ack_wait_seconds``.
        Clocks need not agree, only run at the same pace.

        Entering raises InvalidSettingsError for other options than this process uses already, while it
        does, or than the group has for good; OffsetTrimmedError or OffsetNotWrittenError if the log has no
        record at ``start``; UnsupportedStoreError; CorruptionError; OutcomeUnknownError if the store does not
        answer: enter again.
        """
        layout.group_path(name)
        settings = GroupSettings(
            start=start,
            stream=stream,
            ack_wait_seconds=ack_wait_seconds,
            max_deliver=max_deliver,
            max_ack_pending=max_ack_pending,
            is_ordered=ordered,
            dead_letters=dead_letters,
        )
        if max_ack_pending > MOST_PENDING:
            raise InvalidSettingsError(
                f"max_ack_pending of a log in a store is at most {MOST_PENDING}, not {max_ack_pending}"
            )
        if max_deliver is not None and letters is None:
            raise InvalidSettingsError(f"max_deliver needs letters=, {_LETTERS}")
        if letters is not None:
            _check_letters(letters)
        return Group(name, partial(self._find_group, name, settings, letters))

    async def groups(self) -> list[GroupInfo]:
        """Return all groups of the log by name, as the store has them now.

        With the statistics of those that this process uses, and the problem of those that cannot be read.
        Raises the store's errors.
        """
        place = self._group_place()
        await place.log.refresh()
        names = [
            layout.parse_group_path(listed.key)
            async for listed in place.store.list(layout.GROUP_FOLDER)
            if _is_group(listed.key)
        ]
        found: list[GroupInfo] = []
        for low in range(0, len(names), _AT_ONCE):
            some = names[low : low + _AT_ONCE]
            looked = await settle_all(self._look_at_group(place, name) for name in some)
            found += [info for info in looked if info is not None]
        return sorted(found, key=lambda one: one.name)

    async def delete_group(self, name: str) -> bool:
        """Remove a group and all that it remembers; return whether there was one. Also a damaged one.

        Its members, in every process, raise WalClosedError with what they do next. Records stay. A group
        that is made with this name later begins anew. If cancelled or after an error it may be deleted in
        part: delete it again. FormatVersionError for a group of a newer version, which stays.
        """
        layout.group_path(name)
        place = self._group_place()
        used = (self._used_groups or {}).pop(name, None)
        if used is not None:  # first, as one that is being made would be made again
            await used.end()
        return await remove(place, name, self.make_group_tag())

    async def _find_group(
        self, name: str, settings: GroupSettings, letters: LetterWriter | None
    ) -> GroupBackend:
        place = self._group_place()
        await require_conditional_puts(place.store, with_swaps=True, retry=place.retry)
        self._group_place()  # still open
        if self._used_groups is None:
            self._used_groups = {}
        while (used := self._used_groups.get(name)) is not None and used.is_used:
            if used.is_kept((settings, letters)):
                return used
            await used.retire()
            self._group_place()
        used = CloudGroup(place, name, settings, letters=letters, make_tag=self.make_group_tag)
        self._used_groups[name] = used
        return used

    async def _look_at_group(self, place: GroupPlace, name: str) -> GroupInfo | None:
        try:
            stored = await place.load(name)
        except (CorruptionError, FormatVersionError) as error:
            return GroupInfo(name, None, None, None, error)
        if stored.value is None or stored.value.is_removed:
            return None
        floor, used = stored.value.floor, (self._used_groups or {}).get(name)
        now = None if used is None else used.look()
        return GroupInfo(name, floor, max(0, place.log.tail - floor), now)

    async def _close_groups(self) -> None:
        """Close the groups. One that fails only leaves its cursor behind."""
        for group in list((self._used_groups or {}).values()):
            with contextlib.suppress(WalError):
                await group.aclose()


def _check_letters(letters: object) -> None:
    """Raise TypeError or WalClosedError unless dead letters can be appended to it."""
    append = getattr(letters, "append", None)
    options: dict[str, Any] = {"key": None, "stream": "", "headers": {}}
    try:
        is_fit = inspect.iscoroutinefunction(append) and not isinstance(letters, type)
        inspect.signature(append).bind(b"", **options)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        is_fit = False
    if not is_fit:
        raise TypeError(
            f"letters is {_LETTERS}, by 'async with' or 'await'; not {type(letters).__name__}"
        )
    if getattr(letters, "is_closing", False):
        raise WalClosedError("letters= is closed; open it again")


def _is_group(key: str) -> bool:
    try:
        layout.parse_group_path(key)
    except ValueError:
        return False
    return True
