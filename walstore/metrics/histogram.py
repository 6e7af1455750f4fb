"""Histogram: counts of samples by size, cheap enough for every commit.

One thread, that of its log's event loop, writes it, and any other may read it: a read copies the
counts in one step, so it never sees a sample counted twice or in part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""Bounds for durations: finest where disks sync, from 50 µs (flash with a safe cache) to 50 ms (disks)."""

RECORDS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Bounds for records of one commit."""

BYTES: Final = tuple(1 << bits for bits in range(8, 27, 2))
"""Bounds for bytes of one commit: 256 B to 64 MiB."""


class Histogram:
    """Samples counted by the first bound that is not below them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds, inclusive and ascending; beyond the last there is one more count."""
        self.counts = [0] * (len(bounds) + 1)
        """Samples by bound, not accumulated."""
        self.total: float = 0
        """Sum of the samples."""

    def observe(self, sample: float) -> None:
        """Count a sample."""
        self.counts[bisect_left(self.bounds, sample)] += 1
        self.total += sample

    def copy(self) -> Histogram:
        """Return an independent histogram of the same samples."""
        twin = Histogram(self.bounds)
        twin.total = self.total
        twin.counts = self.counts[:]
        return twin

    def merge(self, others: Iterable[Histogram]) -> None:
        """Add the samples of others with the same bounds."""
        for other in others:
            self.total += other.total
            self.counts = [
                mine + more for mine, more in zip(self.counts, other.counts, strict=True)
            ]

    def accumulated(self) -> list[tuple[str, float]]:
        """Return each bound, as Prometheus writes it, with the number of samples not above it."""
        found: list[tuple[str, float]] = []
        count = 0
        for bound, more in zip(self.bounds, self.counts, strict=False):
            count += more
            found.append((str(float(bound)), count))
        found.append(("+Inf", count + self.counts[-1]))
        return found
