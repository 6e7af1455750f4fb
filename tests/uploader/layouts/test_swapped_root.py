"""The manifest's protocol: whatever the store does, a run of fragments is published once or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial

import pytest

from tests.uploader.answers import PUT_FAULTS
from tests.uploader.documents import fragment, fragments, manifest_of, rolled_up
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import StoreKilled, fail, happen_then_fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    CorruptionError,
    LogNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

KEY = layout.MANIFEST


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def opened(store: FaultyStore, impatient: RetryPolicy):
    """Make manifest logs over the store."""
    workers: list[Worker] = []

    def make(inner=None) -> SwappedRoot:
        workers.append(Worker("test"))
        return SwappedRoot(inner or store, impatient, workers[-1])

    yield make
    for worker in workers:
        worker.close()


async def stored(store: FaultyStore) -> Manifest:
    """Return the manifest in the store, which must be sound."""
    found = Manifest.parse((await store.inner.get(KEY)).data)
    found.scrub()
    return found


async def write(store: FaultyStore, manifest: Manifest) -> None:
    """Put a manifest there, whatever was there."""
    await store.inner.delete([KEY])
    await store.inner.put_if_absent(KEY, manifest.serialise())


# -- reading and creating --------------------------------------------------------------------


async def test_there_is_none(store, opened) -> None:
    log = opened()
    assert not await log.load()
    assert not log.is_known
    assert (log.manifest.oldest_offset, log.manifest.next_offset) == (1, 1)
    assert store.counts.keys() == {"get"}


async def test_it_is_read(store, opened) -> None:
    await write(store, manifest_of(3, 4))
    log = opened()
    assert await log.load()
    assert log.is_known
    assert log.manifest == manifest_of(3, 4)


async def test_it_is_created(store, opened) -> None:
    log = opened()
    await log.load_or_create("walstore 00")
    assert log.manifest == await stored(store) == Manifest.initial("walstore 00")
    await opened().load_or_create("somebody else")
    assert (await stored(store)).writer == "walstore 00"


async def test_thirty_two_create_it_at_once(store, opened) -> None:
    logs = [opened() for _ in range(32)]
    async with asyncio.TaskGroup() as group:
        for number, log in enumerate(logs):
            group.create_task(log.load_or_create(f"writer {number}"))
    assert {log.manifest for log in logs} == {await stored(store)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        manifest_of(3, 4).serialise()[:-1],
        manifest_of(3, 4).serialise().replace(b'"seq_no":2', b'"seq_no":3'),
        manifest_of(3, 4).serialise().replace(b'"limit":{"offset":4}', b'"limit":{"offset":5}'),
        dataclasses.replace(manifest_of(3, 4), setsum=manifest_of(3).setsum).serialise(),
    ],
)
async def test_a_damaged_one_is_named(store, opened, data: bytes) -> None:
    await store.inner.put_if_absent(KEY, data)
    with pytest.raises(CorruptionError, match=KEY) as told:
        await opened().load()
    assert told.value.path == KEY


async def test_it_never_goes_back(store, opened) -> None:
    """Not to an older one, not to one that forgot its end."""
    await write(store, manifest_of(3, 4))
    log = opened()
    await log.load()
    await write(store, manifest_of(3))
    with pytest.raises(CorruptionError, match="went back"):
        await log.load()
    assert log.manifest == manifest_of(3, 4)


async def test_it_never_names_other_records(store, opened) -> None:
    """A longer log was put in its place, sound in itself. Seen without a request more."""
    await write(store, manifest_of(3, 4))
    log = opened()
    await log.load()
    other = dataclasses.replace(fragment(2, 4, 8), setsum=Setsum.of_items([b"other"]))
    longer = [*fragments(3), other, *fragments(5, seq_no=3, start=8)]
    await write(store, Manifest.initial("somebody").apply_fragments(longer, "somebody"))
    before = store.requests
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"records \[4, 8\) are not those") as told:
            await log.load()
        assert told.value.path == KEY
    assert log.manifest == manifest_of(3, 4)
    assert store.requests == before + 2
    with pytest.raises(CorruptionError):
        await log.publish([fragment(3, 8, 9)], "w")
    assert (await stored(store)).writer == "somebody"


async def test_an_unchanged_one_is_not_taken_apart_again(store, opened) -> None:
    await write(store, manifest_of(3, 4))
    log = opened()
    await log.load()
    before = log.manifest
    await log.load()
    assert log.manifest is before


async def test_an_unreachable_store_is_a_retriable_error(store, opened) -> None:
    store.on("get", fail(timeout("not_written")), times=2)
    log = opened()
    for call in (log.load, lambda: log.load_or_create("w")):
        with pytest.raises(StorageUnavailableError) as told:
            await call()
        assert told.value.retriable
    await log.load_or_create("w")


async def test_creating_ends_in_an_unknown_outcome_if_nothing_answers(store, opened) -> None:
    store.on("put_if_absent", happen_then_fail(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), nth=2, times=5)
    log = opened()
    with pytest.raises(OutcomeUnknownError) as told:
        await log.load_or_create("w")
    assert told.value.retriable
    assert isinstance(told.value.__cause__, StorageUnavailableError)
    await log.load_or_create("w")
    assert log.manifest == Manifest.initial("w")


async def test_created_and_deleted_at_once(store, opened) -> None:
    async def remove() -> None:
        await store.inner.delete([KEY])

    store.on("get", faults.call(remove), nth=2)
    with pytest.raises(ContentionError, match="deleted"):
        await opened().load_or_create("w")


# -- publishing ------------------------------------------------------------------------------


async def test_a_run_is_published_by_one_swap(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    run = fragments(3, 4, 5)
    await log.publish(run, "walstore id")
    found = await stored(store)
    assert list(found.fragments) == run
    assert (found.writer, found.next_offset, found.next_seq_no) == ("walstore id", 13, 4)
    assert log.manifest == found
    assert store.count("put_if_match").requests == 1
    await log.publish(fragments(6, seq_no=4, start=13), "walstore id")
    assert (await stored(store)).next_offset == 19
    assert store.count("put_if_match").requests == 2
    assert store.count("get").requests == 2


async def test_published_again_is_published_once(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    for _ in range(2):
        await log.publish(fragments(3, 4), "w")
    assert (await stored(store)).next_seq_no == 3
    assert store.count("put_if_match").requests == 1


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_a_swap_whose_answer_is_strange(store, opened, fault: str, times: int) -> None:
    log = opened()
    await log.load_or_create("w")
    store.on("put_if_match", PUT_FAULTS[fault](), times=times)
    await log.publish(fragments(3, 4), "w")
    await log.publish(fragments(5, seq_no=3, start=8), "w")
    assert (await stored(store)).fragments == tuple(fragments(3, 4, 5))


@pytest.mark.parametrize("happens", [False, True])
async def test_a_swap_that_nothing_tells_about(store, opened, happens: bool) -> None:
    """Unknown, and the same call again publishes once, whatever happened before."""
    log = opened()
    await log.load_or_create("w")
    store.on("put_if_match", (happen_then_fail if happens else fail)(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), times=5)
    with pytest.raises(OutcomeUnknownError):
        await log.publish(fragments(3, 4), "w")
    assert ((await stored(store)).next_seq_no == 3) == happens
    await log.publish(fragments(3, 4), "w")
    await log.publish(fragments(5, seq_no=3, start=8), "w")
    assert (await stored(store)).fragments == tuple(fragments(3, 4, 5))


@pytest.mark.parametrize("happens", [False, True])
async def test_a_cancelled_swap(store, opened, happens: bool) -> None:
    """It may have happened; the same call again finds out."""
    log = opened()
    await log.load_or_create("w")
    reached = asyncio.Event()
    hang = faults.happen_then_hang if happens else faults.hang
    store.on("put_if_match", hang(asyncio.Event(), reached))
    publishing = asyncio.create_task(log.publish(fragments(3, 4), "w"))
    await reached.wait()
    publishing.cancel()
    await asyncio.wait((publishing,))
    assert publishing.cancelled()
    await log.publish(fragments(3, 4), "w")
    assert (await stored(store)).fragments == tuple(fragments(3, 4))


@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_a_death_in_the_swap(store, opened, fault) -> None:
    log = opened()
    await log.load_or_create("w")
    store.on("put_if_match", fault())
    with pytest.raises(StoreKilled):
        await log.publish(fragments(3, 4), "w")
    again = opened(store.inner)
    await again.load()
    await again.publish(fragments(3, 4), "w")
    assert (await stored(store)).fragments == tuple(fragments(3, 4))


# -- others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, timeout()])
async def test_a_collector_may_drop_old_fragments_meanwhile(store, opened, answer) -> None:
    """The swap is refused and tried again on top of what the collector left."""
    await write(store, manifest_of(3, 4))
    log = opened()
    await log.load()
    collected = dataclasses.replace(
        manifest_of(3, 4),
        collected=manifest_of(3, 4).fragments[0].setsum,
        fragments=manifest_of(3, 4).fragments[1:],
        initial_offset=4,
        initial_seq_no=2,
    )
    await write(store, collected)
    if answer is not None:
        store.on("put_if_match", fail(answer))
    await log.publish(fragments(5, seq_no=3, start=8), "w")
    found = await stored(store)
    assert (found.oldest_offset, found.next_offset) == (4, 13)
    assert found.collected == collected.collected


async def test_a_roll_up_meanwhile_is_kept(store, opened) -> None:
    await write(store, manifest_of(3, 4))
    log = opened()
    await log.load()
    rolled, _ = rolled_up(manifest_of(3, 4), 1)
    await write(store, rolled)
    await log.publish(fragments(5, seq_no=3, start=8), "w")
    assert (await stored(store)).snapshots == rolled.snapshots


async def test_another_writer_was_first(store, opened) -> None:
    """One of two wins; the other is told and changes nothing."""
    first, second = opened(), opened()
    await first.load_or_create("w")
    await second.load()
    await first.publish(fragments(3, 4), "w")
    before = await stored(store)
    for run in (fragments(5), fragments(9), fragments(3, 9)):
        with pytest.raises(ContentionError, match="another writer published fragment 1"):
            await second.publish(run, "w")
    assert await stored(store) == before


async def test_many_writers_race(store, opened) -> None:
    """Each swap has one winner, and the manifest stays sound."""
    logs = [opened() for _ in range(8)]
    for log in logs:
        await log.load_or_create("w")
    results = await asyncio.gather(
        *(log.publish(fragments(10 + at), f"w{at}") for at, log in enumerate(logs)),
        return_exceptions=True,
    )
    assert [type(result) for result in results].count(type(None)) == 1
    assert all(isinstance(result, ContentionError | None) for result in results)
    winner = results.index(None)
    assert (await stored(store)).next_offset == 11 + winner


async def test_numbers_fit_but_offsets_do_not(store, opened) -> None:
    """Somebody published other fragments in place of ours."""
    await write(store, manifest_of(3))
    log = opened()
    await log.load()
    with pytest.raises(ContentionError):
        await log.publish(fragments(4, seq_no=2, start=5), "w")


async def test_the_manifest_is_deleted_under_us(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await store.inner.delete([KEY])
    with pytest.raises(ContentionError, match="deleted"):
        await log.publish(fragments(3), "w")


@pytest.mark.parametrize("path", ["log/other.parquet", fragments(3, 4)[1].path])
async def test_a_fragment_under_another_key_is_refused(store, opened, path: str) -> None:
    """wal3's programs compute the key from the number."""
    log = opened()
    await log.load_or_create("w")
    with pytest.raises(ValueError, match="has the key"):
        await log.publish([dataclasses.replace(fragment(1, 1, 4), path=path)], "w")
    assert await stored(store) == Manifest.initial("w")


