"""LogSession: opens a stored log, with all that operations on it need, and closes it.

The root's layout is detected from the objects in the store. A reader of a log in the default layout makes
only the one request that it needs anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Self, TypeAlias

from uploader.chain.chain_root import ChainRoot, ChainSettings
from uploader.format import layout as layouts
from uploader.format.layout import manifest_key
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Note, Root
from uploader.root.stored_document import StoredDocument
from uploader.root.swapped_document import SwappedDocument
from uploader.root.write_guard import missing
from uploader.runtime.shared_worker import SharedWorker
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.errors import InvalidSettingsError

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
    note: Note | None = None,
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
        note: Called with fragments before they are published.
    """
    swapped = SwappedRoot(store, retry, worker, roll_up=roll_up, note=note)
    chained = ChainRoot(store, retry, worker, settings=chain, roll_up=roll_up, note=note)
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


class LogSession:
    """A stored log while a program uses it: its store, root, worker threads, retry policy and clock.

    :meth:`aclose` closes the root, the threads and the store, in that order. A one-shot operation uses the
    session as an async context manager; an object that keeps the log open closes the session with itself, and
    is made under :meth:`closed_on_error`. Makes no request before :meth:`find_root`.
    """

    def __init__(
        self,
        url: str,
        *,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        worker: Worker | None = None,
        leaves_store_open: bool = False,
    ) -> None:
        """Name the log.

        Args:
            url: Location of the log, existing or new.
            store: Replaces the store that the URL names.
            retry: Retry policy of conditional puts. Default: one on ``clock``.
            clock: The clock of the operations.
            worker: Its threads, closed with it. Default: those that all logs share.
            leaves_store_open: Whether a given ``store`` stays open.
        """
        self.store = chosen_store(url, store)
        self.clock = clock or SystemClock()
        self.retry = retry or RetryPolicy(clock=self.clock)
        self.worker = SharedWorker("cloud", 2) if worker is None else worker
        self._owns_store = store is None or not leaves_store_open
        self._root: Root | None = None
        self.is_closed = False
        """Whether it is closed, or is being closed."""

    @classmethod
    def once(
        cls,
        url: str,
        *,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Name the log for a one-shot operation: threads of its own, and a given ``store`` stays open."""
        worker = Worker("session", threads=2)
        return cls(
            url, store=store, retry=retry, clock=clock, worker=worker, leaves_store_open=True
        )

    @property
    def root(self) -> Root:
        """What :meth:`find_root` returned last."""
        assert self._root is not None, "find it first"
        return self._root

    async def find_root(
        self,
        *,
        layout: Layout | None = None,
        chain: ChainSettings | None = None,
        roll_up: RollUpSettings | None = None,
        note: Note | None = None,
    ) -> Root:
        """Return the root, loaded, whether there is a log or not; see :func:`find_root`."""
        self._root = await find_root(
            self.store,
            retry=self.retry,
            worker=self.worker,
            layout=layout,
            chain=chain,
            roll_up=roll_up,
            note=note,
        )
        return self._root

    def check_found(self) -> None:
        """Raise LogNotFoundError if there is no log."""
        if not self.root.is_known:
            raise missing(self.store.url)

    async def newest(self) -> Manifest:
        """Read the root again; LogNotFoundError if the log is gone, else the errors of reading it."""
        if not await self.root.load():
            raise missing(self.store.url)
        return self.root.manifest

    async def aclose(self) -> None:
        """Close the root, the threads and the store; twice is allowed."""
        self.is_closed = True
        try:
            if self._root is not None:
                await self._root.aclose()
        finally:
            self.worker.close()
            if self._owns_store:
                await self.store.aclose()

    @asynccontextmanager
    async def closed_on_error(self) -> AsyncIterator[Self]:
        """Close the session if the block raises, and only then."""
        try:
            yield self
        except BaseException:
            await self.aclose()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@asynccontextmanager
async def open_session(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[LogSession]:
    """Open the place that ``url`` names for a one-shot operation, whether there is a log or not.

    A given ``store`` replaces the one of the URL and stays open. Raises the errors of reading the root.
    """
    async with LogSession.once(url, store=store, retry=retry, clock=clock) as session:
        await session.find_root()
        yield session


async def put_anyhow(store: ObjectStore, key: str, data: bytes, *, retry: RetryPolicy) -> None:
    """Put an object, replacing any other, unless it already has this content.

    OutcomeUnknownError if the store does not report the outcome.
    """
    document = SwappedDocument(store, key, bytes, serialise=bytes, nothing=bytes, retry=retry)
    await document.change(lambda _: data, seen=StoredDocument(b"", None))
