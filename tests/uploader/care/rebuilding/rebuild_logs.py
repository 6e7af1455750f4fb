"""Damaged logs to rebuild: how they are made, damaged and checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence

from tests.cloud import FAST, URL, cloud_values, put_fragment, snapshot
from tests.frames import batch_of, build, values_only
from tests.uploader.logs import begin, manifest_in, numbers, replace, roll_up
from uploader import CloudWriter, RebuildPlan
from uploader.care.admin.fork import fork
from uploader.care.admin.scrubber import Scrubber
from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.care.restoring.restore import restore
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.inventory import Part, part_of
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_builder import encode_fragment
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from walstore import Wal
from walstore.core.runtime.threads import Worker

MANIFEST = layout.MANIFEST
FRAGMENTS = 6
"""Of the logs here, two records each, so they end at 13; the oldest five are rolled up."""
Damage = Callable[[MemoryStore], Awaitable[None]]


async def make(store: ObjectStore, worker: Worker, fragments: int = FRAGMENTS) -> SwappedRoot:
    """Write a log and roll it up."""
    log = await begin(store, worker, fragments)
    await roll_up(log, store)
    return log


async def plan(store: ObjectStore, **options) -> RebuildPlan:
    """Return the plan, after checking that making it changed nothing."""
    before = await snapshot(store)
    found = await plan_rebuild(URL, store=store, **options)
    assert await snapshot(store) == before
    return found


async def rebuild(store: ObjectStore, **options) -> RebuildPlan:
    found = await plan(store, **options)
    await apply_rebuild(found, store=store, retry=FAST)
    return found


def spans(intervals: Sequence[range]) -> list[tuple[int, int]]:
    return [(one.start, one.stop) for one in intervals]


async def check(store: ObjectStore, start: int, limit: int, tmp_path) -> None:
    """Check that the log holds just these records, and that everything works on it."""
    assert await cloud_values(store) == numbers(start, limit)
    again = await plan(store)
    assert (again.is_needed, again.damages, again.lost) == (False, (), ())
    assert (again.start, again.limit) == (start, limit)
    assert {severity for severity, _ in await scrubbed(store)} <= {"note"}
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert await log.append(b"%d" % limit) == limit
        assert await log.append(b"%d" % (limit + 1)) == limit + 1
    target = MemoryStore()
    await fork(URL, URL, source_store=store, target_store=target)
    assert await cloud_values(target) == numbers(start, limit + 2)
    await restore(URL, tmp_path / "restored", store=store)
    async with Wal.open(tmp_path / "restored") as wal:
        assert [record.value async for record in wal.reader(follow=False)] == numbers(
            start, limit + 2
        )


async def edit(store: MemoryStore, make: Callable[[dict], object], key: str = MANIFEST) -> None:
    """Change a JSON object behind everybody's back."""
    document = json.loads((await store.get(key)).data)
    make(document)
    await replace(store, key, json.dumps(document, separators=(",", ":")).encode())


async def flip(store: MemoryStore, key: str, at: int) -> None:
    """Change one byte of an object."""
    data = bytearray((await store.get(key)).data)
    data[at] ^= 0xFF
    await replace(store, key, bytes(data))


async def other_fragment(store: MemoryStore, seq_no: int, start: int, count: int = 2) -> None:
    """Put a fragment of other records in the place of one, or where none was."""
    await store.delete([layout.fragment_path(seq_no)])
    await put_fragment(store, seq_no, start, [b"other"] * count)


async def snapshot_keys(store: ObjectStore) -> list[str]:
    return [listed.key async for listed in store.list(layout.SNAPSHOT_FOLDER)]


async def named_snapshot(store: ObjectStore) -> str:
    return (await manifest_in(store)).snapshots[0].path_to_snapshot


async def cut_manifest(store: MemoryStore) -> None:
    data = (await store.get(MANIFEST)).data
    await replace(store, MANIFEST, data[: len(data) // 2])


async def empty_manifest(store: MemoryStore) -> None:
    await replace(store, MANIFEST, b"")


async def no_manifest(store: MemoryStore) -> None:
    await store.delete([MANIFEST])


async def wrong_setsum(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(setsum="01" + "0" * 62))


async def wrong_collected(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(collected="01" + "0" * 62))


async def wrong_entry_sum(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][0].update(setsum="01" + "0" * 62))


async def wrong_entry_start(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][0].update(start={"offset": 4}))


async def wrong_entry_limit(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][-1].update(limit={"offset": 99}))


