"""RecordKeeper: the commit record while what it says is being published."""

from __future__ import annotations

import asyncio

from uploader.partitioned.commit_record import LogPlan, PublishPlace
from uploader.partitioned.record_file import Known, RecordFile
from walstore.errors import ContentionError


class SupersededError(Exception):
    """Another driver has brought the record further than we know: look again."""


class RecordKeeper:
    """The record while it is being published."""

    def __init__(self, file: RecordFile, known: Known, max_moves: int) -> None:
        self.known = known
        self._file = file
        self._moves_left = max_moves
        self._lock = asyncio.Lock()

    async def move(self, partition: int, plan: LogPlan, place: PublishPlace) -> LogPlan:
        """Let a plan go on at another place, unless another driver has moved it."""
        async with self._lock:
            while (found := self.known.record.logs[partition]).base == plan.base:
                self._count()
                record = self.known.record.moved(partition, place)
                written = await self._file.write(record, self.known)
                self.known = written or await self._read_again()
            return found

    async def finish(self) -> None:
        """Mark the record as done."""
        async with self._lock:
            while True:
                written = await self._file.write(self.known.record.done(), self.known)
                if written:
                    return
                self.known = await self._read_again()

    async def _read_again(self) -> Known:
        found = await self._file.read()
        ours = self.known.record
        if (
            found is None
            or found.record.is_done
            or (found.record.epoch, found.record.job) != (ours.epoch, ours.job)
        ):
            raise SupersededError
        return found

    def _count(self) -> None:
        self._moves_left -= 1
        if self._moves_left < 0:
            raise ContentionError(
                "other writers of the logs come between again and again; what is committed will be published "
                "by the next run",
                retriable=True,
            )
