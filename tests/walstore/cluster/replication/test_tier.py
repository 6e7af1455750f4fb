"""A replicated log that ships to a bucket: what ships, and who ships after a takeover."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import URL, snapshot
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import Cluster, values
from tests.walstore.cluster.replication.shipped import IDLE, both, end, serve_again, sound, tier
from uploader import CloudLog, CloudTier, UploadSettings
from uploader.format import layout
from uploader.layouts.log_session import Layout
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, faults
from walstore import (
    ContentionError,
    FencedError,
    InvalidSettingsError,
    Replication,
    StorageUnavailableError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.format.claims import FILE_NAME as CLAIMS_NAME

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def claim_in(store: ObjectStore) -> Claim:
    """Return the claim that the newest manifest carries."""
    async with CloudLog.open(URL, store=store) as log:
        found = Claim.parse(log.manifest.writer)
    assert found is not None
    return found


async def outcome(appending: Any) -> BaseException | int:
    """Return what an append returned or raised."""
    try:
        return await appending
    except WalError as error:
        return error


@both
async def test_what_enough_copies_have_is_shipped(cluster: Cluster, shape: Layout) -> None:
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store, shape, IDLE))
    assert wal.durability == "replicated"
    for number, level in enumerate(["memory", "disk", "replicated", None], 1):
        assert await wal.append(b"%d" % number, durability=level) == number
    assert await wal.append(b"5", durability="cloud") == 5
    assert wal.uploaded_limit == 6
    assert wal.replicated_limit == 6
    assert await sound(store) == [b"1", b"2", b"3", b"4", b"5"]
    await wal.append(b"6")
    assert wal.uploaded_limit == 6
    assert dict(wal.registers) == {}
    await wal.aclose()
    assert await sound(store) == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_what_too_few_copies_have_is_not_shipped(cluster: Cluster) -> None:
    """Neither while the log is open nor while it closes: a takeover may cut it, and does."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store))
    await wal.append(b"kept", durability="cloud")
    for number in (1, 2):
        await cluster.machines[number].stop()
    await wal.append(b"lost", durability="disk")
    async with cluster.losing_patience(wal):
        with pytest.raises(StorageUnavailableError, match="2 are needed") as told:
            await wal.append(b"lost, too", durability="cloud")
    assert told.value.outcome == "unknown"
    with pytest.raises(StorageUnavailableError, match="2 are needed") as told:
        await wal.append(b"refused", durability="cloud")
    assert told.value.outcome == "not_written"
    assert (wal.durable_limit, wal.uploaded_limit) == (4, 2)
    before = await snapshot(store)
    async with asyncio.timeout(30):  # less than a patience
        await wal.aclose()
    assert await snapshot(store) == before

    await serve_again(cluster, 1, 2)
    second = await cluster.primary(1, tier=tier(store))
    assert await second.append(b"other", durability="cloud") == 2
    await second.aclose()
    assert await sound(store) == [b"kept", b"other"]


async def test_what_waits_for_copies_is_shipped_once_they_are_there(cluster: Cluster) -> None:
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store), patience_seconds=60.0)
    for number in (1, 2):
        await cluster.machines[number].stop()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wal.append(b"1", durability="cloud"))
        await until(lambda: wal.durable_limit == 2)
        assert not waiting.done()
        await serve_again(cluster, 1)
    assert waiting.result() == 1
    await wal.aclose()
    assert await sound(store) == [b"1"]


@both
async def test_the_next_primary_goes_on(cluster: Cluster, shape: Layout) -> None:
    """On a machine that never shipped, and then on one that did before another one; nobody needs leave."""
    store, appended = MemoryStore(), []
    logs: list[Wal] = []
    for turn, number in enumerate([0, 1, 0, 2, 1, 1]):
        wal = await cluster.primary(number, tier=tier(store, shape))
        assert (await claim_in(store)).epoch == turn + 1
        for at in range(12):
            appended.append(b"%d %d" % (turn, at) + b"v" * 900)
            level = "cloud" if at % 5 == 0 else None
            assert await wal.append(appended[-1], durability=level) == len(appended)
        assert await values(wal) == appended
        assert not (cluster.machines[number].path / "orders" / CLAIMS_NAME).exists()
        logs.append(wal)
        await wal.aclose()
        assert wal.uploaded_limit == len(appended) + 1
        await serve_again(cluster, number)
    assert await sound(store) == appended


