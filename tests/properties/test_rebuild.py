"""Random damage: a rebuilt log holds nothing but records of the damaged one, and all works on it."""

from __future__ import annotations

import json
import random

import pytest

from tests.cloud import FAST, URL, put_fragment, snapshot
from tests.effort import first_seed, some
from tests.uploader.logs import numbers, replace, roll_up
from uploader import CloudLog, CloudWriter
from uploader.care.admin.scrubber import Scrubber
from uploader.care.rebuilding.plan import RebuildPlan
from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
from uploader.format import layout
from uploader.format.rollup import RollUpSettings
from uploader.fragments.fragment import inspect_fragment
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, LogNotFoundError

SEEDS = some(480)


class Damager:
    """Damages a log at random, and knows what can be told of it."""

    def __init__(self, store: MemoryStore, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.told: list[str] = []

    async def damage(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            keys = [listed.key async for listed in self.store.list("")]
            if not keys:
                return  # all of a small log is removed already
            key = self.random.choice(keys)
            if self.random.random() < 0.3 and layout.MANIFEST in keys:
                key = layout.MANIFEST
            kinds = [self.remove, self.cut, self.flip, self.edit]
            kind = self.random.choice(kinds)
            self.told.append(f"{kind.__name__} {key}")
            await kind(key)

    async def remove(self, key: str) -> None:
        await self.store.delete([key])

    async def cut(self, key: str) -> None:
        data = (await self.store.get(key)).data
        await replace(self.store, key, data[: self.random.randrange(len(data) + 1)])

    async def flip(self, key: str) -> None:
        data = bytearray((await self.store.get(key)).data)
        if data:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        await replace(self.store, key, bytes(data))

    async def edit(self, key: str) -> None:
        """Change a number or a sum in a document; cut anything else."""
        try:
            document = json.loads((await self.store.get(key)).data)
        except ValueError:
            await self.cut(key)
            return
        changed = {"setsum", "collected", "seq_no", "depth", "acc_bytes", "num_bytes", "offset"}
        places: list[tuple[dict, str]] = []

        def walk(value: object) -> None:
            if isinstance(value, dict):
                for name, inner in value.items():
                    if name in changed:
                        places.append((value, name))
                    walk(inner)
            elif isinstance(value, list):
                for inner in value:
                    walk(inner)

        walk(document)
        if not places:
            return
        place, name = self.random.choice(places)
        if isinstance(place[name], int):
            place[name] = max(0, place[name] + self.random.choice([-2, -1, 1, 2, 100]))
        else:
            place[name] = "07" + place[name][2:]
        await replace(self.store, key, json.dumps(document, separators=(",", ":")).encode())


async def make(store: MemoryStore, worker: Worker, seed: int) -> int:
    """Write a log; return where it ends."""
    chance = random.Random(seed)
    log = SwappedRoot(store, FAST, worker)
    await log.load_or_create("writer")
    for _ in range(chance.randint(1, 9)):
        seq_no, start = log.manifest.next_seq_no, log.manifest.next_offset
        limit = start + chance.randint(1, 3)
        await log.publish(
            [await put_fragment(store, seq_no, start, numbers(start, limit))], "writer"
        )
    settings = RollUpSettings(
        fragments_per_snapshot=chance.randint(1, 4), snapshots_per_snapshot=chance.randint(2, 3)
    )
    await roll_up(log, store, settings)
    return log.manifest.next_offset


async def held(store: MemoryStore) -> list[bytes]:
    """Return all records. What a footer says of their times may be wrong, and stays; a scrub warns of it."""
    async with CloudLog.open(URL, store=store) as log:
        return [record.value async for record in log.reader()]


async def check(store: MemoryStore, plan: RebuildPlan, end: int, keep: str) -> None:
    assert await held(store) == numbers(plan.start, plan.limit)
    if plan.choices and plan.damages:
        assert range(plan.start, plan.limit) in plan.choices
    if plan.choices and plan.limit < end and keep == "after":
        assert plan.reassigned is not None or plan.start >= plan.choices[-1].start
    again = await plan_rebuild(URL, store=store)
    assert not again.is_needed, again
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        report = await scrubber.scrub()
    assert report.is_sound, report.findings
    async with CloudWriter.open(URL, store=store, retry=FAST) as log:
        assert await log.append(b"%d" % plan.limit) == plan.limit
    assert await held(store) == numbers(plan.start, plan.limit + 1)


async def check_nothing_is_gone(
    store: MemoryStore, plan: RebuildPlan, before: dict[str, bytes]
) -> None:
    """Check that of everything that was replaced there is a copy."""
    after = await snapshot(store)
    for key, data in before.items():
        if after.get(key) != data:
            assert plan.kept_in is not None, key
            assert after[plan.kept_in + key + layout.KEPT_SUFFIX] == data


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_random_damage(part: int) -> None:
    worker = Worker("test")
    try:
        first = first_seed("rebuild")
        for seed in range(first + part, first + SEEDS, 4):
            store = MemoryStore()
            end = await make(store, worker, seed)
            damager = Damager(store, seed)
            await damager.damage()
            before = await snapshot(store)
            keep = "before" if seed % 2 else "after"
            try:
                plan = await plan_rebuild(URL, store=store, keep=keep)
            except LogNotFoundError:
                assert not await _readable(before), (seed, damager.told)
                continue
            assert await snapshot(store) == before
            await apply_rebuild(plan, store=store, retry=FAST)
            try:
                await check_nothing_is_gone(store, plan, before)
                await check(store, plan, end, keep)
            except BaseException as error:
                error.add_note(f"seed {seed}: {damager.told}; {plan}")
                raise
    finally:
        worker.close()


async def _readable(objects: dict[str, bytes]) -> bool:
    """Return whether a fragment is left that could be kept."""
    for key, data in objects.items():
        if key.startswith(layout.FRAGMENT_FOLDER):
            try:
                inspect_fragment(data, key)
            except CorruptionError:
                continue
            return True
    return False
