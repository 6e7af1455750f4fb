"""What the tests of collections share: to collect, and to do what another collector would."""

from __future__ import annotations

from dataclasses import replace

from tests.uploader.places import SETTINGS, Place
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format import layout
from uploader.format.garbage import Garbage, apply_garbage

NO_WAIT = replace(SETTINGS, max_wait_seconds=0)


async def collect(place: Place, settings: CollectorSettings = SETTINGS, *, inner: bool = False):
    async with place.collector(place.inner if inner else None, settings) as collector:
        return await collector.collect()


def garbage_below(place: Place, cutoff: int) -> Garbage:
    """Return what wal3, or another collector, would announce."""
    cut = plan_garbage(place.tree.manifest, cutoff, place.tree.snapshots)
    assert cut is not None
    return cut.garbage


async def announce(place: Place, garbage: Garbage) -> None:
    for snapshot in garbage.snapshots_to_make:
        await place.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await place.inner.put_if_absent(layout.GARBAGE, garbage.serialise())


async def drop(place: Place, garbage: Garbage) -> None:
    after = apply_garbage(await place.manifest(), garbage)
    assert after is not None
    await place.set_manifest(after)
