"""Object stores: one port, and a directory, buckets of three vendors and memory behind it.

``open_store(url)`` is the entry point. Await ``probe_conditional_puts`` before the first write.
Wrappers are stores around stores: they hedge, repeat or meter requests.
"""

from __future__ import annotations

from uploader.stores.hedged import HedgedStore, HedgeSettings, HedgeStatistics
from uploader.stores.local import LocalStore
from uploader.stores.memory import MemoryStore
from uploader.stores.metering import KindUsage, MeteredStore, Prices, Usage
from uploader.stores.obstore_store import ObstoreStore
from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    PreconditionFailedError,
    StoredObject,
)
from uploader.stores.probe import probe_conditional_puts
from uploader.stores.retry import RetryingStore, RetryPolicy
from uploader.stores.s3 import S3Store
from uploader.stores.url import open_store
from uploader.stores.wrapper import StoreWrapper

__all__ = [
    "HedgeSettings",
    "HedgeStatistics",
    "HedgedStore",
    "KindUsage",
    "ListedObject",
    "LocalStore",
    "MemoryStore",
    "MeteredStore",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObstoreStore",
    "PreconditionFailedError",
    "Prices",
    "RetryPolicy",
    "RetryingStore",
    "S3Store",
    "StoreWrapper",
    "StoredObject",
    "Usage",
    "open_store",
    "probe_conditional_puts",
]
