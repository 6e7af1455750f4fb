"""Counts of a store's requests, bytes and latencies, and their cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from uploader.stores.wrapper import Kind
from walstore.validation.fields import check_fields, described, number

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
    """Everything that went through a :class:`~uploader.stores.metering.MeteredStore` so far."""

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
