"""Logs in a store, written fragment by fragment, for tests of what works on them."""

from __future__ import annotations

import contextlib
import dataclasses

from tests.cloud import FAST, put_fragment
from uploader.format import layout, rollup
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import PreconditionFailedError
from uploader.stores.port import ObjectStore
from walstore.core.runtime.threads import Worker

TINY = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
"""A deep tree over few fragments."""


async def begin(store: ObjectStore, worker: Worker, fragments: int = 4) -> SwappedRoot:
    """Write a log of so many fragments with two records each."""
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create("writer")
    await extend(log, store, fragments)
    return log


async def extend(log: SwappedRoot, store: ObjectStore, fragments: int = 1) -> None:
    """Append fragments whose records say at which offset they lie."""
    for _ in range(fragments):
        seq_no, start = log.manifest.next_seq_no, log.manifest.next_offset
        entry = await put_fragment(store, seq_no, start, numbers(start, start + 2))
        await log.publish([entry], "writer")


async def roll_up(log: SwappedRoot, store: ObjectStore, settings: RollUpSettings = TINY) -> None:
    """Move all but the newest fragments into a deep tree of snapshots."""
    while made := rollup.plan(log.manifest, settings):
        for one in made:
            with contextlib.suppress(PreconditionFailedError):
                await store.put_if_absent(one.path, one.serialise())
        replacements = [Replacement(one.snapshots or one.fragments, one.pointer()) for one in made]
        folded = rollup.fold(log.manifest, replacements)
        await log.change(lambda _, folded=folded: folded)


async def collect(log: SwappedRoot, store: ObjectStore, count: int) -> None:
    """Drop the oldest fragments, as a collector would, of a log without snapshots."""
    dropped = log.manifest.fragments[:count]

    def make(manifest: Manifest) -> Manifest:
        return dataclasses.replace(
            manifest,
            fragments=manifest.fragments[count:],
            collected=sum((one.setsum for one in dropped), manifest.collected),
            initial_offset=dropped[-1].limit,
            initial_seq_no=dropped[-1].seq_no + 1,
        )

    await log.change(make)
    await store.delete([one.path for one in dropped])


async def manifest_in(store: ObjectStore) -> Manifest:
    """Return the manifest in a store, which must be sound."""
    found = Manifest.parse((await store.get(layout.MANIFEST)).data)
    found.scrub()
    return found


async def replace(store: ObjectStore, key: str, data: bytes) -> None:
    """Put an object, whatever was there."""
    await store.delete([key])
    await store.put_if_absent(key, data)


def numbers(start: int, limit: int) -> list[bytes]:
    """Return the records of such logs."""
    return [b"%d" % offset for offset in range(start, limit)]
