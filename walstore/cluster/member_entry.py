"""MemberEntry: what the key-value store of a cluster has of one machine, while that takes part."""

from __future__ import annotations

import logging
from typing import Final

from walstore.cluster.member_state import MemberState
from walstore.errors import WalError
from walstore.topology.documents import MEMBERS, Member
from walstore.topology.key_values import KeyValue

logger = logging.getLogger("walstore.cluster")

_PAUSE_SECONDS: Final = 0.5


class MemberEntry:
    """The entry of this machine, which the others see. Belongs to the event loop."""

    def __init__(self, member: MemberState, *, zone: str, web: str) -> None:
        """Announce a member that knows its address."""
        self._member = member
        self._zone, self._web = zone, web

    async def keep(self) -> None:
        """Keep the entry, with the lease of the session, whatever it is now.

        Another program that is announced at this address later has taken the place of this one. An entry that
        the store does not have any more, since it was set back, is made again.
        """
        member, view = self._member, self._member.view
        key, announced, revision = view.key(MEMBERS, member.address), 0, 0
        entry = Member(member.address, member.make_tag().hex(), self._zone, self._web, member.home)

        def is_replaced() -> bool:
            now = view.members.get(member.address)
            is_other = now is not None and now.tag != entry.tag
            return is_other and bool(announced) and view.revisions.get(key, 0) > revision

        def is_missing() -> bool:
            now, lease = view.members.get(member.address), member.session.lease
            return lease != 0 and (lease != announced or now is None or now.tag != entry.tag)

        while True:
            await view.wait(lambda: is_missing() or is_replaced())
            if is_replaced():
                by = view.members[member.address].home or "another program"
                member.replaced_by = (
                    f"{by} serves a cluster at {member.address} now, and this machine, {member.home}, "
                    "leaves it. If both are to be machines, give each an address (--advertise) and a "
                    "directory of its own"
                )
                logger.error("%s", member.replaced_by)
                member.is_closing = True
                view.notify()
                return
            wanted = member.session.lease
            try:
                found = await member.keys.get(key)
                expected = 0 if found is None else found.revision
                if found is not None and (found.value, found.lease) == (entry.encode(), wanted):
                    announced, revision = wanted, expected
                    await member.clock.sleep(_PAUSE_SECONDS)  # the view will have it
                    continue
                if found is not None and not announced:
                    entry = entry._replace(replaced=self._replaces(found))
                swap = await member.keys.swap(key, entry.encode(), expected=expected, lease=wanted)
            except WalError as error:
                logger.warning("this machine cannot be announced: %s", error)
            else:
                if swap.happened and swap.found is not None:
                    announced, revision = wanted, swap.found.revision
                    continue
            await member.clock.sleep(_PAUSE_SECONDS)

    def _replaces(self, found: KeyValue) -> str:
        """Return the home of the machine whose entry is there, if it is not an earlier start of this one."""
        try:
            home = Member.decode(found.value, found.key).home
        except WalError:
            return ""
        if home in ("", self._member.home):
            return ""
        logger.warning(
            "this machine, %s, takes the place of %s at %s; if both are to be machines, give each an address "
            "(--advertise) and a directory of its own",
            self._member.home,
            home,
            self._member.address,
        )
        return home
