"""GroupCoordinator: one group of an open log: reads the log, leases jobs to members, keeps the journal.

It belongs to the process that owns the log. Members are in the same process, or clients of its server;
there is one coordinator for all of them, made for the first and closed with the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

from walstore.core.offset_range import OffsetRange
from walstore.core.ports import Clock
from walstore.core.read.reader import Reader
from walstore.core.runtime.statistics import GroupStatistics
from walstore.core.runtime.tasks import start_task
from walstore.errors import (
    WalClosedError,
    WalError,
)
from walstore.positions.cursor import Cursor
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.group_state import GroupState
from walstore.positions.groups.job_table import in_parts
from walstore.positions.groups.journal import CURSOR_PREFIX, EntryKind, Journal, Remembered, entry
from walstore.positions.groups.journal_writer import JournalWriter, may_pass
from walstore.positions.groups.numbered_letters import NumberedLetters
from walstore.positions.groups.shared_group import SharedGroup
from walstore.records import Record

logger = logging.getLogger("walstore.groups")

_Parts = Iterator[Iterable[tuple[int, int]]]
_READ_RECORDS: Final = 512
_READ_BYTES: Final = 1 << 20
_SAVE_SECONDS: Final = 1.0
"""How far the cursor, and with it what may be trimmed, may lag behind the floor."""
RESUME_SECONDS: Final = 5.0
"""How long members whose connection was lost keep their jobs, if they do not come back."""
MOST_HELD_BYTES: Final = 64 << 20
"""What the records of a group that are not settled may take in memory, until no more are read."""


class GroupLog(Protocol):
    """What a group needs of its log. Belongs to the event loop."""

    @property
    def path(self) -> Path:
        """The log's directory."""

    @property
    def visible_limit(self) -> int:
        """Offset after the last record that readers see."""

    @property
    def append(self) -> Callable[..., Any]:
        """Appends a record."""

    @property
    def reader(self) -> Callable[..., Reader]:
        """Makes a reader of durable records."""

    @property
    def cursor(self) -> Callable[..., Awaitable[Cursor]]:
        """Opens a cursor."""

    @property
    def cursors(self) -> Callable[[], Awaitable[list[CursorInfo]]]:
        """Lists the cursors."""

    @property
    def delete_cursor(self) -> Callable[[str], Awaitable[bool]]:
        """Removes a cursor."""

    @property
    def producer(self) -> Callable[[str], Any]:
        """Makes a producer, which knows the number of its last append."""

    async def append_letter(self, producer: str, number: int, letter: Record, stream: str) -> None:
        """Append a dead letter once, whatever is done twice."""


