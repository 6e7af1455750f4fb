"""LogState: the event loop's state of a log, and the values by which the tail reports to it.

The writer publishes here; readers and tiers read it. Everything in :class:`LogState` belongs to the event
loop and is changed only by the calls of ``writer.Listener`` and :meth:`LogState.advance_uploaded`, so no
lock is needed and reads between two awaits are consistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from sortedcontainers import SortedDict

from walstore.core.append.budgets import CacheBudget
from walstore.core.append.cache import Cache
from walstore.core.batches.framer import Framed
from walstore.core.files.segment_file import Segment
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.statistics import ErrorCounts
from walstore.core.runtime.watermark import Watermark
from walstore.errors import Outcome, WalError


class Commit(NamedTuple):
    """The result of one commit."""

    frames: list[Framed]
    """Frames with records, in order. Empty for a large transaction, which is a segment of its own."""
    limit: int
    """Offset after the last record written."""
    durable_limit: int
    """Every offset below it is synced."""
    is_synced: bool
    """Whether all of the commit is synced."""
    serial: int
    """Highest number of an append that changed the ledger; 0 if none did."""
    sealed: list[Segment]
    """Segments sealed by the commit, oldest first."""
    active: Segment
    size_bytes: int
    """Bytes of frames written."""
    head: int
    """First retained offset."""
    registers: Mapping[str, str] | None
    """All registers, if some changed."""
    sync_seconds: float | None = None
    """Duration of the final sync; None if there was none."""
    wants_checkpoint: bool = False
    """Whether enough was written since the last checkpoint, or a segment was sealed."""


@dataclass(slots=True)
class Reached:
    """The state of the tail: what is durable, and what may be on disk.

    Offsets and serials (numbers of appends that change the ledger) each have three limits. They
    determine the outcome of an append. The tail changes its own in place, three times per commit: a new
    object each time took 1.2 µs of its 20.
    """

    durable_limit: int
    """Every offset below it is synced."""
    written_limit: int
    """No offset at or above it can be on disk."""
    attempted_limit: int
    """Every offset below it was handed to the tail."""
    durable_serial: int
    """Every serial up to it is synced."""
    written_serial: int
    """No serial above it can be on disk."""
    attempted_serial: int
    registers: Mapping[str, str] | None = None
    """The durable state of all registers, if it is known after a failure."""

    def note_written(self, limit: int, serial: int) -> None:
        """Record that frames up to ``limit`` and ``serial`` may be on disk."""
        self.written_limit = limit
        self.written_serial = max(self.written_serial, serial)

    def note_synced(self) -> None:
        """Record that everything written was synced."""
        self.durable_limit = self.written_limit
        self.durable_serial = self.written_serial

    def outcome(self, limit: int) -> Outcome:
        """Return the outcome of the records below ``limit``."""
        if limit <= self.durable_limit:
            return "durable"
        return "unknown" if limit <= self.written_limit else "not_written"

    def settled_outcome(self, serial: int) -> Outcome:
        """Return the outcome of the change ``serial`` of the ledger."""
        if serial <= self.durable_serial:
            return "durable"
        return "unknown" if serial <= self.written_serial else "not_written"

    def in_doubt(self) -> Reached:
        """Return the state in which everything handed over may be on disk."""
        return replace(
            self, written_limit=self.attempted_limit, written_serial=self.attempted_serial
        )


class TailError(Exception):
    """A call on the tail failed, and with it the log; ``reached`` determines the outcome of its records."""

    def __init__(self, cause: BaseException, reached: Reached) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.reached = reached


class LogState:
    """Limits, cache and segments of one open log."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        head: int,
        durable_limit: int,
        uploaded_limit: int,
        sealed: Sequence[Segment],
        active: Segment,
        cache_bytes: int,
        cache_budget: CacheBudget | None = None,
        registers: Mapping[str, str] | None = None,
        shows_written: bool = False,
        is_replicated: bool = False,
    ) -> None:
        self.head = head
        """First offset on local disk."""
        self.durable = Watermark(durable_limit, loop)
        self.replicated = Watermark(durable_limit, loop) if is_replicated else None
        """What is on enough machines; None if the log is not replicated."""
        self._replicated_to_come = 0
        self._shows_written = shows_written and not is_replicated
        self.visible = Watermark(durable_limit, loop) if self._shows_written else self.durable
        """Where readers stop: the durable limit, the written limit if syncing is left to the system, or
        what is replicated."""
        if self.replicated is not None:
            self.visible = self.replicated
        self.uploaded = Watermark(uploaded_limit, loop)
        self.settled = Watermark(0, loop)
        """Appends that change the ledger, by their serial: those up to it are durable."""
        self._unsettled = 0
        self.registers: Mapping[str, str] = MappingProxyType(dict(registers or {}))
        """Durable registers; replaced, never changed."""
        self._registers_to_come: Mapping[str, str] | None = None
        self.cache = Cache(cache_bytes, cache_budget)
        self.segments: SortedDict = SortedDict({s.start: s for s in (*sealed, active)})
        self._active = active
        self._written_limit = durable_limit
        self._head_to_come = head
        self.errors = ErrorCounts()
        self.appended_bytes = 0
        self.appended_records = 0
        self.on_written: Callable[[int], None] = lambda _: None
        """Called with the bytes that a commit wrote."""
        self._loop = loop
        self._due: asyncio.Future[None] | None = None
        self._due_bytes = 0
        self._sealed_since_due = False
        self.tier_trouble: WalError | None = None
        """Why nothing is shipped until an operator acts, if so; then shipping resumes by itself."""
        self.is_draining = False
        self.draining: asyncio.Future[None] = loop.create_future()
        """Resolves when the log begins to drain."""
        self.shrinkable = asyncio.Event()
        """Set when retention may find something to delete."""

    # -- from the writer ---------------------------------------------------------------------

    def on_commit(self, commit: Commit) -> list[asyncio.Future[None]]:
        """Adopt a commit and return its waiters; see :class:`walstore.core.append.writer.Listener`."""
        for sealed in commit.sealed:
            self._seal(sealed)
        if commit.active is not self._active:
            self._active = self.segments[commit.active.start] = commit.active
        if not commit.frames and commit.sealed:
            self.cache.clear()  # a transaction of many batches; keeping those before it would leave a gap
        for framed in commit.frames:
            self.cache.insert(framed)
        self.appended_bytes += commit.size_bytes
        self.on_written(commit.size_bytes)
        self.appended_records += commit.limit - self._written_limit
        self._written_limit = commit.limit
        self._unsettled = max(self._unsettled, commit.serial)
        if commit.registers is not None:
            self._registers_to_come = MappingProxyType(dict(commit.registers))
        self._head_to_come = commit.head
        if self._shows_written:
            self.visible.advance(commit.limit)
        if commit.is_synced:
            return self._adopt_sync(commit.limit)
        self.durable.advance(commit.durable_limit)
        self._show_replicated(self.durable.value)
        return []

    def on_replicated(self, limit: int) -> None:
        """Adopt that enough machines have everything below ``limit``.

        The copies may be faster than this machine's own commit, whose segments and registers count only once
        it is adopted: nothing is shown or acknowledged before.
        """
        self._replicated_to_come = max(self._replicated_to_come, limit)
        self._show_replicated(self.durable.value)

    def _show_replicated(self, durable_limit: int) -> None:
        if self.replicated is not None:
            self.replicated.advance(min(self._replicated_to_come, durable_limit))

    def on_sync(self, durable_limit: int) -> None:
        """Adopt a sync: everything written so far is durable, up to this limit."""
        for waiter in self._adopt_sync(durable_limit):
            if not waiter.done():
                waiter.set_result(None)

    def _adopt_sync(self, durable_limit: int) -> list[asyncio.Future[None]]:
        self.head = max(self.head, self._head_to_come)
        if self._registers_to_come is not None:
            self.registers, self._registers_to_come = self._registers_to_come, None
        if self.replicated is not None:
            self._show_replicated(durable_limit)
        if self._unsettled > self.settled.value:
            self.settled.advance(self._unsettled)
        if self._due is not None and self.appended_bytes >= self._due_bytes:
            self._wake_shipping()
        return self.durable.reach(durable_limit)  # last: who is not returned would wait for ever

    @property
    def wants_disk(self) -> bool:
        """Whether a caller waits for a sync, or for what only follows one."""
        if self.replicated is not None and self.replicated.has_waiters:
            return True
        return self.durable.has_waiters or self.settled.has_waiters

    def on_rotate(self, sealed: Segment, active: Segment) -> None:
        """Adopt a requested rotation."""
        self._seal(sealed)
        self._active = self.segments[active.start] = active
        self._wake_shipping()

    def on_drop(self, starts: list[int], head: int) -> None:
        """Forget deleted segments."""
        for start in starts:
            self.segments.pop(start, None)
        self.head = head

    def on_failure(
        self,
        reached: Reached,
        make_error: Callable[[int], WalError],
        make_settled_error: Callable[[int], WalError],
    ) -> None:
        """Fail every waiter with the outcome of its records."""
        self.errors.count(make_error(reached.durable_limit + 1))
        if reached.registers is not None:
            self.registers = MappingProxyType(dict(reached.registers))
        self.durable.advance(reached.durable_limit)
        self.settled.advance(reached.durable_serial)
        self.durable.fail(make_error)
        self.settled.fail(make_settled_error)
        if self.visible is not self.durable:
            self.visible.fail(make_error)
        self.uploaded.fail(make_error)
        self.drain()

    def end(self, error: WalError) -> None:
        """End all waits: the log is closed."""

        def make_error(target: int) -> WalError:
            twin = copy_error(error)
            # There are no waiters after a clean close; otherwise a commit may have been in progress.
            twin.outcome = self.outcome_now(target)
            return twin

        def make_settled_error(serial: int) -> WalError:
            twin = copy_error(error)
            is_kept = serial <= self.settled.value and self.replicated is None
            twin.outcome = "durable" if is_kept else "unknown"
            return twin

        self.durable.fail(make_error)
        self.settled.fail(make_settled_error)
        self.uploaded.fail(make_error)
        if self.visible is not self.durable:
            self.visible.fail(make_error)

    def outcome_now(self, target: int) -> Outcome:
        """Return the outcome of the records below ``target``, which are written.

        What is on this disk alone is lost if another machine takes a replicated log over.
        """
        kept = self.durable if self.replicated is None else self.replicated
        return "durable" if target <= kept.value else "unknown"

    def abandon(self, error: WalError) -> None:
        """End all waits in a child process; see :mod:`walstore.core.runtime.resource`."""
        for limit in (self.durable, self.visible, self.settled, self.uploaded):
            limit.refuse(lambda _: copy_error(error))

    def _seal(self, sealed: Segment) -> None:
        self.segments[sealed.start] = sealed
        self._sealed_since_due = True
        self.shrinkable.set()

    # -- for tiers ---------------------------------------------------------------------------

    @property
    def wants_cloud(self) -> bool:
        """Whether a caller waits for the cloud."""
        return self.uploaded.has_waiters

    async def wait_shipping_due(self, appended_bytes: int) -> None:
        """Return when shipping is due; see :class:`walstore.core.tier_port.TierSource`."""
        due = (
            self.is_draining
            or self.wants_cloud
            or self._sealed_since_due
            or self.appended_bytes >= appended_bytes
        )
        if not due:
            self._due_bytes = appended_bytes
            self._due = self._loop.create_future()
            try:
                await self._due
            finally:
                self._due = None
        self._sealed_since_due = False

    def request_cloud(self) -> None:
        """Record that a caller waits for the cloud."""
        self._wake_shipping()

    def advance_uploaded(self, limit: int) -> None:
        """Record that a manifest names every offset below ``limit``."""
        self.tier_trouble = None
        self.uploaded.advance(limit)
        self.shrinkable.set()

    def refuse_cloud(self, error: WalError) -> None:
        """Fail present waiters for the cloud, since an operator has to act first; later ones wait."""
        if self.tier_trouble is None:
            self.errors.count(error)
        self.tier_trouble = error

        def make_error(target: int) -> WalError:
            twin = copy_error(error)
            twin.outcome = self.outcome_now(target)
            return twin

        self.uploaded.fail_waiting(make_error)

    def drain(self) -> None:
        """Make the tier ship what is durable and return."""
        self.is_draining = True
        if not self.draining.done():
            self.draining.set_result(None)
        self._wake_shipping()

    def _wake_shipping(self) -> None:
        if self._due is not None and not self._due.done():
            self._due.set_result(None)

    # -- for readers -------------------------------------------------------------------------

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that contains ``offset``, or will, if it is the active one."""
        if offset < self.head:
            return None
        at = self.segments.bisect_right(offset) - 1
        if at < 0:
            return None
        found: Segment = self.segments.peekitem(at)[1]
        return found

    def sealed_segments(self) -> list[Segment]:
        """Return the sealed segments, oldest first."""
        return [s for s in self.segments.values() if s.summary is not None]
