"""ServedMembers: the members of groups at the other end of one connection, and what becomes of their jobs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

from walstore.core.validation.arguments import as_int
from walstore.errors import WalClosedError
from walstore.log.wal import Wal
from walstore.net.wire.groups import (
    is_bound_elsewhere,
    pack_bound,
    pack_jobs,
    unpack_held,
    unpack_settings,
)
from walstore.net.wire.message import ProtocolViolationError
from walstore.positions.groups.coordinator import GroupCoordinator
from walstore.positions.groups.group_settings import check_group_name
from walstore.positions.groups.letters import error_text

_MOST_WAIT_SECONDS: Final = 60.0
_MOST_JOBS: Final = 10_000
_LATE: Final = ("settle", "give_back", "take_back", "extend", "leave")
"""What a member may still say of its jobs when the options of the group have changed."""


def _why(packed: list[Any]) -> tuple[str | None, bool]:
    """Return the error of a job that is given back, and whether it is for good."""
    match packed:
        case []:
            return None, False
        case [str(error), bool(is_final)]:
            return error_text(error), is_final
    raise ProtocolViolationError("an error of a job that is none")


class ServedMembers:
    """Calls of members by the name of their group."""

    def __init__(self, wal: Wal, most_bytes: int) -> None:
        """Send jobs of up to ``most_bytes`` at once; a larger one alone."""
        self._wal = wal
        self._most_bytes = most_bytes
        self._groups: dict[str, GroupCoordinator] = {}
        """Those that a member has entered, or was given jobs of."""

    async def lose(self, *, is_told: bool) -> None:
        """Count the members no longer: their connection has ended.

        Unless ``is_told``, since they go on with the next server, their jobs are given back after a moment.
        """
        groups, self._groups = self._groups, {}
        for group in groups.values():
            if not is_told:
                group.lose(self)
            else:
                group.members.lose(self)
                group.members.forget(self)

    async def group(
        self, bound: memoryview, verb: str, name: str, options: Any, *arguments: Any
    ) -> Any:
        """Do something in a group, which is made and opened for the first client that names it.

        ``bound``, the payload, is what the answer of "open" or "stay" said, or empty: a member of a group
        that was deleted does nothing in the next one of that name.
        """
        if verb != "open":
            is_there = await self._wal.has_group(check_group_name(name))
            wal, number = self._wal, self._wal.group_number(name)
            if not is_there or is_bound_elsewhere(bytes(bound), wal.epoch, number):
                raise WalClosedError(f"the group {name!r} was deleted")
        settings = unpack_settings(options)
        group = self._wal.coordinator(check_group_name(name), settings, enters=verb not in _LATE)
        await group.load()
        match verb, arguments:
            case "open" | "stay", (bytes(member),):
                self._groups[name] = group
                await group.open(member, via=self)
                return pack_bound(self._wal.epoch, group.number)
            case "fetch", (bytes(member), int(most), int() | float() as seconds) if (
                0 < most <= _MOST_JOBS and math.isfinite(seconds)
            ):
                self._groups[name] = group
                wait = min(max(float(seconds), 0.0), _MOST_WAIT_SECONDS)
                return pack_jobs(
                    await group.take(member, most, wait, via=self, most_bytes=self._most_bytes)
                )
            case "settle", (list(offsets),):
                return await group.settle([as_int(offset, "an offset") for offset in offsets])
            case "give_back", (
                bytes(member),
                int(offset),
                int(deliveries),
                int() | float() as seconds,
                *why,
            ) if seconds >= 0 and math.isfinite(seconds):
                error, is_final = _why(why)
                return await group.give_back(
                    offset, deliveries, float(seconds), error, is_final=is_final, member=member
                )
            case "take_back", (bytes(member), list(held)):
                return await group.take_back(unpack_held(held), member=member)
            case "extend", (bytes(member), int(offset), int(deliveries)):
                self._groups[name] = group
                return await group.extend(offset, deliveries, member=member, via=self)
            case "leave", (bytes(member), list(held)):
                return await group.leave(member, unpack_held(held))
            case "statistics", ():
                return dataclasses.asdict(await group.statistics())
        raise ProtocolViolationError(
            f"no call of a group, or not the arguments of that one: {verb!r:.100}"
        )