async def test_publishing_where_no_log_is(opened) -> None:
    with pytest.raises(LogNotFoundError):
        await opened().publish(fragments(3), "w")


# -- after a lost answer ---------------------------------------------------------------------


async def lose(log: SwappedRoot, store: FaultyStore) -> None:
    """Publish two fragments, and be told nothing about it, though it happened."""
    store.on("put_if_match", happen_then_fail(timeout()))
    store.on("get", fail(timeout("not_written")))
    store.on("put_if_match", fail(timeout("not_written")), times=4)
    with pytest.raises(OutcomeUnknownError):
        await log.publish(fragments(3, 4), "w")
    assert (await stored(store)).next_offset == 8


async def test_another_writer_rolled_ours_up_before_we_knew(store, opened) -> None:
    """Ours is found in the snapshots, and not published twice."""
    log, other = opened(), opened()
    await log.load_or_create("w")
    await lose(log, store)
    await other.load()
    await other.publish(fragments(5, seq_no=3, start=8), "other")
    manifest = await stored(store)
    rolled, snapshot = rolled_up(manifest, 2)
    await store.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await write(store, rolled)
    await log.publish(fragments(3, 4), "w")
    assert await stored(store) == rolled


async def test_another_writer_rolled_up_what_it_put_in_place_of_ours(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    theirs, snapshot = rolled_up(manifest_of(3, 5, 6), 2)
    await store.inner.put_if_absent(snapshot.path, snapshot.serialise())
    await write(store, theirs)
    with pytest.raises(ContentionError, match="another writer published") as told:
        await log.publish(fragments(3, 4), "w")
    assert told.value.outcome == "not_written"


async def test_ours_was_collected_before_we_knew(store, opened) -> None:
    """Nobody can tell any more: another writer may have put other records into the freed place."""
    log, other = opened(), opened()
    await log.load_or_create("w")
    await lose(log, store)
    await other.load()
    await other.publish(fragments(5, seq_no=3, start=8), "other")
    assert await other.change(lambda manifest: without(manifest, 2))
    with pytest.raises(ContentionError, match="was collected") as told:
        await log.publish(fragments(3, 4), "w")
    assert told.value.outcome == "unknown"
    assert (await stored(store)).oldest_offset == 8


# -- changing --------------------------------------------------------------------------------


def without(manifest: Manifest, count: int, writer: str = "w") -> Manifest:
    """Return the manifest without its oldest fragments, as a collector leaves it."""
    doomed, kept = manifest.fragments[:count], manifest.fragments[count:]
    return dataclasses.replace(
        manifest,
        collected=Setsum.total([manifest.collected, *(one.setsum for one in doomed)]),
        writer=writer,
        fragments=kept,
        initial_offset=kept[0].start,
        initial_seq_no=kept[0].seq_no,
    )


def drop_first(manifest: Manifest) -> Manifest | None:
    """Collect fragment 1, if that was not done yet."""
    return without(manifest, 1) if manifest.oldest_offset == 1 else None


async def with_two(opened) -> SwappedRoot:
    log = opened()
    await log.load_or_create("w")
    await log.publish(fragments(3, 4), "w")
    return log


async def test_a_change_is_one_swap(store, opened) -> None:
    log = await with_two(opened)
    assert await log.change(drop_first)
    assert log.manifest == await stored(store) == without(manifest_by(log), 1)
    assert store.count("put_if_match").requests == 2
    assert not await log.change(drop_first)
    assert store.count("put_if_match").requests == 2


def manifest_by(log: SwappedRoot) -> Manifest:
    """Return the manifest that :func:`with_two` left."""
    return dataclasses.replace(manifest_of(3, 4), writer=log.manifest.writer)


async def test_a_change_reads_the_manifest_if_nobody_did(store, opened) -> None:
    await write(store, manifest_of(3, 4))
    log = opened()
    assert await log.change(drop_first)
    assert (await stored(store)).oldest_offset == 4


async def test_nothing_to_change(store, opened) -> None:
    log = opened()
    with pytest.raises(LogNotFoundError):
        await log.change(drop_first)
    await with_two(opened)
    assert not await log.change(lambda _: None)


async def test_what_the_change_raises_is_passed_on(store, opened) -> None:
    log = await with_two(opened)

    def refuse(_: Manifest) -> Manifest:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await log.change(refuse)
    await log.publish(fragments(5, seq_no=3, start=8), "w")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda manifest: dataclasses.replace(manifest, fragments=manifest.fragments[1:]),
        lambda manifest: dataclasses.replace(manifest, fragments=()),
        lambda _: Manifest.initial("w"),
        lambda _: manifest_of(3),
        lambda manifest: dataclasses.replace(manifest, acc_bytes=0),
    ],
)
async def test_a_change_that_would_damage_the_log_is_not_written(
    store, opened, spoil: Callable[[Manifest], Manifest]
) -> None:
    log = await with_two(opened)
    before = await stored(store)
    with pytest.raises(CorruptionError):
        await log.change(spoil)
    assert log.manifest == await stored(store) == before


