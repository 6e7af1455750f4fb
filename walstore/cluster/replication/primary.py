"""Primary: the side of replication that writes. Keeps the copies equal, and counts what each has.

A copy has all up to a serial (``written.py``) once its answer says that the bytes are durable. What
``quorum`` copies have, the primary's own among them, is replicated.

The first thing that a primary writes is a frame of its own epoch, and nothing counts before enough copies
have that: then a copy of a later epoch always ends behind what was acknowledged in an earlier one (Raft,
section 5.4.2).

Invariants (tests/walstore/cluster/replication, tests/scenarios/test_82_replicas_killed.py)
  Q1  What was acknowledged is in the log of every later primary.
  Q2  Of two primaries at most one acknowledges, whatever becomes of the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from walstore.cluster.replication.claim import LeaderClaim
from walstore.cluster.replication.confirmations import Confirmations
from walstore.cluster.replication.copy_list import CopyList
from walstore.cluster.replication.copy_marks import CopyMarks
from walstore.cluster.replication.follower import Follower
from walstore.cluster.replication.healing import Healer
from walstore.cluster.replication.lead import Lead, random_tag
from walstore.cluster.replication.own_source import OwnSource
from walstore.cluster.replication.position import quorum_value
from walstore.cluster.replication.remote_copy import RemoteCopy
from walstore.cluster.replication.scrub import Scrub
from walstore.cluster.replication.takeover import reach_copies, take_over
from walstore.cluster.replication.written import WrittenBytes
from walstore.core.ports import Clock, FileSystem
from walstore.core.replication_port import ReplicatedLog
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.statistics import ScrubRound
from walstore.core.runtime.threads import Lane
from walstore.core.runtime.watermark import Watermark
from walstore.errors import FencedError, StorageUnavailableError, WalClosedError, WalError
from walstore.topology.documents import PREFIX, SYNCED, Leader, Synced

logger = logging.getLogger("walstore.replication")

_PAUSE_SECONDS: Final = 0.1
_HINT_SECONDS: Final = 0.5
"""How long closing waits until the copies have the last checkpoint."""
_HEAL_PAUSE_SECONDS: Final = 1.0
"""From one attempt to repair what is known to be damaged to the next."""
_LAST_SECONDS: Final = 1.0
"""How long closing waits for copies that are not there."""


class Primary(Lead):
    """One opening of a replicated log. Belongs to the event loop."""

    def __init__(
        self,
        replication: CopyList,
        path: Path,
        *,
        clock: Clock,
        make_tag: Callable[[], bytes] = random_tag,
        is_held: Callable[[], bool] = lambda: False,
        marks: CopyMarks | None = None,
    ) -> None:
        """For the log in ``path``. While ``is_held()`` nobody else begins to take over.

        ``marks`` are those of a cluster; with a topology this makes its own.
        """
        super().__init__(replication, path, clock=clock, make_tag=make_tag, marks=marks)
        self.trouble: WalError | None = None
        """Why nothing can be acknowledged now; None if it can."""
        self.written = WrittenBytes(self._on_told, self._on_removed)
        """What the copies follow."""
        self.ended = asyncio.Event()
        """Set once it acknowledges nothing more, and sends the copies nothing: another one may take over."""
        self._loop = asyncio.get_running_loop()
        self._replicated = Watermark(0, self._loop)
        """Serials up to it are on enough machines."""
        self._log: ReplicatedLog | None = None
        self.followers: list[Follower] = []
        """One for each other copy."""
        self._healer: Healer | None = None
        self._scrub: Scrub | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._claim: LeaderClaim | None = None
        self._is_held = is_held
        self._confirmations = Confirmations(self._confirm)
        self._newest: FencedError | None = None
        self._lonely_since: float | None = None
        self._noting = asyncio.Lock()
        self._floor = 1
        """What is remembered in the own directory of :attr:`replicated_limit`."""

    @property
    def tee(self) -> WrittenBytes:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        return self.written

    async def reach(self) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        await reach_copies(self)

    async def take_over(self, fs: FileSystem, directory: Path, lane: Lane) -> int:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        settings = self.settings
        if settings.topology is not None:
            claim = self._claim = LeaderClaim(
                settings.topology,
                self.name,
                lease_seconds=settings.lease_seconds,
                clock=self.clock,
                make_tag=self.make_tag,
            )
            self._is_held = lambda: claim.is_held
            await self._claim.take(self._leader, patience_seconds=settings.patience_seconds)
            assert claim.keys is not None
            key = f"{PREFIX}{SYNCED}{self.name}"
            self.marks = CopyMarks(claim.keys, key, address=settings.address, clock=self.clock)
        if self.marks is not None:
            await self.marks.load(self.clock.monotonic() + settings.patience_seconds)
        self.epoch = await take_over(self, fs, directory, lane)
        return self.epoch

    # -- what each copy has ------------------------------------------------------------------

    def start(self, log: ReplicatedLog, log_id: bytes) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        self._log = log
        self.log_id = log_id
        self.written.begin(log.extents)
        self._healer = Healer(OwnSource(log, self.written, self.name), self.followers)
        for address in self.settings.addresses:
            follower = Follower(self, address)
            self.followers.append(follower)
            self._spawn(follower.run, f"walstore replica {address}")
        self._scrub = Scrub(
            self.source,
            self.followers,
            self.clock,
            seconds=self.settings.scrub_seconds,
            first=int(self.tag, 16),  # random, and no draw of its own
        )
        self._spawn(self._scrub.run, f"walstore scrub of {self.name}")
        if self.marks is not None:
            keep = partial(self.marks.keep, self._synced)
            self._spawn(keep, f"walstore marks of {self.name}")
        self._spawn(self._keep_floor, f"walstore floor of {self.name}")
        self._spawn(self._watch, f"walstore quorum of {self.name}")

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception as error:
                logger.exception("%s ended by a defect", name)
                self._fail(error)

        self._tasks.append(self._loop.create_task(run(), name=name))

    def count(self) -> None:
        """Acknowledge what enough copies have, and this one."""
        if self.marks is not None:
            self.marks.note()
        own = self.written.synced_serial
        serials = [own, *(follower.serial for follower in self.followers)]
        reached = min(own, quorum_value(serials, self.settings.needed))
        if reached <= self._replicated.value:
            return
        limit = self.written.forget(reached)
        self._replicated.advance(reached)
        if self._log is not None and limit:
            self.replicated_limit = max(self.replicated_limit, limit)
            self._log.on_replicated(limit)
            for follower in self.followers:
                follower.show()

    @property
    def has_quorum(self) -> bool:
        """Whether enough copies are there to acknowledge what is written."""
        return self._present >= self.settings.needed

    @property
    def _present(self) -> int:
        return 1 + sum(follower.is_present for follower in self.followers)

    async def admit(self, copy: RemoteCopy) -> None:
        """Let a copy count that is new, or whose disk is, and has caught up.

        It may have obeyed a newer primary and not know. So enough of the others have to obey this one still:
        then there was no newer one before the copy was asked. StorageUnavailableError if they do not answer.
        """
        enough = max(self.settings.needed, self.settings.needed_to_take_over)
        needed = min(enough, self.settings.copies - 1)  # it is not among them itself
        answers = await asyncio.gather(*(follower.confirm() for follower in self.followers))
        found = 1 + sum(answers)
        if found < needed:
            raise StorageUnavailableError(
                f"the copy at {copy.client.address} is new: before it counts, {needed} others, the "
                f"primary's among them, have to be there; there are {found}"
            )
        await copy.make_whole()

    async def check_current(self) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        if self.has_quorum and self._is_held():
            return
        await self._confirmations.wait()

    async def _confirm(self) -> None:
        """Ask the copies: whoever took over needs the promise of one of these."""
        missing = self.settings.needed_to_confirm - 1  # this program's own obeys
        asked = {self._loop.create_task(one.confirm()) for one in self.followers}
        try:
            while missing > 0 and asked:
                answered, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                missing -= sum(task.result() for task in answered)
        finally:
            for task in asked:
                task.cancel()
            if asked:
                await asyncio.wait(asked)
        if missing > 0 or self._is_closed:
            raise StorageUnavailableError(
                f"too few copies of {self.name!r} confirm that it is led here, so another machine may lead "
                "it; nothing was done",
                outcome="not_written",
            )

    def is_passed_over(self, error: FencedError) -> bool:
        """Take note of a copy that obeys a newer primary; return whether that has taken over.

        It may have failed to: then there are enough other copies. While this one opens, they may still be on
        their way.
        """
        if (error.epoch or 0) <= self.epoch:
            return False  # said of another primary, not of this one
        self._newest = error
        if self.has_quorum or not self._replicated.value:
            return False
        self._fail(error)
        return True

    def _fail(self, error: Exception) -> None:
        if self._log is not None and not self._is_closed:
            self._log.on_failed(error)
        self._end_waits(error if isinstance(error, WalError) else WalClosedError(str(error)))

    def _end_waits(self, error: WalError) -> None:
        self._replicated.fail(lambda _: copy_error(error))

    def copies(self) -> Sequence[tuple[str, str | None, int]]:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        return [(str(one.address), one.trouble, one.limit) for one in self.followers]

    @property
    def source(self) -> Healer:
        """The log as other copies are made of it, once it has started."""
        assert self._healer is not None
        return self._healer

    async def heal(self, start: int) -> bool:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        return await self.source.heal(start)

    def heal_soon(self, start: int, then: Callable[[], None]) -> None:
        """Repair a segment that is known to be damaged here, once another copy is there; call ``then``."""

        async def repair() -> None:
            while not await self.source.heal(start) and start in self.written.extents:
                await self.clock.sleep(_HEAL_PAUSE_SECONDS)
            then()

        self._spawn(repair, f"walstore repair of {self.name}")

    @property
    def mended_bytes(self) -> int:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        return 0 if self._healer is None else self._healer.mended_bytes

    @property
    def scrubs(self) -> tuple[ScrubRound | None, ScrubRound | None]:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        return (None, None) if self._scrub is None else (self._scrub.now, self._scrub.last)

    def begin_scrub(self) -> int:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        assert self._scrub is not None
        return self._scrub.begin()

    async def wait_all(self) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        self.written.take_told()
        await self._replicated.wait(self.written.serial)

    async def drain(self) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        self.written.take_told()
        waiter = self._replicated.waiter(self.written.serial)
        seconds = self.settings.patience_seconds
        if not self.has_quorum:  # another program may wait for this one to make room
            seconds = min(seconds, _LAST_SECONDS)
        deadline = self.clock.monotonic() + seconds
        while not waiter.done() and self.trouble is None and self.clock.monotonic() < deadline:
            await asyncio.wait((waiter,), timeout=_PAUSE_SECONDS)
        waiter.cancel()
        await self._note_floor()
        hinted = [self._loop.create_task(one.until_hinted()) for one in self.followers]
        if self.marks is not None:
            hinted.append(self._loop.create_task(self._write_marks(self.marks)))
        try:
            if hinted:
                await asyncio.wait(hinted, timeout=_HINT_SECONDS)
        finally:
            for task in hinted:
                task.cancel()
            if hinted:
                await asyncio.wait(hinted)

    async def aclose(self) -> None:
        """As of :class:`walstore.core.replication_port.Replicator`."""
        self._is_closed = True
        self._end_waits(WalClosedError("the log is closed"))
        await self._confirmations.aclose()
        if self._healer is not None:
            await self._healer.aclose()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        self.ended.set()
        if self._claim is not None:
            await self._claim.aclose()

    def _on_told(self) -> None:
        for follower in self.followers:
            follower.push()
        self.count()

    def _on_removed(self, head: int) -> None:
        for follower in self.followers:
            follower.trim(head)

    async def _watch(self) -> None:
        """Tell when there have been too few copies for too long, and when there are enough again."""
        while True:
            await self.clock.sleep(min(_PAUSE_SECONDS, self.settings.patience_seconds / 4))
            now = self.clock.monotonic()
            if self.has_quorum:
                self._lonely_since = self.trouble = None
                continue
            if self._lonely_since is None:
                self._lonely_since = now
            if now - self._lonely_since >= self.settings.patience_seconds:
                self._give_up()

    async def _keep_floor(self) -> None:
        while True:
            await self.clock.sleep(_PAUSE_SECONDS)
            await self._note_floor()

    async def _note_floor(self) -> None:
        """Remember what is replicated in the own directory: it is not cut there then."""
        async with self._noting:  # a note of less must not come last
            limit = self.replicated_limit
            if self._log is not None and limit > self._floor:
                with contextlib.suppress(OSError, WalError):  # tried again
                    await self._log.note_replicated(limit)
                    self._floor = limit

    async def _write_marks(self, marks: CopyMarks) -> None:
        await marks.write(self._synced())

    def _synced(self) -> Synced:
        """Return what each copy has for certain of what is replicated. Nothing yet: of no copy."""
        limits: dict[str, int] = {}
        if self.replicated_limit and self.marks is not None:
            limits[self.marks.address] = self.replicated_limit
            limits.update((str(one.address), one.mark) for one in self.followers)
        return Synced(self.log_id.hex(), self.epoch, self.settings.generation, limits)

    def _leader(self) -> Leader:
        copies = tuple(map(str, self.settings.addresses))
        troubles = {str(one.address): one.trouble for one in self.followers}
        return Leader.of(self.settings.address, self.epoch, copies, troubles)

    def _give_up(self) -> None:
        """Let nobody wait any longer; the writes go on, and count when there are enough copies again."""
        self.trouble = StorageUnavailableError(
            f"{self._present} of {self.settings.copies} copies of {self.name!r} are there, and "
            f"{self.settings.needed} are needed; nothing is acknowledged until there are more"
        )
        if not self._replicated.value and self._newest is not None:  # it never was open
            self._fail(self._newest)
        error = copy_error(self.trouble)
        error.outcome = "unknown"
        if self._log is not None:
            self._log.on_too_few(error)
        self._replicated.fail_waiting(lambda _: copy_error(error))
