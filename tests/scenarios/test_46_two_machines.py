"""Two machines, each with a directory of its own, over one prefix: one ships, the other one learns that.

The one that claimed the prefix last goes on. The other one's log fails with its next fragment, keeps what it
has on disk, and is refused when it is opened again. Level ``cloud`` is never acknowledged by both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_values, put_fragment, snapshot, values
from tests.effort import first_seed, some
from tests.uploader.logs import collect
from tests.waiting import until
from uploader import ChainSettings, CloudLog, CloudTier, CloudWriter, UploadSettings, restore, seal
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import ContentionError, FencedError, LogSealedError, Wal, WalClosedError
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CorruptionError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import ManualClock

LAYOUTS: list[Layout] = ["swap", "chain"]
IDLE = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)
"""Ships nothing that nobody waits for."""

both = pytest.mark.parametrize("shape", LAYOUTS)


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


OBJECTS_FIRST = ChainSettings(inline_bytes=0)


def tier(
    store: MemoryStore | FaultyStore,
    shape: Layout,
    settings: UploadSettings = SMALL,
    *,
    take_over: bool = False,
    chain: ChainSettings | None = None,
) -> CloudTier:
    """Return a tier in that layout."""
    return CloudTier(
        URL,
        store=store,
        settings=settings,
        retry=FAST,
        layout=shape,
        chain=chain,
        take_over=take_over,
    )


async def records(path: Path) -> dict[int, bytes]:
    """Return what a directory holds, read without the tier."""
    async with Wal.open(path) as wal:
        return {record.offset: record.value async for record in wal.reader(follow=False)}


async def close(wal: Wal) -> WalError | None:
    """Close a log and return what that raised."""
    try:
        await wal.aclose()
    except WalError as error:
        return error
    return None


async def claim_in(store: MemoryStore) -> Claim:
    """Return the claim that the newest manifest carries."""
    async with CloudLog.open(URL, store=store) as log:
        found = Claim.parse(log.manifest.writer)
    assert found is not None
    return found


@both
async def test_the_first_machine_stops_when_the_second_has_taken_over(tmp_path, shape) -> None:
    """It acknowledges at level disk until its next fragment; then it fails, and keeps what it has."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    assert await first.append(b"both", durability="cloud") == 1
    assert await first.append(b"only here") == 2
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        assert second.log_id == first.log_id
        assert await second.append(b"theirs") == 2
        assert await first.append(b"only here, too") == 3  # it does not know yet
        with pytest.raises(FencedError, match="taken over") as told:
            await first.append(b"for the cloud", durability="cloud")
        assert (told.value.outcome, told.value.retriable) == ("unknown", False)
        with pytest.raises(WalClosedError) as closed:
            await first.append(b"refused")
        assert (closed.value.reason, closed.value.outcome) == ("fenced", "not_written")
        assert "taken over" in (first.statistics().tier_failure or "")
        error = await close(first)
        assert isinstance(error, WalClosedError)
        assert error.reason == "fenced"
        assert await second.append(b"goes on", durability="cloud") == 3
    assert await cloud_values(store) == [b"both", b"theirs", b"goes on"]
    kept = await records(tmp_path / "a")
    assert kept == {1: b"both", 2: b"only here", 3: b"only here, too", 4: b"for the cloud"}


@both
async def test_a_new_directory_begins_no_earlier_than_the_log_ended(tmp_path, shape) -> None:
    """The clock of its machine is an hour behind: times do not go back in the log all the same."""
    store, now_us = MemoryStore(), 1_750_000_000_000_000
    async with Wal.open(tmp_path / "a", tier=tier(store, shape), clock=ManualClock(now_us)) as wal:
        await wal.append_many([b"1", b"2"], durability="disk")
    behind = ManualClock(now_us - 3_600_000_000)
    async with Wal.open(tmp_path / "b", tier=tier(store, shape), clock=behind) as wal:
        assert await wal.append(b"3") == 3
    async with CloudLog.open(URL, store=store) as log:
        times = [record.timestamp_us async for record in log.reader()]
    assert times == [now_us] * 3


