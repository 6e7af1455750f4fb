"""Orphans: objects of a log that no manifest names, and that none can ever name. Removes none of them.

An object that is put before a manifest names it leaks when no manifest ever does: a failed roll-up, a
snapshot of an abandoned collection, a fragment of a writer that was too slow. Some may still be named: a
roll-up is the same for every writer, so a new one may name the snapshot of one that died long ago, and the
next writer adopts a fragment behind the manifest's end. Age proves nothing. So only objects below the log's
head count: records below it are in no later manifest, and a number below its own is never given again. The
head's age covers readers of older manifests (``observed_heads.py``).

A misfit is a fragment behind a log's end that no manifest can ever name, but that wal3 would still link. A
writer that opens the log voids it (``root/orphan_recovery.py``). So does a collector, since none of our
writers may open the log for a long time. A fragment that may still fit is left alone, however old it is:
its writer may be alive, and would publish and acknowledge a fragment that is no longer there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from uploader.care.gc.deleter import Collectable, Leak
from uploader.care.gc.observed_heads import ObservedHead
from uploader.format import layout
from uploader.format.entries import SnapshotPointer
from uploader.format.inventory import fragment_number
from uploader.format.layout import MOST_SHARDS, shard_folder
from uploader.format.manifest import Manifest
from uploader.format.tree_walk import named_snapshots
from uploader.fragments.fragment import inspect_fragment
from uploader.root import cas
from uploader.root.orphan_recovery import VOID, can_follow
from uploader.root.ownership import is_shipped_to
from uploader.root.root import Root
from uploader.root.stored_document import read_object
from uploader.root.tree import ManifestTree
from uploader.stores.port import ListingOrder, ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError


async def find_leaks(
    store: ObjectStore,
    tree: ManifestTree,
    manifest: Manifest,
    head: ObservedHead,
    collectable: Collectable,
    *,
    is_sharded: bool = False,
) -> AsyncGenerator[Leak, None]:
    """Yield what is below ``head``, which is old enough for readers.

    Lists the fragments up to the head (in shards, if the log has those), and all snapshots; reads those
    of them that the manifest, which is the newest, does not name. Objects that are neither are left alone.
    ``collectable`` is of both.
    """
    shards = [shard_folder(1 + at) for at in range(MOST_SHARDS)] if is_sharded else []
    for folder in shards or [layout.FRAGMENT_FOLDER]:
        async with aclosing(_fragments(store, folder, head, collectable)) as found:
            async for leak in found:
                yield leak

    async def below(pointer: SnapshotPointer) -> Sequence[SnapshotPointer]:
        return (await tree.snapshot(pointer)).snapshots

    named = await named_snapshots(manifest, below)
    async for listed in store.list(layout.SNAPSHOT_FOLDER):
        if listed.key not in named and await collectable.read(listed.key):
            yield Leak(listed.key, "snapshot", _reason(head))


async def _fragments(
    store: ObjectStore, folder: str, head: ObservedHead, collectable: Collectable
) -> AsyncGenerator[Leak, None]:
    order = ListingOrder()
    async for listed in store.list(folder):
        order.note(listed.key)
        try:
            number = fragment_number(listed.key)
        except ValueError:
            continue
        if number < collectable.limit_seq_no:
            yield Leak(listed.key, "fragment", _reason(head))
        elif order.is_proven:
            return  # keys are in the order of their numbers


def _reason(head: ObservedHead) -> str:
    return f"nothing names it, and the log begins at {head.offset}"


logger = logging.getLogger("walstore.gc")

_MOST: Final = 100
"""Objects behind the end that are read in one go. A writer has at most a few dozen under way."""


async def void_misfits(
    store: ObjectStore, root: Root, *, retry: RetryPolicy, worker: Worker
) -> tuple[str, ...]:
    """Void objects behind the end of ``root``, as last read, that can never follow; return their keys.

    Only where numbers alone are keys, so that wal3 may write there. A directory that ships to the log
    judges the objects there itself, and stops at what others put. A sealed log is safe.
    Costs a listing, and reads each fragment behind the end. The store's errors are passed on.
    """
    manifest = root.manifest
    is_ours_alone = root.early_key(layout.FIRST_SEQ_NO) is None or is_shipped_to(manifest)
    if is_ours_alone or manifest.is_sealed:
        return ()
    found = [listed.key async for listed in root.unpublished()]
    voided = []
    for key in [key for key in found if layout.fragment_number(key) is not None][:_MOST]:
        if await _void(store, key, manifest, retry, worker):
            voided.append(key)
            logger.warning("%s: %s can never be part of the log", store.url, key)
    return tuple(voided)


async def _void(
    store: ObjectStore, key: str, manifest: Manifest, retry: RetryPolicy, worker: Worker
) -> bool:
    """Void one object if it is a misfit; an object that replaced it since the read is left alone."""
    try:
        stored = await read_object(store, key)
        entry = await worker.run(inspect_fragment, stored.data, key)
    except (ObjectNotFoundError, CorruptionError):
        return False  # wal3 would not link it
    end = manifest.next_seq_no, manifest.next_offset
    if entry.seq_no < manifest.next_seq_no or can_follow(entry, *end):
        return False
    result = await cas.swap(store, key, VOID, stored.etag, retry=retry)
    return result.outcome is cas.PutOutcome.COMMITTED
