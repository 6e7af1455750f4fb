"""LatencySamples: percentiles over many samples in bounded memory."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from typing import Final

RESERVOIR: Final = 200_000


class LatencySamples:
    """Keeps all samples up to a bound, beyond it a uniform choice of them. Microseconds."""

    def __init__(self, *, capacity: int = RESERVOIR, seed: int = 1) -> None:
        """Keep ``capacity`` samples; ``seed`` decides which ones beyond that."""
        self._capacity = capacity
        self._random = random.Random(seed)
        self._kept = array("I")
        self.count = 0
        """How many samples were added."""

    def add(self, samples_us: Iterable[int]) -> None:
        """Add samples."""
        for sample in samples_us:
            self.count += 1
            if len(self._kept) < self._capacity:
                self._kept.append(sample)
                continue
            at = self._random.randrange(self.count)
            if at < self._capacity:
                self._kept[at] = sample

    def percentile(self, percent: float) -> float | None:
        """Return the value in seconds that ``percent`` of the samples do not exceed; None if empty."""
        if not self._kept:
            return None
        ordered = sorted(self._kept)
        at = min(int(len(ordered) * percent / 100), len(ordered) - 1)
        return ordered[at] / 1e6