@both
async def test_what_is_shipped_by_age_tells_it_too(tmp_path, shape) -> None:
    """Nobody has to wait for the cloud: the first fragment after the takeover is enough."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape))
    await first.append(b"both", durability="cloud")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)):
        await first.append(b"only here")
        await until(lambda: first.statistics().tier_failure is not None)
        with pytest.raises(WalClosedError, match="taken over"):
            first.append_nowait(b"refused")
    assert isinstance(await close(first), WalClosedError)


@both
async def test_it_learns_while_it_closes(tmp_path, shape) -> None:
    """Closing says that what it was to ship is not in the log that goes on."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"both", durability="cloud")
    await first.append(b"only here")
    await (await Wal.open(tmp_path / "b", tier=tier(store, shape))).aclose()
    error = await close(first)
    assert isinstance(error, WalClosedError)
    assert error.reason == "fenced"
    assert isinstance(error.__cause__, FencedError)
    assert await records(tmp_path / "a") == {1: b"both", 2: b"only here"}
    assert await cloud_values(store) == [b"both"]


@both
async def test_the_directory_of_the_loser_is_refused(tmp_path, shape) -> None:
    """Also where the winner shipped nothing, and however often: neither side is disturbed by that."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"both")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        before = await snapshot(store)
        for _ in range(2):
            with pytest.raises(FencedError, match="taken over by another directory"):
                await Wal.open(tmp_path / "a", tier=tier(store, shape))
        assert await snapshot(store) == before
        assert await second.append(b"theirs", durability="cloud") == 2
    with pytest.raises(FencedError):  # though it now ends before what is there
        await Wal.open(tmp_path / "a", tier=tier(store, shape))
    assert await records(tmp_path / "a") == {1: b"both"}


@both
async def test_a_directory_opens_again_and_again(tmp_path, shape) -> None:
    """The epoch counts takeovers; each opening has a name of its own."""
    store, lives = MemoryStore(), set()
    for number in range(1, 8):
        async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
            assert await wal.append(b"%d" % number, durability="cloud") == number
        claim = await claim_in(store)
        assert claim.epoch == 1
        lives.add(claim.life)
    assert len(lives) == 7
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)):
        assert (await claim_in(store)).epoch == 2


@both
async def test_a_mistaken_takeover_is_undone(tmp_path, shape) -> None:
    """With leave, the first directory gets the prefix back and ships all that it kept; the second stops."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"1", durability="cloud")
    await first.append(b"2")
    second = await Wal.open(tmp_path / "b", tier=tier(store, shape, IDLE))
    await close(first)
    async with Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True)) as wal:
        assert await wal.append(b"3", durability="cloud") == 3
        with pytest.raises(FencedError):
            await second.append(b"too late", durability="cloud")
    assert isinstance(await close(second), WalClosedError)
    assert await cloud_values(store) == [b"1", b"2", b"3"]
    with pytest.raises(FencedError):
        await Wal.open(tmp_path / "b", tier=tier(store, shape))
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)):  # needs no leave again
        assert (await claim_in(store)).epoch == 3


@both
async def test_a_takeover_that_bore_records_is_not_undone(tmp_path, shape) -> None:
    """The first directory lacks what the second one shipped: it is refused, and the second goes on."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"both")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        await second.append(b"theirs", durability="cloud")
        with pytest.raises(ContentionError, match="this log ends at 2"):
            await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
        await second.append(b"goes on", durability="cloud")
    assert await cloud_values(store) == [b"both", b"theirs", b"goes on"]


@both
async def test_records_that_differ_are_not_shipped_with_leave(tmp_path, shape) -> None:
    """A directory that went its own way is as long, but holds something else: nothing of it is shipped."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"both", durability="cloud")
    await first.append(b"ours")
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        await second.append(b"theirs", durability="cloud")
    await close(first)
    before = await snapshot(store)
    for _ in range(2):
        with pytest.raises(FencedError, match="holds other records"):
            await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    assert await snapshot(store) == before
    assert await records(tmp_path / "a") == {1: b"both", 2: b"ours"}
    assert await cloud_values(store) == [b"both", b"theirs"]


@both
async def test_one_record_that_is_the_same_proves_nothing(tmp_path, shape) -> None:
    """The newest fragments of both sides are alike, and the ones before them are not."""
    store = MemoryStore()
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"both", durability="cloud")
    for value in (b"ours", b"beat"):
        await first.append(value)
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        for value in (b"theirs", b"beat"):
            await second.append(value, durability="cloud")
    await close(first)
    with pytest.raises(FencedError, match="holds other records"):
        await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as second:
        assert await second.append(b"goes on", durability="cloud") == 4


