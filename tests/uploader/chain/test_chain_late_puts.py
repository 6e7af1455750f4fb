"""Puts that arrive late, and what is pruned and recovered."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.uploader.chain.chain_logs import head_of, keys
from tests.uploader.chain.chains import run, stored_links
from tests.waiting import until
from uploader.chain import ChainRoot
from uploader.format.layout import manifest_key
from uploader.format.link import MOST_ALPHA, Link
from uploader.format.manifest import Manifest
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from walstore.errors import (
    ContentionError,
)

# -- late puts ---------------------------------------------------------------------------------


async def stall(store: FaultyStore, log: ChainRoot, expected, slots: list[int]):
    """Let a writer publish, each put being held back; return its tasks and how to let the puts go."""
    release = asyncio.Event()
    events = []
    for slot in slots:
        reached = asyncio.Event()
        events.append(reached)
        store.on("put_if_absent", faults.hang(release, reached), key_prefix=manifest_key(slot))
    tasks = [asyncio.create_task(log.publish([item], "late")) for item in expected]
    for event in events:
        await event.wait()
    return tasks, release


async def test_unlinked_ones_are_overtaken_not_deleted_first(store, opened) -> None:
    """To prune what a stalled writer put before taking its slot would lose what it then acknowledges.

    Its slots 2 to 4 are there, 1 is on its way. Another opens and goes on: it takes slot 1, and only then
    are 2 to 4 dead. The stalled put finds its slot taken, and nothing of it is acknowledged.
    """
    late = opened(alpha=4)
    await late.load_or_create("w")
    items = run(*[2] * 4, salt="late")
    tasks, release = await stall(store, late, items, [1])
    for slot in (2, 3, 4):
        await until(lambda slot=slot: manifest_key(slot) in store.inner._bucket.objects)
    other = opened(store.inner)
    await other.load()
    assert other.head.slot == 0
    await other.publish(run(7), "other")
    await other.settle()
    assert sorted(await stored_links(store.inner)) == [0, 1]
    assert other.head.next == 5
    release.set()
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), ContentionError) for task in tasks)
    assert (await head_of(store)).manifest.fragments == tuple(run(7))


async def test_a_put_that_comes_before_the_takeover_wins(store, opened) -> None:
    late = opened(alpha=4)
    await late.load_or_create("w")
    items = run(*[2] * 4, salt="late")
    tasks, release = await stall(store, late, items, [1])
    other = opened(store.inner)
    await other.load()
    release.set()
    await asyncio.gather(*tasks)
    with pytest.raises(ContentionError):
        await other.publish(run(7), "other")
    assert (await head_of(store)).manifest.fragments == tuple(items)


@pytest.mark.slow
@pytest.mark.parametrize("pruned", [False, True])
async def test_a_put_that_arrives_after_an_hour(store, opened, clock, pruned: bool) -> None:
    """Others went on, and the slots were cleaned up long ago. No reader takes it for the head, and its
    writer learns that it came too late, though the store took it."""
    late = opened(alpha=4)
    await late.load_or_create("w")
    items = run(*[2] * 4, salt="late")
    tasks, release = await stall(store, late, items, [1, 2, 3, 4])
    count = 700 if pruned else 3
    expected = run(*[1] * count)
    clock.advance(1)
    for at in range(0, count, 100):
        clock.advance(3601 if at == 300 else 1)
        other = opened(store.inner, alpha=8)
        await other.load()
        await asyncio.gather(*(other.publish([item], "w") for item in expected[at : at + 100]))
        await other.settle()
    assert (manifest_key(1) in [key async for key in keys(store)]) is not pruned
    clock.advance(3600)
    release.set()
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), ContentionError) for task in tasks)
    if pruned:
        assert {1, 2, 3, 4} & set(await stored_links(store.inner))  # the store took at least one
    fresh = opened()
    await fresh.load()
    assert fresh.manifest == other.manifest
    again = opened()
    await again.load()
    await again.publish(run(1, seq_no=count + 1, start=count + 1), "w")
    await again.settle()
    if pruned:
        assert not {1, 2, 3, 4} & set(await stored_links(store.inner))


@pytest.mark.slow
async def test_a_put_that_arrives_soon_enough_finds_its_slot_taken(store, opened, clock) -> None:
    """However many have gone on meanwhile: what overtakes somebody is kept as long as he trusts his slot."""
    late = opened(alpha=4)
    await late.load_or_create("w")
    tasks, release = await stall(store, late, run(2, salt="late"), [1])
    expected = run(*[1] * 700)
    for at in range(0, 700, 100):
        clock.advance(80)
        other = opened(store.inner, alpha=8)
        await other.load()
        await asyncio.gather(*(other.publish([item], "w") for item in expected[at : at + 100]))
        await other.settle()
    links = await stored_links(store.inner)
    assert 2 not in links
    assert links[1].manifest.fragments == tuple(expected[:1])
    release.set()
    with pytest.raises(ContentionError):
        await tasks[0]
    assert links == await stored_links(store.inner)


@pytest.mark.slow
async def test_a_takeover_that_arrives_late_is_checked_however_soon(store, opened) -> None:
    """What is in its way may be the author's own next manifest, which is pruned within seconds."""
    author, late = opened(alpha=8), opened()
    await author.load_or_create("w")
    await author.publish(run(1), "w")
    await late.load()
    tasks, release = await stall(store, late, run(2, seq_no=2, start=2, salt="late"), [2])
    expected = run(*[1] * 800)
    for at in range(1, 800, 100):
        items = expected[at : at + 100]
        await asyncio.gather(*(author.publish([item], "w") for item in items))
        await author.settle()
    assert 2 not in await stored_links(store.inner)
    release.set()
    with pytest.raises(ContentionError):
        await tasks[0]
    assert 2 in await stored_links(store.inner)  # the store took it
    reader = opened()
    await reader.load()
    assert reader.manifest == author.manifest


