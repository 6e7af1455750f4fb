"""GroupTurn: one change of a group's document; Sight: since when a process has seen what is in it. Pure.

The rules are those of :class:`walstore.positions.groups.job_table.JobTable`; a lease holds by the clock of
each process that sees it. This adds which change made a lease: by its tag it is told from every other one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from uploader.format.group_document import GroupDocument, JobRow
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.job_table import JobTable, OpenJob
from walstore.records import Record


@dataclass(slots=True, eq=False)
class Lease:
    """A lease on a job. Its deliveries do not tell it from others, since they go back when it is undone."""

    offset: int
    deliveries: int
    tags: set[str]
    """Of the change that made or extended it last, and of those since whose outcome is not known."""
    member: bytes = b""
    is_begun: bool = False
    """Whether the member said so, by extending it."""


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


class StoredJob(OpenJob):
    """A job, and the row that says so in the document."""

    __slots__ = ("row",)

    row: JobRow
    """As the document has it, or is to have it."""


class GroupTurn(JobTable[StoredJob]):
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
        super().__init__(settings, document.position)
        self._document = document
        self._tag = tag
        self._now = now
        self._lease_ms = max(1, round(settings.ack_wait_seconds * 1000))
        self._has_changed = False
        for offset, row in document.rows.items():
            waits = row.is_leased or row.wait_ms
            self._add_row(offset, row, sight.due(offset, row) if waits else None)

    def made(self) -> GroupDocument | None:
        """Return the changed document; None if nothing has changed."""
        if not self._has_changed and self.position == self._document.position:
            return None
        rows = {offset: job.row for offset, job in self.jobs.items()}
        return replace(self._document, tag=self._tag, position=self.position, rows=rows)

    def settle(self, offset: int) -> None:
        """Settle a job, whoever has it; nothing happens if it is settled."""
        if self.remove(offset) is not None:
            self._has_changed = True

    def give_back(self, lease: Lease, delay_seconds: float) -> None:
        """End a lease early; nothing happens if the job is another's by now."""
        if (job := self._held(lease)) is not None:
            wait_ms = round(delay_seconds * 1000)
            self.end_lease(job, self._now + wait_ms / 1000)
            self._write(job, wait_ms)
            lease.tags.discard(self._tag)

    def revoke(self, lease: Lease) -> None:
        """Undo a lease that no member learned of, or began: it was no delivery."""
        if (job := self._held(lease)) is not None:
            self.undo(job, self._now)
            self._write(job, 0)
            lease.tags.discard(self._tag)

    def extend(self, lease: Lease) -> bool:
        """Begin a lease anew; False if it is over."""
        job = self._held(lease)
        if job is None or not self.renew(job, self._now):
            return False
        self._write(job, self._lease_ms)
        lease.tags.add(self._tag)
        return True

    def find(self, tags: Container[str], held: Container[int]) -> tuple[list[Lease], list[Lease]]:
        """Return leases of changes with these tags, of jobs and of those to bury, but for those held."""
        found: list[Lease] = []
        buried: list[Lease] = []
        for offset, job in self.jobs.items():
            if job.row.tag not in tags or not job.is_leased or offset in held:
                continue
            if job.due is not None and job.due > self._now:
                lease = Lease(offset, job.deliveries, {job.row.tag})
                (buried if self.is_spent(job.deliveries - 1) else found).append(lease)
        return found, buried

    def take(
        self, most: int, fresh: Sequence[Record], limit: int
    ) -> tuple[list[Lease], list[Lease]]:
        """Lease up to ``most`` jobs: return their leases, and those of jobs to bury.

        ``fresh`` are the next records of the log from the group's position on, all below ``limit`` that are
        jobs. What was delivered too often is leased to this process, which makes a dead letter of it.
        """
        taken: list[Lease] = []
        self._take_ready(taken, most)
        for record in fresh:
            if len(taken) >= most or not self.may_lease or self.is_full:
                break
            if record.offset >= self.position:
                row = JobRow(0, is_leased=False, wait_ms=0, tag=self._tag, key=self._key(record))
                self._add_row(record.offset, row, None)
                self.position = record.offset + 1
                self._take_ready(taken, most)
        else:
            if len(taken) < most and self.may_lease:
                self.position = max(self.position, limit)
        spent: list[Lease] = []
        while self.dead:
            job = self.dead.popleft()
            if job.offset in self.jobs:
                self.lease(job, self._now)
                spent.append(self._leased(job))
        return taken, spent

    # -- inside ------------------------------------------------------------------------------

    def _add_row(self, offset: int, row: JobRow, due: float | None) -> None:
        job = StoredJob(
            offset, row.deliveries, is_leased=row.is_leased, due=due, key=row.key or None
        )
        job.row = row
        self.add(job)

    def _take_ready(self, taken: list[Lease], most: int) -> None:
        while len(taken) < most and (job := self.lease_next(self._now)) is not None:
            taken.append(self._leased(job))

    def _leased(self, job: StoredJob) -> Lease:
        self._write(job, self._lease_ms)
        return Lease(job.offset, job.deliveries, {self._tag})

    def _held(self, lease: Lease) -> StoredJob | None:
        """Return the job of a lease, if the lease is not another's by now."""
        job = self.jobs.get(lease.offset)
        return job if job is not None and job.row.tag in lease.tags else None

    def _write(self, job: StoredJob, wait_ms: int) -> None:
        job.row = JobRow(job.deliveries, job.is_leased, wait_ms, self._tag, job.row.key)
        self._has_changed = True

    def _key(self, record: Record) -> int:
        if not self._document.is_ordered or record.key is None:
            return 0
        return 1 + crc32c(record.key)
