"""What tests of the cloud tier, and of programs built on it, can use.

``faults.FaultyStore`` wraps any store, and so does ``latency.LatencyStore``; ``suite.ObjectStoreSuite`` is
subclassed and needs pytest, which nothing else here does.
"""

from __future__ import annotations

from uploader.testing import faults, latency
from uploader.testing.faults import CallCount, FaultyStore, StoreKilled
from uploader.testing.latency import LatencyStore

__all__ = ["CallCount", "FaultyStore", "LatencyStore", "StoreKilled", "faults", "latency"]
