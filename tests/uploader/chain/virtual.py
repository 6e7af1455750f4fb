"""A world for simulations: an event loop whose time jumps, and a store whose network does what it likes.

All that happens follows from a seed. Nothing waits for real; when nothing can happen any more although
somebody waits, the loop says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
)
from walstore.errors import StorageUnavailableError


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never sleeps: when there is nothing to do, it is the time of the next timer at once."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(seconds: float | None = None) -> Any:
            if seconds is None:
                raise RuntimeError("everybody waits, and nothing is going to happen")
            self._now += seconds
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


class VirtualClock:
    """Of one machine: its wall clock may be wrong by some seconds."""

    def __init__(self, off_seconds: float = 0.0) -> None:
        self._off_us = round(off_seconds * 1e6)

    def now_us(self) -> int:
        return 1_750_000_000_000_000 + self._off_us + round(self.monotonic() * 1e6)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Weather:
    """How the network is."""

    usual_seconds: float = 0.1
    lost: float = 0.03
    """How often a request never arrives, though its sender waits for an answer."""
    unanswered: float = 0.03
    """How often an answer never arrives."""
    late: float = 0.01
    """How often a request arrives after minutes or hours, when its sender has given up."""
    patient: float = 0.1
    """How often a sender does not give up for hours."""


class World:
    """What lies in the store, and all that was ever put there."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.objects: dict[str, bytes] = {}
        self.first: dict[str, bytes] = {}
        """What was put under each key at first, deleted since or not."""
        self.late_puts = 0
        self.reused = 0
        """Puts that a store took under a name that had been used and cleaned up."""


class NetworkStore:
    """The port, as one client sees it. What it sent arrives whether or not it still waits."""

    url = "sim://world"

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, key: str) -> StoredObject:
        def effect() -> StoredObject:
            if key not in self._world.objects:
                raise ObjectNotFoundError("there is no such object", key=key)
            return StoredObject(self._world.objects[key], "etag")

        return await self._ask(effect)

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        return (await self.get(key)).data[start:limit]

    async def head(self, key: str) -> ObjectInfo | None:
        def effect() -> ObjectInfo | None:
            data = self._world.objects.get(key)
            return None if data is None else ObjectInfo(key, len(data), "etag")

        return await self._ask(effect)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        def effect() -> list[ListedObject]:
            return [
                ListedObject(key, len(data))
                for key, data in sorted(self._world.objects.items())
                if key.startswith(prefix) and (after is None or key > after)
            ]

        for listed in await self._ask(effect):
            yield listed

    async def put_if_absent(self, key: str, data: bytes) -> str:
        def effect() -> str:
            if key in self._world.objects:
                raise PreconditionFailedError("it exists", key=key)
            self._world.reused += key in self._world.first
            self._world.objects[key] = data
            self._world.first.setdefault(key, data)
            return "etag"

        return await self._ask(effect, is_write=True)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        raise AssertionError("a chain needs no swaps")

    async def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)

        def effect() -> None:
            for key in doomed:
                self._world.objects.pop(key, None)

        await self._ask(effect, is_write=True)

    async def aclose(self) -> None:
        pass

    async def _ask(self, effect: Callable[[], Any], *, is_write: bool = False) -> Any:
        """Send a request; return its answer, or learn that none came."""
        world, random, weather = self._world, self._world.random, self._world.weather
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()

        def answer(result: Any, error: Exception | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(result)

        def arrive() -> None:
            result, error = None, None
            try:
                result = effect()
            except (ObjectNotFoundError, PreconditionFailedError) as raised:
                error = raised
            if random.random() >= weather.unanswered:
                loop.call_later(self._way(), answer, result, error)

        chance = random.random()
        if is_write and chance < weather.late:
            world.late_puts += 1
            loop.call_later(
                random.choice([random.uniform(5, 500), random.uniform(3000, 9000)]), arrive
            )
        elif chance >= weather.late + weather.lost:
            loop.call_later(self._way(), arrive)
        try:
            # Now and then a client waits for as long as it takes; then it may be told after an hour.
            patience = 20_000.0 if random.random() < weather.patient else 30.0
            return await asyncio.wait_for(answered, patience)
        except TimeoutError as error:
            outcome = "unknown" if is_write else "not_written"
            raise StorageUnavailableError("no answer", outcome=outcome) from error

    def _way(self) -> float:
        return self._world.random.expovariate(2 / self._world.weather.usual_seconds)
