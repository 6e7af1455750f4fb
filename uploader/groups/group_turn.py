"""GroupTurn: one change of a group's document; Sight: since when a process has seen what is in it. Pure.

Invariants (tests/uploader/groups/test_group_turn.py)
  C1  No job is leased to two members before the first lease is over by the clock of either's process.
  C2  A settled job is never leased again.
  C3  With order by key, a job is leased only when those of the same key before it are settled.
  C4  No job is delivered more than ``max_deliver`` times.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from crc32c import crc32c

from uploader.format.group_document import GroupDocument, JobRow
from uploader.groups.lease import Lease
from walstore.groups.settings import GroupSettings
from walstore.records import Record


class Sight:
    """When this process first saw each row of a group's documents.

    A lease is over for a process when it has seen it unchanged for as long as it lasts. That is later than
    for the process that made it, which counts from before it asked the store. So only the pace of clocks
    matters.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], float] = {}

    def look(self, document: GroupDocument, now: float, own: Mapping[str, float]) -> None:
        """See a document; ``own`` has the moments before this process put its changes, by tag."""
        seen = self._seen
        self._seen = {}
        for offset, row in document.rows.items():
            at = (offset, row.tag)
            self._seen[at] = seen[at] if at in seen else own.get(row.tag, now)

    def due(self, offset: int, row: JobRow) -> float:
        """Return when the lease is over, or the job may be delivered."""
        return self._seen[offset, row.tag] + row.wait_ms / 1000

    def next_due(self, document: GroupDocument, now: float) -> float | None:
        """Return the first moment after ``now`` at which a job may be delivered; None for never."""
        dues = (self.due(offset, row) for offset, row in document.rows.items())
        return min((due for due in dues if due > now), default=None)


class GroupTurn:
    """Makes the next document of the newest one. The caller puts it, or makes another turn of a newer one."""

    def __init__(
        self,
        document: GroupDocument,
        sight: Sight,
        settings: GroupSettings,
        *,
        tag: str,
        now: float,
    ) -> None:
        """``sight`` has seen the document."""
        self._document = document
        self._rows = dict(document.rows)
        self._position = document.position
        self._sight = sight
        self._settings = settings
        self._tag = tag
        self._now = now
        self._lease_ms = max(1, round(settings.ack_wait_seconds * 1000))
        self._has_changed = False

    def made(self) -> GroupDocument | None:
        """Return the changed document; None if nothing has changed."""
        if not self._has_changed and self._position == self._document.position:
            return None
        return replace(self._document, tag=self._tag, position=self._position, rows=self._rows)

    def settle(self, offset: int) -> None:
        """Settle a job, whoever has it; nothing happens if it is settled."""
        if self._rows.pop(offset, None) is not None:
            self._has_changed = True

    def give_back(self, lease: Lease, delay_seconds: float) -> None:
        """End a lease early; nothing happens if the job is another's by now."""
        self._end(lease, lease.deliveries, round(delay_seconds * 1000))

    def revoke(self, lease: Lease) -> None:
        """Undo a lease that no member learned of, or began: it was no delivery."""
        self._end(lease, lease.deliveries - 1, 0)

    def extend(self, lease: Lease) -> bool:
        """Begin a lease anew; False if it is over."""
        row = self._rows.get(lease.offset)
        if row is None or row.tag not in lease.tags:
            return False
        if row.tag != self._tag and self._sight.due(lease.offset, row) <= self._now:
            return False
        self._put(lease.offset, row._replace(wait_ms=self._lease_ms))
        lease.tags.add(self._tag)
        return True

    def find(self, tags: Container[str], held: Container[int]) -> tuple[list[Lease], list[Lease]]:
        """Return leases of changes with these tags, of jobs and of those to bury, but for those held."""
        found: list[Lease] = []
        buried: list[Lease] = []
        for offset, row in self._rows.items():
            if row.tag not in tags or not row.is_leased or offset in held:
                continue
            if self._sight.due(offset, row) > self._now:
                lease = Lease(offset, row.deliveries, {row.tag})
                (buried if self._is_spent(row.deliveries - 1) else found).append(lease)
        return found, buried

    def take(
        self, most: int, fresh: Sequence[Record], limit: int
    ) -> tuple[list[Lease], list[Lease]]:
        """Lease up to ``most`` jobs: return their leases, and those of jobs to bury.

        ``fresh`` are the next records of the log from the group's position on, all below ``limit`` that are
        jobs. What was delivered too often is leased to this process, which makes a dead letter of it.
        """
        taken: list[Lease] = []
        spent: list[Lease] = []
        room = min(most, self._settings.max_ack_pending - self._leases())
        busy: set[int] = set()
        for offset, row in self._eligible(busy):
            if self._is_spent(row.deliveries):
                spent.append(self._lease(offset, row))
            elif len(taken) < room:
                taken.append(self._lease(offset, row))
        for record in fresh:
            if len(taken) >= room or len(self._rows) >= self._settings.most_unsettled:
                return taken, spent
            if record.offset < self._position:
                continue
            key = self._key(record)
            row = JobRow(0, is_leased=False, wait_ms=0, tag=self._tag, key=key)
            self._put(record.offset, row)
            if not key or key not in busy:
                busy.add(key)
                taken.append(self._lease(record.offset, row))
            self._position = record.offset + 1
        if len(taken) < room:
            self._position = max(self._position, limit)
        return taken, spent

    # -- inside ------------------------------------------------------------------------------

    def _leases(self) -> int:
        return sum(
            row.is_leased and (row.tag == self._tag or self._sight.due(offset, row) > self._now)
            for offset, row in self._rows.items()
        )

    def _eligible(self, busy: set[int]) -> Iterator[tuple[int, JobRow]]:
        """Yield the jobs that may be delivered now, in order; note the keys of all."""
        for offset, row in list(self._rows.items()):
            if row.key:
                if row.key in busy:
                    continue
                busy.add(row.key)
            # What this turn made is due at once, unless it waits.
            is_ours = row.tag == self._tag
            is_due = not row.wait_ms if is_ours else self._sight.due(offset, row) <= self._now
            if is_due:
                yield offset, row

    def _is_spent(self, deliveries: int) -> bool:
        most = self._settings.max_deliver
        return most is not None and deliveries >= most

    def _lease(self, offset: int, row: JobRow) -> Lease:
        deliveries = row.deliveries + 1
        self._put(
            offset, row._replace(deliveries=deliveries, is_leased=True, wait_ms=self._lease_ms)
        )
        return Lease(offset, deliveries, {self._tag})

    def _end(self, lease: Lease, deliveries: int, wait_ms: int) -> None:
        row = self._rows.get(lease.offset)
        if row is not None and row.tag in lease.tags:
            ended = row._replace(deliveries=deliveries, is_leased=False, wait_ms=wait_ms)
            self._put(lease.offset, ended)
            lease.tags.discard(self._tag)

    def _put(self, offset: int, row: JobRow) -> None:
        self._rows[offset] = row._replace(tag=self._tag)
        self._has_changed = True

    def _key(self, record: Record) -> int:
        if not self._document.is_ordered or record.key is None:
            return 0
        return 1 + crc32c(record.key)
