"""MeteredStore: counts the requests and bytes that go through it, times the answers, and states the cost.

    metered = MeteredStore(open_store(url))
    async with Wal.open(path, tier=CloudTier(url, store=metered)) as wal:
        ...
    metered.usage().requests, metered.usage().cost()

It counts the calls made on it: those of the stores above, but not what the stores below repeat by
themselves (the S3 store repeats failed reads).
"""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from uploader.stores.port import (
    FIRST_PAGE,
    NEXT_PAGE,
    ListedObject,
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
)
from uploader.stores.wrapper import Kind, Request, StoreWrapper, content_bytes
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.metric import Histogram, Labels, Metric, MetricKind, figure
from walstore.core.validation.arguments import as_texts
from walstore.core.validation.fields import check_fields, described, number
from walstore.errors import InvalidSettingsError

LATENCY_BOUNDS_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
)  # fmt: skip
"""Upper bounds, inclusive, of the counts in :class:`KindUsage`; one more count is beyond the last."""

LISTED_BYTES = 250
"""About what S3 sends for an object in a listing, in addition to its key."""

_GB = 1e9


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What requests and traffic cost, in any currency.

    The defaults are Amazon's list prices for S3 Standard in us-east-1, in US dollars, used from the same
    region. Prices differ and change: set your own.
    """

    per_1000_puts: float = number(0.005, "Conditional puts, refused ones included.")

    per_1000_gets: float = number(0.0004, "Reads, ranges and heads.")

    per_1000_lists: float = number(
        0.005, "Listings: a request for the first hundred objects, then for each thousand."
    )

    per_1000_deletes: float = number(0.0, "Deleted objects.")

    per_gb_received: float = number(
        0.0, "10**9 bytes of content and listings read. To the internet it is 0.09."
    )

    per_gb_sent: float = number(0.0, "10**9 bytes of content put.")

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True)
class KindUsage:
    """Requests of one kind."""

    requests: int = 0
    """Requests made, failed ones included. A listing is one, and one more beyond the first hundred objects
    and beyond each thousand after these; a delete is one for each key."""

    failures: int = 0
    """Calls that ended with a fault of the store. Missing objects and refused puts are not faults."""

    cancelled: int = 0
    """Calls that were cancelled before their answer."""

    sent_bytes: int = 0
    """Content handed to puts."""

    received_bytes: int = 0
    """Content returned by reads. For listings an estimate: the key and :data:`LISTED_BYTES`
    for each object that was read."""

    total_seconds: float = 0.0
    """Sum of the times of all calls that were not cancelled."""

    longest_seconds: float = 0.0
    """The longest of them."""

    latency_counts: tuple[int, ...] = field(default=(0,) * (len(LATENCY_BOUNDS_SECONDS) + 1))
    """These calls by the first of :data:`LATENCY_BOUNDS_SECONDS` that they did not exceed."""

    def latency_seconds(self, fraction: float) -> float:
        """Return a bound that at least this fraction of the calls did not exceed; 0 without calls.

        The longest time is returned instead where it is smaller than the bound.
        """
        wanted = fraction * sum(self.latency_counts)
        reached = 0
        for bound, count in zip(LATENCY_BOUNDS_SECONDS, self.latency_counts, strict=False):
            reached += count
            if reached >= wanted:
                return min(bound, self.longest_seconds)
        return self.longest_seconds


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything that went through a :class:`MeteredStore` so far."""

    kinds: Mapping[Kind, KindUsage]
    """By kind of call; only those that were made."""

    def of(self, kind: Kind) -> KindUsage:
        """Return the usage of one kind, zeros if there was none."""
        return self.kinds.get(kind, KindUsage())

    @property
    def requests(self) -> int:
        """Requests of all kinds."""
        return sum(used.requests for used in self.kinds.values())

    @property
    def sent_bytes(self) -> int:
        """Content handed to puts."""
        return sum(used.sent_bytes for used in self.kinds.values())

    @property
    def received_bytes(self) -> int:
        """Content returned by reads, and the estimate for listings."""
        return sum(used.received_bytes for used in self.kinds.values())

    def cost(self, prices: Prices | None = None) -> float:
        """Return what the requests and the traffic cost. Storage is not part of it."""
        prices = prices or Prices()
        per_1000: dict[Kind, float] = {
            "get": prices.per_1000_gets,
            "get_range": prices.per_1000_gets,
            "head": prices.per_1000_gets,
            "list": prices.per_1000_lists,
            "put_if_absent": prices.per_1000_puts,
            "put_if_match": prices.per_1000_puts,
            "delete": prices.per_1000_deletes,
        }
        requests = sum(per_1000[kind] * used.requests for kind, used in self.kinds.items()) / 1000
        received = prices.per_gb_received * self.received_bytes / _GB
        return requests + received + prices.per_gb_sent * self.sent_bytes / _GB


