"""NumberedLetters: the dead letters of one group of an open log, each appended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from walstore.core.read.reader import Reader
from walstore.core.runtime.tasks import start_task
from walstore.errors import StreamClosedError, WalError
from walstore.positions.groups.group_state import GroupState
from walstore.positions.groups.journal import EntryKind, Remembered, entry
from walstore.positions.groups.journal_writer import JournalWriter, may_pass
from walstore.positions.groups.letters import JobFailure, append_letter
from walstore.records import Record

logger = logging.getLogger("walstore.groups")


class NumberedLetters:
    """The dead letters of a group. Their numbers, which the journal has, keep them single."""

    def __init__(
        self,
        name: str,
        stream: str,
        notes: JournalWriter,
        *,
        read: Callable[..., Reader],
        append: Callable[[int, Record, str], Awaitable[None]],
        settle: Callable[[Iterable[int]], Awaitable[None]],
        on_buried: Callable[[], None],
        on_failure: Callable[[WalError], None],
    ) -> None:
        """``read`` makes readers of the log. A letter goes to ``stream``; then its job is settled.

        ``append(number, letter, stream)`` appends a letter once, however often it is called.
        """
        self.last = 0
        """Number of the last letter."""
        self.numbers: dict[int, int] = {}
        """Numbers of the letters that are being appended, by the offset of their job."""
        self._name, self._stream = name, stream
        self._notes = notes
        self._read, self._append, self._settle = read, append, settle
        self._on_buried, self._on_failure = on_buried, on_failure
        self._burying: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether letters are being appended."""
        return self._burying is not None

    def start(self, state: GroupState) -> None:
        """Append the letters that are due, unless that is being done."""
        if self._burying is None:
            self._burying = start_task(
                self._bury(state), name=f"walstore dead letters of group {self._name}"
            )

    async def ended(self) -> None:
        """Return when no letter is being appended."""
        if self._burying is not None:
            await asyncio.wait([self._burying])

    async def _bury(self, state: GroupState) -> None:
        """Append the dead letters that are due, each once, and settle their jobs."""
        try:
            while state.dead:
                job = state.dead[0]
                if state.jobs.get(job.offset) is not job:  # settled late
                    state.dead.popleft()
                    continue
                number = self.numbers.get(job.offset)
                if number is None:
                    self.last = number = self.last + 1
                    self.numbers[job.offset] = number
                failure = JobFailure(job.error, job.first_us, job.last_us)
                await self._bury_one(job.record, job.deliveries, number, failure)
                state.dead.popleft()
                await self._settle((job.offset,))
                self.numbers.pop(job.offset, None)  # it may have been settled meanwhile
                self._on_buried()
        except WalError as error:
            if not may_pass(error) and not isinstance(error, StreamClosedError):
                self._on_failure(error)
            else:
                self._say_later(error)
        finally:
            self._burying = None

    async def _bury_one(
        self,
        record: Record,
        deliveries: int,
        number: int,
        failure: JobFailure = JobFailure(),  # noqa: B008 - a value
    ) -> None:
        self._notes.note(entry(EntryKind.BURIED, record.offset, number))
        await self._notes.sync()  # from now on this letter has this number

        async def append(letter: Record) -> None:
            await self._append(number, letter, self._stream)

        await append_letter(self._name, record, deliveries, append, failure)

    async def bury_again(self, state: GroupState, found: Remembered) -> None:
        """Append the letters again whose jobs a crash left unsettled; their numbers keep them single.

        If the log refuses one, since its stream is closed, its job keeps the number and is buried later.
        """
        left = [at for at in found.unsettled(found.buried) if at >= state.position]
        for offset in sorted(left, key=found.buried.__getitem__):
            number = found.buried[offset]
            async with self._read(offset, stop=offset + 1, follow=False) as reader:
                async for record in reader:
                    try:
                        await self._bury_one(record, found.deliveries.get(offset, 0), number)
                    except StreamClosedError as error:
                        self._say_later(error)
                        self.numbers[offset] = number
                        continue
                    self._notes.note(entry(EntryKind.SETTLED, offset, offset + 1))
                    state.settle(offset)
        found.buried.clear()
        await self._notes.sync()

    def _say_later(self, error: WalError) -> None:
        logger.warning("a dead letter of group %s will be appended later: %s", self._name, error)