async def wrong_entry_number(store: MemoryStore) -> None:
    await edit(store, lambda one: one["fragments"][-1].update(seq_no=1))


async def wrong_entry_key(store: MemoryStore) -> None:
    other = layout.fragment_path(6).replace("Bucket=0000", "Bucket=0100")
    await edit(store, lambda one: one["fragments"][-1].update(path=other))


async def wrong_pointer(store: MemoryStore) -> None:
    await edit(store, lambda one: one["snapshots"][0].update(limit={"offset": 2}))


async def wrong_pointer_bytes(store: MemoryStore) -> None:
    await edit(store, lambda one: one["snapshots"][0].update(num_bytes=1_000_000))


async def wrong_bytes(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(acc_bytes=1))


async def wrong_bytes_below(store: MemoryStore) -> None:
    key = await named_snapshot(store)
    await edit(store, lambda one: one["snapshots"][0].update(num_bytes=1_000_000), key)
    await wrong_bytes(store)


async def no_snapshot(store: MemoryStore) -> None:
    await store.delete([await named_snapshot(store)])


async def no_snapshots(store: MemoryStore) -> None:
    await store.delete(await snapshot_keys(store))


async def damaged_snapshot(store: MemoryStore) -> None:
    await flip(store, await named_snapshot(store), 3)


async def other_snapshot(store: MemoryStore) -> None:
    await edit(store, lambda one: one.update(setsum="01" + "0" * 62), await named_snapshot(store))


async def no_snapshots_and_no_manifest(store: MemoryStore) -> None:
    await no_snapshots(store)
    await no_manifest(store)


async def no_fragment(store: MemoryStore) -> None:
    await store.delete([layout.fragment_path(4)])


async def cut_fragment(store: MemoryStore) -> None:
    key = layout.fragment_path(4)
    await replace(store, key, (await store.get(key)).data[:100])


async def flipped_fragment(store: MemoryStore) -> None:
    await flip(store, layout.fragment_path(4), 50)


async def other_records(store: MemoryStore) -> None:
    await other_fragment(store, 4, 7)


async def elsewhere(store: MemoryStore) -> None:
    await other_fragment(store, 4, 5)


async def check_set_aside(store: ObjectStore, found: RebuildPlan, there: dict[str, bytes]) -> None:
    """Check that all that was replaced or given up is kept, byte for byte, where no collector takes it."""
    objects = await snapshot(store)
    for key, data in there.items():
        if objects.get(key) != data:
            assert key in found.set_aside
        if key in found.set_aside:
            assert found.kept_in is not None
            assert objects[found.kept_in + key + ".kept"] == data
            assert part_of(found.kept_in + key + ".kept") is Part.REBUILT
    given_up = [
        layout.fragment_path(seq_no)
        for seq_no in range(1, FRAGMENTS + 1)
        if not found.start <= 2 * seq_no - 1 < found.limit
    ]
    assert {key for key in given_up if key in there} <= {*found.set_aside}


async def link_what_lies_there(store: MemoryStore, seq_no: int, start: int) -> None:
    """Do what a program of wal3 does when it opens a log: link whatever lies at the next number."""
    entry = await put_fragment(store, seq_no, start, numbers(start, start + 2))
    manifest = Manifest.parse((await store.get(MANIFEST)).data)
    linked = dataclasses.replace(
        manifest,
        setsum=manifest.setsum + entry.setsum,
        acc_bytes=manifest.acc_bytes + entry.num_bytes,
        fragments=(*manifest.fragments, entry),
    )
    await replace(store, MANIFEST, linked.serialise())


async def put_as(store: MemoryStore, log: SwappedRoot, claim: Claim) -> None:
    """Append a fragment as a directory would."""
    end = log.manifest.next_seq_no, log.manifest.next_offset
    await log.publish([await put(store, claim.name, *end)], claim.name)


async def put(store: MemoryStore, maker: str, seq_no: int, start: int) -> Fragment:
    """Put a fragment that says who made it."""
    batch = batch_of(build(values_only(b"x", b"y", start=start)))
    encoded = encode_fragment([batch], timestamp_us=7, writer=maker)
    await store.put_if_absent(layout.fragment_path(seq_no), encoded.data)
    return encoded.entry(seq_no)


async def scrubbed(store: ObjectStore) -> list[tuple[str, str]]:
    """Return what a scrub finds, each with its severity and the key of its object."""
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        report = await scrubber.scrub()
    return [(str(one.severity), one.key) for one in report.findings]
