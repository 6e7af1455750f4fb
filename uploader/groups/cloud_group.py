"""CloudGroup: a group of a log in object storage, as the members in one process see it.

There is no owner. Every process replaces the group's object by compare-and-swap, and what its members want
meanwhile goes into the next swap together. Records are read from the log's fragments, each by the process
that leases it. While members wait for jobs, the log's manifest and the group's object are read again, less
and less often.

A swap whose answer is lost may have happened. What it settled is settled. A lease that it made is found by
its tag in the document that is read next, and goes to a member then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.group_document import GroupDocument
from uploader.groups.group_place import (
    GroupPlace,
    JobReader,
    LetterWriter,
    cursor_of,
    remove,
    remove_cursor,
)
from uploader.groups.group_turn import GroupTurn, Sight
from uploader.root import cas
from uploader.root.stored_document import parse_aside
from uploader.runtime.task_groups import BackgroundTask, within_seconds
from walstore.errors import (
    CorruptionError,
    CursorMovedError,
    FormatVersionError,
    InvalidSettingsError,
    LeaseExpiredError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    WalClosedError,
    WalError,
)
from walstore.groups.letters import append_letter
from walstore.groups.settings import GroupSettings
from walstore.records import Record
from walstore.runtime.error_mapping import copy_error
from walstore.runtime.statistics import GroupStatistics

logger = logging.getLogger("walstore")

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0
_SAVE_SECONDS: Final = 1.0
"""How far the cursor, and with it what may be collected, may lag behind the floor."""
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
    future: asyncio.Future[list[tuple[Record, int]]]
    has_looked: bool = False
    """Whether the newest manifest and document were read since it came."""


@dataclass(slots=True, eq=False)
class _Wish:
    """A change that somebody waits for, or nobody."""

    make: Callable[[GroupTurn], bool | None]
    future: asyncio.Future[bool | None] | None = None


@dataclass(slots=True)
class _Leased:
    """A lease that this process has."""

    record: Record
    deliveries: int
    member: bytes = b""


@dataclass(slots=True)
class _Outcome:
    """What a turn would answer once it is put."""

    answers: list[bool | None] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    spent: list[tuple[int, int]] = field(default_factory=list)


class CloudGroup:
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
        self.name = name
        """Name of the group."""
        self.settings = settings
        """As the first member in this process gave them."""
        self.letters = letters
        """Where dead letters are appended."""
        self._place = place
        self._clock = place.clock
        self._make_tag = make_tag
        self._process = make_tag()
        self._turns = 0
        self._opening = asyncio.Lock()
        self._changing = asyncio.Lock()
        """Held while the document is read or changed: a change is always one of the newest that is known."""
        self._document: GroupDocument | None = None
        self._etag = ""
        self._made: str | None = None
        self._sight = Sight()
        self._moments: dict[str, float] = {}
        """When this process asked for its last changes, by tag."""
        self._lost: dict[str, str] = {}
        """Tags of changes whose outcome it did not learn, and the ETags that they were to replace."""
        self._leased: dict[int, _Leased] = {}
        self._jobs = JobReader(place, name, settings)
        self._wishes: list[_Wish] = []
        self._takers: list[_Taker] = []
        self._kicked = asyncio.Event()
        self._failure: WalError | None = None
        self._task = BackgroundTask[None]()
        self._saving = BackgroundTask[None]()
        self._saved = 0.0
        self._saved_floor = 0
        self._burials: set[asyncio.Task[None]] = set()
        self._delivered = self._redelivered = self._dead = 0

    @property
    def is_used(self) -> bool:
        """Whether members use it, or are about to: opening it has not failed, and it has not ended."""
        return self._failure is None and (self._made is not None or self._opening.locked())

    # -- opening and closing -----------------------------------------------------------------

    async def open(self) -> None:
        """Find the group or make it, once; raises as :meth:`uploader.CloudLog.group`."""
        async with self._opening:
            if self._failure is not None:
                raise copy_error(self._failure)
            if self._made is not None:
                return
            document = await self._find_or_make()
            if self._failure is not None:
                raise copy_error(self._failure)
            self.check_kind(document)
            self._made = document.made
            self._saved_floor = document.floor
            self._saved = self._clock.monotonic()
            self._task.start(self._run(), f"walstore group {self.name}")

    def check_kind(self, document: GroupDocument) -> None:
        """Raise InvalidSettingsError unless the group has the stream and the order that are asked for."""
        asked = (self.settings.stream, self.settings.is_ordered)
        if asked != (document.stream, document.is_ordered):
            raise InvalidSettingsError(
                f"group {self.name!r} was made with stream={document.stream!r}, "
                f"is_ordered={document.is_ordered}; give these, or delete it"
            )

    async def _find_or_make(self) -> GroupDocument:
        while self._failure is None:
            found = await self._place.load(self.name)
            is_new = found is None or found[0].is_removed
            if found is None or is_new:
                found = await self._make(None if found is None else found[1])
                if found is None:
                    continue
            document = found[0]
            await self._check_position(document)
            cursor = cursor_of(self.name, document)
            try:
                await self._place.cursors.create(cursor, document.floor)
            except OffsetTrimmedError as error:
                # A collection came between the group and its cursor. Nobody has a job of a new group.
                if not is_new:
                    raise self._trimmed(error) from error
                await remove(self._place, self.name, self._next_tag(), only=document.made)
                if self.settings.start != "earliest":
                    raise
                continue
            again = await self._place.load(self.name)
            if again is None or again[0].is_removed or again[0].made != document.made:
                # It was deleted meanwhile, perhaps before it had this cursor.
                await remove_cursor(self._place, self.name, document)
                continue
            self._know(*again)
            return again[0]
        raise copy_error(self._failure)

    async def _make(self, etag: str | None) -> tuple[GroupDocument, str] | None:
        """Make the group where there is none, or a removed one; None if another process came first."""
        made = GroupDocument(
            made=self._make_tag(),
            tag=self._next_tag(),
            position=await self._start(),
            stream=self.settings.stream,
            is_ordered=self.settings.is_ordered,
        )
        result = await self._place.put(self.name, made, etag)
        result.decided(self._place.store.url, f"group {self.name!r} was made; call again")
        if result.outcome is not cas.PutOutcome.COMMITTED:
            return None
        assert result.etag is not None
        return made, result.etag

    async def _check_position(self, document: GroupDocument) -> None:
        """Raise OffsetNotWrittenError if the group has seen more of the log than there is."""
        log = self._place.log
        if document.position > log.tail:
            await log.refresh()
        if document.position > log.tail:
            raise OffsetNotWrittenError(
                f"group {self.name!r} has seen records that the log does not have: it is of another log, or "
                "the log is restored as of an earlier time. delete_group() removes it; start= says where a "
                "new one begins",
                requested=document.position,
                head=log.head,
                tail=log.tail,
            )

    def _trimmed(self, error: OffsetTrimmedError) -> OffsetTrimmedError:
        return OffsetTrimmedError(
            f"jobs of group {self.name!r} were removed from the log, so its cursor was deleted or changed by "
            "somebody; delete_group() removes the group, and start= says where a new one begins",
            requested=error.requested,
            head=error.head,
            tail=error.tail,
        )

    async def _start(self) -> int:
        """Return the offset at which a new group begins."""
        log = self._place.log
        await log.refresh()
        async with log.reader(self.settings.start) as reader:
            position = reader.position
        if not log.head <= position <= log.tail:
            kind = OffsetTrimmedError if position < log.head else OffsetNotWrittenError
            raise kind(
                "the group cannot begin there", requested=position, head=log.head, tail=log.tail
            )
        return position

    async def end(self) -> None:
        """End the group for the members in this process, because it is deleted."""
        self._fail(WalClosedError(f"the group {self.name!r} was deleted"))
        await self.aclose()

    async def aclose(self) -> None:
        """End the group in this process. Members that are not left keep their leases. Twice is allowed."""
        is_in_use = self._failure is None
        while self._burials:
            for burial in self._burials:
                burial.cancel()
            await asyncio.wait(self._burials)
        self._fail(WalClosedError("the log is closed"))
        async with self._opening:  # who enters has seen that, and begins nothing
            pass
        await self._task.aclose()
        await self._saving.wait()
        if is_in_use and self._document is not None:
            await self._save(self._document)

    # -- for members -------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[str, str]:
        """As of :class:`walstore.groups.group.GroupBackend`."""
        return self._place.store.url, self.name

    async def take(
        self, member: bytes, most: int, max_wait: float | None
    ) -> list[tuple[Record, int]]:
        """Lease up to ``most`` jobs to a member; wait up to ``max_wait`` seconds for the first."""
        self._check()
        now = self._clock.monotonic()
        deadline = None if max_wait is None else now + max_wait
        future = asyncio.get_running_loop().create_future()
        self._takers.append(_Taker(member, most, deadline, future))
        self._kicked.set()
        try:
            taken: list[tuple[Record, int]] = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                for record, deliveries in future.result():
                    self._revoke(record.offset, deliveries)
            raise
        return taken

    async def settle(self, offsets: Sequence[int]) -> None:
        """Settle jobs; durable when this returns. Nothing happens to those that were settled before."""
        document = self._check()
        for offset in offsets:
            if not 0 < offset < document.position:
                raise OffsetNotWrittenError(
                    "no job has that offset",
                    requested=offset,
                    head=document.floor,
                    tail=document.position,
                )

        def settle_all(turn: GroupTurn) -> None:
            for offset in offsets:
                turn.settle(offset)

        await self._ask(settle_all)

    async def give_back(self, offset: int, deliveries: int, delay_seconds: float) -> None:
        """End a member's lease on a job, which is due after a delay; nothing happens without the lease."""
        await self._ask(lambda turn: turn.give_back(offset, deliveries, delay_seconds))

    async def extend(self, offset: int, deliveries: int) -> None:
        """Begin a member's lease on a job anew; LeaseExpiredError if it is no longer the member's."""
        if not await self._ask(lambda turn: turn.extend(offset, deliveries)):
            raise LeaseExpiredError(
                f"the lease on offset {offset} of group {self.name!r} ended; another member may have it",
                reader=self.name,
            )

    async def leave(self, member: bytes) -> None:
        """Give back at once all that a member holds; it waits for jobs no longer."""
        for taker in self._takers:
            if taker.member == member and not taker.future.done():
                taker.future.set_exception(
                    WalClosedError(f"the member has left the group {self.name!r}")
                )
        held = [(at, one.deliveries) for at, one in self._leased.items() if one.member == member]
        if self._failure is not None or self._made is None or not held:
            return

        def give_all(turn: GroupTurn) -> None:
            for offset, deliveries in held:
                turn.give_back(offset, deliveries, 0)

        await self._ask(give_all)

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
        document = self._document
        if document is None or self._failure is not None:
            return None
        now = self._clock.monotonic()
        return GroupStatistics(
            name=self.name,
            floor=document.floor,
            pending=sum(
                row.is_leased and self._sight.due(offset, row) > now
                for offset, row in document.rows.items()
            ),
            unsettled=len(document.rows),
            lag=max(0, self._place.log.tail - document.position),
            delivered=self._delivered,
            redelivered=self._redelivered,
            dead=self._dead,
        )

    # -- the loop ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Put what members want, one swap after the other; while some wait in vain, look again."""
        pause = _FIRST_PAUSE_SECONDS
        looking: list[_Taker] = []
        try:
            while True:
                self._kicked.clear()
                await self._turn_for_all()
                for taker in looking:
                    taker.has_looked = True
                looking = []
                self._save_at_times()
                now = self._clock.monotonic()
                self._takers = [taker for taker in self._takers if not self._is_over(taker, now)]
                if self._wishes:
                    continue
                if not self._takers:
                    pause = _FIRST_PAUSE_SECONDS
                    await self._kicked.wait()
                    continue
                if all(taker.has_looked for taker in self._takers):
                    seconds = self._seconds_to_wait(pause, now)
                    await within_seconds(seconds, self._kicked.wait(), self._clock)
                    if self._kicked.is_set():
                        continue
                    pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
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
        if self._document is not None:
            due = self._sight.next_due(self._document, now)
            moments += [] if due is None else [due]
        return max(0.0, min(moments) - now)

    async def _refresh_for(self, takers: Sequence[_Taker]) -> None:
        try:
            async with self._changing:
                await self._refresh()
        except WalError as error:
            self._reject(takers, (), error)

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
            error = self._trimmed(error)
        for waiting in (*(taker.future for taker in takers), *(wish.future for wish in wishes)):
            if waiting is not None and not waiting.done():
                waiting.set_exception(copy_error(error))
        if isinstance(error, _FINAL):
            self._fail(error)
            raise error

    async def _turn(self, wishes: Sequence[_Wish], takers: Sequence[_Taker]) -> None:
        attempt = 0
        while True:
            if self._document is None:
                await self._reload()
            document = self._document
            assert document is not None
            wanted = sum(taker.most for taker in takers)
            try:
                if wanted:
                    await self._jobs.read_ahead(document, wanted)
            except WalError as error:
                self._reject(takers, (), error)
                wanted = 0
            tag = self._next_tag()
            began = self._clock.monotonic()
            turn = GroupTurn(document, self._sight, self.settings, tag=tag, now=began)
            outcome = _Outcome([wish.make(turn) for wish in wishes])
            found, buried = self._found_again(document, wanted)
            if wanted > len(found):
                outcome.taken, outcome.spent = turn.take(
                    wanted - len(found), self._jobs.ahead, self._jobs.limit
                )
            made = turn.made()
            if made is not None and not await self._put(made, began):
                attempt += 1
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

    async def _put(self, made: GroupDocument, began: float) -> bool:
        """Put a changed document; False, and the newest one is known, if another process came first."""
        self._moments = {tag: at for tag, at in self._moments.items() if tag in self._lost}
        self._moments[made.tag] = began
        self._lost[made.tag] = self._etag
        result = await self._place.put(self.name, made, self._etag)
        if result.outcome is cas.PutOutcome.UNKNOWN:
            self._document = None
        result.decided(self._place.store.url, f"group {self.name!r} was changed; try again")
        if result.outcome is cas.PutOutcome.COMMITTED:
            del self._lost[made.tag]
            assert result.etag is not None
            self._know(made, result.etag)
            return True
        if not result.was_unanswered:
            del self._lost[made.tag]
        if result.data is None or result.etag is None:
            raise self._gone()
        parse = partial(GroupDocument.parse, name=self.name)
        self._know(await parse_aside(parse, result.data), result.etag)
        return False

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
            await self._note_leased((*outcome.spent, *jobs))
        except WalError:
            for offset, deliveries in jobs:
                self._revoke(offset, deliveries)
            raise
        for offset, deliveries in outcome.spent:
            self._begin_burial(self._leased[offset].record, deliveries)
        for taker in takers:
            if taker.future.done() or not jobs:
                continue
            given = [jobs.popleft() for _ in range(min(taker.most, len(jobs)))]
            for offset, _ in given:
                self._leased[offset].member = taker.member
            self._delivered += len(given)
            self._redelivered += sum(deliveries > 1 for _, deliveries in given)
            taker.future.set_result(
                [(self._leased[offset].record, deliveries) for offset, deliveries in given]
            )
        for offset, deliveries in jobs:
            self._revoke(offset, deliveries)

    # -- the document ------------------------------------------------------------------------

    def _know(self, document: GroupDocument, etag: str) -> None:
        """Go on with a document that was read or put."""
        if document.is_removed or self._made not in {None, document.made}:
            raise self._gone()
        self._sight.look(document, self._clock.monotonic(), self._moments)
        self._document, self._etag = document, etag
        rows = document.rows
        self._leased = {
            offset: leased
            for offset, leased in self._leased.items()
            if (row := rows.get(offset)) and row.is_leased and row.deliveries == leased.deliveries
        }
        # A change that is not in it, and was to replace another one, never happens.
        tags = {row.tag for row in rows.values()}
        self._lost = {tag: at for tag, at in self._lost.items() if tag in tags or at == etag}

    def _found_again(
        self, document: GroupDocument, wanted: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return leases that changes of this process made without its knowledge: of jobs, and to bury."""
        found: list[tuple[int, int]] = []
        buried: list[tuple[int, int]] = []
        if self._lost:
            now, most = self._clock.monotonic(), self.settings.max_deliver
            for offset, row in document.rows.items():
                if row.tag not in self._lost or not row.is_leased or offset in self._leased:
                    continue
                if self._sight.due(offset, row) > now:
                    is_spent = most is not None and row.deliveries > most
                    (buried if is_spent else found).append((offset, row.deliveries))
        return found[:wanted], buried

    async def _refresh(self) -> None:
        await self._place.log.refresh()
        await self._reload()

    async def _reload(self) -> None:
        found = await self._place.load(self.name)
        if found is None:
            raise self._gone()
        self._know(*found)

    def _gone(self) -> WalClosedError:
        return WalClosedError(f"the group {self.name!r} was deleted")

    def _next_tag(self) -> str:
        self._turns += 1
        return f"{self._process}-{self._turns}"

    async def _note_leased(self, jobs: Sequence[tuple[int, int]]) -> None:
        """Note what was leased, with its records: those read ahead, and others, which are read again."""
        read = self._jobs.pass_by(0 if self._document is None else self._document.position)
        for offset, deliveries in jobs:
            record = read.get(offset) or await self._jobs.read(offset)
            self._leased[offset] = _Leased(record, deliveries)

    # -- wishes ------------------------------------------------------------------------------

    def _check(self) -> GroupDocument:
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._document is None and self._made is None:
            raise WalClosedError("the group is not open; use it within 'async with'")
        if self._document is None:
            return GroupDocument(made="", tag="", position=layout.MAX_U64)
        return self._document

    async def _ask(self, make: Callable[[GroupTurn], bool | None]) -> bool | None:
        self._check()
        future: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._wishes.append(_Wish(make, future))
        self._kicked.set()
        return await future

    def _revoke(self, offset: int, deliveries: int) -> None:
        """Give back a lease that no member learned of, with the next turn."""

        def make(turn: GroupTurn) -> None:
            turn.revoke(offset, deliveries)

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

    # -- dead letters and the cursor ---------------------------------------------------------

    def _begin_burial(self, record: Record, deliveries: int) -> None:
        task = asyncio.get_running_loop().create_task(
            self._bury(record, deliveries - 1), name=f"walstore dead letter of group {self.name}"
        )
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _bury(self, record: Record, deliveries: int) -> None:
        """Append a dead letter and settle its job. After a failure the job is due again after its lease."""
        assert self.letters is not None
        assert self.settings.max_deliver is not None
        counted, letters = min(deliveries, self.settings.max_deliver), self.letters
        stream = self.settings.letters_of(self.name)

        async def append(letter: Record) -> None:
            await letters.append(
                letter.value, key=letter.key, stream=stream, headers=letter.headers
            )

        try:
            await append_letter(self.name, record, counted, append)
            await self.settle((record.offset,))
            self._dead += 1
        except WalError as error:
            logger.warning("a dead letter of group %s will be appended later: %s", self.name, error)

    def _save_at_times(self) -> None:
        """Move the cursor to the floor, at most once a second, and without waiting for it."""
        document, now = self._document, self._clock.monotonic()
        if document is None or self._saving.is_busy or now < self._saved + _SAVE_SECONDS:
            return
        if document.floor > self._saved_floor:
            self._saved = now
            self._saving.start(self._save(document), f"walstore cursor of group {self.name}")

    async def _save(self, document: GroupDocument) -> None:
        cursors, name = self._place.cursors, cursor_of(self.name, document)
        if document.floor <= self._saved_floor:
            return
        try:
            seen = await cursors.load(name)
            if seen is not None and seen.position < document.floor:
                await cursors.commit(name, document.floor, seen=seen)
            self._saved_floor = document.floor
        except CursorMovedError:
            return  # by another member, or it is deleted with the group
        except WalError as error:
            logger.warning("the cursor of group %s stays behind: %s", self.name, error)
