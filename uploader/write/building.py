"""Building: one fragment in the making, on the worker's threads. It belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from uploader.format.setsum import Setsum
from uploader.fragments.fragment_builder import EncodedFragment, FragmentBuilder, FragmentFile
from walstore.batches.batch import Batch
from walstore.runtime.threads import Worker

Records = Callable[[], Sequence[Batch]]
"""Returns records in a form that can be encoded; called on a thread."""


class Building:
    """Calls follow one another in the order in which they were made."""

    def __init__(
        self,
        worker: Worker,
        *,
        timestamp_us: int,
        writer: str | None = None,
        closings: int | None = None,
    ) -> None:
        """``timestamp_us`` is the fragment's time; ``writer`` and ``closings`` go into the footer."""
        self._worker = worker
        self._builder = FragmentBuilder(timestamp_us=timestamp_us, writer=writer, closings=closings)
        self._turn = asyncio.Lock()
        self._missing = 0  # parts that were not added yet, or never will be
        self.is_broken = False
        """Whether records are missing from it for good. Then it is of no use any more."""

    def add(self, records: Records) -> Coroutine[None, None, None]:
        """Encode and hash the next records. If this is cancelled, or fails, the building is broken."""
        self._missing += 1  # at once: a task may be cancelled before it takes its first step
        return self._add(records)

    async def finish(self, records: Records) -> EncodedFragment:
        """Encode and hash the last records and return the fragment."""
        async with self._turn:
            self._check()
            return await self._worker.run(lambda: self._builder.finish(records()))

    async def write(self, records: Records) -> FragmentFile:
        """Encode the last records and return the file; then call :meth:`sum`."""
        async with self._turn:
            self._check()
            return await self._worker.run(lambda: self._builder.write(records()))

    async def sum(self) -> Setsum:
        """Hash what has not been hashed yet, and return the sum of all records."""
        async with self._turn:
            return await self._worker.run(self._builder.sum)

    # -- inside ------------------------------------------------------------------------------

    async def _add(self, records: Records) -> None:
        try:
            async with self._turn:
                await self._worker.run(lambda: self._builder.add(records()))
        except BaseException:
            self.is_broken = True
            raise
        self._missing -= 1

    def _check(self) -> None:
        if self._missing:
            raise RuntimeError("a part of the fragment was given up")
