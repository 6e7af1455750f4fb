"""The allocator: one member of a cluster at a time chooses machines for the copies of its logs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from walstore.cluster.allocation import plan
from walstore.cluster.member_state import MemberState
from walstore.errors import WalError
from walstore.topology.documents import LOGS

if TYPE_CHECKING:
    from walstore.cluster.view import ClusterView

logger = logging.getLogger("walstore.cluster")

_LOOK_SECONDS: Final = 0.5


async def allocate(member: MemberState) -> None:
    """Make the changes that are due while this member has the lowest address; until cancelled.

    Two members that think so for a moment do no harm: each change is a swap of what it was made from.
    """
    view, clock = member.view, member.clock
    away: dict[tuple[str, str, bool], float] = {}
    seen: set[tuple[str, str]] = set()
    while True:
        now = clock.monotonic()
        seen = {one for one in _copies(view) if one in seen or _is_present(view, *one)}
        away = {
            (*one, one[1] in view.members): away.get((*one, one[1] in view.members), now)
            for one in _copies(view)
            if _is_absent(view, *one, has_been_present=one in seen)
        }
        lost = {one[:2] for one, since in away.items() if now - since >= member.replace_seconds}
        if view.members and min(view.members) == member.address:
            for change in plan(view.specs, view.leaders, view.members, lost):
                await _make(member, change.name, change.spec.encode())
        await clock.sleep(_LOOK_SECONDS)


def _copies(view: ClusterView) -> list[tuple[str, str]]:
    return [(name, address) for name, spec in view.specs.items() for address in spec.copies]


def _is_present(view: ClusterView, name: str, address: str) -> bool:
    leader = view.leaders.get(name)
    return leader is not None and address in leader.present


def _is_absent(view: ClusterView, name: str, address: str, *, has_been_present: bool) -> bool:
    """Return whether a copy's machine is away, or is there with a copy that its leader has lost.

    Not one that is being made: that may take long, and another machine would need as long.
    """
    leader = view.leaders.get(name)
    if address not in view.members:
        return True
    is_followed = leader is not None and leader.epoch > 0 and address in leader.copies
    return has_been_present and is_followed and not _is_present(view, name, address)


async def _make(member: MemberState, name: str, value: bytes) -> None:
    key = member.view.key(LOGS, name)
    try:
        swap = await member.keys.swap(key, value, expected=member.view.revisions.get(key, 0))
    except WalError as error:
        logger.warning("the copies of %s cannot be changed: %s", name, error)
    else:
        if swap.happened:
            logger.info("the copies of %s are changed: %s", name, value.decode())
