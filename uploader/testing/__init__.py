"""What tests of the cloud tier, and of programs built on it, can use.

``faults.FaultyStore`` wraps any store, and so do ``latency.LatencyStore`` and ``shuffled.ShuffledStore``;
``suite.ObjectStoreSuite`` is subclassed and needs pytest, which nothing else here does.
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