async def test_a_change_is_made_again_on_top_of_what_others_wrote(store, opened) -> None:
    log, other = await with_two(opened), opened()
    await other.load()
    seen = []

    def make(manifest: Manifest) -> Manifest | None:
        seen.append(manifest.next_offset)
        return drop_first(manifest)

    store.on(
        "put_if_match",
        faults.call(lambda: other.publish(fragments(5, seq_no=3, start=8), "other")),
    )
    assert await log.change(make)
    assert seen == [8, 13]
    found = await stored(store)
    assert (found.oldest_offset, found.next_offset) == (4, 13)


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_a_change_whose_answer_is_strange(store, opened, fault: str, times: int) -> None:
    log = await with_two(opened)
    store.on("put_if_match", PUT_FAULTS[fault](), times=times)
    assert await log.change(drop_first)
    assert (await stored(store)).oldest_offset == 4
    assert not await log.change(drop_first)


async def test_a_change_that_happened_and_was_built_upon(store, opened) -> None:
    """Its answer is lost, another writer goes on from it; the change is not made twice."""
    log, other = await with_two(opened), opened()

    async def go_on() -> None:
        await other.load()
        await other.publish(fragments(5, seq_no=3, start=8), "other")

    store.on("put_if_match", happen_then_fail(timeout()))
    store.on("get", faults.call(go_on))
    assert not await log.change(drop_first)
    found = await stored(store)
    assert (found.oldest_offset, found.next_offset) == (4, 13)
    assert found == log.manifest


