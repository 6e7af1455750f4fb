"""A chain of manifests as a log's root: created, read, published to, divided and rolled up."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.uploader.answers import PUT_FAULTS
from tests.uploader.chain.chain_logs import head_of, keys
from tests.uploader.chain.chains import run
from tests.waiting import until
from uploader.format import layout
from uploader.format.layout import MOST_SHARDS, FragmentName, manifest_key
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, ShuffledStore, faults
from uploader.testing.faults import StoreKilled, fail, happen_then_fail, timeout
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)


def in_order(_: list) -> None:
    """Leave a listing as it is."""


# -- reading and creating ----------------------------------------------------------------------


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


# -- publishing --------------------------------------------------------------------------------


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


async def test_the_last_of_a_run_is_adopted_behind_a_fragment_of_another_writer(
    store, opened
) -> None:
    """Of the same size as the first one, which is not in the log: nobody may be told that it is."""
    log, other = opened(), opened()
    await log.load_or_create("w")
    first, last = run(3, 4)
    await other.load()
    await other.publish(run(3, salt="other"), "other")
    await other.publish([last], "other")
    with pytest.raises(ContentionError, match="another writer published fragment 1"):
        await log.publish([first, last], "w")
    with pytest.raises(ContentionError, match="another writer published fragment 1"):
        await log.publish([first], "w")
    await log.publish([last], "w")
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


# -- shards ------------------------------------------------------------------------------------


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


def elsewhere(seq_no: int) -> str:
    """Return the key of a fragment in the third shard."""
    return FragmentName(seq_no, 17, 19, Setsum()).key(shards=3)


@pytest.mark.parametrize("shuffle", [in_order, list.reverse])
@pytest.mark.parametrize(
    ("other", "listings"),
    [
        (None, 1),
        (elsewhere(9), 1),
        (elsewhere(3), 1 + MOST_SHARDS),
        ("shards/log/another.parquet", 1 + MOST_SHARDS),
    ],
)
async def test_one_listing_where_one_shard_is_used(
    store, opened, other, listings: int, shuffle
) -> None:
    """What lies behind the end in another one is found, too; no other log is gone through."""
    log = opened()
    await log.load_or_create("w")
    items = run(*[2] * 8)
    for item in items:
        await store.inner.put_if_absent(item.path, b"x")
    await store.inner.put_if_absent("shard0001/ffffffffffffffff_notes.txt", b"x")
    if other is not None:
        await store.inner.put_if_absent(other, b"x")
    await log.publish(items[:6], "w")
    listing = FaultyStore(ShuffledStore(store.inner, shuffle))
    fresh = opened(listing)
    await fresh.load()
    before = listing.count("list").requests
    found = [listed.key async for listed in fresh.unpublished()]
    is_behind = other == elsewhere(9)
    assert found == [items[6].path, items[7].path, *([other] if is_behind else [])]
    assert listing.count("list").requests - before == listings


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


# -- roll-ups ----------------------------------------------------------------------------------


@pytest.mark.slow
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
