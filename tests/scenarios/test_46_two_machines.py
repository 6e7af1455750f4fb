"""Two machines, each with a directory of its own, over one prefix: one ships, the other one learns that.

The one that claimed the prefix last goes on. The other one's log fails with its next fragment, keeps what it
has on disk, and is refused when it is opened again. Level ``cloud`` is never acknowledged by both.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.cloud import URL, cloud_values, put_fragment, snapshot, values
from tests.effort import first_seed, some
from tests.two_machines import (
    IDLE,
    both,
    claim_in,
    close,
    outcome,
    play,
    records,
    tier,
)
from tests.waiting import until
from uploader import CloudLog, CloudWriter, restore, seal
from uploader.format import layout
from uploader.layouts.log_session import Layout
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import ContentionError, FencedError, LogSealedError, Wal, WalClosedError
from walstore.errors import (
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import ManualClock


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
