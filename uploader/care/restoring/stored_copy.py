"""StoredCopy: the records of a log in object storage, for a repair of the local log. Blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from uploader.read.cloud_log import CloudLog
from uploader.root.ownership import owner
from uploader.stores.port import ObjectStore
from walstore.core.batches.batch import Batch
from walstore.errors import CorruptionError

_T = TypeVar("_T")


class StoredCopy:
    """What :func:`walstore.care.repair.repairing.plan_repair` takes as ``copy``; a context manager.

    Reads only, with an event loop of its own: not for a thread that has one running. Each fragment is
    compared with its setsum before any of its records are used.
    """

    def __init__(self, url: str, *, store: ObjectStore | None = None) -> None:
        """Open the log at ``url``; ``store`` replaces the one it names, and is closed at the end.

        Raises LogNotFoundError, CorruptionError, StorageUnavailableError, InvalidSettingsError.
        """
        self._runner = asyncio.Runner()
        try:
            self._log = self._runner.run(_open(url, store))
        except BaseException:
            self._runner.close()
            raise

    @property
    def url(self) -> str:
        """Where the copy is, without credentials."""
        return self._log.url

    @property
    def log_id(self) -> bytes | None:
        """Identity of the local log that ships there; None if no log has shipped there yet."""
        return owner(self._log.manifest)

    @property
    def head(self) -> int:
        """First offset of the copy."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read."""
        return self._log.tail

    def read(self, start: int, limit: int) -> Iterator[Batch]:
        """Yield the records ``[start, limit)``, a fragment's at a time.

        Raises CorruptionError if a fragment is not what was put, and StorageUnavailableError.
        """
        position = start
        for entry in self._run(self._log.fragments(start, limit)):
            whole = self._run(self._log.read_fragment(entry, verify=True))
            if whole.start > position:
                break
            batch = whole.slice(position, min(entry.limit, limit))
            position += len(batch)
            yield batch
        if position != limit:
            raise CorruptionError(
                "records are missing", path=self.url, expected=limit, found=position
            )

    def close(self) -> None:
        """Release connections and threads; may be called twice."""
        try:
            if self._log is not None:
                self._run(self._log.aclose())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)


async def _open(url: str, store: ObjectStore | None) -> CloudLog:
    return await CloudLog.open(url, store=store)