@both
async def test_a_store_that_fails_while_a_directory_is_compared(tmp_path, shape) -> None:
    """The opening fails, nobody is fenced, and the next one succeeds."""
    store = FaultyStore(MemoryStore())
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    await first.append(b"1", durability="cloud")
    await first.aclose()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as first:
        await first.append(b"2", durability="cloud")
        await first.append(b"3")
    async with Wal.open(tmp_path / "copy") as copy:
        await copy.append(b"2")
        await copy.append(b"3")
    before = await snapshot(store.inner)
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    store.on("get", faults.fail(faults.timeout()), key_prefix=folder)
    with pytest.raises(StorageUnavailableError):
        await Wal.open(tmp_path / "copy", tier=tier(store, shape))
    assert await snapshot(store.inner) == before
    async with Wal.open(tmp_path / "copy", tier=tier(store, shape)) as copy:
        assert await copy.append(b"4", durability="cloud") == 4
    assert await cloud_values(store.inner) == [b"1", b"2", b"3", b"4"]


async def same_twice(path: Path, store: MemoryStore, shape: Layout) -> None:
    """Make two directories that hold the same two records, of which the second one shipped the last."""
    async with Wal.open(path / "a", tier=tier(store, shape, chain=OBJECTS_FIRST)) as wal:
        await wal.append(b"1", durability="cloud")
    async with Wal.open(path / "b", tier=tier(store, shape, chain=OBJECTS_FIRST)) as wal:
        await wal.append(b"2", durability="cloud")
    async with Wal.open(path / "a") as wal:
        await wal.append(b"2")


@both
async def test_a_fragment_that_is_missing_cannot_be_compared(tmp_path, shape) -> None:
    store = MemoryStore()
    await same_twice(tmp_path, store, shape)
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    keys = [listed.key async for listed in store.list(folder)]
    await store.delete([max(keys)])
    before = await snapshot(store)
    with pytest.raises(CorruptionError, match="missing"):
        await Wal.open(tmp_path / "a", tier=tier(store, shape, take_over=True))
    assert await snapshot(store) == before


async def test_a_fragment_that_is_collected_meanwhile_is_not_missing(tmp_path, worker) -> None:
    store = FaultyStore(MemoryStore())
    await same_twice(tmp_path, store.inner, "swap")
    others = SwappedRoot(store.inner, FAST, worker)
    await others.load()

    async def take_away() -> None:
        await collect(others, store.inner, 2)

    store.on("get", faults.call(take_away), key_prefix=layout.FRAGMENT_FOLDER)
    async with Wal.open(tmp_path / "a", tier=tier(store, "swap", take_over=True)) as wal:
        assert await wal.append(b"3", durability="cloud") == 3
    assert await cloud_values(store.inner) == [b"3"]


@both
async def test_a_fragment_that_arrives_late_is_in_nobodys_way(tmp_path, shape) -> None:
    """The first machine's put lands where the second one's next fragment belongs."""
    inner = MemoryStore()
    slow = FaultyStore(inner)
    first = await Wal.open(tmp_path / "a", tier=tier(slow, shape, IDLE, chain=OBJECTS_FIRST))
    await first.append(b"both", durability="cloud")
    folder = layout.FRAGMENT_FOLDER if shape == "swap" else "shard"
    release, reached = asyncio.Event(), asyncio.Event()
    slow.on("put_if_absent", faults.hang(release, reached), key_prefix=folder)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(first.append(b"late", durability="cloud")))
        await reached.wait()
        async with Wal.open(tmp_path / "b", tier=tier(inner, shape)) as second:
            release.set()
            assert isinstance(await waiting, FencedError)
            for number in range(2, 6):
                assert await second.append(b"theirs %d" % number, durability="cloud") == number
    await close(first)
    assert await cloud_values(inner) == [b"both", *(b"theirs %d" % n for n in range(2, 6))]


async def outcome(appending) -> BaseException | int:
    """Return what an append returned or raised."""
    try:
        return await appending
    except WalError as error:
        return error


