"""GroupTruth: what must be true of a group whatever happens, judged by its object and by what members got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from tests.sim.groups.plan import GroupPlan
from tests.sim.rules import ViolationError
from uploader.format.group_document import GroupDocument, JobRow

GROUP_RULES: Final = {
    "lease": "a lease ends when it is over or its process gives it back, and no job is leased anew before",
    "one-member": "a lease is given to one member",
    "settled": "a job is settled only when somebody asked for that, and never comes again",
    "acknowledged": "an acknowledgement that returned is kept",
    "order": "in a group ordered by key, no job is leased while one of its key before it is not settled",
    "deliveries": "no job is delivered more often than the group allows",
    "delay": "no job is delivered before its moment, by the clock of the process that delivers it",
    "pending": "no more jobs are with members than the group allows",
    "forward": "the group never goes back in its log",
    "cursor": "the cursor never passes the group's floor",
    "all": "in the end every job was handled",
    "ends": "every call ends",
    "typed-errors": "calls raise WalError with an outcome, and asyncio has nothing to complain about",
}
_EARLY_SECONDS: Final = 0.001
"""Waits are stored in whole milliseconds."""


class GroupViolationError(ViolationError):
    """A rule was broken."""

    rules: ClassVar[Mapping[str, str]] = GROUP_RULES


class GroupTruth:
    """One group's history, as the store saw it."""

    def __init__(self, plan: GroupPlan, keys: Mapping[int, bytes | None]) -> None:
        """``keys`` are those of the jobs, by offset."""
        self.plan = plan
        self.keys = keys
        self.document: GroupDocument | None = None
        self.asked: set[int] = set()
        """Offsets that somebody asked to settle."""
        self.given_back: set[tuple[int, int]] = set()
        """Offsets and deliveries that somebody gave back, or may have."""
        self.acknowledged: set[int] = set()
        self.delivered: set[tuple[str, int, int]] = set()
        self.leases: Counter[int] = Counter()
        """How often each job was leased."""
        self.letters: set[int] = set()
        self.sent: dict[str, float] = {}
        """When each change was sent first, by its tag."""

    def send(self, data: bytes, now: float) -> None:
        """Note that somebody asks for a change."""
        self.sent.setdefault(GroupDocument.parse(data, name="g").tag, now)

    def change(self, data: bytes, now: float) -> None:
        """Check a change that took effect."""
        old, new = self.document, GroupDocument.parse(data, name="g")
        self.document = new
        if old is None or old.made != new.made or new.is_removed:
            self.acknowledged = set() if old is None or old.made != new.made else self.acknowledged
            return
        if new.position < old.position or new.floor < old.floor:
            raise GroupViolationError("forward", f"from {old.floor} to {new.floor}")
        for offset in self.keys:
            self._compare(offset, old, new, now)
        leased = [offset for offset, row in new.rows.items() if row.is_leased]
        fresh = [offset for offset in leased if new.rows[offset].tag == new.tag]
        self.leases.update(fresh)
        self._check_order(new, fresh)
        held = [offset for offset in leased if self._ends(new.rows[offset]) > now]
        if fresh and self.plan.max_deliver is None and len(held) > self.plan.max_ack_pending:
            raise GroupViolationError("pending", f"{held} are with members")

    def _compare(self, offset: int, old: GroupDocument, new: GroupDocument, now: float) -> None:
        before, after = old.rows.get(offset), new.rows.get(offset)
        if after is None:
            is_settled = before is not None or old.position <= offset < new.position
            if is_settled and offset not in self.asked and offset in self.keys:
                raise GroupViolationError("settled", f"{offset} is gone, and nobody asked for that")
            return
        if before is None:
            if offset < old.position:
                raise GroupViolationError("settled", f"{offset} comes again")
            return
        if before == after or before.is_delayed:
            return
        is_over = self._ends(before) <= now + _EARLY_SECONDS
        if before.is_leased and not is_over and _process(before) != _process(after):
            raise GroupViolationError(
                "lease", f"{offset} is of {before.tag}, and {after.tag} ends that at {now}"
            )
        if not after.is_leased:
            return
        if after.deliveries == before.deliveries:
            return  # the lease began anew
        if before.is_leased and (offset, before.deliveries) in self.given_back:
            return
        if not is_over:
            raise GroupViolationError(
                "lease", f"{offset} is leased at {now}, not after {self._ends(before)}"
            )

    def _check_order(self, new: GroupDocument, fresh: list[int]) -> None:
        if self.plan.max_deliver is not None:
            most = self.plan.max_deliver
            for offset in fresh:
                if new.rows[offset].deliveries > most and offset not in self.letters:
                    self.letters.add(offset)  # the first lease beyond is for the dead letter
        if not self.plan.is_ordered:
            return
        for offset in fresh:
            earlier = [at for at in new.rows if at < offset and self.keys[at] == self.keys[offset]]
            if self.keys[offset] is not None and earlier:
                raise GroupViolationError("order", f"{offset} is leased before {earlier}")

    def _ends(self, row: JobRow) -> float:
        return self.sent[row.tag] + row.wait_ms / 1000

    # -- what members say --------------------------------------------------------------------

    def deliver(self, offset: int, deliveries: int, made: str) -> None:
        """Check a job that a member got."""
        if (made, offset, deliveries) in self.delivered:
            raise GroupViolationError("one-member", f"delivery {deliveries} of {offset} came twice")
        self.delivered.add((made, offset, deliveries))
        if offset not in self.keys:
            raise GroupViolationError("all", f"{offset} is no job")
        if self.plan.max_deliver is not None and deliveries > self.plan.max_deliver:
            raise GroupViolationError("deliveries", f"{deliveries} of {offset}")

    def leave(self, made: str, had: Collection[tuple[int, int]]) -> None:
        """Note that a member leaves: what it had not begun was no delivery; the number comes again."""
        self.given_back.update(had)
        self.delivered.difference_update((made, *job) for job in had)

    def acknowledge(self, offset: int, made: str) -> None:
        """Check an acknowledgement that returned, of a job of the group that ``made`` names."""
        document = self.document
        assert document is not None
        if document.made != made:
            return  # it was deleted, and another one made
        self.acknowledged.add(offset)
        if not document.is_removed and offset in document.rows:
            raise GroupViolationError("acknowledged", f"{offset} is not settled")

    def end(self) -> None:
        """Check that everything was handled."""
        document = self.document
        assert document is not None
        if document.rows or document.position <= max(self.keys):
            raise GroupViolationError(
                "all", f"{dict(document.rows)} are left at {document.position}"
            )


def _process(row: JobRow) -> str:
    """Return whose change made a row."""
    return row.tag.rpartition("-")[0]
