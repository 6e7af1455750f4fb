"""MeteredStore: counts the requests and bytes that go through it, and times the answers.

    metered = MeteredStore(open_store(url))
    async with Wal.open(path, tier=CloudTier(url, store=metered)) as wal:
        ...
    metered.usage().requests, metered.usage().cost()

It counts the calls made on it: those of the stores above, but not what the stores below repeat by
themselves (the S3 store repeats failed reads).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TypeVar

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from uploader.stores.port import FIRST_PAGE, NEXT_PAGE, ListedObject, ObjectStore, StoredObject
from uploader.stores.usage import LATENCY_BOUNDS_SECONDS, LISTED_BYTES, KindUsage, Usage
from uploader.stores.wrapper import Kind, Request, StoreWrapper
from walstore.errors import InvalidSettingsError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock

_T = TypeVar("_T")

_ANSWERS = (ObjectNotFoundError, PreconditionFailedError, InvalidSettingsError)


class _Meter:
    """The counts of one kind; :class:`KindUsage` is a copy of it."""

    __slots__ = (
        "cancelled", "counts", "failures", "longest_seconds", "received_bytes", "requests",
        "sent_bytes", "total_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.failures = self.cancelled = 0
        self.sent_bytes = self.received_bytes = 0
        self.total_seconds = self.longest_seconds = 0.0
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)

    def time(self, seconds: float) -> None:
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1

    def copy(self) -> KindUsage:
        return KindUsage(
            requests=self.requests,
            failures=self.failures,
            cancelled=self.cancelled,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            total_seconds=self.total_seconds,
            longest_seconds=self.longest_seconds,
            latency_counts=tuple(self.counts),
        )


class MeteredStore(StoreWrapper):
    """The port over another store, counted. Belongs to one event loop; costs some microseconds a call."""

    def __init__(self, inner: ObjectStore, *, clock: Clock | None = None) -> None:
        """Wrap ``inner`` and begin at zero; ``clock`` times the answers."""
        super().__init__(inner)
        self._clock = clock or SystemClock()
        self._meters: dict[Kind, _Meter] = {}

    def usage(self) -> Usage:
        """Return a copy of the counts so far."""
        return Usage({kind: meter.copy() for kind, meter in self._meters.items()})

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Pass a listing through; timed at the first object of each page, which costs a request.

        Pages are assumed to have a hundred objects, then a thousand each, as the S3 store requests them.
        """
        meter = self._meter("list")
        meter.requests += 1
        found = self.inner.list(prefix, after=after)
        listed = await self._timed(meter, anext(found, None))
        left = FIRST_PAGE
        while listed is not None:
            meter.received_bytes += LISTED_BYTES + len(listed.key.encode())
            yield listed
            left -= 1
            if left:
                listed = await anext(found, None)
            else:
                left = NEXT_PAGE
                listed = await self._timed(meter, anext(found, None))
                meter.requests += listed is not None

    async def delete(self, keys: Iterable[str]) -> None:
        """Pass a delete through; a request for each key."""
        doomed = list(keys)
        meter = self._meter("delete")
        meter.requests += len(doomed)
        await self._timed(meter, self.inner.delete(doomed))

    async def _call(self, request: Request[_T]) -> _T:
        meter = self._meter(request.kind)
        meter.requests += 1
        meter.sent_bytes += request.sent_bytes
        answer = await self._timed(meter, request())
        if isinstance(answer, StoredObject):
            meter.received_bytes += len(answer.data)
        elif isinstance(answer, bytes):
            meter.received_bytes += len(answer)
        return answer

    async def _timed(self, meter: _Meter, answering: Awaitable[_T]) -> _T:
        began = self._clock.monotonic()
        try:
            answer = await answering
        except asyncio.CancelledError:
            meter.cancelled += 1
            raise
        except Exception as error:
            meter.failures += not isinstance(error, _ANSWERS)
            meter.time(self._clock.monotonic() - began)
            raise
        meter.time(self._clock.monotonic() - began)
        return answer

    def _meter(self, kind: Kind) -> _Meter:
        if kind not in self._meters:
            self._meters[kind] = _Meter()
        return self._meters[kind]