@both
async def test_the_old_primary_ships_no_more(cluster: Cluster, shape: Layout) -> None:
    """It lives, and learns from the copies or from the bucket."""
    store = MemoryStore()
    old = await cluster.primary(0, tier=tier(store, shape, IDLE))
    await old.append(b"1", durability="cloud")
    await old.append(b"2")
    new = await cluster.primary(1, tier=tier(store, shape, IDLE))
    error = await outcome(old.append(b"of the old one", durability="cloud"))
    if isinstance(error, WalClosedError):  # the copies were quicker
        assert (error.reason, error.outcome) == ("fenced", "not_written")
    else:
        assert isinstance(error, FencedError)
        assert error.outcome == "unknown"
    assert isinstance(await end(old), WalClosedError)
    assert await values(new) == [b"1", b"2"]
    assert await new.append(b"3", durability="cloud") == 3
    await until(lambda: new.uploaded_limit == 4)
    await new.aclose()
    assert await sound(store) == [b"1", b"2", b"3"]


@both
@pytest.mark.parametrize("what", ["fragment", "manifest"])
@pytest.mark.parametrize("happens", ["late", "before", "never"])
async def test_a_primary_that_stood_still_while_it_shipped(
    cluster: Cluster, shape: Layout, what: str, happens: str
) -> None:
    """Its put, or its change of the manifest, is under way when another one takes over."""
    inner = MemoryStore()
    slow = FaultyStore(inner)
    settings = dataclasses.replace(IDLE, drain_seconds=RUNS_OUT_SECONDS)
    old = await cluster.primary(0, tier=tier(slow, shape, settings))
    await old.append(b"1", durability="cloud")
    release, reached = asyncio.Event(), asyncio.Event()
    fault = {
        "late": faults.hang(release, reached),
        "before": faults.happen_then_hang(release, reached),
        "never": faults.fail(faults.timeout("not_written")),
    }[happens]
    kind, prefix = "put_if_absent", layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    if what == "manifest":
        kind, prefix = "put_if_match" if shape == "swap" else "put_if_absent", "manifest/"
    if happens == "never":
        reached.set()
    slow.on(kind, fault, times=10**6 if happens == "never" else 1, key_prefix=prefix)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(old.append(b"2", durability="cloud")))
        await until(lambda: old.replicated_limit == 3)
        await reached.wait()
        new = await cluster.primary(1, tier=tier(inner, shape, IDLE))
        for number in range(3, 7):
            assert await new.append(b"%d" % number, durability="cloud") == number
        release.set()
        told = await waiting
    named_in_time = what == "manifest" and happens == "before"
    assert isinstance(told, FencedError) or (named_in_time and told == 2)
    assert isinstance(await end(old), WalClosedError) or named_in_time
    assert await new.append(b"7", durability="cloud") == 7
    await new.aclose()
    assert await sound(inner) == [b"%d" % number for number in range(1, 8)]


