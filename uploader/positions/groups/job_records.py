"""The records of a group's jobs: JobReader reads them for members, DeadLetters appends those of dead ones."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from uploader.format import layout
from uploader.format.group_document import GroupDocument
from uploader.positions.groups.group_place import GroupPlace, LetterWriter
from walstore.core.read.reader import Reader
from walstore.errors import CorruptionError, WalError
from walstore.positions.groups.group_settings import GroupSettings
from walstore.positions.groups.letters import JobFailure, append_letter
from walstore.positions.groups.redrive import is_job
from walstore.records import Record

logger = logging.getLogger("walstore.groups")

_READ_RECORDS: Final = 512
_READ_BYTES: Final = 1 << 20


class JobReader:
    """The records of a group's jobs: those that follow, read ahead, and single ones."""

    def __init__(self, place: GroupPlace, name: str, settings: GroupSettings) -> None:
        """For the group ``name``; a group of all streams does not read its own dead letters."""
        self._place = place
        self._name = name
        self._settings = settings
        self._skipped = settings.letters_of(name) if settings.stream is None else None
        self._reader: Reader | None = None
        self.ahead: deque[Record] = deque()
        """The next records of the log that are jobs."""
        self.limit = 0
        """They are all there are below it."""

    async def read_ahead(self, document: GroupDocument, wanted: int) -> None:
        """Read the next records of the log, as many as may be wanted."""
        position = document.position
        await self._see_up_to(position)
        self.pass_by(position)
        if self._reader is None:
            self._reader = self._place.log.reader(position, stream=document.stream)
            self.limit = position
        if self.limit < position:  # another process was there
            self.ahead.clear()
            self._reader.seek(position)
            self.limit = position
        delayed = sum(row.is_delayed for row in document.rows.values())
        room = max(0, self._settings.most_unsettled + delayed - len(document.rows))
        wanted = room if document.is_ordered else min(wanted, room)
        while len(self.ahead) < wanted and self.limit < self._place.log.tail:
            batch = await self._reader.fetch(max_records=_READ_RECORDS, max_bytes=_READ_BYTES)
            if batch.limit <= self.limit:
                return
            self.limit = batch.limit
            self.ahead.extend(
                record for record in batch.records() if is_job(record, self._name, self._skipped)
            )

    def pass_by(self, position: int) -> dict[int, Record]:
        """Drop and return what was read ahead of a position."""
        passed: dict[int, Record] = {}
        while self.ahead and self.ahead[0].offset < position:
            record = self.ahead.popleft()
            passed[record.offset] = record
        return passed

    async def read(self, offset: int) -> Record:
        """Return the record of one job."""
        await self._see_up_to(offset + 1)
        async with self._place.log.reader(offset, stop=offset + 1) as reader:
            async for record in reader:
                return record
        raise CorruptionError(
            "the group has a job that the log does not have",
            path=layout.group_path(self._name),
            position=offset,
        )

    async def _see_up_to(self, position: int) -> None:
        """Read the manifest again if another process has seen a newer one."""
        if self._place.log.tail < position:
            await self._place.log.refresh()


class DeadLetters:
    """The dead letters of one group. Belongs to the event loop."""

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        letters: LetterWriter | None,
        settle: Callable[[int], Awaitable[None]],
    ) -> None:
        """For the group ``name``, whose jobs ``settle`` settles."""
        self._name = name
        self._settings = settings
        self._letters = letters
        self._settle = settle
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether some are being appended."""
        return bool(self._tasks)

    def begin(
        self,
        record: Record,
        deliveries: int,
        failure: JobFailure = JobFailure(),  # noqa: B008 - a value
    ) -> asyncio.Task[None]:
        """Append a dead letter and settle its job, without waiting for it.

        After a failure, or once this is closed, the job is due again after its lease.
        """
        task = asyncio.get_running_loop().create_task(
            self._append(record, deliveries, failure),
            name=f"walstore dead letter of group {self._name}",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """End what is in progress; each job is settled, or is not."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _append(self, record: Record, deliveries: int, failure: JobFailure) -> None:
        assert self._letters is not None
        counted, letters = min(deliveries, self._settings.max_deliver or deliveries), self._letters
        stream = self._settings.letters_of(self._name)

        async def append(letter: Record) -> None:
            await letters.append(
                letter.value, key=letter.key, stream=stream, headers=letter.headers
            )

        try:
            await append_letter(self._name, record, counted, append, failure)
            await self._settle(record.offset)
        except WalError as error:
            logger.warning(
                "a dead letter of group %s will be appended later: %s", self._name, error
            )
