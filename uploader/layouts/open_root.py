"""Detects a log's root from the objects in the store, and chooses that of a new log.

A reader of a log in the default layout makes only the one request that it needs anyway.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from uploader.chain.chain_root import ChainRoot
from uploader.chain.chain_settings import ChainSettings
from uploader.format import layout as layouts
from uploader.format.layout import manifest_key
from uploader.format.rollup import RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.root import Root
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import InvalidSettingsError
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
