"""Tools for tests of the cloud tier, and of programs built on it.
``faults.FaultyStore`` wraps any store, and so do ``faults.ShuffledStore`` and ``latency.LatencyStore``;
subclass ``suite.ObjectStoreSuite``, the only part that needs pytest.
"""

from __future__ import annotations

from uploader.testing import faults, latency
from uploader.testing.faults import CallCount, FaultyStore, ShuffledStore, StoreKilled
from uploader.testing.latency import LatencyStore

__all__ = [
    "CallCount",
    "FaultyStore",
    "LatencyStore",
    "ShuffledStore",
    "StoreKilled",
    "faults",
    "latency",
]
