"""DeadLetters: appends the jobs that were delivered too often to where dead letters go, and settles them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from uploader.groups.group_place import LetterWriter
from walstore.errors import WalError
from walstore.groups.letters import append_letter
from walstore.groups.settings import GroupSettings
from walstore.records import Record

logger = logging.getLogger("walstore")


class DeadLetters:
    """The dead letters of one group. Belongs to the event loop."""

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        letters: LetterWriter | None,
        settle: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        """For the group ``name``, whose jobs ``settle`` settles."""
        self.count = 0
        """How many were appended."""
        self._name = name
        self._settings = settings
        self._letters = letters
        self._settle = settle
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether some are being appended."""
        return bool(self._tasks)

    def begin(self, record: Record, deliveries: int) -> None:
        """Append a dead letter and settle its job, without waiting for it.

        After a failure, or once this is closed, the job is due again after its lease.
        """
        task = asyncio.get_running_loop().create_task(
            self._append(record, deliveries), name=f"walstore dead letter of group {self._name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """End what is in progress; each job is settled, or is not."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _append(self, record: Record, deliveries: int) -> None:
        assert self._letters is not None
        assert self._settings.max_deliver is not None
        counted, letters = min(deliveries, self._settings.max_deliver), self._letters
        stream = self._settings.letters_of(self._name)

        async def append(letter: Record) -> None:
            await letters.append(
                letter.value, key=letter.key, stream=stream, headers=letter.headers
            )

        try:
            await append_letter(self._name, record, counted, append)
            await self._settle((record.offset,))
            self.count += 1
        except WalError as error:
            logger.warning(
                "a dead letter of group %s will be appended later: %s", self._name, error
            )
