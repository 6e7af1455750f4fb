"""Leaks: objects of a log that nothing names and that nothing can ever name again. Never removes any.

An object that is put before a manifest names it leaks when no manifest ever does: a failed roll-up, a
snapshot of an abandoned collection, a fragment of a writer that was too slow. Some may still be named: a
roll-up is the same for every writer, so a new one may name the snapshot of one that died long ago, and the
next writer adopts a fragment behind the manifest's end. Age proves nothing. So only objects below the log's
head count: records below it are in no later manifest, and a number below its own is never given again. The
head's age covers readers of older manifests (``observed_heads.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from uploader.format import layout
from uploader.format.entries import SnapshotPointer
from uploader.format.inventory import fragment_number
from uploader.format.manifest import Manifest
from uploader.format.names import MOST_SHARDS, shard_folder
from uploader.garbage.collection import Kind
from uploader.garbage.observed_heads import ObservedHead
from uploader.gc.collectable import Collectable
from uploader.root.tree import ManifestTree
from uploader.stores.port import ListingOrder, ObjectStore


@dataclass(frozen=True, slots=True)
class Leak:
    """An object that can be deleted, and why."""

    key: str
    kind: Kind
    reason: str


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
    named = await _named_snapshots(tree, manifest)
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


async def _named_snapshots(tree: ManifestTree, manifest: Manifest) -> set[str]:
    """Return the keys of all snapshots under a manifest; those of depth 1 are not read for that."""
    named: set[str] = set()
    waiting: list[SnapshotPointer] = list(manifest.snapshots)
    while waiting:
        pointer = waiting.pop()
        named.add(pointer.path_to_snapshot)
        if pointer.depth > 1:
            waiting += (await tree.snapshot(pointer)).snapshots
    return named


def _reason(head: ObservedHead) -> str:
    return f"nothing names it, and the log begins at {head.offset}"
