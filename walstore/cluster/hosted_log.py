"""HostedLog: one log that this machine has a copy of. It follows, or leads, as the cluster has it.

The leader is decided twice. The key in the cluster's store says which machine should try, so that normally
one does; the promises of the copies say which one may acknowledge, so that nothing is lost if two try.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from walstore.cluster.member_state import MemberState
from walstore.cluster.replication.copy_marks import CopyMarks
from walstore.cluster.replication.copy_trouble import LoggedOnce
from walstore.cluster.replication.primary import Primary
from walstore.cluster.replication.replication import Replication
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.errors import WalError
from walstore.log.wal import Wal
from walstore.topology.documents import LEADERS, LOGS, SYNCED, Leader, LogSpec
from walstore.topology.leadership import Leadership

if TYPE_CHECKING:
    from walstore.cluster.view import ClusterView

logger = logging.getLogger("walstore.cluster")

_RANK_SECONDS: Final = 0.25
"""How much later than the one before it a candidate tries: the first is normally alone."""
_PAUSE_SECONDS: Final = 0.5
"""After a claim that failed."""
_LONGEST_REST_SECONDS: Final = 10.0
"""After a takeover that failed: the other candidates come first meanwhile."""
_OPENED_WITH: Final = ("generation", "quorum", "tier", "settings")
"""Fields of a spec for which a log is opened again when they change."""
_LOOK_SECONDS: Final = 0.25
"""How often a leader compares its copies with what it published."""


def has_copy(view: ClusterView, name: str, address: str) -> bool:
    """Return whether a machine keeps a copy of a log in use, or is to make one.

    A suspended log stays in use until its leader has closed it, which needs the copies for that.
    """
    spec = view.specs.get(name)
    return spec is not None and address in spec.copies and not view.is_idle(name)


class HostedLog:
    """One log on one machine. Belongs to the event loop of its member; :meth:`run` does all."""

    def __init__(self, member: MemberState, name: str) -> None:
        self.name = name
        """Of the log."""
        self.wal: Wal | None = None
        """The log, while this machine leads it and has opened it."""
        self._member = member
        self._view = member.view
        self._vacant_since: float | None = None
        """Since when nobody leads, as far as is known here."""
        self._rests_until = 0.0
        self._rests = Backoff(first_seconds=1.0, longest_seconds=_LONGEST_REST_SECONDS)
        self._trouble = LoggedOnce()
        """Why it could not be led from here."""
        self._yields_to = ""
        """The machine that this one left the log to, until one leads it."""
        self._yielded_to = ""
        """The preferred machine that it was left to last, as long as that has not led it."""
        self._yields_again_at = 0.0
        self._yields = Backoff(first_seconds=60.0, longest_seconds=3600.0)
        """How long a machine that could not lead the log, for want of its tier perhaps, is left alone."""

    async def run(self) -> None:
        """Follow and lead until the member closes or the copy here is unused; a log that is led is closed."""
        changed = self._view.subscribe()
        try:
            while not self._member.is_closing and self.is_wanted:
                changed.clear()
                if await self._may_lead(changed):
                    await self._lead()
                    self._vacant_since = None  # the turns of the candidates begin again
        finally:
            self._view.unsubscribe(changed)

    # -- following ---------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether this machine has a copy in use, or is to make one."""
        return has_copy(self._view, self.name, self._member.address)

    def _is_outdated(self, opened: LogSpec) -> bool:
        """Whether the log is not to be led as it was to be: it is suspended, or has other copies."""
        spec = self._spec
        return spec is not None and (spec.suspended or spec.generation != opened.generation)

    @property
    def _spec(self) -> LogSpec | None:
        return self._view.specs.get(self.name)

    def _is_candidate(self) -> bool:
        spec = self._spec
        return (
            spec is not None
            and not spec.suspended
            and self._member.address in spec.copies
            and self.name not in self._view.leaders
            and bool(self._member.session.lease)
            and not self._member.is_closing
        )

    async def _may_lead(self, changed: asyncio.Event) -> bool:
        """Wait for a change; return True if it is this machine's turn to try to lead."""
        await self._remove_stale_claim()
        leader = self._view.leaders.get(self.name)
        if leader is not None:
            self._yields_to, self._vacant_since = "", None
            if leader.address == self._yielded_to and leader.epoch:
                self._yielded_to = ""  # it can
        if not self._is_candidate():
            await changed.wait()
            return False
        now = self._member.clock.monotonic()
        if self._vacant_since is None:
            self._vacant_since = now
        # Whatever else changes meanwhile, a machine's turn comes.
        begin = max(self._vacant_since + self._rank() * _RANK_SECONDS, self._rests_until)
        if begin > now:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(begin - now):
                    await changed.wait()
            return False  # look again
        return True

    def _rank(self) -> int:
        """Return how many machines should try before this one."""
        spec, own = self._spec, self._member.address
        assert spec is not None
        present = [one for one in spec.copies if one in self._view.members or one == own]
        first = [one for one in (self._yields_to, spec.preferred) if one in present]
        order = list(dict.fromkeys([*first, *present]))
        others = len(order) - 1
        if self._member.node.is_damaged(self.name) and spec.preferred != own and others:
            return others + 1  # behind all: they do not know of the damage
        return order.index(own)

    async def _remove_stale_claim(self) -> None:
        """Remove a claim at this address that is not this program's: of the one before it, or given up."""
        leader = self._view.leaders.get(self.name)
        if leader is None or leader.address != self._member.address:
            return
        key = self._view.key(LEADERS, self.name)
        revision = self._view.revisions.get(key, 0)
        try:
            await self._member.keys.swap(key, None, expected=revision)
        except WalError as error:
            logger.warning("an old claim of %s is not removed yet: %s", self.name, error)
            await self._member.clock.sleep(_PAUSE_SECONDS)

    # -- leading -----------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Claim the log, open it, and keep it until it is over. Returns with the log closed."""
        member, spec = self._member, self._spec
        if spec is None:
            return
        claim = Leadership(
            member.keys, self._view.key(LEADERS, self.name), member.session, member.make_tag
        )
        nodes = tuple(copy for copy in spec.copies if copy != member.address)
        value = Leader(member.address, "", 0, nodes)
        try:
            try:
                if await claim.take(value) is not None:
                    await self._view_catches_up()
                    return
            except WalError as error:
                self._trouble.warn(f"{self.name} cannot be claimed: {error}")
                await member.clock.sleep(_PAUSE_SECONDS)
                return
            async with asyncio.TaskGroup() as leaving:
                await self._open_and_keep(claim, spec, nodes, leaving)
        finally:
            await claim.leave()

    async def _view_catches_up(self) -> None:
        """Wait until the view has the claim of another machine, or a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._view.wait(lambda: self.name in self._view.leaders)

    async def _open_and_keep(
        self,
        claim: Leadership,
        spec: LogSpec,
        nodes: tuple[str, ...],
        leaving: asyncio.TaskGroup,
    ) -> None:
        """Open the log and keep it until it is over. ``leaving`` may give up the claim a little later."""
        async with self._member.node.leading(self.name) as directory:
            opened = await self._open(directory, spec, nodes, claim)
            if opened is None:
                self._rests_until = self._member.clock.monotonic() + self._rests.next_seconds()
                return
            wal, primary = opened
            self._rests.reset()
            self._trouble.end()
            logger.info("%s is led from here, epoch %d", self.name, wal.epoch)
            try:
                self.wal = wal
                self._view.notify()
                node = self._member.node
                for start in node.damaged(self.name):
                    primary.heal_soon(start, partial(node.note_mended, self.name, start))
                await self._keep(claim, wal, spec)
            finally:
                early = None
                if self._is_led_elsewhere_next(wal, spec, primary):
                    early = leaving.create_task(self._leave_early(claim, primary))
                await self._close(wal)
                if early is not None and not primary.ended.is_set():
                    early.cancel()  # it closed by a defect

    async def _open(
        self, directory: Path, spec: LogSpec, nodes: tuple[str, ...], claim: Leadership
    ) -> tuple[Wal, Primary] | None:
        """Take the log over; None if that fails, or meanwhile the member closes, the log is suspended, or it
        gets other copies."""
        member = self._member

        async def open_it() -> tuple[Wal, Primary] | None:
            try:
                replication = member.replication(self.name, nodes, spec)
                key = self._view.key(SYNCED, self.name)
                marks = CopyMarks(member.keys, key, address=member.address, clock=member.clock)
                plan = _OpeningPlan(replication, lambda: self._is_held(claim), marks)
                options = member.log_options(self.name, spec)
                wal = await Wal.open(directory, replication=plan, **options)
            except WalError as error:
                self._trouble.warn(f"{self.name} cannot be led: {error}")
                return None
            assert plan.primary is not None
            return wal, plan.primary

        async with asyncio.TaskGroup() as group:
            task = group.create_task(open_it())
            giving_up = group.create_task(
                self._view.wait(lambda: member.is_closing or self._is_outdated(spec))
            )
            await asyncio.wait((task, giving_up), return_when=asyncio.FIRST_COMPLETED)
            giving_up.cancel()
            task.cancel()
        return None if task.cancelled() else task.result()

    def _is_held(self, claim: Leadership) -> bool:
        """Whether others see the claim for certain, so that none of them begins to take over."""
        seen = self._view.leaders.get(self.name)
        is_seen = seen is not None and seen.tag == claim.tag
        return is_seen and claim.is_held and self._member.session.is_certain

    def _is_led_elsewhere_next(self, wal: Wal, opened: LogSpec, primary: Primary) -> bool:
        """Return whether another machine should open the log while it is closed here.

        Only if it does not need the copy here for that, which is locked until then; and not a log with a
        tier, which ships first, since appends may wait for that.
        """
        spec, own = self._spec, self._member.address
        if spec is None or spec.suspended or opened.tier:
            return False
        if not (self._member.is_closing or self._yields_to or own not in spec.copies):
            return False  # it is opened here again
        there = sum(one in self._view.members for one in _present(wal))
        return there >= max(primary.settings.needed, primary.settings.needed_to_take_over)

    async def _leave_early(self, claim: Leadership, primary: Primary) -> None:
        """Give the claim up once the copies have all that they get. The store may not answer for long."""
        await primary.ended.wait()
        await claim.leave()

    async def _close(self, wal: Wal) -> None:
        try:
            await wal.aclose()
        except WalError as error:
            logger.warning("%s is not led from here any more: %s", self.name, error)
        finally:
            self.wal = None
            self._view.notify()

    async def _keep(self, claim: Leadership, wal: Wal, spec: LogSpec) -> None:
        """Return when the log is closed, is to be led by another machine, or has other copies."""
        opened = wal.statistics()
        nodes = tuple(copy.address for copy in opened.copies)

        def current() -> Leader:
            troubles = {copy.address: copy.trouble for copy in wal.statistics().copies}
            address, epoch = self._member.address, opened.epoch
            return Leader.of(address, epoch, nodes, troubles, spec.generation)

        keeping = claim.keep(
            current,
            self._member.clock,
            pause_seconds=_LOOK_SECONDS,
            seen=lambda: self._view.leaders.get(self.name),
        )
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(wal.wait_closing())
            publishing = group.create_task(keeping)
            moving = group.create_task(self._view.wait(lambda: self._is_over(wal, spec)))
            alone = group.create_task(self._others_could_lead(claim, wal))
            restoring = group.create_task(self._restore_list(spec))
            ends = (closing, moving, alone)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (publishing, restoring, *ends):
                task.cancel()

    async def _others_could_lead(self, claim: Leadership, wal: Wal) -> None:
        """Return once this leader has lost its copies, while enough of their machines are there.

        It rests then, so that another one may try. If one has claimed the log already, the two would refuse
        each other's requests; then it makes room at once.
        """
        member = self._member
        while True:
            await member.clock.sleep(_LOOK_SECONDS)
            spec = self._spec
            if spec is None:
                continue
            leader, there = self._view.leaders.get(self.name), 1 + len(_present(wal))
            if leader is not None and leader.tag != claim.tag and there < spec.needed:
                logger.warning("%s has lost its copies here, and is claimed elsewhere", self.name)
                return
            if wal.statistics().replication_trouble is None:
                continue
            others = [one for one in spec.copies if one != member.address]
            if sum(one in self._view.members for one in others) >= spec.needed:
                logger.warning(
                    "%s has lost its copies here, and their machines are there", self.name
                )
                self._rests_until = member.clock.monotonic() + _LONGEST_REST_SECONDS
                return

    async def _restore_list(self, opened: LogSpec) -> None:
        """Write the list of copies of this leader again whenever the store has an older one.

        The store was set back to an earlier state then. The copies know the list of this leader, and none
        with an older one leads.
        """
        key = self._view.key(LOGS, self.name)

        def is_older() -> bool:
            spec = self._spec
            if spec is None or spec.generation != opened.generation:
                return spec is not None and spec.generation < opened.generation
            return set(spec.copies) != set(opened.copies)  # an older one was changed since

        while True:
            await self._view.wait(is_older)
            spec, revision = self._spec, self._view.revisions.get(key, 0)
            assert spec is not None
            newer = spec._replace(
                replicas=opened.replicas,
                quorum=opened.quorum,
                copies=opened.copies,
                preferred=spec.preferred if spec.preferred in opened.copies else "",
                generation=opened.generation + (spec.generation == opened.generation),
                joined=opened.joined,
            )
            try:
                swap = await self._member.keys.swap(key, newer.encode(), expected=revision)
                if swap.happened:
                    logger.warning(
                        "the store had generation %d of the copies of %s, which has %d: it was set back, and "
                        "has the newer list again",
                        spec.generation,
                        self.name,
                        opened.generation,
                    )
            except WalError as error:
                logger.warning("the newer list of %s is not written yet: %s", self.name, error)
            await self._member.clock.sleep(_PAUSE_SECONDS)

    def _is_over(self, wal: Wal, opened: LogSpec) -> bool:
        """Return whether another machine is to lead the log or none is, or it is to be opened again."""
        spec, own = self._spec, self._member.address
        if self._member.is_closing or spec is None or spec.suspended:
            return True
        if spec.generation < opened.generation:
            return False  # the store was set back; see _restore_list
        if own not in spec.copies:
            return True
        if any(getattr(spec, field) != getattr(opened, field) for field in _OPENED_WITH):
            return True
        if spec.preferred in ("", own, self._yields_to):
            return False
        if spec.preferred not in _present(wal) or spec.preferred not in self._view.members:
            return False
        return self._yield_to(spec.preferred)

    def _yield_to(self, preferred: str) -> bool:
        """Return whether to make room for the preferred machine now: not again soon if it could not lead."""
        now = self._member.clock.monotonic()
        if self._yielded_to != preferred:
            self._yields.reset()
        elif now < self._yields_again_at:
            return False
        self._yielded_to = self._yields_to = preferred
        self._yields_again_at = now + self._yields.next_seconds()
        return True


class _OpeningPlan:
    """How one opening is replicated; implements :class:`walstore.core.replication_port.ReplicationPlan`."""

    def __init__(
        self, replication: Replication, is_held: Callable[[], bool], marks: CopyMarks
    ) -> None:
        self._replication = replication
        self._is_held = is_held
        self._marks = marks
        self.primary: Primary | None = None
        """What replicates it, once it opens."""

    def begin(self, path: Path, clock: Clock) -> Primary:
        """As the port says."""
        self.primary = Primary(
            self._replication, path, clock=clock, is_held=self._is_held, marks=self._marks
        )
        return self.primary


def _present(wal: Wal) -> list[str]:
    return [copy.address for copy in wal.statistics().copies if copy.is_present]