@pytest.mark.parametrize("happens", [False, True])
async def test_a_change_that_nothing_tells_about(store, opened, happens: bool) -> None:
    log = await with_two(opened)
    store.on("put_if_match", (happen_then_fail if happens else fail)(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), times=5)
    with pytest.raises(OutcomeUnknownError) as told:
        await log.change(drop_first)
    assert told.value.retriable
    assert ((await stored(store)).oldest_offset == 4) == happens
    assert await log.change(drop_first) or happens
    assert (await stored(store)).oldest_offset == 4


async def test_the_manifest_is_deleted_under_a_change(store, opened) -> None:
    log = await with_two(opened)
    await store.inner.delete([KEY])
    with pytest.raises(ContentionError, match="deleted"):
        await log.change(drop_first)


async def test_a_cancelled_change_frees_the_way(store, opened) -> None:
    log = await with_two(opened)
    reached = asyncio.Event()
    store.on("put_if_match", faults.happen_then_hang(asyncio.Event(), reached))
    changing = asyncio.create_task(log.change(drop_first))
    await reached.wait()
    changing.cancel()
    await asyncio.wait((changing,))
    await log.publish(fragments(5, seq_no=3, start=8), "w")
    found = await stored(store)
    assert (found.oldest_offset, found.next_offset) == (4, 13)


