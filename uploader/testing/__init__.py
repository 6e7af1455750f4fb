"""Tools for tests of the cloud tier, and of programs built on it.
``faults.FaultyStore`` wraps any store, and so do ``latency.LatencyStore`` and ``shuffled.ShuffledStore``;
subclass ``suite.ObjectStoreSuite``, the only part that needs pytest.
"""

from __future__ import annotations

from uploader.testing import faults, latency
from uploader.testing.faults import CallCount, FaultyStore, StoreKilled
from uploader.testing.latency import LatencyStore
from uploader.testing.shuffled import ShuffledStore

__all__ = [
    "CallCount",
    "FaultyStore",
    "LatencyStore",
    "ShuffledStore",
    "StoreKilled",
    "faults",
    "latency",
]
