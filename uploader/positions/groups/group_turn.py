"""GroupTurn: one change of a group's document; Sight: since when a process has seen what is in it. Pure.

The rules are those of :class:`walstore.positions.groups.job_table.JobTable`; a lease holds by the clock of
each process that sees it. This adds which change made a lease: by its tag it is told from every other one.
"""

from __future__ import annotations

from collections.abc import Container, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from uploader.format.group_document import GroupDocument, JobRow
from walstore.positions.groups.delay import not_before_us
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
    """When this process first saw each change of a group's documents, by its tag.

    A lease is over for a process when it has seen it unchanged for as long as it lasts. That is later than
    for the process that made it, which counts from before it asked the store. So only the pace of clocks
    matters.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._began = 0.0
        """When it was 1970 UTC, by the clock that tells how long leases last."""

    @property
    def tags(self) -> KeysView[str]:
        """The changes that made the rows of the document that was seen last."""
        return self._seen.keys()

    def look(
        self, document: GroupDocument, now: float, own: Mapping[str, float], *, now_us: int = 0
    ) -> None:
        """See a document; ``own`` has the moments before this process put its changes, by tag.

        ``now_us`` is the same moment as ``now``, by the wall clock.
        """
        seen = self._seen
        self._began = now - now_us / 1e6
        tags = {row.tag for row in document.rows.values()}
        self._seen = {tag: seen[tag] if tag in seen else own.get(tag, now) for tag in tags}

    def due(self, row: JobRow) -> float:
        """Return when the lease is over, or the job may be delivered."""
        began = self._began if row.is_delayed else self._seen[row.tag]
        return began + row.wait_ms / 1000

    def moment(self, us: int) -> float:
        """Return the moment of a time since 1970 UTC."""
        return self._began + us / 1e6

    def next_due(self, document: GroupDocument, now: float) -> float | None:
        """Return the first moment after ``now`` at which a job may be delivered; None for never."""
        waits = {
            (self._began if row.is_delayed else self._seen[row.tag], row.wait_ms)
            for row in document.rows.values()
        }
        dues = (began + wait_ms / 1000 for began, wait_ms in waits)
        return min((due for due in dues if due > now), default=None)


class StoredJob(OpenJob):
    """A job, and the row that says so in the document."""

    __slots__ = ("row",)

    row: JobRow
    """As the document has it, or is to have it."""


class GroupTurn:
    """Makes the next document of the newest one. The caller puts it, or makes another turn of a newer one.

    To settle a job is to leave its row out. Everything else goes by the table of all jobs, which is made of
    the rows for the first call that needs it: that takes long if there are many.
    """

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
        self._sight = sight
        self._settings = settings
        self._tag = tag
        self._now = now
        self._lease_ms = max(1, round(settings.ack_wait_seconds * 1000))
        self._has_changed = False
        self._left: dict[int, JobRow] | None = None
        """The rows that are not settled, once one is."""
        self._all: JobTable[StoredJob] | None = None

    def made(self) -> GroupDocument | None:
        """Return the changed document; None if nothing has changed."""
        position, rows = self._document.position, self._rows
        if self._all is not None:
            position = self._all.position
            rows = {offset: job.row for offset, job in self._all.jobs.items()}
        if not self._has_changed and position == self._document.position:
            return None
        return replace(self._document, tag=self._tag, position=position, rows=rows)

    def settle(self, offset: int) -> None:
        """Settle a job, whoever has it; nothing happens if it is settled."""
        if self._all is not None:
            self._has_changed |= self._all.remove(offset) is not None
        elif offset in self._rows:
            if self._left is None:
                self._left = dict(self._document.rows)
            del self._left[offset]
            self._has_changed = True

    def give_back(self, lease: Lease, delay_seconds: float) -> None:
        """End a lease early; nothing happens if the job is another's by now."""
        if (job := self._held(lease)) is not None:
            wait_ms = round(delay_seconds * 1000)
            self._table.end_lease(job, self._now + wait_ms / 1000)
            self._write(job, wait_ms)
            lease.tags.discard(self._tag)

    def revoke(self, lease: Lease) -> None:
        """Undo a lease that no member learned of, or began: it was no delivery."""
        if (job := self._held(lease)) is not None:
            self._table.undo(job, self._now)
            self._write(job, 0)
            lease.tags.discard(self._tag)

    def extend(self, lease: Lease) -> bool:
        """Begin a lease anew; False if it is over."""
        job = self._held(lease)
        if job is None or not self._table.renew(job, self._now):
            return False
        self._write(job, self._lease_ms)
        lease.tags.add(self._tag)
        return True

    def find(self, tags: Container[str], held: Container[int]) -> tuple[list[Lease], list[Lease]]:
        """Return leases of changes with these tags, of jobs and of those to bury, but for those held."""
        found: list[Lease] = []
        buried: list[Lease] = []
        for offset, job in self._table.jobs.items():
            if job.row.tag not in tags or not job.is_leased or offset in held:
                continue
            if job.due is not None and job.due > self._now:
                lease = Lease(offset, job.deliveries, {job.row.tag})
                (buried if self._table.is_spent(job.deliveries - 1) else found).append(lease)
        return found, buried

    def take(
        self, most: int, fresh: Sequence[Record], limit: int
    ) -> tuple[list[Lease], list[Lease]]:
        """Lease up to ``most`` jobs: return their leases, and those of jobs to bury.

        ``fresh`` are the next records of the log from the group's position on, all below ``limit`` that are
        jobs. What was delivered too often is leased to this process, which makes a dead letter of it.
        """
        taken: list[Lease] = []
        table = self._table
        self._take_ready(taken, most)
        for record in fresh:
            if len(taken) >= most or not table.may_lease or table.is_full:
                break
            if record.offset >= table.position:
                table.add(self._new_job(record))
                table.position = record.offset + 1
                self._take_ready(taken, most)
        else:
            if len(taken) < most and table.may_lease:
                table.position = max(table.position, limit)
        spent: list[Lease] = []
        while table.dead:
            job = table.dead.popleft()
            if job.offset in table.jobs:
                table.lease(job, self._now)
                spent.append(self._leased(job))
        return taken, spent

    # -- inside ------------------------------------------------------------------------------

    @property
    def _rows(self) -> Mapping[int, JobRow]:
        """Those of the table, before it is made."""
        return self._document.rows if self._left is None else self._left

    @property
    def _table(self) -> JobTable[StoredJob]:
        if self._all is None:
            self._all = JobTable(self._settings, self._document.position)
            for offset, row in self._rows.items():
                waits = row.is_leased or row.wait_ms
                job = _job_of(offset, row, self._sight.due(row) if waits else None)
                if row.is_delayed:
                    job.delay(self._sight.due(row), self._now)
                self._all.add(job)
        return self._all

    def _new_job(self, record: Record) -> StoredJob:
        moment = not_before_us(record.headers)
        row = JobRow(0, is_leased=False, wait_ms=0, tag=self._tag, key=self._key(record))
        if moment is not None and self._sight.moment(moment) > self._now:
            row = row._replace(wait_ms=-(-moment // 1000))
        job = _job_of(record.offset, row, None)
        if moment is not None:
            job.delay(self._sight.moment(moment), self._now)
        return job

    def _take_ready(self, taken: list[Lease], most: int) -> None:
        while len(taken) < most and (job := self._table.lease_next(self._now)) is not None:
            taken.append(self._leased(job))

    def _leased(self, job: StoredJob) -> Lease:
        self._write(job, self._lease_ms)
        return Lease(job.offset, job.deliveries, {self._tag})

    def _held(self, lease: Lease) -> StoredJob | None:
        """Return the job of a lease, if the lease is not another's by now."""
        job = self._table.jobs.get(lease.offset)
        return job if job is not None and job.row.tag in lease.tags else None

    def _write(self, job: StoredJob, wait_ms: int) -> None:
        job.row = JobRow(job.deliveries, job.is_leased, wait_ms, self._tag, job.row.key)
        self._has_changed = True

    def _key(self, record: Record) -> int:
        if not self._document.is_ordered or record.key is None:
            return 0
        return 1 + crc32c(record.key)


def _job_of(offset: int, row: JobRow, due: float | None) -> StoredJob:
    job = StoredJob(offset, row.deliveries, is_leased=row.is_leased, due=due, key=row.key or None)
    job.row = row
    return job
