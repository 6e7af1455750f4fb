"""Programs that may lead one log, with a store in memory that may lose the answers of chosen swaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from walstore.errors import OutcomeUnknownError
from walstore.testing import ManualClock
from walstore.topology.documents import Leader
from walstore.topology.key_values import Swap
from walstore.topology.leadership import Leadership
from walstore.topology.memory import MemoryClient, MemoryKeyValues
from walstore.topology.session import Session

KEY = "walstore/leaders/orders"
RENEWED_SECONDS = 20
"""Between two renewals of a program's lease."""


class Client(MemoryClient):
    """A client whose next swaps end as ``fates`` has it, in order.

    One that is ``lost`` is executed and has no answer, one that is ``dropped`` is not executed and has none.
    The store is cut off before one that is ``cut off``, and after one that is ``silent``, or else ``lost``.
    """

    def __init__(self, store: MemoryKeyValues, name: str) -> None:
        super().__init__(store, name)
        self.fates: list[str] = []

    async def swap(self, key: str, value: bytes | None, *, expected: int, lease: int = 0) -> Swap:
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "dropped":
            raise OutcomeUnknownError("the request may come later")
        self.cut_off = self.cut_off or fate == "cut off"
        self.loses_answers = fate in ("lost", "silent")
        try:
            return await super().swap(key, value, expected=expected, lease=lease)
        finally:
            self.loses_answers = False
            self.cut_off = self.cut_off or fate == "silent"


class Program:
    """One of them. Made by :func:`program`."""

    def __init__(self, name: str, store: MemoryKeyValues, client: Client, session: Session) -> None:
        self.value = Leader(f"tls://{name}", "")
        """That it wants others to see."""
        self.client = client
        self.session = session
        self.claim = Leadership(client, KEY, session, name.encode)
        self._name = name
        self._store = store

    def begin_again(self) -> None:
        """Forget the claim, and have another one with the same lease: the log was opened again."""
        self._name += "+"
        self.claim = Leadership(self.client, KEY, self.session, self._name.encode)

    async def take(self) -> Leader | None:
        return await self.claim.take(self.value)

    async def publish(self, epoch: int) -> bool:
        self.value = self.value._replace(epoch=epoch)
        return await self.claim.publish(self.value)

    @property
    def leads(self) -> bool:
        """Whether it knows that it leads, and others see the value that it wants, with its lease."""
        found = self._store.get(KEY)
        if found is None or found.lease != self.session.lease:
            return False
        wanted = self.value._replace(tag=self.claim.tag)
        return Leader.decode(found.value, KEY) == wanted == self.claim.value

    @asynccontextmanager
    async def keeping(self, clock: ManualClock) -> AsyncIterator[None]:
        """Publish what ``value`` is, once a second."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.claim.keep(lambda: self.value, clock, pause_seconds=1))
            yield
            task.cancel()


@asynccontextmanager
async def program(store: MemoryKeyValues, name: str) -> AsyncIterator[Program]:
    client, ttl_seconds = Client(store, name), 3 * RENEWED_SECONDS
    async with Session.open(client, ttl_seconds=ttl_seconds, clock=store.clock) as session:
        yield Program(name, store, client, session)


async def pass_seconds(clock: ManualClock, seconds: int, *, sleepers: int) -> None:
    """Advance second by second, each time when so many tasks sleep; in the end they sleep again."""
    for _ in range(seconds):
        await clock.wait_for_sleepers(sleepers)
        clock.advance(1)
    await clock.wait_for_sleepers(sleepers)
