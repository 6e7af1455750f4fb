"""LatencyStore: adds latency to a store, on a given clock. For benchmarks and simulations.

    slow = LatencyStore(MemoryStore(), fixed(0.1))                               # 100 ms for everything
    slow = LatencyStore(
        MemoryStore(),
        {"put_if_absent": lognormal(0.03, 0.6, chance=random.Random(7).random), "get": fixed(0.01)},
        clock=clock,
    )

Half of the time passes before the inner call and half after it, as in a round trip: other clients see a
put before its writer knows. Owns neither randomness nor a clock.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from statistics import NormalDist
from typing import TypeVar

from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.wrapper import Kind, Request, StoreWrapper, content_bytes
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.errors import InvalidSettingsError

_T = TypeVar("_T")

Latency = Callable[[], float]
"""Returns the seconds that one call takes; called once for each."""

_LISTED_AT_ONCE = 1000
_STANDARD = NormalDist()


def fixed(seconds: float) -> Latency:
    """Return the same latency for every call; 0 or more."""
    if not 0 <= seconds < math.inf:
        raise InvalidSettingsError(f"a latency must be 0 or more seconds, not {seconds}")
    return lambda: seconds


def lognormal(median_seconds: float, sigma: float, *, chance: Callable[[], float]) -> Latency:
    """Return latencies of which half are below the median, with a long tail above it.

    Args:
        median_seconds: More than 0.
        sigma: Standard deviation of the logarithm, 0 or more: at 0.5 one call in a hundred takes longer
            than 3.2 medians, at 1.0 longer than 10.
        chance: Returns a number in ``[0, 1)`` for each call; ``random.Random(seed).random``.
    """
    if not (0 < median_seconds < math.inf and 0 <= sigma < math.inf):
        raise InvalidSettingsError(
            f"a lognormal latency needs median_seconds > 0 and sigma >= 0 ({median_seconds}, {sigma})"
        )

    def latency() -> float:
        # The normal distribution has no quantiles at 0 and 1.
        quantile = min(max(chance(), 1e-9), 1 - 1e-9)
        return median_seconds * math.exp(sigma * _STANDARD.inv_cdf(quantile))

    return latency


class LatencyStore(StoreWrapper):
    """The port over another store, with a delay for each call."""

    def __init__(
        self,
        inner: ObjectStore,
        latency: Latency | Mapping[Kind, Latency],
        *,
        bytes_per_second: float = math.inf,
        clock: Clock | None = None,
    ) -> None:
        """Wrap ``inner``, which answers at once.

        Args:
            inner: The store of the objects.
            latency: For all calls, or by kind; other kinds take no time. A listing takes it
                once for each thousand objects.
            bytes_per_second: Rate of each single call; content is delayed before the inner call
                for puts, after it for reads.
            clock: The clock of the delays.
        """
        super().__init__(inner)
        self._latency = latency
        self._bytes_per_second = bytes_per_second
        self._clock = clock or SystemClock()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Pass a listing through, a thousand objects for each delay."""
        count = 0
        async for listed in self.inner.list(prefix, after=after):
            if count % _LISTED_AT_ONCE == 0:
                await self._pass(self._seconds("list"))
            count += 1
            yield listed
        if not count:
            await self._pass(self._seconds("list"))

    async def _call(self, request: Request[_T]) -> _T:
        half = self._seconds(request.kind) / 2
        there = half + request.sent_bytes / self._bytes_per_second
        # A clock is late by up to a millisecond: the second delay makes up for the lateness of the first.
        arrives = self._clock.monotonic() + there
        await self._pass(there)
        try:
            answer = await request()
        except Exception:
            await self._pass_until(arrives + half)
            raise
        await self._pass_until(arrives + half + content_bytes(answer) / self._bytes_per_second)
        return answer

    def _seconds(self, kind: Kind) -> float:
        latency = self._latency
        if isinstance(latency, Mapping):
            return latency[kind]() if kind in latency else 0.0
        return latency()

    async def _pass_until(self, time: float) -> None:
        await self._pass(time - self._clock.monotonic())

    async def _pass(self, seconds: float) -> None:
        if seconds > 0:
            await self._clock.sleep(seconds)