async def test_a_late_fragment_with_the_same_records_is_in_nobodys_way(cluster: Cluster) -> None:
    """Where the new primary's next fragment belongs, cut otherwise."""
    inner = MemoryStore()
    slow = FaultyStore(inner)
    old = await cluster.primary(0, tier=tier(slow, "swap", IDLE))
    await old.append(b"1", durability="cloud")
    slow.on("put_if_absent", faults.postpone(slow.late), times=10**6, key_prefix="log/")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(old.append_many([b"2", b"3"], durability="cloud")))
        await until(lambda: bool(slow.late))
        new = await cluster.primary(1, tier=tier(inner, "swap", IDLE))
        late, slow.late = slow.late[:1], []
        await late[0]()  # it arrives, with the records 2 and 3
        assert await new.append(b"4", durability="cloud") == 4
        await waiting
    await end(old)
    assert await new.append(b"5", durability="cloud") == 5
    await new.aclose()
    assert await sound(inner) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_the_old_primary_voids_no_fragment_of_the_new_one(
    cluster: Cluster, *, is_parallel: bool
) -> None:
    """They hold the same records as its own: content does not say whose they are."""
    inner = MemoryStore()
    slow, stuck = FaultyStore(inner), FaultyStore(inner)
    old = await cluster.primary(0, tier=tier(slow, "swap", IDLE))
    await old.append(b"1", durability="cloud")
    release, reached = asyncio.Event(), asyncio.Event()
    slow.on("put_if_absent", faults.hang(release, reached), key_prefix="log/")
    content = [b"%d" % number + b"v" * 3000 for number in range(2, 8)]
    for value in content:
        await old.append(value)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(old.append(b"8", durability="cloud")))
        await reached.wait()
        await until(lambda: old.replicated_limit == 9)
        settings = UploadSettings(
            fragment_bytes=8192, fragment_age_seconds=0.01, parallel_puts=is_parallel
        )
        go_on, is_stuck = asyncio.Event(), asyncio.Event()
        first = layout.fragment_path(2)
        stuck.on("put_if_absent", faults.hang(go_on, is_stuck), key_prefix=first)
        new = await cluster.primary(1, tier=tier(stuck, "swap", settings))
        await is_stuck.wait()
        if is_parallel:
            await until(lambda: stuck.count("put_if_absent").requests > 2)
        release.set()
        assert isinstance(await waiting, FencedError)
        go_on.set()
        assert await new.append(b"9", durability="cloud") == 9
    await end(old)
    await new.aclose()
    assert await sound(inner) == [b"1", *content, b"8", b"9"]


@both
async def test_a_claim_of_an_earlier_primary_that_comes_late(
    cluster: Cluster, shape: Layout
) -> None:
    """It opens the log, stands still before it claims, and finds that another one has."""
    inner = MemoryStore()
    await (await cluster.primary(0, tier=tier(inner, shape))).aclose()
    await serve_again(cluster, 0)
    slow = FaultyStore(inner)
    release, reached = asyncio.Event(), asyncio.Event()
    kind = "put_if_match" if shape == "swap" else "put_if_absent"
    slow.on(kind, faults.hang(release, reached), key_prefix="manifest/")
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(outcome(opened(cluster, 1, tier(slow, shape))))
        await reached.wait()
        new = await cluster.primary(2, tier=tier(inner, shape))
        claim = await claim_in(inner)
        release.set()
        assert isinstance(await opening, WalError)
    assert await claim_in(inner) == claim
    assert await new.append(b"1", durability="cloud") == 1
    await new.aclose()
    assert await sound(inner) == [b"1"]


async def opened(cluster: Cluster, number: int, shipping: CloudTier) -> int:
    """Open a log, to be closed again; a coroutine that says no more."""
    await (await cluster.primary(number, tier=shipping)).aclose()
    return number


@both
@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("happens", [False, True])
async def test_a_claim_whose_answer_is_lost(
    cluster: Cluster, shape: Layout, times: int, *, happens: bool
) -> None:
    """A later primary, on another machine, knows it for one of the log's own."""
    inner = MemoryStore()
    wal = await cluster.primary(0, tier=tier(inner, shape))
    await wal.append(b"1", durability="cloud")
    await wal.aclose()
    await serve_again(cluster, 0)
    store = FaultyStore(inner)
    kind = "put_if_match" if shape == "swap" else "put_if_absent"
    fault = faults.happen_then_fail(faults.timeout()) if happens else faults.postpone(store.late)

    async def lose(request: Any) -> object:
        if times > 1:  # nor does the store answer later
            store.on("any", faults.fail(faults.timeout()), times=times)
        return await fault(request)

    store.on(kind, lose, key_prefix="manifest/")
    told = await outcome(opened(cluster, 1, tier(store, shape)))
    assert times == 1 or isinstance(told, WalError)
    await serve_again(cluster, 1)
    await store.deliver()
    new = await cluster.primary(2, tier=tier(inner, shape))
    await store.deliver()
    assert await new.append(b"2", durability="cloud") == 2
    await new.aclose()
    assert await sound(inner) == [b"1", b"2"]