async def test_a_late_put_above_the_head_is_not_the_head(store, opened) -> None:
    """It lies in a slot above the newest manifest, which nobody has gone on from since."""
    late = opened(alpha=4)
    await late.load_or_create("w")
    items = run(*[2] * 4, salt="late")
    tasks, release = await stall(store, late, items, [1, 2, 3, 4])
    other = opened(store.inner)
    await other.load()
    await other.publish(run(7), "other")
    await other.settle()
    release.set()
    await asyncio.wait(tasks)
    assert all(isinstance(task.exception(), ContentionError) for task in tasks)
    late_slots = [slot for slot in await stored_links(store.inner) if slot > 1]
    for slot in range(2, 5):
        if slot not in late_slots:  # its writer learned of the loss before the store was asked
            link = Link.root(Manifest.initial("x"), author="x", alpha=4, slot=slot)
            link = dataclasses.replace(link, base=0)
            await store.inner.put_if_absent(link.key, link.serialise())
    assert (await head_of(store)).slot == 1
    await other.publish(run(7, seq_no=2, start=8), "other")
    assert (await head_of(store)).slot == 5


async def test_a_machine_that_slept_looks_before_it_trusts(store, opened, clock) -> None:
    """Its monotonic clock stood still, its wall clock tells."""
    late = opened()
    await late.load_or_create("w")
    requests = store.requests
    clock.shift_wall(3600)
    await late.publish(run(3), "w")
    assert store.requests == requests + 2  # a listing, and the put
    await late.publish(run(3, seq_no=2, start=4), "w")
    assert store.requests == requests + 3


async def test_an_answer_that_took_too_long_is_checked(store, opened, clock) -> None:
    """It was put in time, and the chain says so."""
    log = opened()
    await log.load_or_create("w")
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.happen_then_hang(release, reached))
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(log.publish(run(3), "w"))
        changing = group.create_task(
            log.change(lambda manifest: dataclasses.replace(manifest, writer="gc"))
        )
        await reached.wait()
        clock.advance(3600)
        release.set()
    assert publishing.done()
    assert changing.result()
    head = await head_of(store)
    assert head.manifest.fragments == tuple(run(3))
    assert head.manifest.writer == "gc"


# -- pruning and recovery ----------------------------------------------------------------------


@pytest.mark.slow
async def test_manifests_are_pruned_while_one_writer_goes_on(store, opened) -> None:
    log = opened(alpha=8)
    await log.load_or_create("w")
    expected = run(*[1] * 1500)
    most = 0
    for at in range(0, 1500, 50):
        await asyncio.gather(*(log.publish([item], "w") for item in expected[at : at + 50]))
        await log.settle()
        most = max(most, len([key async for key in keys(store)]))
    assert most < 800
    links = await stored_links(store.inner)
    assert 0 in links
    fresh = opened()
    await fresh.load()
    assert fresh.manifest == log.manifest


async def test_pruning_that_fails_harms_nobody(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    store.on("delete", fail(timeout()), times=100)
    other = opened()
    await other.load()
    for number in range(1, 30):
        await other.publish(run(3, seq_no=number, start=3 * number - 2), "w")
    await other.settle()
    assert (await head_of(store)).manifest.next_seq_no == 30


@pytest.mark.parametrize("alpha", [1, 2, 8, MOST_ALPHA])
async def test_recovery_reads_as_many_as_were_under_way(store, opened, alpha: int) -> None:
    """One listing and at most two times alpha manifests, however long the chain is."""
    expected = run(*[1] * 200)
    log = opened(alpha=alpha)
    await log.load_or_create("w")
    await asyncio.gather(*(log.publish([item], "w") for item in expected))
    requests = store.requests
    fresh = opened()
    await fresh.load()
    assert fresh.manifest.next_seq_no == 201
    assert store.requests - requests <= 3 + alpha
    assert store.count("list").requests


async def test_recovery_past_a_gap_is_bounded_too(store, opened) -> None:
    """A writer died with its whole window under way, another took over and died the same way."""
    expected = run(*[1] * 4 * MOST_ALPHA)
    store.on("put_if_absent", fail(timeout()), nth=MOST_ALPHA + 2, times=10**6)
    log = opened(alpha=MOST_ALPHA)
    await log.load_or_create("w")
    await asyncio.gather(*(log.publish([item], "w") for item in expected), return_exceptions=True)
    first = await head_of(store)
    inner = FaultyStore(store.inner)
    other = opened(inner, alpha=MOST_ALPHA)
    await other.load()
    rest = expected[other.manifest.next_seq_no - 1 :]
    inner.on("put_if_absent", fail(timeout()), key_prefix=manifest_key(first.next + 40), times=5)
    await asyncio.gather(*(other.publish([item], "w") for item in rest), return_exceptions=True)
    await head_of(store)
    counting = FaultyStore(store.inner)
    fresh = opened(counting)
    await fresh.load()
    assert counting.requests <= 2 + 2 * MOST_ALPHA
