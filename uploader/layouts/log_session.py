"""LogSession: context for a one-shot operation on a stored log. It opens the log and closes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uploader.format.manifest import Manifest
from uploader.layouts.open_root import find_root
from uploader.root import cas
from uploader.root.root import Root
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.errors import LogNotFoundError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker


@dataclass(frozen=True, slots=True)
class LogSession:
    """A log's store, its root as of the session's beginning, and worker threads."""

    store: ObjectStore
    root: Root
    retry: RetryPolicy
    clock: Clock
    worker: Worker

    def check_found(self) -> None:
        """Raise LogNotFoundError if there is no log."""
        if not self.root.is_known:
            raise self._missing()

    async def newest(self) -> Manifest:
        """Read the root again; LogNotFoundError if the log is gone, else the errors of reading it."""
        if not await self.root.load():
            raise self._missing()
        return self.root.manifest

    def _missing(self) -> LogNotFoundError:
        return LogNotFoundError(f"there is no log at {self.store.url}", location=self.store.url)


@asynccontextmanager
async def open_session(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[LogSession]:
    """Open the place that ``url`` names, whether there is a log or not.

    A given ``store`` replaces the one of the URL and stays open. Raises the errors of reading the root.
    """
    clock = clock or SystemClock()
    retry = retry or RetryPolicy(clock=clock)
    used = chosen_store(url, store)
    worker = Worker("session", threads=2)
    try:
        root = await find_root(used, retry=retry, worker=worker)
        try:
            yield LogSession(used, root, retry, clock, worker)
        finally:
            await root.aclose()
    finally:
        worker.close()
        if store is None:
            await used.aclose()


async def put_anyhow(store: ObjectStore, key: str, data: bytes, *, retry: RetryPolicy) -> None:
    """Put an object, replacing any other, unless it already has this content.

    OutcomeUnknownError if the store does not report the outcome.
    """
    etag: str | None = None
    while True:
        result = await cas.put(store, key, data, etag, retry=retry)
        if (
            result.decided(store.url, f"{key} was put; call again").outcome
            is cas.PutOutcome.COMMITTED
        ):
            return
        etag = result.etag