_T = TypeVar("_T")

_ANSWERS = (ObjectNotFoundError, PreconditionFailedError, InvalidSettingsError)


@dataclass(slots=True)
class _Meter:
    """The counts of one kind; :class:`KindUsage` is a copy of it."""

    requests: int = 0
    failures: int = 0
    cancelled: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0
    latency_counts: list[int] = field(
        default_factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
    )

    def time(self, seconds: float) -> None:
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.latency_counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1

    def copy(self) -> KindUsage:
        counted = dataclasses.asdict(self)
        return KindUsage(**{**counted, "latency_counts": tuple(self.latency_counts)})


class MeteredStore(StoreWrapper):
    """The port over another store, counted. Belongs to one event loop; costs some microseconds a call."""

    def __init__(self, inner: ObjectStore, *, clock: Clock | None = None) -> None:
        """Wrap ``inner`` and begin at zero; ``clock`` times the answers."""
        super().__init__(inner)
        self._clock = clock or SystemClock()
        self._meters: dict[Kind, _Meter] = {}

    @property
    def metrics(self) -> Sequence[Metric]:
        """What ``PrometheusMetrics.watch`` shows of it."""
        return METRICS

    def usage(self) -> Usage:
        """Return a copy of the counts so far."""
        return Usage({kind: meter.copy() for kind, meter in self._meters.copy().items()})

    def latencies(self) -> dict[Kind, Histogram]:
        """Return the times of the calls that were not cancelled."""
        found: dict[Kind, Histogram] = {}
        for kind, meter in self._meters.copy().items():
            found[kind] = times = Histogram(LATENCY_BOUNDS_SECONDS)
            times.counts, times.total = meter.latency_counts[:], meter.total_seconds
        return found

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
        doomed = as_texts(keys, "keys")
        meter = self._meter("delete")
        meter.requests += len(doomed)
        await self._timed(meter, self.inner.delete(doomed))

    async def _call(self, request: Request[_T]) -> _T:
        meter = self._meter(request.kind)
        meter.requests += 1
        meter.sent_bytes += request.sent_bytes
        answer = await self._timed(meter, request())
        meter.received_bytes += content_bytes(answer)
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


def _of(field: str) -> Callable[[MeteredStore], dict[Labels, float]]:
    get = attrgetter(field)
    return lambda store: {(kind,): get(used) for kind, used in store.usage().kinds.items()}


def _latencies(store: MeteredStore) -> dict[Labels, Histogram]:
    return {(kind,): times for kind, times in store.latencies().items()}


_KIND = ("kind",)

METRICS = (
    figure("store", "requests", "Requests, failed ones included.", _of("requests"), labels=_KIND),
    figure("store", "failures", "Calls that ended with a fault.", _of("failures"), labels=_KIND),
    figure(
        "store",
        "cancellations",
        "Calls that were cancelled before their answer.",
        _of("cancelled"),
        labels=_KIND,
    ),
    figure("store", "sent_bytes", "Content handed to puts.", _of("sent_bytes"), labels=_KIND),
    figure(
        "store",
        "received_bytes",
        "Content returned by reads; for listings an estimate.",
        _of("received_bytes"),
        labels=_KIND,
    ),
    figure(
        "store",
        "cost",
        "What requests and traffic cost at S3's list prices, in US dollars.",
        lambda store: {(): store.usage().cost()},
    ),
    figure(
        "store",
        "request_seconds",
        "Times of calls that were not cancelled.",
        _latencies,
        kind=MetricKind.HISTOGRAM,
        labels=_KIND,
    ),
)
"""What is shown of a metered store."""
