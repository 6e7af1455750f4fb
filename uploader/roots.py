"""Which root a log has, by what lies in the store."""

from __future__ import annotations

from uploader.manifest_log import ManifestLog
from uploader.root import Root
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.threads import Worker


async def find_root(store: ObjectStore, *, retry: RetryPolicy, worker: Worker) -> Root:
    """Return the root of the log in ``store``, loaded; of the default layout if there is no log yet."""
    root = ManifestLog(store, retry, worker)
    await root.load()
    return root
