"""LogSession: context for a one-shot operation on a stored log. It opens the log and closes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from uploader.chain.chain_root import ChainRoot, ChainSettings
from uploader.format import layout as layouts
from uploader.format.manifest import Manifest
from uploader.format.names import manifest_key
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root import cas
from uploader.root.root import Root
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.errors import InvalidSettingsError, LogNotFoundError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker

Layout: TypeAlias = Literal["swap", "chain"]
"""``swap``: one manifest that is replaced, wal3's. ``chain``: immutable manifests, docs/chain.md."""


async def find_root(
    store: ObjectStore,
    *,
    retry: RetryPolicy,
    worker: Worker,
    layout: Layout | None = None,
    chain: ChainSettings | None = None,
    roll_up: RollUpSettings | None = None,
) -> Root:
    """Return the root of the log in ``store``, loaded.

    If there is no log yet, the root creates one of the requested layout, ``swap`` by default.

    Args:
        store: The store of the log, existing or new.
        retry: For puts whose answer asks for a retry.
        worker: Takes the work on long manifests off the event loop.
        layout: The layout that the log must have; None accepts either. InvalidSettingsError if it
            has the other one.
        chain: How to write, if it is a chain.
        roll_up: When to roll up the manifest.
    """
    swapped = SwappedRoot(store, retry, worker, roll_up=roll_up)
    chained = ChainRoot(store, retry, worker, settings=chain, roll_up=roll_up)
    if layout == "chain":
        async with task_group() as tasks:
            swap = tasks.create_task(store.head(layouts.MANIFEST))
            await chained.load()
        if swap.result() is not None:
            raise _other(store, "swap", layouts.MANIFEST)
        return chained
    if await swapped.load():
        return swapped
    if not await chained.load():
        return swapped
    if layout == "swap":
        raise _other(store, "chain", manifest_key(0))
    return chained


def _other(store: ObjectStore, found: Layout, key: str) -> InvalidSettingsError:
    return InvalidSettingsError(
        f"the log at {store.url} has the layout {found!r} ({key} is there); open it with that, or fork it "
        "to another prefix"
    )


def needs_swaps(root: Root) -> bool:
    """Return whether publishing needs more of a store than put-if-absent."""
    return not isinstance(root, ChainRoot)


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
