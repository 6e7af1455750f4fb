"""What tests of programs on the cloud tier can use: the same objects as in ``uploader.testing``."""

from uploader.testing import (
    CallCount,
    FaultyStore,
    LatencyStore,
    ShuffledStore,
    StoreKilled,
    faults,
    latency,
)

__all__ = [
    "CallCount",
    "FaultyStore",
    "LatencyStore",
    "ShuffledStore",
    "StoreKilled",
    "faults",
    "latency",
]
