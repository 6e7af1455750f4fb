"""What is known of the groups of a log, in use or not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from walstore.cursors.directory import CursorInfo
from walstore.errors import WalError
from walstore.groups.journal import CURSOR_PREFIX, Remembered
from walstore.runtime.statistics import GroupInfo, GroupStatistics


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