async def test_fragments_of_a_loser_are_not_adopted(tmp_path) -> None:
    """They lie where the log goes on, and behind: a third directory begins at the manifest's end."""
    inner = MemoryStore()
    first = FaultyStore(inner)
    wal = await Wal.open(tmp_path / "a", tier=tier(first, "swap", IDLE))
    first.on("put_if_match", faults.fail(faults.timeout("not_written")), times=10**9)
    before = first.count("put_if_match").requests
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(wal.append(b"a" * 9000, durability="cloud")))
        await until(lambda: first.count("put_if_match").requests > before)
        await (await Wal.open(tmp_path / "b", tier=tier(inner, "swap", IDLE))).aclose()
        first.is_killed = True
        await asyncio.wait((waiting,))
    with contextlib.suppress(BaseException):
        await wal.aclose()
    # The second one took the orphan over, in the first one's name: it was all of the log there was.
    assert await cloud_values(inner) == [b"a" * 9000]
    entry = Manifest.parse((await inner.get(layout.MANIFEST)).data).fragments[-1]
    loser = (await inner.get(entry.path)).data  # made in epoch 1
    await inner.put_if_absent(layout.fragment_path(entry.seq_no + 1), loser)
    await inner.put_if_absent(layout.fragment_path(entry.seq_no + 2), loser)
    async with Wal.open(tmp_path / "c", tier=tier(inner, "swap")) as third:
        assert await third.append(b"third", durability="cloud") == 2
        assert await third.append(b"more", durability="cloud") == 3
    assert await cloud_values(inner) == [b"a" * 9000, b"third", b"more"]


async def test_what_others_put_is_not_overwritten(tmp_path) -> None:
    """A fragment that names no directory of this log is in the way, as ever, also after a takeover."""
    store = MemoryStore()
    await (await Wal.open(tmp_path / "a", tier=tier(store, "swap"))).aclose()
    async with Wal.open(tmp_path / "b", tier=tier(store, "swap")) as wal:
        await put_fragment(store, 1, 1, values(1))
        before = (await store.get(layout.fragment_path(1))).data
        with pytest.raises(ContentionError, match="another writer put it"):
            await wal.append(b"ours", durability="cloud")
        assert await wal.append(b"goes on here") == 2
    assert (await store.get(layout.fragment_path(1))).data == before


@both
@pytest.mark.parametrize("happens", [False, True])
async def test_a_claim_whose_answer_was_lost(tmp_path, shape, happens) -> None:
    """The directory knows it for its own at the next opening, also if it takes effect only then."""
    inner = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(inner, shape)) as wal:
        await wal.append(b"1")
    store = FaultyStore(inner)
    kind = "put_if_match" if shape == "swap" else "put_if_absent"
    fault = faults.happen_then_fail(faults.timeout()) if happens else faults.postpone(store.late)
    store.on(kind, fault, times=1, key_prefix="manifest/")
    store.on(kind, faults.fail(faults.timeout()), times=99, key_prefix="manifest/")
    nth = 2 if shape == "swap" else 3
    store.on("get", faults.fail(faults.timeout()), nth=nth, times=99, key_prefix="manifest/")
    with pytest.raises((OutcomeUnknownError, StorageUnavailableError)):
        await Wal.open(tmp_path / "a", tier=tier(store, shape))
    assert happens or len(store.late) == 1
    await store.deliver()
    async with Wal.open(tmp_path / "a", tier=tier(inner, shape)) as wal:
        assert await wal.append(b"2", durability="cloud") == 2
    assert (await claim_in(inner)).epoch == 1


@both
async def test_a_claim_that_arrives_after_another_one_is_void(tmp_path, shape) -> None:
    inner = MemoryStore()
    await (await Wal.open(tmp_path / "a", tier=tier(inner, shape))).aclose()
    store = FaultyStore(inner)
    kind = "put_if_match" if shape == "swap" else "put_if_absent"
    store.on(kind, faults.postpone(store.late), times=99, key_prefix="manifest/")
    with pytest.raises(OutcomeUnknownError):
        await Wal.open(tmp_path / "a", tier=tier(store, shape))
    async with Wal.open(tmp_path / "b", tier=tier(inner, shape)) as wal:
        claim = await claim_in(inner)
        await store.deliver()
        assert await claim_in(inner) == claim
        assert await wal.append(b"goes on", durability="cloud") == 1
    with pytest.raises(FencedError):
        await Wal.open(tmp_path / "a", tier=tier(inner, shape))


