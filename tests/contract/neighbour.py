"""Neighbour: a task on the handle, or the connection, that a test uses: cancelled all the time, at random.

It also calls from a wrong thread now and then. What it does may not be noticed by the test; and what the test
does may not cost the neighbour anything: it gets each record once, in order, and each job once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, Final

from tests.contract.faces import Face
from tests.contract.from_threads import FromThreads
from tests.effort import first_seed
from walstore import OffsetTrimmedError, WalClosedError, WalError, WrongLoopError

_MOST_TURNS: Final = 12
_LEAST_CANCELLED: Final = 20
_REFUSED_SECONDS: Final = 30
"""How long a call from elsewhere may take that is refused at once."""
_REST_TURNS: Final = 3
"""How often others come between two of its calls."""


class Neighbour:
    """Reads the log, fetches jobs if it is in a group, and looks around."""

    def __init__(self, face: Face, random: Random) -> None:
        self._face, self._random = face, random
        self._reader: Any = None
        self._group: Any = None
        self.offsets: list[int] = []
        self.jobs: list[tuple[int, int]] = []
        """Offset and number of deliveries of each job."""
        self.cancelled = 0
        self.ended: WalError | None = None
        """Why it ended before it was told to: the test closed the log."""

    async def live(self, stop: asyncio.Event) -> None:
        """Begin calls and cancel them, until told to stop, and often enough."""
        while not stop.is_set() or self.cancelled < _LEAST_CANCELLED:
            call = self._random.choice(self._calls())
            try:
                await self._cancelled(call)
                if self._random.random() < 0.1:
                    await self._intrude()
            except OffsetTrimmedError:
                self._reader.seek("earliest")
                self.offsets.clear()
            except WalClosedError as error:
                self.ended = error
                return
            for _ in range(_REST_TURNS):
                await asyncio.sleep(0)

    async def finish(self) -> None:
        """Call without being cancelled, and compare what it got with what is there."""
        if self.ended is not None:
            return
        if self._reader is not None:
            async with self._face.log.reader(follow=False) as reader:
                there = [record.offset async for record in reader]
            while there and (not self.offsets or self.offsets[-1] < there[-1]):
                try:
                    self.offsets.append((await anext(self._reader)).offset)
                except OffsetTrimmedError:
                    self._reader.seek("earliest")
                    self.offsets.clear()
            assert self.offsets == sorted(set(self.offsets))
            assert [offset for offset in self.offsets if offset >= self._face.log.head] == there
        if self._group is not None:
            while jobs := await self._group.fetch(100, max_wait_seconds=0):
                self.jobs += [(job.offset, job.deliveries) for job in jobs]
            offsets = [offset for offset, _ in self.jobs]
            assert len(set(offsets)) == len(offsets)
            assert {deliveries for _, deliveries in self.jobs} <= {1}

    async def enter(self, stack: AsyncExitStack, group: str | None) -> None:
        """Make what it uses."""
        log = self._face.log
        if hasattr(log, "reader") and not isinstance(log, FromThreads):
            self._reader = log.follow()
        if group is not None:
            member = log.group(group, ack_wait_seconds=3600)
            self._group = await stack.enter_async_context(member)

    # -- inside ------------------------------------------------------------------------------

    def _calls(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        found = [self._look]
        if self._reader is not None:
            found += [self._read, self._read_some]
        if self._group is not None:
            found += [self._fetch] * 2
        return found

    async def _read(self) -> None:
        self.offsets.append((await anext(self._reader)).offset)

    async def _read_some(self) -> None:
        batch = await self._reader.fetch(max_records=self._random.randint(1, 5))
        self.offsets += batch.offsets

    async def _fetch(self) -> None:
        for job in await self._group.fetch(self._random.randint(1, 3)):
            self.jobs.append((job.offset, job.deliveries))

    async def _look(self) -> None:
        log = self._face.log
        names = ("refresh", "flush", "cursors", "groups", "find_logs")
        found = [call for name in names if callable(call := getattr(log, name, None))]
        await self._random.choice(found)()

    async def _cancelled(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make a call that is cancelled after some turns of the event loop, unless it has ended."""
        task = asyncio.ensure_future(call())
        for _ in range(self._random.randrange(_MOST_TURNS)):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            self.cancelled += 1
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def _intrude(self) -> None:
        """Call from the event loop of another thread."""
        log = self._face.log
        if isinstance(log, FromThreads):
            return  # that is what it is for

        found: list[BaseException | None] = []

        async def close() -> None:
            try:
                async with asyncio.timeout(_REFUSED_SECONDS):
                    await log.aclose()
                found.append(None)
            except (WalError, TimeoutError) as error:
                found.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(close()))
        thread.start()
        await asyncio.to_thread(thread.join)
        is_over = getattr(log, "is_closing", False)
        assert is_over or isinstance(found[0], WrongLoopError), found


@asynccontextmanager
async def beside(face: Face, name: str, group: str | None = None) -> AsyncIterator[Neighbour]:
    """Let a neighbour live for the length of a block; it is asked at the end what it got."""
    neighbour = Neighbour(face, Random(first_seed(name)))
    connections, stop = face.connections, asyncio.Event()
    async with AsyncExitStack() as stack:
        await neighbour.enter(stack, group)
        living = asyncio.create_task(neighbour.live(stop), name="the neighbour")
        try:
            yield neighbour
        except BaseException:
            living.cancel()
            await asyncio.wait((living,))
            raise
        stop.set()
        async with asyncio.timeout(60):
            await living
            await neighbour.finish()
        assert face.connections == connections
