"""The allocator: one member of a cluster at a time chooses machines for the copies of its logs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from walstore.cluster.allocation import plan
from walstore.errors import WalError
from walstore.topology.documents import LOGS

if TYPE_CHECKING:
    from walstore.cluster.member import ClusterMember

logger = logging.getLogger("walstore")

_LOOK_SECONDS: Final = 0.5


async def allocate(member: ClusterMember) -> None:
    """Make the changes that are due while this member has the lowest address; until cancelled.

    Two members that think so for a moment do no harm: each change is a swap of what it was made from.
    """
    view, clock = member.view, member.clock
    away: dict[str, float] = {}
    while True:
        now = clock.monotonic()
        known = {address for spec in view.specs.values() for address in spec.copies}
        missing = known - set(view.members)
        away = {address: away.get(address, now) for address in missing}
        lost = {address for address, since in away.items() if now - since >= member.replace_seconds}
        if view.members and min(view.members) == member.address:
            for change in plan(view.specs, view.leaders, view.members, lost):
                await _make(member, change.name, change.spec.encode())
        await clock.sleep(_LOOK_SECONDS)


async def _make(member: ClusterMember, name: str, value: bytes) -> None:
    key = member.view.key(LOGS, name)
    try:
        swap = await member.keys.swap(key, value, expected=member.view.revisions.get(key, 0))
    except WalError as error:
        logger.warning("the copies of %s cannot be changed: %s", name, error)
    else:
        if swap.happened:
            logger.info("the copies of %s are changed: %s", name, value.decode())