@both
async def test_a_first_manifest_that_comes_late(cluster: Cluster, shape: Layout) -> None:
    """Two primaries, one after the other, where nobody has shipped."""
    inner = MemoryStore()
    slow = FaultyStore(inner)
    release, reached = asyncio.Event(), asyncio.Event()
    slow.on("put_if_absent", faults.hang(release, reached), key_prefix="manifest/")
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(outcome(opened(cluster, 0, tier(slow, shape))))
        await reached.wait()
        new = await cluster.primary(1, tier=tier(inner, shape))
        assert await new.append(b"1", durability="cloud") == 1
        release.set()
        assert isinstance(await opening, WalError)
    assert await new.append(b"2", durability="cloud") == 2
    await new.aclose()
    assert await sound(inner) == [b"1", b"2"]


async def test_a_candidate_without_copies_touches_nothing(cluster: Cluster) -> None:
    """Whoever leads the log goes on shipping, whatever others attempt who get no promises."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store))
    await wal.append(b"1", durability="cloud")
    before = await claim_in(store)
    node, nowhere = cluster.machines[1], ["unix:///nowhere-1", "unix:///nowhere-2"]
    await node.stop()
    with pytest.raises(StorageUnavailableError):
        async with asyncio.timeout(60):
            await Wal.open(
                node.path / "orders",
                replication=Replication(nodes=nowhere, patience_seconds=RUNS_OUT_SECONDS),
                tier=tier(store),
            )
    await node.start()
    assert await claim_in(store) == before
    assert await wal.append(b"2", durability="cloud") == 2
    await wal.aclose()


async def test_a_store_that_does_not_answer_deposes_nobody(cluster: Cluster) -> None:
    """It is asked before the copies are."""
    inner = MemoryStore()
    wal = await cluster.primary(0, tier=tier(inner))
    await wal.append(b"1", durability="cloud")
    store = FaultyStore(inner)
    store.on("any", faults.fail(faults.timeout()), times=10**6)
    with pytest.raises(StorageUnavailableError):
        await cluster.primary(1, tier=tier(store))
    await serve_again(cluster, 1)
    assert await wal.append(b"2", durability="cloud") == 2
    await wal.aclose()


@both
async def test_the_prefix_of_another_log_is_refused(
    cluster: Cluster, shape: Layout, tmp_path: Path
) -> None:
    """A plain one's, and a replicated one's, by a log that is there and by a new one; nobody is disturbed."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "plain", tier=tier(store, shape)) as plain:
        await plain.append(b"plain", durability="cloud")
        before = await snapshot(store)
        with pytest.raises(ContentionError, match="belongs to another log, and this one is new"):
            await cluster.primary(0, tier=tier(store, shape))
        await serve_again(cluster, 0)
        wal = await cluster.primary(0)
        await wal.append(b"replicated")
        await wal.aclose()
        await serve_again(cluster, 0)
        for _ in range(2):
            with pytest.raises(ContentionError, match="belongs to another log"):
                await cluster.primary(1, tier=tier(store, shape, take_over=True))
            await serve_again(cluster, 1)
        assert await snapshot(store) == before
        await plain.append(b"plain", durability="cloud")


@both
async def test_two_replicated_logs_at_one_prefix(
    cluster: Cluster, shape: Layout, tmp_path: Path
) -> None:
    store = MemoryStore()
    (tmp_path / "other").mkdir()
    wal = await cluster.primary(0, tier=tier(store, shape))
    async with Cluster(tmp_path / "other") as other:
        with pytest.raises(ContentionError, match="belongs to another log, and this one is new"):
            await other.primary(0, tier=tier(store, shape))
        await serve_again(other, 0)
        second = await other.primary(0)
        await second.append(b"v")
        await second.aclose()
        await serve_again(other, 0)
        with pytest.raises(ContentionError, match="belongs to another log"):
            await other.primary(0, tier=tier(store, shape))
    assert await wal.append(b"1", durability="cloud") == 1
    await wal.aclose()
    assert await sound(store) == [b"1"]


@both
async def test_two_new_replicated_logs_at_one_prefix(
    cluster: Cluster, shape: Layout, tmp_path: Path
) -> None:
    """The one whose manifest comes second is refused."""
    inner = MemoryStore()
    (tmp_path / "other").mkdir()
    store = FaultyStore(inner)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("put_if_absent", faults.hang(release, reached), key_prefix="manifest/")
    async with Cluster(tmp_path / "other") as other, asyncio.TaskGroup() as group:
        opening = group.create_task(outcome(opened(other, 0, tier(store, shape))))
        await reached.wait()
        wal = await cluster.primary(0, tier=tier(inner, shape))
        release.set()
        assert isinstance(await opening, ContentionError)
    assert await wal.append(b"1", durability="cloud") == 1
    await wal.aclose()
    assert await sound(inner) == [b"1"]


