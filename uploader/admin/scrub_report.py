"""ScrubReport, the result of a scrub, and ScrubTally, which accumulates it."""

from __future__ import annotations

from dataclasses import dataclass, field

from uploader.format.findings import Finding, Severity
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import Checked, CheckOutcome


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The result of one scrub."""

    findings: tuple[Finding, ...]
    """All findings, in the order of discovery."""
    fragments: int
    """Fragments that were read."""
    records: int
    """Records that were hashed and match their fragment's entry."""
    fragment_bytes: int
    """Length of the fragments that were read."""
    snapshots: int
    """Snapshots that were read; one that several parts of the walk need counts each time it is read."""
    setsum: str
    """Sum of the records that were hashed, as 64 hex digits."""
    limit: int
    """Every offset from the scrub's start up to this one was checked."""
    next_start: int | None
    """Offset to continue at if the scrub did not reach the end; None if it did."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that mean lost or damaged records."""
        return tuple(found for found in self.findings if found.severity is Severity.ERROR)

    @property
    def is_sound(self) -> bool:
        """Whether the findings contain no error; ``next_start`` shows how far the scrub got."""
        return not self.errors

    @property
    def is_complete(self) -> bool:
        """Whether the scrub reached the end."""
        return self.next_start is None


@dataclass(slots=True)
class ScrubTally:
    """The running totals of a scrub."""

    findings: list[Finding] = field(default_factory=list)
    """All findings so far."""
    fragments: int = 0
    """Fragments that were read."""
    records: int = 0
    """Records that were hashed and match."""
    fragment_bytes: int = 0
    """Length of the fragments that were read."""
    snapshots: int = 0
    """Snapshots that were read."""
    position: int = 1
    """Every offset below it was checked."""
    limit: int = 1
    """Offset at which the scrub will end."""
    setsum: Setsum = field(default_factory=Setsum)
    """Sum of the records that were hashed."""
    _newest_us: int = 0
    _told: set[Finding] = field(default_factory=set)

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it was added before."""
        if finding not in self._told:
            self._told.add(finding)
            self.findings.append(finding)

    def take(self, checked: Checked) -> None:
        """Count a checked fragment. Called in offset order."""
        entry = checked.entry
        self.position = entry.limit
        for finding in checked.findings:
            self.add(finding)
        if checked.fate is not CheckOutcome.READ:
            return
        self.fragments += 1
        self.fragment_bytes += entry.num_bytes
        if checked.times_us is None:
            return
        if checked.setsum == entry.setsum:
            self.records += entry.limit - entry.start
            self.setsum += checked.setsum
        oldest_us, newest_us = checked.times_us
        if oldest_us < self._newest_us:
            what = "its records are older than some that come before them"
            advice = "nothing is lost; a search by time may begin too late or too early"
            expected = f"at least {self._newest_us}"
            self.add(Finding(Severity.WARNING, entry.path, what, advice, expected, oldest_us))
        self._newest_us = max(self._newest_us, newest_us)

    def report(self, *, next_start: int | None) -> ScrubReport:
        """Return the report of the totals so far."""
        return ScrubReport(
            findings=tuple(self.findings),
            fragments=self.fragments,
            records=self.records,
            fragment_bytes=self.fragment_bytes,
            snapshots=self.snapshots,
            setsum=self.setsum.hexdigest(),
            limit=self.position if next_start is None else next_start,
            next_start=next_start,
        )
