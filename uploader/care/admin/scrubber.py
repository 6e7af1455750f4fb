"""Scrubber: reads all of a log in object storage and reports every fault.

Owns the order and limits of the checks: the manifest, then every fragment, hashed record by record, several
at a time, then all other objects. Findings are collected, never raised, and never dropped because of a limit.
It writes nothing.

Writers, collectors and roll-ups may run meanwhile. Any apparent fault is checked again with a newly read
manifest: a collected object is not a fault, and a replaced one is looked up at its new place. The scrub ends
where the log ended when the scrub began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from uploader.care.admin.scrub_objects import ScrubObjects
from uploader.care.admin.scrub_walk import ScrubRoot, ScrubWalk
from uploader.chain.inline import InlineStore
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.findings import RESTORE, Finding, Severity, of_unavailable
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import Checked, CheckOutcome, check_fragment
from uploader.layouts.log_session import LogSession
from uploader.root.stored_document import read_fragment
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_count
from walstore.errors import StorageUnavailableError


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
    _known: set[Finding] = field(default_factory=set)

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it was added before."""
        if finding not in self._known:
            self._known.add(finding)
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


_MOST_UNAVAILABLE: Final = 8
"""The scrub stops after this many consecutive fragments that the store cannot deliver."""


class Scrubber(MustClose):
    """Checks one log. Make one with :meth:`open`. One scrub at a time; belongs to one event loop."""

    @classmethod
    @renamed(max_in_flight="concurrency")
    def open(
        cls,
        url: str,
        *,
        concurrency: int = 4,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[Scrubber]:
        """Open the log under ``url`` for checking; needs read access only.

        Raises LogNotFoundError if there is no log, and the store's errors; never CorruptionError.

        Args:
            url: Location of the log.
            concurrency: Fragments read and hashed at the same time; memory use is about three times their
                size. 1 to 64.
            store: Replaces the store that the URL names; also closed with the scrubber.
            retry: Retry policy of reading the root.
            clock: Sleeps between attempts, and decides which pins expired.
        """
        as_count(concurrency, "concurrency", high=64)

        async def open_it() -> Scrubber:
            session = LogSession(
                url, store=store, retry=retry, clock=clock, worker=Worker("scrub", threads=2)
            )
            async with session.closed_on_error():
                opened = cls(session, concurrency)
                await opened.check_found()
                return opened

        return Opening(open_it)

    def __init__(self, session: LogSession, concurrency: int) -> None:
        """Internal; use :meth:`open`."""
        self._session = session
        self._home = LoopGuard("scrubber")
        self._store = InlineStore(session.store, session.worker, session.clock)
        self._concurrency = concurrency
        self._retry = session.retry
        self._worker = session.worker

    @property
    def url(self) -> str:
        """URL of the log, without credentials."""
        return self._store.url

    async def check_found(self) -> None:
        """Raise LogNotFoundError if there is no log."""
        root = self._root(ScrubTally())
        await root.read()
        await root.aclose()

    async def scrub(
        self,
        *,
        start: int | None = None,
        max_fragments: int | None = None,
        progress: Callable[[ScrubTally], None] | None = None,
    ) -> ScrubReport:
        """Check the log from ``start`` on, and return all findings.

        Whatever the limits and faults, the report contains every finding up to where the scrub got. If it did
        not reach the end, ``next_start`` is where to continue; other objects than fragments are checked by
        the call that reaches the end. Raises LogNotFoundError if the log is gone. Cancelling is safe and has
        no side effects.

        Args:
            start: First offset; None for the log's first.
            max_fragments: Maximum number of fragments to check, at least 1. None for all.
            progress: Called after each fragment with the totals so far.
        """
        if max_fragments is not None:
            as_count(max_fragments, "max_fragments")
        tally = ScrubTally()
        root = self._root(tally)
        try:
            manifest = await root.read()
            if manifest is None:
                return tally.report(next_start=start or layout.FIRST_OFFSET)
            tally.position = max(start or 0, manifest.oldest_offset)
            tally.limit = manifest.next_offset
            next_start = await self._walk(root, manifest, tally, max_fragments, progress)
            if next_start is None:
                await ScrubObjects(
                    self._store,
                    self._worker,
                    newest=root.newest,
                    report=tally.add,
                    clock=self._retry.clock,
                ).check()
        except StorageUnavailableError as error:
            tally.add(of_unavailable("", error))
            next_start = tally.position
        finally:
            await root.aclose()
        return tally.report(next_start=next_start)

    async def aclose(self) -> None:
        """Release connections and threads. Idempotent."""
        await self._session.aclose()

    def _left_open(self) -> Unclosed | None:
        if not hasattr(self, "_home") or self._session.is_closed or self._home.is_inherited:
            return None
        return Unclosed(f"the scrubber of the log at {self.url}")

    # -- fragments ---------------------------------------------------------------------------

    async def _walk(
        self,
        root: ScrubRoot,
        manifest: Manifest,
        tally: ScrubTally,
        max_fragments: int | None,
        progress: Callable[[ScrubTally], None] | None,
    ) -> int | None:
        """Check the fragments; return the offset to continue at, or None at the end."""
        walk = ScrubWalk(self._store, self._worker, newest=root.newest, report=tally.add)
        in_flight: deque[asyncio.Task[Checked]] = deque()
        unavailable: list[int] = []
        next_start: int | None = None

        async def take() -> None:
            checked = await in_flight.popleft()
            tally.take(checked)
            tally.snapshots = walk.snapshots
            if checked.fate is CheckOutcome.UNAVAILABLE:
                unavailable.append(checked.entry.start)
            else:
                unavailable.clear()
            if progress is not None:
                progress(tally)

        async with (
            aclosing(walk.fragments(manifest, tally.position, tally.limit)) as entries,
            task_group() as group,
        ):
            begun = 0
            async for entry in entries:
                if begun == max_fragments or len(unavailable) >= _MOST_UNAVAILABLE:
                    next_start = entry.start
                    break
                begun += 1
                in_flight.append(group.create_task(self._examine(entry, root)))
                if len(in_flight) == self._concurrency:
                    await take()
            while in_flight:
                await take()
        tally.snapshots = walk.snapshots
        if len(unavailable) >= _MOST_UNAVAILABLE:
            return unavailable[0]
        if next_start is None:
            tally.position = tally.limit
        return next_start

    async def _examine(self, entry: Fragment, root: ScrubRoot) -> Checked:
        """Check a fragment; check it again if it has a fault and the newest manifest still names it."""
        checked = Checked(entry)
        try:
            checked = await self._look(entry)
            if not checked.findings:
                return checked
            if (await root.newest()).oldest_offset > entry.start:
                return Checked(entry, fate=CheckOutcome.COLLECTED)
            return await self._look(entry)
        except StorageUnavailableError as error:
            findings = *checked.findings, of_unavailable(entry.path, error)
            return Checked(entry, findings, fate=CheckOutcome.UNAVAILABLE)

    async def _look(self, entry: Fragment) -> Checked:
        try:
            data = await read_fragment(self._store, entry)
        except ObjectNotFoundError:
            what = f"a fragment is missing, and with it records {entry.start} to {entry.limit}"
            finding = Finding(Severity.ERROR, entry.path, what, RESTORE)
            return Checked(entry, (finding,), fate=CheckOutcome.LOST)
        return await self._worker.run(check_fragment, data, entry)

    def _root(self, tally: ScrubTally) -> ScrubRoot:
        return ScrubRoot(self._store, self._worker, self._retry, report=tally.add)