@both
async def test_all_copies_are_lost(cluster: Cluster, shape: Layout, tmp_path: Path) -> None:
    """With leave a new log goes on behind what the bucket has, as the same log."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store, shape))
    await wal.append_many([b"1", b"2"], durability="cloud")
    log_id = wal.log_id
    await wal.aclose()
    (tmp_path / "other").mkdir()
    async with Cluster(tmp_path / "other") as other:
        new = await other.primary(0, tier=tier(store, shape, take_over=True))
        assert (new.log_id, new.head, new.tail) == (log_id, 1, 3)
        assert await new.append(b"3", durability="cloud") == 3
        await new.aclose()
        await serve_again(other, 0)
        third = await other.primary(1, tier=tier(store, shape))
        assert await third.append(b"4", durability="cloud") == 4
        assert await values(third) == [b"1", b"2", b"3", b"4"]
        assert (third.head, third.statistics().local_head) == (1, 3)
        await third.aclose()
    assert await sound(store) == [b"1", b"2", b"3", b"4"]
    await serve_again(cluster, 0)  # a copy of the old ones comes back: the log goes on without it
    with pytest.raises(FencedError, match="taken over by another directory"):
        await cluster.primary(1, tier=tier(store, shape))


async def test_a_plain_directory_takes_the_prefix(cluster: Cluster, tmp_path: Path) -> None:
    """As it may from any directory; the replicated log does not take it back without leave."""
    store = MemoryStore()
    wal = await cluster.primary(0, tier=tier(store))
    await wal.append(b"1", durability="cloud")
    await wal.aclose()
    await serve_again(cluster, 0)
    async with Wal.open(tmp_path / "plain", tier=tier(store)) as plain:
        with pytest.raises(FencedError, match="taken over by another directory"):
            await cluster.primary(1, tier=tier(store))
        await serve_again(cluster, 1)
        assert await plain.append(b"2") == 2
    with pytest.raises(ContentionError, match="this log ends at"):
        await cluster.primary(2, tier=tier(store, take_over=True))


@both
async def test_a_plain_log_that_ships_becomes_a_replicated_one(
    cluster: Cluster, shape: Layout
) -> None:
    store = MemoryStore()
    path = cluster.machines[0].path / "orders"
    await cluster.machines[0].stop()
    async with Wal.open(path, tier=tier(store, shape)) as plain:
        await plain.append(b"1", durability="cloud")
        await plain.append(b"2")
    wal = await cluster.primary(0, tier=tier(store, shape))
    assert await wal.append(b"3", durability="cloud") == 3
    await wal.aclose()
    await serve_again(cluster, 0)
    wal = await cluster.primary(1, tier=tier(store, shape))
    assert await wal.append(b"4", durability="cloud") == 4
    await wal.aclose()
    await serve_again(cluster, 1)
    # And the other way round, with leave: the plain rules know this directory's own claims only.
    await cluster.machines[1].stop()
    path = cluster.machines[1].path / "orders"
    (path / PROMISE_NAME).unlink()
    with pytest.raises(FencedError):
        await Wal.open(path, tier=tier(store, shape))
    async with Wal.open(path, tier=tier(store, shape, take_over=True)) as plain:
        assert await plain.append(b"5", durability="cloud") == 5
        assert dict(plain.registers) == {}
    assert await sound(store) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_tier_that_comes_later(cluster: Cluster) -> None:
    store = MemoryStore()
    wal = await cluster.primary(0)
    await wal.append(b"1")
    with pytest.raises(InvalidSettingsError, match="needs a log opened with tier="):
        await wal.append(b"v", durability="cloud")
    await wal.aclose()
    await serve_again(cluster, 0)
    wal = await cluster.primary(1, tier=tier(store))
    assert await wal.append(b"2", durability="cloud") == 2
    await wal.aclose()
    assert await sound(store) == [b"1", b"2"]
