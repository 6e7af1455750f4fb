"""CloudGroup: a group of a log in object storage, as the members in one process see it.

There is no owner. Every process replaces the group's object by compare-and-swap, and what its members want
meanwhile goes into the next swap together. Records are read from the log's fragments, each by the process
that leases it. While members wait for jobs, the log's manifest and the group's object are read again, less
and less often.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from uploader.format import layout
from uploader.format.group_document import GroupDocument
from uploader.positions.groups.group_place import (
    GroupCursor,
    GroupPlace,
    LetterWriter,
    find_or_make,
    jobs_trimmed,
)
from uploader.positions.groups.group_turn import GroupTurn, Lease
from uploader.positions.groups.job_records import DeadLetters, JobReader
from uploader.positions.groups.known_group import KnownGroup
from uploader.runtime.task_groups import BackgroundTask
from walstore.core.offset_range import OffsetRange
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.statistics import GroupStatistics
from walstore.core.runtime.time_limit import within
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
    OffsetTrimmedError,
    WalClosedError,
    WalError,
)
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.job_table import not_begun
from walstore.positions.groups.letters import JobFailure
from walstore.positions.groups.shared_group import SharedGroup
from walstore.records import Record

_MOST_LATE_ATTEMPTS: Final = 3
"""How often a swap is lost to other processes before a taker whose time is over gets nothing."""
_FINAL: Final = (CorruptionError, FormatVersionError, WalClosedError, OffsetTrimmedError)
"""What ends the group for the members of this process."""


@dataclass(slots=True, eq=False)
class _Taker:
    """A member that waits for jobs."""

    member: bytes
    most: int
    deadline: float | None
    future: asyncio.Future[list[tuple[Record, Lease]]]
    has_looked: bool = False
    """Whether the newest manifest and document were read since it came."""


@dataclass(slots=True, eq=False)
class _Wish:
    """A change that somebody waits for, or nobody."""

    make: Callable[[GroupTurn], bool | None]
    future: asyncio.Future[bool | None] | None = None


@dataclass(slots=True)
class _Outcome:
    """What a turn would answer once it is put."""

    answers: list[bool | None] = field(default_factory=list)
    taken: list[Lease] = field(default_factory=list)
    spent: list[Lease] = field(default_factory=list)


class CloudGroup(SharedGroup):
    """One group, for the members of this process. Belongs to the event loop."""

    def __init__(
        self,
        place: GroupPlace,
        name: str,
        settings: GroupSettings,
        *,
        letters: LetterWriter | None,
        make_tag: Callable[[], str],
    ) -> None:
        """``make_tag`` returns what no other process has; :meth:`open` makes the group usable."""
        super().__init__(name, settings, place.clock)
        self.letters = letters
        """Where dead letters are appended."""
        self._place = place
        self._make_tag = make_tag
        self._changing = asyncio.Lock()
        """Held while the document is read or changed: a change is always one of the newest that is known."""
        self._known = KnownGroup(place, name, make_tag())
        self._jobs = JobReader(place, name, settings)
        self._wishes: list[_Wish] = []
        self._takers: list[_Taker] = []
        self._kicked = asyncio.Event()
        self._task = BackgroundTask[None]()
        self._is_retired = False
        self._cursor = GroupCursor(place, name)
        self._letters = DeadLetters(name, settings, letters, self._settle_dead)

    @property
    def is_used(self) -> bool:
        """Whether members use it, or are about to: opening it has not failed, and it has not ended."""
        return self._failure is None and (self._known.made is not None or self._opening.locked())

    @property
    def options(self) -> tuple[GroupSettings, LetterWriter | None]:
        """As of :class:`walstore.positions.groups.shared_group.SharedGroup`."""
        return self.settings, self.letters

    @property
    def leased(self) -> int:
        """As of :class:`walstore.positions.groups.shared_group.SharedGroup`; of this process."""
        document, sight, now = self._known.document, self._known.sight, self._clock.monotonic()
        if document is None:
            return len(self._known.leased)
        rows = document.rows
        return sum(sight.due(rows[offset]) > now for offset in self._known.leased)

    def is_free(self) -> bool:
        """As of :class:`walstore.positions.groups.shared_group.SharedGroup`, in this process."""
        is_busy = self.members or self._wishes or self._changing.locked() or self._letters.is_busy
        return not (is_busy or self._opening.locked() or self.leased)

    # -- opening and closing -----------------------------------------------------------------

    async def open(self, member: bytes) -> None:
        """Find the group or make it, once, and let a member in; raises as :meth:`uploader.CloudLog.group`."""
        await self._load()
        self.members.enter(member)

    async def _load(self) -> None:
        async with self._opening:
            self._check_unfailed()
            if self._known.made is not None:
                return
            found, cursor = await find_or_make(
                self._place,
                self.name,
                self.settings,
                make_tag=self._make_tag,
                next_tag=self._known.next_tag,
                check=self._check_unfailed,
            )
            document = self._known.know(found)
            self._check_unfailed()
            self.check_kind(document)
            self._known.made = document.made
            self._cursor.begin(document, cursor)
            self._task.start(self._run(), f"walstore group {self.name}")

    def check_kind(self, document: GroupDocument) -> None:
        """Raise InvalidSettingsError unless the group has the stream and the order that are asked for."""
        asked = (self.settings.stream, self.settings.is_ordered)
        if asked != (document.stream, document.is_ordered):
            raise InvalidSettingsError(
                f"group {self.name!r} was made with stream={document.stream!r}, "
                f"ordered={document.is_ordered}; give these, or delete it"
            )

    async def end(self) -> None:
        """End the group for the members in this process, because it is deleted."""
        self._fail(self._ended("was deleted"))
        await self.aclose()

    async def retire(self) -> None:
        """End the group in favour of one with other options; nobody is there."""
        await self.aclose(self._ended("has other options by now"))
        self._is_retired = True

    async def aclose(self, why: WalError | None = None) -> None:
        """End the group in this process. Members that are not left keep their leases. Twice is allowed."""
        is_in_use = self._failure is None
        await self._letters.aclose()
        self._fail(why or WalClosedError("the log is closed"))
        async with self._opening:  # who enters has seen that, and begins nothing
            pass
        await self._task.aclose()
        await self._cursor.aclose(self._known.document if is_in_use else None)

    # -- for members -------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[str, str]:
        """As of :class:`walstore.positions.groups.group.GroupBackend`."""
        return self._place.store.url, self.name

    async def take(
        self, member: bytes, most: int, max_wait_seconds: float | None
    ) -> list[tuple[Record, int]]:
        """Lease up to ``most`` jobs to a member; wait up to ``max_wait_seconds`` for the first."""
        self._check()
        now = self._clock.monotonic()
        deadline = None if max_wait_seconds is None else now + max_wait_seconds
        future = asyncio.get_running_loop().create_future()
        self._takers.append(_Taker(member, most, deadline, future))
        self._kicked.set()
        try:
            taken: list[tuple[Record, Lease]] = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                for _, lease in future.result():
                    self._revoke(lease)
            raise
        return [(record, lease.deliveries) for record, lease in taken]

    async def settle(self, offsets: Sequence[int]) -> None:
        """Settle jobs; durable when this returns. Nothing happens to those that were settled before.

        Also once the group has other options in this process: then by a swap of its own.
        """
        document = self._check(is_late=True)
        jobs = OffsetRange(document.floor, document.position)
        for offset in offsets:
            jobs.check_assigned(offset, "no job has that offset")

        def settle_all(turn: GroupTurn) -> None:
            for offset in offsets:
                turn.settle(offset)

        if not self._is_retired:
            await self._ask(settle_all)
            return
        await self._place.log.refresh()  # raises if that is closed
        async with self._changing:
            self._known.document = None  # others have changed it
            await self._turn((_Wish(settle_all),), ())

    async def _settle_dead(self, offset: int) -> None:
        await self.settle((offset,))
        self._dead += 1

    async def give_back(
        self,
        offset: int,
        deliveries: int,
        delay_seconds: float,
        error: str | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """End a member's lease on a job, which is due after a delay; nothing happens without the lease.

        A job that fails with an error for the last time becomes a dead letter here, as no other process
        knows the error; one that ``is_final`` before this returns.
        """
        if is_final and self.letters is None:
            raise InvalidSettingsError("term() with a reason needs letters= of the group")
        lease = self._held(offset, deliveries)
        most = self.settings.max_deliver
        is_spent = is_final or (most is not None and deliveries >= most)
        if lease is not None and error is not None and is_spent:
            record = await self._jobs.read(offset)
            lease.member = b""  # nobody gives it back
            task = self._letters.begin(record, deliveries, JobFailure(error))
            if is_final:
                await asyncio.wait([task])
            return
        await self._ask(
            lambda turn: None if lease is None else turn.give_back(lease, delay_seconds)
        )

    async def extend(self, offset: int, deliveries: int) -> None:
        """Begin a member's lease on a job anew; LeaseExpiredError if it is no longer the member's."""
        lease = self._held(offset, deliveries)
        if lease is not None:
            lease.is_begun = True
        if not await self._ask(lambda turn: lease is not None and turn.extend(lease)):
            raise self._expired(offset)

    async def leave(self, member: bytes) -> None:
        """Give back at once all that a member holds; it waits for jobs no longer.

        What it had not begun was no delivery: that goes into the same swap.
        """
        self.members.leave(member)
        for taker in self._takers:
            if taker.member == member and not taker.future.done():
                taker.future.set_exception(
                    WalClosedError(f"the member has left the group {self.name!r}")
                )
        held = [lease for lease in self._known.leased.values() if lease.member == member]
        if self._failure is not None or self._known.made is None or not held:
            return
        undone = not_begun(held)

        def give_all(turn: GroupTurn) -> None:
            for lease in undone:
                turn.revoke(lease)
            for lease in set(held).difference(undone):
                turn.give_back(lease, 0)

        await self._ask(give_all)
        self._delivered -= len(undone)
        self._redelivered -= sum(lease.deliveries > 1 for lease in undone)

    async def statistics(self) -> GroupStatistics:
        """Return the group as the store has it now."""
        self._check()
        async with self._changing:
            await self._refresh()
        self._check()
        found = self.look()
        assert found is not None
        return found

    def look(self) -> GroupStatistics | None:
        """Return the group as it was read last; None if it is not in use."""
        document, sight = self._known.document, self._known.sight
        if document is None or self._failure is not None:
            return None
        now = self._clock.monotonic()
        return self._statistics(
            floor=document.floor,
            pending=sum(row.is_leased and sight.due(row) > now for row in document.rows.values()),
            unsettled=len(document.rows),
            lag=self._place.log.tail - document.position,
        )

    # -- the loop ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Put what members want, one swap after the other; while some wait in vain, look again."""
        backoff = Backoff(first_seconds=0.1, longest_seconds=2.0, growth=1.5)
        look = 1
        looking: list[_Taker] = []
        try:
            while True:
                self._kicked.clear()
                await self._turn_for_all()
                for taker in looking:
                    taker.has_looked = True
                looking = []
                if self._known.document is not None:
                    self._cursor.follow(self._known.document)
                now = self._clock.monotonic()
                self._takers = [taker for taker in self._takers if not self._is_over(taker, now)]
                if self._wishes:
                    continue
                if not self._takers:
                    look = 1
                    await self._kicked.wait()
                    continue
                if all(taker.has_looked for taker in self._takers):
                    seconds = self._seconds_to_wait(backoff.after(look), now)
                    with suppress(TimeoutError):
                        await within(seconds, self._kicked.wait(), sleep=self._clock.sleep)
                    if self._kicked.is_set():
                        continue
                    look += 1
                looking = list(self._takers)
                await self._refresh_for(looking)
        except BaseException as error:
            if isinstance(error, WalError):
                self._fail(error)
                return
            self._fail(
                WalClosedError(
                    f"the group {self.name!r} ended by a defect, {error!r}; enter it again",
                    reason="failed",
                )
            )
            raise

    def _is_over(self, taker: _Taker, now: float) -> bool:
        """Whether a taker waits no longer; it gets nothing if its time is over."""
        is_late = taker.deadline is not None and now >= taker.deadline
        if taker.has_looked and is_late and not taker.future.done():
            taker.future.set_result([])
        return taker.future.done()

    def _seconds_to_wait(self, pause: float, now: float) -> float:
        moments = [taker.deadline for taker in self._takers if taker.deadline is not None]
        moments.append(now + pause)
        document = self._known.document
        if document is not None:
            due = self._known.sight.next_due(document, now)
            moments += [] if due is None else [due]
        return max(0.0, min(moments) - now)

    async def _refresh_for(self, takers: Sequence[_Taker]) -> None:
        try:
            async with self._changing:
                await self._refresh()
        except WalError as error:
            self._reject(takers, (), error)

    async def _refresh(self) -> None:
        await self._place.log.refresh()
        await self._known.reload()

    async def _turn_for_all(self) -> None:
        """Make one turn for all that wait; its error is theirs."""
        wishes, self._wishes = self._wishes, []
        takers = [taker for taker in self._takers if not taker.future.done()]
        if not wishes and not takers:
            return
        try:
            async with self._changing:
                await self._turn(wishes, takers)
        except WalError as error:
            self._reject(takers, wishes, error)
        except BaseException:
            self._wishes[:0] = wishes  # the group ends, and says so to them
            raise

    def _reject(self, takers: Sequence[_Taker], wishes: Sequence[_Wish], error: WalError) -> None:
        if isinstance(error, OffsetTrimmedError):
            error = jobs_trimmed(self.name, error)
        for waiting in (*(taker.future for taker in takers), *(wish.future for wish in wishes)):
            if waiting is not None and not waiting.done():
                waiting.set_exception(copy_error(error))
        if isinstance(error, _FINAL):
            self._fail(error)
            raise error

    async def _turn(self, wishes: Sequence[_Wish], takers: Sequence[_Taker]) -> None:
        attempt = 0
        is_read = self._known.document is None
        while True:
            document = self._known.document or await self._known.reload()
            wanted = sum(taker.most for taker in takers)
            try:
                if wanted:
                    await self._jobs.read_ahead(document, wanted)
            except WalError as error:
                self._reject(takers, (), error)
                wanted = 0
            tag = self._known.next_tag()
            began = self._clock.monotonic()
            turn = GroupTurn(document, self._known.sight, self.settings, tag=tag, now=began)
            outcome = _Outcome([wish.make(turn) for wish in wishes])
            found, buried = self._known.found_again(turn, wanted)
            if wanted > len(found):
                outcome.taken, outcome.spent = turn.take(
                    wanted - len(found), self._jobs.ahead, self._jobs.limit
                )
            made = turn.made()
            if made is None and not is_read and any(wish.future for wish in wishes):
                # No swap will tell that the group was deleted elsewhere.
                is_read = True
                await self._known.reload()
                continue
            if made is not None and not await self._known.put(made, began):
                attempt += 1
                is_read = True
                takers = self._in_time(takers, attempt)
                retry = self._place.retry
                await retry.clock.sleep(retry.wait_seconds(attempt))
                continue
            outcome.taken[:0] = found
            outcome.spent += buried
            await self._answer(wishes, takers, outcome)
            return

    def _in_time(self, takers: Sequence[_Taker], attempt: int) -> Sequence[_Taker]:
        """Return the takers that still wait, after some swaps of other processes came first."""
        now = self._clock.monotonic()
        for taker in takers:
            is_late = taker.deadline is not None and now >= taker.deadline
            if is_late and attempt >= _MOST_LATE_ATTEMPTS and not taker.future.done():
                taker.future.set_result([])
        return [taker for taker in takers if not taker.future.done()]

    async def _answer(
        self,
        wishes: Sequence[_Wish],
        takers: Sequence[_Taker],
        outcome: _Outcome,
    ) -> None:
        for wish, answer in zip(wishes, outcome.answers, strict=True):
            if wish.future is not None and not wish.future.done():
                wish.future.set_result(answer)
        jobs = deque(outcome.taken)
        try:
            records = await self._note_leased((*outcome.spent, *jobs))
        except WalError:
            for lease in jobs:
                self._revoke(lease)
            raise
        for lease in outcome.spent:
            self._letters.begin(records[lease.offset], lease.deliveries - 1)
        for taker in takers:
            if taker.future.done() or not jobs:
                continue
            given = [jobs.popleft() for _ in range(min(taker.most, len(jobs)))]
            for lease in given:
                lease.member = taker.member
            self._delivered += len(given)
            self._redelivered += sum(lease.deliveries > 1 for lease in given)
            taker.future.set_result([(records[lease.offset], lease) for lease in given])
        for lease in jobs:
            self._revoke(lease)

    async def _note_leased(self, leases: Sequence[Lease]) -> dict[int, Record]:
        """Note what was leased; return its records: those read ahead, and others, which are read again."""
        document = self._known.document
        read = self._jobs.pass_by(0 if document is None else document.position)
        records = {
            lease.offset: read.get(lease.offset) or await self._jobs.read(lease.offset)
            for lease in leases
        }
        self._known.leased.update({lease.offset: lease for lease in leases})
        return records

    # -- wishes ------------------------------------------------------------------------------

    def _check(self, *, is_late: bool = False) -> GroupDocument:
        if not (is_late and self._is_retired):
            self._check_unfailed()
        document = self._known.document
        if document is None and self._known.made is None:
            raise WalClosedError("the group is not open; use it within 'async with'")
        return document or GroupDocument(made="", tag="", position=layout.MAX_U64)

    async def _ask(self, make: Callable[[GroupTurn], bool | None]) -> bool | None:
        self._check()
        future: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._wishes.append(_Wish(make, future))
        self._kicked.set()
        return await future

    def _held(self, offset: int, deliveries: int) -> Lease | None:
        """Return the lease that a member speaks of, if this process has it still."""
        self._check()
        lease = self._known.leased.get(offset)
        return lease if lease is not None and lease.deliveries == deliveries else None

    def _revoke(self, lease: Lease) -> None:
        """Give back a lease that no member learned of, with the next turn."""

        def make(turn: GroupTurn) -> None:
            turn.revoke(lease)

        self._wishes.append(_Wish(make))
        self._kicked.set()

    def _fail(self, error: WalError) -> None:
        if self._failure is None:
            self._failure = error
        wishes, self._wishes = self._wishes, []
        takers, self._takers = self._takers, []
        for waiting in (*(taker.future for taker in takers), *(wish.future for wish in wishes)):
            if waiting is not None and not waiting.done():
                waiting.set_exception(copy_error(self._failure))
