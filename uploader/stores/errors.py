"""Two answers of an object store that are no faults, and that callers act upon.

Everything else a store can say is one of the errors of ``walstore.errors``:

* ``StorageUnavailableError(retriable=True)``: timeouts, lost connections, 5xx, throttling, conflicts.
  After a put its ``outcome`` is ``"unknown"`` when the put may have happened, ``"not_written"`` when the
  store said that it did not, or was never reached;
* ``StorageUnavailableError(retriable=False)``: permissions, credentials; somebody has to act first;
* ``LogNotFoundError``: there is no such bucket;
* ``DiskFullError``: a local store has no space left;
* ``UnsupportedStoreError``: the store says that it has no conditional puts;
* ``InvalidSettingsError``: a key, range, bucket name or region that cannot work.
"""

from __future__ import annotations

from walstore.errors import WalError


class ObjectNotFoundError(WalError):
    """There is no object under ``key``."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key


class PreconditionFailedError(WalError):
    """The object under ``key`` exists already, or is not the one the caller expected.

    Nothing was changed by the request that got this answer. Over a network it may still be one's own
    put that is in the way: an earlier attempt whose answer was lost. ``uploader.root.cas`` tells them apart.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key