@both
async def test_nobody_without_the_lock_claims(tmp_path, shape) -> None:
    """A second process that is refused the directory does not fence the one that has it."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        for _ in range(2):
            with pytest.raises(WalError, match="open"):
                await Wal.open(tmp_path / "a", tier=tier(store, shape))
        assert await wal.append(b"1", durability="cloud") == 1


@both
async def test_an_opening_that_dies_before_there_is_a_log_is_no_takeover_for_good(
    tmp_path, shape
) -> None:
    """A new directory claims before its log is made: opened again it is new, and claims again."""
    inner = MemoryStore()
    await (await Wal.open(tmp_path / "a", tier=tier(inner, shape))).aclose()
    for fault in (faults.kill(), faults.happen_then_kill()):
        store = FaultyStore(inner)
        kind = "put_if_match" if shape == "swap" else "put_if_absent"
        store.on(kind, fault, key_prefix="manifest/")
        with pytest.raises(faults.StoreKilled):
            await Wal.open(tmp_path / "b", tier=tier(store, shape))
    async with Wal.open(tmp_path / "b", tier=tier(inner, shape)) as wal:
        assert await wal.append(b"1", durability="cloud") == 1


@both
async def test_an_opening_that_is_cancelled_at_any_turn(tmp_path, shape) -> None:
    """Nothing keeps the lock, and the claim, in effect or not, is this directory's own."""
    store = MemoryStore()
    for number in range(1, 25):
        opening = asyncio.ensure_future(open_now(tmp_path / "a", store, shape))
        for _ in range(number * number):
            if not opening.done():
                await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait((opening,))
        if not opening.cancelled():
            await opening.result().aclose()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        assert await wal.append(b"1", durability="cloud") == 1


async def open_now(path: Path, store: MemoryStore, shape: Layout) -> Wal:
    """Open a log; a coroutine of its own, to be cancelled."""
    return await Wal.open(path, tier=tier(store, shape))


@both
async def test_two_new_directories_at_once(tmp_path, shape) -> None:
    """At an empty prefix as elsewhere, one of them goes on and the other learns it."""
    for number in range(5):
        store = MemoryStore()
        logs = await asyncio.gather(
            *(Wal.open(tmp_path / f"{name}{number}", tier=tier(store, shape)) for name in "ab")
        )
        told = [await outcome(wal.append(b"v", durability="cloud")) for wal in logs]
        assert sorted(isinstance(found, int) for found in told) == [False, True]
        # Two logs by identity, or one and its successor if the second found the claim of the first.
        assert all(isinstance(found, int | ContentionError | FencedError) for found in told)
        for wal in logs:
            await close(wal)
        assert await cloud_values(store) == [b"v"]


@both
async def test_a_restored_directory_takes_the_place_of_the_lost_one(tmp_path, shape) -> None:
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"1")
    await restore(URL, tmp_path / "b", store=store)
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as wal:
        assert await wal.append(b"2", durability="cloud") == 2
    with pytest.raises(FencedError):
        await Wal.open(tmp_path / "a", tier=tier(store, shape))
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as wal:
        assert await wal.append(b"3", durability="cloud") == 3