class GroupCoordinator(SharedGroup):
    """One group. Belongs to the event loop of the log."""

    def __init__(
        self,
        log: GroupLog,
        name: str,
        settings: GroupSettings,
        *,
        clock: Clock,
        journal: Journal,
        number: int,
        before: GroupCoordinator | None = None,
    ) -> None:
        """:meth:`open` makes the group usable, once ``before``, with other options, has ended."""
        super().__init__(name, settings, clock)
        self.number = number
        """Of the groups that were in use since the log was opened; another one after it was deleted."""
        self._before = None if before is None else before.retire(self)
        self._after: GroupCoordinator | None = None
        """The group with the options that came after."""
        self._delays: dict[int, float] = {}
        """As of :meth:`GroupState.delays`, from the group before, until this one is loaded."""
        self._log = log
        self._journal = journal
        self._cursor: Cursor | None = None
        self._reader: Reader | None = None
        self._state: GroupState | None = None
        self._left = Remembered(0)
        """What the journal said, with the letters that are still to be appended."""
        # Set when there may be a job, or a reason to read; each waiting member looks again.
        self._changed = asyncio.Event()
        self._waiting: Counter[bytes] = Counter()
        """How often each member waits for jobs."""
        self._gone: set[bytes] = set()
        """Those of them that have left meanwhile."""
        self._giving: list[_Parts] = []
        """What is being given back."""
        self._losing: set[asyncio.Task[None]] = set()
        """For each lost connection what waits for its members."""
        self._pump: asyncio.Task[None] | None = None
        self._notes = JournalWriter(
            journal,
            name,
            present=self._present,
            unsettled=self._unsettled,
            on_failure=self._fail,
        )
        self._letters = NumberedLetters(
            name,
            settings.letters_of(name),
            self._notes,
            read=log.reader,
            append=partial(log.append_letter, f"group.{name}"),
            settle=self.settle,
            on_buried=self._count_dead,
            on_failure=self._fail,
        )
        # A group of all streams does not read its own dead letters.
        self._skipped = settings.letters_of(name) if settings.stream is None else None

    # -- opening and closing -----------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether members use it, or are about to; False if the first of them could not enter."""
        return self._state is not None or self._failure is not None or self._opening.locked()

    @property
    def leased(self) -> int:
        """As of :class:`walstore.positions.groups.shared_group.SharedGroup`."""
        return 0 if self._state is None else self._state.leased

    def is_free(self) -> bool:
        """As of :class:`walstore.positions.groups.shared_group.SharedGroup`."""
        state = self._state
        is_busy = self.members or self._waiting or self._giving or self._letters.is_busy
        if state is None or self._failure is not None or self._opening.locked() or is_busy:
            return not self.is_used
        state.pass_time(self._clock.monotonic())
        return not state.leased

    def retire(self, after: GroupCoordinator) -> asyncio.Task[dict[int, float]]:
        """End the group in favour of ``after``, with other options; nobody is there. Returns its delays."""
        if self._failure is None:
            self._failure = self._ended("has other options by now")
            self._after = after
        return start_task(self._hand_over(), name=f"walstore end of group {self.name}")

    async def _hand_over(self) -> dict[int, float]:
        await self.aclose()
        return self._delays if self._state is None else self._state.delays()

    async def open(self, member: bytes = b"", *, via: object = None) -> None:
        """Let a member in, over a connection or of this process; raises as :meth:`load`."""
        await self.load()
        self.members.enter(member, via)

    async def load(self) -> None:
        """Load what the group remembers, once; raises as :meth:`walstore.Wal.cursor` and for the disk."""
        async with self._opening:
            await self._wait_before()
            self._check_unfailed()
            if self._pump is not None:
                return
            if self._state is None:
                self._state, self._left = await self._found()
            # Again, if it failed or was cancelled when a member entered before.
            await self._letters.bury_again(self._state, self._left)
            assert self._reader is not None
            self._pump = start_task(
                self._run(self._state, self._reader), name=f"walstore group {self.name}"
            )

    async def _found(self) -> tuple[GroupState, Remembered]:
        """Return where the group goes on, and what its journal says."""
        self._cursor = await self._log.cursor(CURSOR_PREFIX + self.name, start=self.settings.start)
        found = await self._journal.load(self._cursor.position)
        # Without the journal the log knows the last number.
        last = await self._log.producer(f"group.{self.name}").last_sequence()
        self._letters.last = max(found.letters, last)
        position = max(found.position, self._cursor.position)
        self._reader = self._log.reader(position, stream=self.settings.stream, follow=True)
        now = self._clock.monotonic()
        return GroupState(self.settings, position, found, now, delays=self._delays), found

    async def _wait_before(self) -> None:
        """Return when the group with the options before has ended: its journal and cursor are free."""
        if self._before is not None:
            await asyncio.wait([self._before])
            if (error := self._before.exception()) is not None:
                logger.warning("group %s was not closed in order: %s", self.name, error)
            else:
                self._delays = self._before.result()
            self._before = None

    async def end(self) -> None:
        """End the group for its members, because it is deleted; what is being opened ends first."""
        if self._failure is None:
            self._fail(self._ended("was deleted"))
        async with self._opening:
            pass
        await self.aclose()

    async def aclose(self) -> None:
        """End the group in this process: what is acknowledged is durable. Twice is allowed."""
        await self._wait_before()
        for parts in self._giving:
            self._give_rest(parts)
        if self._failure is None:
            self._failure = WalClosedError("the log is closed")
        if losing := set(self._losing):
            for task in losing:
                task.cancel()
            await asyncio.wait(losing)
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])
        await self._letters.ended()
        await self._notes.ended()
        self._changed.set()
        if self._cursor is not None and self._state is not None:
            try:
                if self._after is not None:  # leases that ended early are no longer ones
                    await self._notes.try_rewrite()
                await self._save(self._state, self._cursor)
            except WalError:
                return  # the journal knows more than the cursor
            finally:
                await self._journal.aclose()

    def _present(self) -> Remembered:
        """Return what the next owner of the log has to know."""
        assert self._state is not None
        present = self._state.remembered()
        present.buried, present.letters = self._letters.numbers, self._letters.last
        return present

    def _unsettled(self) -> int:
        return 0 if self._state is None else len(self._state.jobs)

    def _count_dead(self) -> None:
        self._dead += 1

    # -- for members -------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[str, str]:
        """As of :class:`walstore.positions.groups.group.GroupBackend`."""
        return str(self._log.path), self.name

    async def take(
        self,
        member: bytes,
        most: int,
        max_wait_seconds: float | None,
        *,
        via: object = None,
        most_bytes: float = inf,
    ) -> list[tuple[Record, int]]:
        """Lease up to ``most`` jobs to a member; wait up to ``max_wait_seconds`` for the first.

        One, or several that cost up to ``most_bytes`` together. ``via`` is the connection of a member that
        may survive this process. Then the lease is in the journal before this returns, or the next owner of
        the log would give the job to somebody else; DiskFullError if there is no space for that, and as
        :meth:`settle`. WalClosedError if the member leaves.
        """
        deadline = None if max_wait_seconds is None else self._clock.monotonic() + max_wait_seconds
        self.members.enter(member, via)  # it may come over a new connection
        self._waiting[member] += 1
        try:
            return await self._take_in_time(member, most, deadline, via, most_bytes)
        finally:
            self._waiting[member] -= 1
            if not self._waiting[member]:
                del self._waiting[member]
                self._gone.discard(member)

    async def _take_in_time(
        self,
        member: bytes,
        most: int,
        deadline: float | None,
        via: object,
        most_bytes: float,
    ) -> list[tuple[Record, int]]:
        is_away = via is not None
        while True:
            state = self._entered()
            if member in self._gone:
                raise WalClosedError(f"the member has left the group {self.name!r}")
            if is_away and self._notes.is_stuck:
                await self._notes.wait_written()
            taken = self._take(state, member, most, via, most_bytes)
            if state.dead:
                self._letters.start(state)
            if taken and is_away:
                await self._keep_leases(state, taken)
            if taken:
                return taken
            self._changed.clear()
            left = self._seconds_left(state, deadline)
            if left is not None and left <= 0 and deadline is not None:
                if self._clock.monotonic() >= deadline:
                    return []
                continue
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def settle(self, offsets: Iterable[int]) -> None:
        """Settle jobs; durable when this returns. Nothing happens to those that were settled before.

        Many are settled a part at a time, the rest at once if this is cancelled. OffsetNotWrittenError, and
        none is settled, if one of them is no offset of a job. Once the group has other options, the group
        with these does it.
        """
        if self._after is not None:
            await self._after.settle(offsets)
            return
        if self._state is None:
            await self.load()
        state = self._entered()
        jobs = OffsetRange(state.floor, self._log.visible_limit)
        ordered = sorted(offsets)  # neighbours take less room where they are kept
        for offset in (*ordered[:1], *ordered[-1:]):
            jobs.check_assigned(offset, "no job has that offset")
        await self._give(self._settle(state, ordered))
        await self._notes.sync()

    def _settle(self, state: GroupState, offsets: Sequence[int]) -> _Parts:
        """Settle jobs; others may come between two parts. What is settled and what is noted agree."""
        for at, part in enumerate(in_parts(offsets)):
            if at:
                yield ()
            for offset in part:
                if state.settle(offset):
                    self._notes.note(entry(EntryKind.SETTLED, offset, offset + 1))
                    self._letters.numbers.pop(offset, None)
        self._changed.set()
        if self._failure is None:  # while the log is closed, too: it waits for what is written
            self._notes.write(syncs=True)

    async def give_back(
        self,
        offset: int,
        deliveries: int,
        delay_seconds: float,
        error: str | None = None,
        *,
        is_final: bool = False,
        member: bytes | None = None,
    ) -> None:
        """End a member's lease on a job, which is due after a delay; nothing happens without the lease.

        ``error`` is for its dead letter. With ``is_final`` that is appended now, and this returns when it is.
        """
        state, now = self._entered(), self._clock.monotonic()
        is_given = state.give_back(
            offset, deliveries, now, delay_seconds, member=member, error=error, is_final=is_final
        )
        if not is_given:
            return
        self._changed.set()
        state.pass_time(now)
        if state.dead:
            self._letters.start(state)
            if is_final:
                await self._letters.ended()

    async def take_back(
        self, held: Iterable[tuple[int, int]], *, member: bytes | None = None
    ) -> None:
        """End leases, by offset and deliveries, on jobs that nobody has seen: they were no deliveries."""
        self._uncount(self._entered().revoke(held, self._clock.monotonic(), member=member))

    async def extend(
        self, offset: int, deliveries: int, *, member: bytes | None = None, via: object = None
    ) -> None:
        """Begin a member's lease on a job anew; LeaseExpiredError if it is no longer the member's."""
        state, now = self._entered(), self._clock.monotonic()
        if not state.extend(offset, deliveries, now, member=member, via=via):
            raise self._expired(offset)

    async def leave(self, member: bytes, held: Iterable[tuple[int, int]] = ()) -> None:
        """Give back at once all that a member holds; it waits for jobs no longer.

        ``held`` are offsets and deliveries of jobs that it may have from an earlier owner of the log.
        """
        self.members.leave(member)
        if member in self._waiting:
            self._gone.add(member)
        if self._state is not None and self._failure is None:
            await self._give(self._state.leave(member, self._clock.monotonic(), held))

    def lose(self, via: object) -> None:
        """Note that a connection was lost: after a moment the jobs of its members are given back.

        Those that come back over another one keep theirs.
        """
        self.members.lose(via)
        task = start_task(self._lose(via), name=f"walstore lost members of group {self.name}")
        self._losing.add(task)
        task.add_done_callback(self._losing.discard)

    async def _lose(self, via: object) -> None:
        state = self._state
        try:
            if state is not None and state.leased:
                await self._clock.sleep(RESUME_SECONDS)
                if self._failure is None:
                    now = self._clock.monotonic()
                    await self._give(state.lose(via, now, self.members.newest))
        finally:
            self.members.forget(via)

    async def _give(self, parts: _Parts) -> None:
        """Give jobs back a part at a time; others come between. If cancelled, the rest at once."""
        self._giving.append(parts)
        try:
            for given in parts:
                self._uncount(given)
                await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
        finally:
            self._giving.remove(parts)
            self._give_rest(parts)

    def _give_rest(self, parts: _Parts) -> None:
        for given in parts:
            self._uncount(given)

    def _uncount(self, given: Iterable[tuple[int, int]]) -> None:
        """Note that some jobs were given back that were not begun; they may be taken now."""
        for offset, deliveries in given:
            self._notes.note(entry(EntryKind.DELIVERED, offset, count=deliveries))
            self._redelivered -= deliveries > 0
            self._delivered -= 1
        if given and self._failure is None:
            self._notes.write()
        self._changed.set()

    async def statistics(self) -> GroupStatistics:
        """Return the group at this moment."""
        return self._look(self._entered())

    def look(self) -> GroupStatistics | None:
        """Return the group at this moment, on any thread; None if it is not in use."""
        while self._state is not None and self._failure is None:
            try:
                return self._look(self._state)
            except RuntimeError:  # the group changed on its own thread meanwhile
                continue
        return None

    def _look(self, state: GroupState) -> GroupStatistics:
        return self._statistics(
            floor=state.floor,
            pending=state.leased,
            unsettled=len(state.jobs),
            lag=self._log.visible_limit - state.position,
        )

    # -- jobs --------------------------------------------------------------------------------

    def _entered(self) -> GroupState:
        self._check_unfailed()
        if self._state is None:
            raise WalClosedError("the group is not open; use it within 'async with'")
        return self._state

    def _take(
        self, state: GroupState, member: bytes, most: int, via: object, most_bytes: float
    ) -> list[tuple[Record, int]]:
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        taken: list[tuple[Record, int]] = []
        kind = EntryKind.DELIVERED if via is None else EntryKind.DELIVERED_AWAY
        while len(taken) < most:
            room = most_bytes if taken else inf  # the first comes however large it is
            job = state.take(member, now, via=via, most_bytes=room, now_us=now_us)
            if job is None:
                break
            most_bytes -= job.cost
            self._notes.note(entry(kind, job.offset, count=job.deliveries))
            self._redelivered += job.deliveries > 1
            taken.append((job.record, job.deliveries))
        self._delivered += len(taken)
        if taken:
            self._notes.write()
        return taken

    async def _keep_leases(self, state: GroupState, taken: list[tuple[Record, int]]) -> None:
        """Return when leases are in the journal.

        They never were if that cannot be now, as without space, or the caller is cancelled: nobody learned of
        them.
        """
        try:
            await self._notes.wait_written()
        except (WalError, asyncio.CancelledError):
            await self.take_back([(record.offset, deliveries) for record, deliveries in taken])
            raise

    def _seconds_left(self, state: GroupState, deadline: float | None) -> float | None:
        """Return how long a member may sleep: until its time is over, or a job may be due."""
        moments = [at for at in (deadline, state.next_moment) if at is not None]
        return max(0.0, min(moments) - self._clock.monotonic()) if moments else None

    async def _run(self, state: GroupState, reader: Reader) -> None:
        """Read ahead of the members, as far as the group may have unsettled records."""
        saved = self._clock.monotonic()
        assert self._cursor is not None
        try:
            while True:
                while state.is_full or state.held_bytes >= MOST_HELD_BYTES:
                    await self._changed.wait()
                    self._changed.clear()
                is_behind = state.jobs or state.floor > self._cursor.position
                batch = await reader.fetch(
                    max_records=_READ_RECORDS,
                    max_bytes=_READ_BYTES,
                    max_wait_seconds=_SAVE_SECONDS if is_behind else None,
                )
                if batch.limit > state.position:
                    now, now_us = self._clock.monotonic(), self._clock.now_us()
                    state.offer(batch, self._skipped, group=self.name, now=now, now_us=now_us)
                    self._changed.set()
                if self._clock.monotonic() >= saved + _SAVE_SECONDS:
                    await self._try_save(state, self._cursor)
                    saved = self._clock.monotonic()
        except WalError as error:
            self._fail(error)

    async def _try_save(self, state: GroupState, cursor: Cursor) -> None:
        """Move the cursor to the floor; if that cannot be now, as with too few copies, it is later."""
        try:
            await self._save(state, cursor)
        except WalError as error:
            if not may_pass(error):
                raise
            logger.warning("the cursor of group %s is moved later: %s", self.name, error)

    async def _save(self, state: GroupState, cursor: Cursor) -> None:
        """Move the cursor to the floor, once what it rests on is durable."""
        floor = state.floor
        if floor > cursor.position:
            if self._failure is None:
                await self._notes.sync()
            await cursor.commit(floor)

    def _fail(self, error: WalError) -> None:
        if self._failure is None:
            self._failure = error
        failure = self._failure
        self._notes.fail(failure)
        self._changed.set()
