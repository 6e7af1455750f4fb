"""Two answers of an object store that are not faults, and that callers act on.

Everything else a store raises is one of the errors of ``walstore.errors``:

* ``StorageUnavailableError(retriable=True)``: timeouts, lost connections, 5xx, throttling, conflicts.
  After a put its ``outcome`` is ``"unknown"`` when the put may have happened, ``"not_written"`` when the
  store said that it did not, or was never reached;
* ``StorageUnavailableError(retriable=False)``: permissions, credentials; an operator has to act first;
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
    """The object under ``key`` already exists, or is not the one the caller expected.

    The request that got this answer changed nothing. Over a network the object may still be the caller's
    own: an earlier attempt whose answer was lost. ``uploader.root.cas`` distinguishes the two.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(f"{message}: {key}")
        self.key = key