@both
async def test_a_restored_directory_yields_to_one_that_went_on(tmp_path, shape) -> None:
    """The log was restored, but its old directory was opened again before the copy was."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"1")
    await restore(URL, tmp_path / "b", store=store)
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        with pytest.raises(FencedError):
            await Wal.open(tmp_path / "b", tier=tier(store, shape))
        assert await wal.append(b"2", durability="cloud") == 2


@both
async def test_a_backup_goes_on_once(tmp_path, shape) -> None:
    """A copy that holds all that was shipped takes over; another copy, and the original, are refused then."""
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"1")
    for name in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    first = await Wal.open(tmp_path / "a", tier=tier(store, shape, IDLE))
    async with Wal.open(tmp_path / "b", tier=tier(store, shape)) as wal:
        assert await wal.append(b"2", durability="cloud") == 2
        with pytest.raises(FencedError):
            await first.append(b"too late", durability="cloud")
    await close(first)
    for name in "ac":
        with pytest.raises(FencedError):
            await Wal.open(tmp_path / name, tier=tier(store, shape))
    assert await cloud_values(store) == [b"1", b"2"]


@both
async def test_a_sealed_log_is_claimed_by_nobody(tmp_path, shape) -> None:
    store = MemoryStore()
    async with Wal.open(tmp_path / "a", tier=tier(store, shape)) as wal:
        await wal.append(b"1")
    await seal(URL, store=store)
    before = await snapshot(store)
    for name in "ab":
        with pytest.raises(LogSealedError):
            await Wal.open(tmp_path / name, tier=tier(store, shape))
    assert await snapshot(store) == before


@both
async def test_a_cloud_writer_stops_where_a_directory_took_over(tmp_path, shape) -> None:
    """It may have opened the log of another program before that directory did."""
    store = MemoryStore()
    async with CloudWriter.open(URL, store=store, layout=shape) as writer:
        await writer.append(b"1")
    kept = await snapshot(store)
    with pytest.raises(ContentionError, match="CloudWriter"):
        await Wal.open(tmp_path / "a", tier=tier(store, shape))
    assert await snapshot(store) == kept


# -- histories -------------------------------------------------------------------------------

HOLE = "behind records that were never uploaded"


class Machine:
    """One machine: a directory, a process or none, and what that process was told."""

    def __init__(self, name: str, path: Path, inner: MemoryStore, shape: Layout) -> None:
        self.name = name
        self.path = path
        self.inner = inner
        self.shape = shape
        self.wal: Wal | None = None
        self.stores = [FaultyStore(inner)]
        self.directory = path / f"{name}1"
        self.directories = 1
        self.on_disk: dict[Path, dict[int, bytes]] = {}
        self.in_cloud: dict[int, bytes] = {}
        self.appended = 0
        self.fenced = 0

    @property
    def store(self) -> FaultyStore:
        """The connection of the process that runs."""
        return self.stores[-1]

    def replace_disk(self) -> None:
        """Begin with a new directory next time."""
        self.directories += 1
        self.directory = self.path / f"{self.name}{self.directories}"

    async def open(self) -> None:
        """Start the process; if its directory was taken over from, the next one gets a new disk."""
        try:
            self.wal = await Wal.open(self.directory, tier=tier(self.store, self.shape))
        except FencedError:
            self.fenced += 1
            self.replace_disk()
            self.stores.append(FaultyStore(self.inner))
        except ContentionError as error:
            # A fragment before others never came; only a disk that was replaced has its records.
            if HOLE not in str(error):
                raise
            self.directory = self.path / f"{self.name}{max(1, self.directories - 1)}"
        except (OutcomeUnknownError, StorageUnavailableError, faults.StoreKilled):
            self.stores.append(FaultyStore(self.inner))

    async def append(self, level: str, count: int) -> None:
        """Append, and note what was acknowledged; a process that was told to stop ends."""
        assert self.wal is not None
        self.appended += 1
        content = [b"%s %d %d" % (self.name.encode(), self.appended, n) for n in range(count)]
        try:
            span = await self.wal.append_many(content, durability=level)
        except WalError as error:
            await self.give_up(error)
            return
        acknowledged = dict(zip(span, content, strict=True))
        self.on_disk.setdefault(self.directory, {}).update(acknowledged)
        if level == "cloud":
            assert not self.in_cloud.keys() & acknowledged.keys()
            self.in_cloud.update(acknowledged)

    async def give_up(self, error: WalError) -> None:
        """End a process whose append was refused: it was killed, or was taken over from."""
        assert self.wal is not None
        if self.store.is_killed:
            assert isinstance(error, StorageUnavailableError | WalClosedError)
        else:
            assert isinstance(error, FencedError | WalClosedError)
            assert getattr(error, "reason", "fenced") == "fenced"
            self.fenced += 1
            with pytest.raises(WalClosedError):
                self.wal.append_nowait(b"refused")
        await self.stop(is_killed=self.store.is_killed)

    async def stop(self, *, is_killed: bool) -> None:
        """End the process, as it should or without another request."""
        wal, self.wal = self.wal, None
        self.store.is_killed = is_killed
        if wal is not None:
            with contextlib.suppress(WalError, faults.StoreKilled, BaseExceptionGroup):
                await wal.aclose()
        self.stores.append(FaultyStore(self.inner))


async def play(path: Path, shape: Layout, seed: int, steps: int) -> int:
    """Let two machines do anything for a while, check what became of it; return how often one lost."""
    rng, inner = random.Random(seed), MemoryStore()
    await (await Wal.open(path / "first", tier=tier(inner, shape))).aclose()
    machines = [Machine(name, path, inner, shape) for name in "ab"]
    for _ in range(steps):
        machine = rng.choice(machines)
        act = rng.choice(["append", "append", "cloud", "fault", "fault", "stop", "late", "disk"])
        if machine.wal is None and act in {"append", "cloud", "stop"}:
            await machine.open()
        elif act in {"append", "cloud"}:
            level = "disk" if act == "append" else "cloud"
            await machine.append(level, rng.choice([1, 1, 3, 12]))
        elif act == "stop":
            await machine.stop(is_killed=rng.random() < 0.6)
        elif act == "fault":
            plan_fault(rng, machine.store)
        elif act == "late":
            await rng.choice(machine.stores).deliver(newest_first=rng.random() < 0.5)
        elif machine.wal is None and rng.random() < 0.3:
            machine.replace_disk()
    for machine in machines:
        await machine.stop(is_killed=rng.random() < 0.5)
    in_order = [store for machine in machines for store in machine.stores]
    for store in rng.sample(in_order, len(in_order)):
        await store.deliver(newest_first=rng.random() < 0.5)
    await check(path, machines, inner, shape)
    return sum(machine.fenced for machine in machines)


def plan_fault(rng: random.Random, store: FaultyStore) -> None:
    """Let a request to come fail, or be answered late, or happen late."""
    kind = rng.choice(["put_if_absent", "put_if_match", "put_if_absent", "get"])
    fault = rng.choice(
        [
            faults.fail(faults.timeout("not_written")),
            faults.happen_then_fail(faults.timeout()),
            faults.postpone(store.late) if kind != "get" else faults.fail(faults.timeout()),
            faults.report("412", happens=True) if kind != "get" else faults.fail(faults.busy()),
            faults.kill(),
        ]
    )
    prefix = rng.choice(["manifest/", "manifest/", "log/", "shard"])
    nth, times = rng.choice([1, 1, 2, 3, 5]), rng.choice([1, 1, 2])
    store.on(kind, fault, nth=nth, times=times, key_prefix=prefix)


async def open_last(path: Path, machines: list[Machine], inner: MemoryStore, shape: Layout) -> Wal:
    """Open a new directory, or an old one without which some fragments are behind a hole."""
    old = [directory for machine in machines for directory in machine.path.glob(f"{machine.name}*")]
    for directory in (path / "last", *sorted(old)):
        try:
            return await Wal.open(directory, tier=tier(inner, shape))
        except ContentionError as error:
            if HOLE not in str(error):
                raise
        except FencedError:
            if directory not in old:
                raise
    raise AssertionError("no directory goes on")


async def check(path: Path, machines: list[Machine], inner: MemoryStore, shape: Layout) -> None:
    """Whoever comes last goes on; nothing acknowledged is lost where it was acknowledged."""
    async with await open_last(path, machines, inner, shape) as wal:
        last = await wal.append(b"last", durability="cloud")
    found = dict(enumerate(await cloud_values(inner), 1))
    assert found[last] == b"last"
    first, second = (machine.in_cloud for machine in machines)
    assert not first.keys() & second.keys()
    for acknowledged in (first, second):
        assert acknowledged.items() <= found.items()
    for machine in machines:
        for directory, acknowledged in machine.on_disk.items():
            assert acknowledged.items() <= (await records(directory)).items()


@both
@pytest.mark.parametrize("seed", range(6))
async def test_any_history(tmp_path, shape, seed) -> None:
    async with asyncio.timeout(60):
        await play(tmp_path, shape, seed + first_seed("two machines"), 30)


@pytest.mark.slow
@both
async def test_many_histories(tmp_path, shape) -> None:
    lost = 0
    first = first_seed("many machines")
    for seed in range(first, first + some(100)):
        async with asyncio.timeout(60):
            lost += await play(tmp_path / str(seed), shape, seed, 60)
    assert lost > some(50)
