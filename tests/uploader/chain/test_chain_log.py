"""The chain's protocol: whatever the store does, a run of fragments is published once or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from tests.uploader.chain.chains import InlineWorker, run, stored_links, true_head
from tests.waiting import until
from uploader import layout
from uploader.chain import ChainLog, ChainSettings
from uploader.chain.link import MOST_ALPHA, Link
from uploader.chain.names import manifest_key
from uploader.manifests.manifest import Manifest
from uploader.stores import MemoryStore, PreconditionFailedError, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import Fault, StoreKilled, fail, happen_then_fail, timeout
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSealedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing.clock import ManualClock

Opened = Callable[..., ChainLog]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def opened(store: FaultyStore, clock: ManualClock):
    """Make chain logs over the store; they retry without waiting."""
    logs: list[ChainLog] = []

    def make(inner=None, *, alpha: int = 4, shards: int = 1, at: ManualClock = clock) -> ChainLog:
        retry = RetryPolicy(
            clock=at, jitter=lambda: 0.0, first_wait_seconds=0, longest_wait_seconds=0
        )
        settings = ChainSettings(alpha=alpha, shards=shards)
        logs.append(ChainLog(inner or store, retry, InlineWorker(), settings=settings))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


async def head_of(store: FaultyStore) -> Link:
    """Return the head, found by brute force, which must be sound; recovery must find it too."""
    links = await stored_links(store.inner)
    head = true_head(links)
    head.manifest.scrub()
    fresh = ChainLog(store.inner, RetryPolicy(), InlineWorker())
    assert await fresh.load()
    assert fresh.head == head
    return head


# -- reading and creating --------------------------------------------------------------------


async def test_there_is_none(store, opened) -> None:
    log = opened()
    assert not await log.load()
    assert not log.is_known
    assert (log.manifest.oldest_offset, log.manifest.next_offset) == (1, 1)
    assert store.requests == 1
    with pytest.raises(LogNotFoundError):
        await log.publish(run(3), "w")
    with pytest.raises(LogNotFoundError):
        await log.change(lambda manifest: manifest)


async def test_it_is_created_in_its_anchor(store, opened) -> None:
    log = opened()
    await log.load_or_create("walstore 00")
    assert (await head_of(store)).manifest == log.manifest == Manifest.initial("walstore 00")
    assert await store.inner.head("manifest/MANIFEST.ffffffffffffffff")
    await opened().load_or_create("somebody else")
    assert (await head_of(store)).manifest.writer == "walstore 00"


async def test_thirty_two_create_it_at_once(store, opened) -> None:
    logs = [opened() for _ in range(32)]
    async with asyncio.TaskGroup() as group:
        for number, log in enumerate(logs):
            group.create_task(log.load_or_create(f"writer {number}"))
    assert {log.manifest for log in logs} == {(await head_of(store)).manifest}


async def test_the_other_layout_created_at_the_same_time(store, opened) -> None:
    async def swap() -> None:
        await store.inner.put_if_absent(layout.MANIFEST, Manifest.initial("w").serialise())

    store.on("put_if_absent", faults.call(swap))
    with pytest.raises(InvalidSettingsError, match="other layout"):
        await opened().load_or_create("w")


async def test_creating_ends_in_an_unknown_outcome_if_nothing_answers(store, opened) -> None:
    store.on("put_if_absent", happen_then_fail(timeout()), times=5)
    store.on("get", fail(timeout("not_written")), times=5)
    log = opened()
    with pytest.raises(OutcomeUnknownError) as told:
        await log.load_or_create("w")
    assert told.value.retriable
    await log.load_or_create("w")
    assert log.manifest == Manifest.initial("w")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"slot":1,', b'"slot":2,'),
        (b'"chain":', b'"chian":'),
        (b'"alpha":4', b'"alpha":0'),
        (b'"alpha":4', b'"alpha":33'),
        (b'"kept":[]', b'"kept":[[1,2]]'),
        (b'"kept":[]', b'"kept":{}'),
        (b'"seq_no":1', b'"seq_no":2'),
        (b'"base":0', b'"base":2'),
        (b"}", b""),
    ],
)
async def test_a_damaged_one_is_named(store, opened, before: bytes, after: bytes) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    key = manifest_key(1)
    data = (await store.inner.get(key)).data
    assert before in data
    await store.inner.delete([key])
    await store.inner.put_if_absent(key, data.replace(before, after))
    with pytest.raises(CorruptionError) as told:
        await opened().load()
    assert told.value.path == key


async def test_it_never_goes_back(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    await store.inner.delete([manifest_key(1)])
    with pytest.raises(CorruptionError, match="deleted"):
        await log.load()


async def test_a_missing_base_is_named(store, opened) -> None:
    log = opened(alpha=1)
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    await log.publish(run(3, seq_no=2, start=4), "w")
    await store.inner.delete([manifest_key(1)])
    with pytest.raises(CorruptionError, match="missing"):
        await opened().load()


async def test_a_load_that_finds_nothing_new_is_one_request(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    before = log.manifest
    requests = store.requests
    await log.load()
    assert log.manifest is before
    assert store.requests == requests + 1


async def test_a_reader_follows(store, opened) -> None:
    writer, reader = opened(), opened()
    await writer.load_or_create("w")
    for number in range(1, 21):
        await writer.publish(run(3, seq_no=number, start=3 * number - 2), "w")
        assert await reader.load()
        assert reader.manifest == writer.manifest


# -- publishing ------------------------------------------------------------------------------


async def test_a_run_is_published_by_one_put(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    requests = store.requests
    await log.publish(run(3, 4, 5), "walstore id")
    head = await head_of(store)
    assert list(head.manifest.fragments) == run(3, 4, 5)
    assert (head.slot, head.manifest.writer, head.manifest.next_offset) == (1, "walstore id", 13)
    assert store.requests == requests + 1
    await log.publish(run(6, seq_no=4, start=13), "walstore id")
    assert store.requests == requests + 2
    assert (await head_of(store)).manifest.next_offset == 19


async def test_published_again_is_published_once(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    requests = store.requests
    for _ in range(2):
        await log.publish(run(3, 4), "w")
    assert store.requests == requests + 1
    assert (await head_of(store)).manifest.next_seq_no == 3


async def test_a_foreign_key_is_refused(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    item = run(3)[0]
    for path in (
        layout.fragment_path(1),
        item.path.replace("_4_", "_5_"),
        item.path.replace("0001_", "0002_"),
        item.path.replace("shard0001", "shard0013"),
    ):
        with pytest.raises(ValueError, match="key"):
            await log.publish([dataclasses.replace(item, path=path)], "w")


async def test_several_are_under_way_at_once(store, opened) -> None:
    """As many as alpha; the last answer first; none returns before those before it."""
    log = opened(alpha=3)
    await log.load_or_create("w")
    gates = [(asyncio.Event(), asyncio.Event()) for _ in range(3)]
    for slot, (release, reached) in enumerate(gates, 1):
        hang = faults.happen_then_hang(release, reached)
        store.on("put_if_absent", hang, key_prefix=manifest_key(slot))
    runs = [run(3, seq_no=number, start=3 * number - 2) for number in range(1, 6)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.publish(item, "w")) for item in runs]
        for _, reached in gates:
            await reached.wait()
        assert manifest_key(4) not in [key async for key in keys(store)]
        gates[2][0].set()
        gates[1][0].set()
        assert log.manifest.next_seq_no == 1
        assert not any(task.done() for task in tasks)
        gates[0][0].set()
    head = await head_of(store)
    assert head.manifest.next_seq_no == 6
    assert head.slot == 5


async def keys(store: FaultyStore):
    async for listed in store.inner.list("manifest/"):
        yield listed.key


async def test_readers_do_not_see_what_is_not_linked(store, opened) -> None:
    log = opened(alpha=3)
    await log.load_or_create("w")
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix=manifest_key(1))
    done = asyncio.Event()
    store.on("put_if_absent", faults.happen_then_hang(release, done), key_prefix=manifest_key(3))
    async with asyncio.TaskGroup() as group:
        for number in range(1, 4):
            item = run(3, seq_no=number, start=3 * number - 2)
            group.create_task(log.publish(item, "w"))
        await reached.wait()
        await done.wait()
        reader = opened(store.inner)
        await reader.load()
        assert reader.head.slot == 0
        release.set()
    await reader.load()
    assert reader.head.slot == 3


def refusal() -> PreconditionFailedError:
    return PreconditionFailedError("refused (injected)", key="somewhere")


PUT_FAULTS: dict[str, Callable[[], Fault]] = {
    "refused": lambda: fail(timeout("not_written")),
    "lost": lambda: fail(timeout()),
    "happened": lambda: happen_then_fail(timeout()),
    "409": lambda: fail(faults.conflict()),
    "412 out of nothing": lambda: fail(refusal()),
    "412 about an earlier attempt": lambda: happen_then_fail(refusal()),
}


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_a_put_whose_answer_is_strange(store, opened, fault: str, times: int) -> None:
    log = opened()
    await log.load_or_create("w")
    store.on("put_if_absent", PUT_FAULTS[fault](), times=times)
    await log.publish(run(3, 4), "w")
    await log.publish(run(5, seq_no=3, start=8), "w")
    head = await head_of(store)
    assert head.manifest.fragments == tuple(run(3, 4, 5))
    assert head.slot == 2


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("alpha", [1, 4])
async def test_a_put_that_nothing_tells_about(store, opened, happens: bool, alpha: int) -> None:
    """Unknown, and the same calls again publish once, whatever happened before."""
    log = opened(alpha=alpha)
    await log.load_or_create("w")
    fault = happen_then_fail if happens else fail
    store.on("put_if_absent", fault(timeout()), times=5, key_prefix=manifest_key(1))
    store.on("get", fail(timeout("not_written")), times=5)
    runs = [run(3, 4), run(5, seq_no=3, start=8), run(6, seq_no=4, start=13)]
    results = await asyncio.gather(
        *(log.publish(item, "w") for item in runs), return_exceptions=True
    )
    assert all(isinstance(result, OutcomeUnknownError) for result in results)
    assert all(result.retriable for result in results)
    for item in runs:
        await log.publish(item, "w")
    assert (await head_of(store)).manifest.fragments == tuple(run(3, 4, 5, 6))


async def test_a_put_that_is_refused_for_good(store, opened) -> None:
    """Its error is told; the ones behind it cannot be published either."""
    log = opened()
    await log.load_or_create("w")
    denied = StorageUnavailableError("denied (injected)", outcome="not_written", retriable=False)
    store.on("put_if_absent", fail(denied), key_prefix=manifest_key(1))
    runs = [run(3), run(4, seq_no=2, start=4)]
    first, second = await asyncio.gather(
        *(log.publish(item, "w") for item in runs), return_exceptions=True
    )
    assert first is denied
    assert isinstance(second, OutcomeUnknownError)
    for item in runs:
        await log.publish(item, "w")
    assert (await head_of(store)).manifest.fragments == tuple(run(3, 4))


@pytest.mark.parametrize("happens", [False, True])
async def test_a_cancelled_put(store, opened, happens: bool) -> None:
    """It may have happened; the same call again finds out. The one behind it is told to wait for that."""
    log = opened()
    await log.load_or_create("w")
    reached = asyncio.Event()
    hang = faults.happen_then_hang if happens else faults.hang
    store.on("put_if_absent", hang(asyncio.Event(), reached), key_prefix=manifest_key(1))
    publishing = asyncio.create_task(log.publish(run(3, 4), "w"))
    await reached.wait()
    behind = asyncio.create_task(log.publish(run(5, seq_no=3, start=8), "w"))
    await until(lambda: log._window.tip.slot == 2)
    publishing.cancel()
    await asyncio.wait((publishing, behind))
    assert publishing.cancelled()
    with pytest.raises(OutcomeUnknownError):
        await behind
    await log.publish(run(3, 4), "w")
    await log.publish(run(5, seq_no=3, start=8), "w")
    assert (await head_of(store)).manifest.fragments == tuple(run(3, 4, 5))


@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_of_the_store(opened, fault) -> None:
    """However it dies: what was acknowledged is there, nothing is there twice, and it goes on."""
    expected = run(*[2] * 12)
    for nth in range(1, 60):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        told = 0
        try:
            log = opened(store, alpha=3)
            await log.load_or_create("w")
            for at in range(0, 12, 4):
                async with asyncio.TaskGroup() as group:
                    for item in expected[at : at + 4]:
                        group.create_task(log.publish([item], "w"))
                told = at + 4
                if at == 4:
                    await log.change(lambda manifest: dataclasses.replace(manifest, writer="gc"))
        except* (StoreKilled, OutcomeUnknownError):
            pass
        again = opened(store.inner, alpha=2)
        await again.load_or_create("w")
        found = again.manifest.next_seq_no - 1
        assert found >= told
        for item in expected[found:]:
            await again.publish([item], "w")
        await again.settle()
        assert (await head_of(store)).manifest.fragments == tuple(expected)
        await log.aclose()
        if not store.is_killed:
            return
    pytest.fail("the run never got to its end")


# -- others ----------------------------------------------------------------------------------


def collect_one(manifest: Manifest) -> Manifest | None:
    first = manifest.fragments[0]
    if first.seq_no > 1:
        return None
    return dataclasses.replace(
        manifest,
        collected=manifest.collected + first.setsum,
        fragments=manifest.fragments[1:],
        initial_offset=first.limit,
        initial_seq_no=first.seq_no + 1,
    )


async def test_a_collector_may_drop_old_fragments_meanwhile(store, opened) -> None:
    """Its manifest took the slot: the writer's are put again behind it, all of them."""
    log, collector = opened(), opened()
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    await collector.load()
    assert await collector.change(collect_one)
    assert not await collector.change(collect_one)
    runs = [run(5, seq_no=3 + at, start=8 + 5 * at) for at in range(8)]
    await asyncio.gather(*(log.publish(item, "w") for item in runs))
    head = await head_of(store)
    assert (head.manifest.oldest_offset, head.manifest.next_offset) == (4, 48)
    assert head.manifest.collected == run(3)[0].setsum


