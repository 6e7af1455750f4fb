"""For tests of the cloud tier and of third parties: a store that fails on demand, and a suite.

``faults.FaultyStore`` wraps any store; ``suite.ObjectStoreSuite`` is subclassed and needs pytest and
pytest-asyncio.
"""

from __future__ import annotations

from uploader.testing import faults
from uploader.testing.faults import CallCount, FaultyStore, StoreKilled

__all__ = ["CallCount", "FaultyStore", "StoreKilled", "faults"]