async def with_eight(opened) -> SwappedRoot:
    log = opened()
    await log.load_or_create("w")
    await log.publish(fragments(*[1] * 8), "w")
    return log


async def test_tasks_of_one_program_take_turns(store, opened) -> None:
    """They publish, change and read at the same time through one object; no change is lost."""
    log = await with_eight(opened)
    made: list[int] = []

    def drop(manifest: Manifest) -> Manifest:
        made.append(manifest.oldest_offset)
        return without(manifest, 1)

    async def append() -> None:
        for at in range(9, 19):
            await log.publish([fragment(at, at, at + 1)], "w")

    async def read() -> None:
        for _ in range(20):
            assert await log.load()

    async with asyncio.TaskGroup() as group:
        group.create_task(append())
        for _ in range(5):
            group.create_task(read())
            group.create_task(log.change(drop))
    assert made == [1, 2, 3, 4, 5], "nobody was in the way"
    found = await stored(store)
    assert found == log.manifest
    assert (found.oldest_offset, found.next_offset) == (6, 19)


async def test_many_programs_change_and_publish(store, opened) -> None:
    """Each change is made exactly once, whoever wins, if no two make the same bytes."""
    appender = await with_eight(opened)
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(opened().change(partial(without, count=1, writer=f"w{number}")))
        for at in range(9, 19):
            await appender.publish([fragment(at, at, at + 1)], "w")
    found = await stored(store)
    assert (found.oldest_offset, found.next_offset) == (7, 19)