async def test_changes_and_publishing_by_one_program(store, opened) -> None:
    log = opened(alpha=3)
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    runs = [run(5, seq_no=3 + at, start=8 + 5 * at) for at in range(8)]
    results = await asyncio.gather(
        *(log.publish(item, "w") for item in runs[:4]),
        log.change(collect_one),
        log.change(collect_one),
        *(log.publish(item, "w") for item in runs[4:]),
    )
    assert results[4:6] == [True, False]
    head = await head_of(store)
    assert (head.manifest.oldest_offset, head.manifest.next_offset) == (4, 48)


async def test_an_unsound_change_is_refused(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    with pytest.raises(CorruptionError):
        await log.change(lambda manifest: dataclasses.replace(manifest, fragments=()))
    assert (await head_of(store)).slot == 1


async def test_a_sealed_log_takes_nothing(store, opened) -> None:
    log, other = opened(), opened()
    await log.load_or_create("w")
    await other.load()
    assert await other.change(Manifest.seal)
    with pytest.raises(LogSealedError):
        await log.publish(run(3), "w")


async def test_another_writer_was_first(store, opened) -> None:
    """One of two wins; the other is told and changes nothing."""
    first, second = opened(), opened()
    await first.load_or_create("w")
    await second.load()
    await first.publish(run(3, 4), "w")
    before = await head_of(store)
    for other in (run(5, salt="b"), run(9, salt="b"), run(3, 9, salt="b"), run(3, 4, salt="b")):
        with pytest.raises(ContentionError, match="another writer published fragment 1"):
            await second.publish(other, "w")
    assert await head_of(store) == before
    await second.publish(run(3, 4), "w")
    assert await head_of(store) == before


async def test_many_writers_race(store, opened) -> None:
    logs = [opened(alpha=1 + at) for at in range(8)]
    for log in logs:
        await log.load_or_create("w")
    results = await asyncio.gather(
        *(log.publish(run(10 + at, salt=str(at)), f"w{at}") for at, log in enumerate(logs)),
        return_exceptions=True,
    )
    assert [type(result) for result in results].count(type(None)) == 1
    assert all(isinstance(result, ContentionError | None) for result in results)
    winner = results.index(None)
    assert (await head_of(store)).manifest.next_offset == 11 + winner


async def test_two_writers_take_turns(store, opened) -> None:
    """Each goes on where the other left off, without opening anew, whatever the other had under way."""
    logs = [opened(alpha=3), opened(alpha=5)]
    await logs[0].load_or_create("w")
    await logs[1].load()
    expected = run(*[2] * 40)
    for turn in range(10):
        items = expected[4 * turn : 4 * turn + 4]
        await logs[turn % 2].load()
        await asyncio.gather(*(logs[turn % 2].publish([item], "w") for item in items))
    assert (await head_of(store)).manifest.fragments == tuple(expected)


async def test_a_manifest_that_belongs_to_no_chain_is_named(store, opened) -> None:
    """Only a program that breaks the rules can have put it."""
    log = opened()
    await log.load_or_create("w")
    foreign = Link.root(Manifest.initial("x"), author="x", alpha=1, slot=1)
    foreign = dataclasses.replace(foreign, base=0)
    await store.inner.put_if_absent(foreign.key, foreign.serialise())
    with pytest.raises(CorruptionError):
        await log.publish(run(3), "w")


async def test_the_manifests_are_deleted_under_us(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    store.on("put_if_absent", fail(refusal()))
    await store.inner.delete([manifest_key(0), manifest_key(1)])
    with pytest.raises(WalError):
        other = opened(alpha=1)
        await other.load_or_create("x")
        await log.load()


# -- late puts -------------------------------------------------------------------------------


async def stall(store: FaultyStore, log: ChainLog, expected, slots: list[int]):
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


# -- pruning and recovery --------------------------------------------------------------------


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
    assert store.requests - requests <= 2 + alpha
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


# -- shards ----------------------------------------------------------------------------------


async def test_fragments_are_spread_and_found_again_by_number(store, opened) -> None:
    log = opened(shards=3)
    await log.load_or_create("w")
    items = run(*[2] * 8, shards=3)
    for item in items:
        key = log.fragment_key(item.seq_no, start=item.start, limit=item.limit, setsum=item.setsum)
        assert key == item.path
        await store.inner.put_if_absent(key, b"x")
    assert [item.path[:9] for item in items[:4]] == [
        "shard0001",
        "shard0002",
        "shard0003",
        "shard0001",
    ]
    await store.inner.put_if_absent("shard0001/ffffffffffffffff_notes.txt", b"x")
    await log.publish(items[:3], "w")
    resharded = opened(shards=1)
    await resharded.load()
    found = [listed.key async for listed in resharded.unpublished()]
    assert found == [item.path for item in items[3:]]


async def test_resharding_is_closing_and_opening(store, opened) -> None:
    """More shards, fewer shards: the manifest names them all, in one order."""
    expected, start = [], 1
    for turn, shards in enumerate((1, 12, 3, 1)):
        log = opened(shards=shards)
        await log.load_or_create("w")
        items = run(*[2] * 14, seq_no=14 * turn + 1, start=start, shards=shards)
        start = items[-1].limit
        await asyncio.gather(*(log.publish([item], "w") for item in items))
        await log.aclose()
        expected += items
    head = await head_of(store)
    assert head.manifest.fragments == tuple(expected)
    assert len({item.path[:9] for item in expected}) == 12


# -- roll-ups --------------------------------------------------------------------------------


async def test_a_chain_is_rolled_up_as_it_grows(store, opened) -> None:
    log = opened(alpha=8)
    await log.load_or_create("w")
    expected = run(*[1] * 600)
    for at in range(0, 600, 20):
        await asyncio.gather(*(log.publish([item], "w") for item in expected[at : at + 20]))
        await log.settle()
    head = (await opened().load(), log.head)[1]
    assert head.manifest.snapshots
    assert len(head.manifest.fragments) < 150
    head.manifest.scrub()
    assert head.manifest.next_offset == 601
    # What was published and rolled up since is still known to be published.
    await log.publish([expected[3]], "w")
    with pytest.raises(ContentionError):
        await log.publish(run(1, seq_no=4, start=4, salt="x"), "w")
