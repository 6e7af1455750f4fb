"""Object stores: one port, and a directory, S3 and memory behind it.

``open_store(url)`` is the way in; ``probe_conditional_puts`` is to be awaited before anything is written.
"""

from __future__ import annotations

from uploader.stores.errors import ObjectNotFoundError, PreconditionFailedError
from uploader.stores.local import LocalStore
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ListedObject, ObjectInfo, ObjectStore, StoredObject
from uploader.stores.probe import probe_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.stores.s3 import S3Store
from uploader.stores.url import open_store

__all__ = [
    "ListedObject",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectNotFoundError",
    "ObjectStore",
    "PreconditionFailedError",
    "RetryPolicy",
    "S3Store",
    "StoredObject",
    "open_store",
    "probe_conditional_puts",
]
