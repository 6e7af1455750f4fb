"""What a repair asks of a copy of the log's records. Only a Protocol; ``uploader.StoredCopy`` is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from walstore.batches.batch import Batch


class Copy(Protocol):
    """Records of the log elsewhere. Blocking; for one thread at a time."""

    @property
    def url(self) -> str:
        """Where the copy is, without credentials."""

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log whose copy it is; None if it does not say."""

    @property
    def head(self) -> int:
        """First offset of the copy."""

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read."""

    def read(self, start: int, limit: int) -> Iterator[Batch]:
        """Yield the records ``[start, limit)``, verified, in order.

        Raises CorruptionError if the copy is damaged, and StorageUnavailableError.
        """
