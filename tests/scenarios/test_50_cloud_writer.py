"""Writers without a local log: what each append is told holds, whatever fails and whoever else writes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.cloud import FAST, URL, cloud_log
from tests.effort import first_seed
from tests.waiting import until
from uploader.care.admin.seal import seal
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.chain.chain_root import ChainSettings
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.swapped_root import SwappedRoot
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    Fault,
    Request,
    conflict,
    fail,
    hang,
    happen_then_fail,
    happen_then_kill,
    kill,
    timeout,
)
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    LogSealedError,
    OffsetMismatchError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.testing import ManualClock

LAYOUTS = ["swap", "chain"]
FRAGMENTS = {"swap": "log/", "chain": "shard"}
SMALL = WriterSettings(
    fragment_bytes=4096, interval_seconds=0, pending_bytes=1 << 20, parallel_puts=True
)
"""What one fragment at a time is like: test_60_wal3_next_to_us.py."""
COLLECTING = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)


def open_writer(
    store: ObjectStore,
    settings: WriterSettings = SMALL,
    *,
    kind: str | None = None,
    chain: ChainSettings | None = None,
    clock: ManualClock | None = None,
):
    retry = FAST
    if clock is not None:
        retry = RetryPolicy(clock=clock, attempts=2, first_wait_seconds=0, longest_wait_seconds=0)
    return CloudWriter.open(
        URL, store=store, settings=settings, retry=retry, layout=kind, chain=chain, clock=clock
    )


async def found(store: ObjectStore) -> dict[int, bytes]:
    """Return all records of the log by offset, after verifying it."""
    async with cloud_log(store) as log:
        await log.verify()
        return {record.offset: record.value async for record in log.reader()}


async def outcome(appending: Awaitable[object]) -> object:
    """Return what an append returns or raises."""
    try:
        return await appending
    except WalError as error:
        return error


class Ledger:
    """What appends were told."""

    def __init__(self) -> None:
        self.committed: dict[int, bytes] = {}
        self.unwritten: set[bytes] = set()
        self.unknown: set[bytes] = set()

    async def append(self, log: CloudWriter, value: bytes) -> None:
        try:
            offset = await log.append(value)
        except WalError as error:
            kinds = {"not_written": self.unwritten, "unknown": self.unknown}
            kinds[error.outcome].add(value)
        except BaseException:
            self.unknown.add(value)
            raise
        else:
            assert self.committed.setdefault(offset, value) == value

    async def check(self, store: ObjectStore) -> dict[int, bytes]:
        """Compare with what is in the log, and return that."""
        log = await found(store)
        for offset, value in self.committed.items():
            assert log[offset] == value
        times = Counter(log.values())
        assert max(times.values(), default=1) == 1, "a record is in the log twice"
        assert not self.unwritten & set(times)
        assert set(times) <= set(self.committed.values()) | self.unknown
        return log


class Away:
    """A fault: the store does not answer, for a while."""

    def __init__(self) -> None:
        self.is_away = True
        self.asked = 0

    async def __call__(self, request: Request) -> object:
        self.asked += 1
        if self.is_away:
            raise timeout()
        return await request()


def values(count: int, who: str = "a", size: int = 300) -> list[bytes]:
    return [f"{who}{number:05d}".encode().ljust(size, b".") for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(
    "fault",
    [
        fail(timeout("unknown")),
        fail(timeout("not_written")),
        fail(conflict()),
        happen_then_fail(timeout()),
    ],
    ids=["lost", "refused", "conflict", "answer lost"],
)
async def test_a_fault_of_every_call(kind: str, fault: Fault) -> None:
    """Every record is in the log once, at the offset its append returned."""
    for nth in range(1, 100):
        store = FaultyStore(MemoryStore())
        ledger = Ledger()
        async with open_writer(store, kind=kind) as log:
            before = store.requests
            store.on("any", fault, nth=nth)
            async with asyncio.TaskGroup() as tasks:
                for value in values(40):
                    tasks.create_task(ledger.append(log, value))
            made = store.requests - before
        assert len(ledger.committed) == 40
        await ledger.check(store.inner)
        if nth > made:
            return
    pytest.fail("the run never got to its end")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_killed_at_every_call(kind: str, fault: Callable[[], Fault]) -> None:
    """What was told is in the log, nothing is there twice, and the next writer goes on behind it."""
    for nth in range(1, 200):
        store = FaultyStore(MemoryStore())
        store.on("any", fault(), nth=nth)
        ledger = Ledger()
        died = True
        try:
            async with open_writer(store, kind=kind) as log, asyncio.TaskGroup() as tasks:
                for value in values(40):
                    tasks.create_task(ledger.append(log, value))
            died = False
        except (StoreKilled, BaseExceptionGroup):
            pass
        async with open_writer(store.inner, kind=kind) as log:
            await ledger.append(log, b"last")
        assert (await ledger.check(store.inner)).popitem()[1] == b"last"
        if not died:
            assert len(ledger.committed) == 41
            return
    pytest.fail("the run never got to its end")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
async def test_writers_that_contend(kind: str, seed: int) -> None:
    """Three writers, one log: each append is told the truth, and most are committed.

    Half of the histories put one fragment at a time.
    """
    seed += first_seed("contending writers")
    settings = dataclasses.replace(SMALL, parallel_puts=bool(seed % 2))
    chance = random.Random(seed)
    inner = MemoryStore()
    ledger = Ledger()
    stores = {who: Jittery(inner, random.Random(f"{seed}{who}"), 0) for who in "abc"}

    async def write(who: str) -> None:
        store = stores[who]
        async with (
            open_writer(store, settings, kind=kind) as log,
            asyncio.TaskGroup() as tasks,
        ):
            store.faults = 0.05
            store.on("any", fail(timeout()))  # one at least: a busy machine makes few calls
            for value in values(30, who, chance.randrange(100, 1500)):
                tasks.create_task(ledger.append(log, value))
                for _ in range(chance.choice([0, 0, 1, 40])):
                    await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for who in "abc":
            tasks.create_task(write(who))
    log = await ledger.check(inner)
    assert not ledger.unknown
    assert len(log) + len(ledger.unwritten) == 90
    assert list(log) == list(range(1, len(log) + 1))


class Jittery(FaultyStore):
    """Each call takes its time, sometimes fails, and sometimes its answer is lost."""

    def __init__(self, inner: ObjectStore, chance: random.Random, faults: float = 0.05) -> None:
        super().__init__(inner)
        self._chance = chance
        self.faults = faults
        """Part of the calls that fail."""

    async def _call(self, request):
        async def slowly():
            for _ in range(self._chance.randrange(60)):
                await asyncio.sleep(0)
            answer = await request()
            for _ in range(self._chance.randrange(60)):
                await asyncio.sleep(0)
            return answer

        if self._chance.random() < self.faults and request.kind != "list":
            self.on(
                request.kind, self._chance.choice([fail(timeout()), happen_then_fail(timeout())])
            )
        return await super()._call(dataclasses.replace(request, make=slowly))


async def test_a_leftover_that_another_writer_brings_back_to_life() -> None:
    """Fragment 2 of ours is put; another takes number 1 with a fragment that ends where ours begins.

    Then ours continues the log after all, and whoever comes may publish it. It must not be appended anew.
    """
    inner = MemoryStore()
    ours = FaultyStore(inner)
    async with open_writer(ours) as log, asyncio.TaskGroup() as tasks:
        release, reached = asyncio.Event(), asyncio.Event()
        ours.on("put_if_absent", hang(release, reached), key_prefix=layout.fragment_path(1))
        ledger = Ledger()
        tasks.create_task(ledger.append(log, b"a" * 5000))
        await reached.wait()
        tasks.create_task(ledger.append(log, b"b" * 5000))
        await until(lambda: log.statistics().put_fragments == 1)
        async with open_writer(inner) as other:
            await ledger.append(other, b"c" * 5000)
            await ledger.append(other, b"d" * 5000)
            assert other.statistics().adopted_fragments == 1  # it published number 2 for us
        release.set()
    log = await ledger.check(inner)
    assert [value[:1] for value in log.values()] == [b"c", b"b", b"d", b"a"]
    assert len(ledger.committed) == 4


async def test_collected_before_we_learned_that_it_was_named() -> None:
    """The swap happens, another goes on, a collector drops ours, and only then we hear of a timeout."""
    inner, worker = MemoryStore(), Worker("collector")
    ours = FaultyStore(inner)

    async def happen_and_be_collected(request: Request) -> object:
        await request()
        async with open_writer(inner) as other:
            assert await other.append(b"theirs") == 2
        root = SwappedRoot(inner, FAST, worker)
        assert await root.load()
        assert await root.change(_drop_oldest)
        raise timeout()

    async with open_writer(ours) as log:
        ours.on("put_if_match", happen_and_be_collected, key_prefix=layout.MANIFEST)
        with pytest.raises(OutcomeUnknownError):
            await log.append(b"ours")
        assert await log.append(b"again") == 3
    worker.close()
    assert await found(inner) == {2: b"theirs", 3: b"again"}


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_an_orphan_that_is_collected_while_it_is_adopted(kind: str) -> None:
    """Nobody waits for the outcome of a dead writer's fragment: the next writer goes on behind its end."""
    inner = MemoryStore()
    dying = FaultyStore(inner)
    with contextlib.suppress(StoreKilled, BaseExceptionGroup):
        async with open_writer(dying, kind=kind) as log:
            await log.append(b"first")
            dying.on("any", kill(), key_prefix=layout.MANIFEST)
            await log.append(b"orphan")
    ours = FaultyStore(inner)

    async def be_quicker(request: Request) -> object:
        async with open_writer(inner, kind=kind) as other:
            assert other.statistics().adopted_fragments == 1
            assert await other.append(b"theirs") == 3
            await other.cursors.commit("c", 3)
        async with GarbageCollector.open(URL, store=inner, settings=COLLECTING) as collector:
            assert (await collector.collect()).head == 3
        return await request()

    ours.on(
        "put_if_match" if kind == "swap" else "put_if_absent", be_quicker, key_prefix="manifest/"
    )
    async with open_writer(ours, kind=kind) as log:
        assert log.statistics().adopted_fragments == 0
        assert await log.append(b"ours") == 4
    assert await found(inner) == {3: b"theirs", 4: b"ours"}


def _drop_oldest(manifest: Manifest) -> Manifest:
    oldest, *kept = manifest.fragments
    return dataclasses.replace(
        manifest,
        collected=manifest.collected + oldest.setsum,
        fragments=tuple(kept),
        initial_offset=kept[0].start,
        initial_seq_no=kept[0].seq_no,
    )


async def test_leftovers_in_the_way_are_replaced() -> None:
    """Another writer takes number 1 with more records than we had: what we put behind fits nowhere."""
    inner = MemoryStore()
    ours = FaultyStore(inner)
    ledger = Ledger()
    async with open_writer(ours) as log, asyncio.TaskGroup() as tasks:
        release, reached = asyncio.Event(), asyncio.Event()
        ours.on("put_if_absent", hang(release, reached), key_prefix=layout.fragment_path(1))
        tasks.create_task(ledger.append(log, b"a" * 5000))
        await reached.wait()
        for who in b"bcde":
            tasks.create_task(ledger.append(log, bytes([who]) * 5000))
        await until(lambda: log.statistics().put_fragments == 4)
        async with open_writer(inner) as other:
            await other.append_many([b"x", b"y", b"z"])
        for number, value in enumerate((b"x", b"y", b"z"), 1):
            ledger.committed[number] = value
        release.set()
    log = await ledger.check(inner)
    assert len(log) == 8


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_retry_at_once(kind: str) -> None:
    """Without further attempts the loser is told to append again, and may."""
    inner = MemoryStore()
    settings = WriterSettings(contention_attempts=0, interval_seconds=0)
    ledger = Ledger()
    async with open_writer(inner, settings, kind=kind) as log, open_writer(inner) as other:
        assert await other.append(b"first") == 1
        told = await outcome(log.append(b"second"))
        assert isinstance(told, ContentionError)
        assert (told.outcome, told.retriable) == ("not_written", True)
        assert await log.append(b"second") == 2
    assert await found(inner) == {1: b"first", 2: b"second"}
    assert not ledger.unknown


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_appends_at_an_offset(kind: str) -> None:
    """Compare and append: one of two writers gets the offset, the other learns the newest one."""
    inner = MemoryStore()
    async with open_writer(inner, kind=kind) as one, open_writer(inner) as two:
        told = await asyncio.gather(
            outcome(one.append(b"1", expect_offset=1)), outcome(two.append(b"2", expect_offset=1))
        )
        lost = next(answer for answer in told if isinstance(answer, WalError))
        assert 1 in told
        assert isinstance(lost, OffsetMismatchError)
        assert (lost.expected, lost.actual, lost.outcome) == (1, 2, "not_written")
        assert await one.append(b"3", expect_offset=2) == 2
        # Two has not seen that yet; it looks before it refuses.
        assert await two.append(b"4", expect_offset=3) == 3
        assert await two.append_many([b"5", b"6"], expect_offset=4) == range(4, 6)
        with pytest.raises(OffsetMismatchError) as refused:
            await one.append(b"7", expect_offset=5)
        assert refused.value.actual == 6
    assert len(await found(inner)) == 5


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_pipelined_appends_at_offsets_of_a_loser(kind: str) -> None:
    """All of them are refused: none may be anywhere else."""
    inner = MemoryStore()
    async with open_writer(inner, kind=kind) as log, open_writer(inner) as other:
        await other.append_many([b"first", b"second"])
        told = await asyncio.gather(
            *(outcome(log.append(bytes(5000), expect_offset=1 + at)) for at in range(4))
        )
        assert all(isinstance(answer, OffsetMismatchError | OutcomeUnknownError) for answer in told)
        assert isinstance(told[0], OffsetMismatchError)
        assert await log.append(b"third", expect_offset=3) == 3
    assert await found(inner) == {1: b"first", 2: b"second", 3: b"third"}


async def give_up(appending: Awaitable[object], away: Away, clock: ManualClock) -> object:
    """Let the store be away for longer than the writer puts up with; return what the append is told."""
    before = away.asked
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outcome(appending))
        await until(lambda: away.asked > before)
        await clock.wait_for_sleepers(1)
        clock.advance(SMALL.patience_seconds + 1)
    return task.result()


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_an_outage_is_told_and_survived(kind: str, clock: ManualClock) -> None:
    """Appends under way learn that their fate is unknown; later ones go on as soon as the store is back."""
    store = FaultyStore(MemoryStore())
    ledger, away = Ledger(), Away()
    async with open_writer(store, kind=kind, clock=clock) as log:
        await ledger.append(log, b"before")
        store.on("any", away, times=10**9)
        await give_up(ledger.append(log, b"during"), away, clock)
        assert ledger.unknown == {b"during"}
        away.is_away = False
        await ledger.append(log, b"after")
    await ledger.check(store.inner)
    assert b"after" in ledger.committed.values()


async def test_a_store_that_is_away_before_anything_was_put(clock: ManualClock) -> None:
    """Nothing can be in the log then, and the appends are told so."""
    store = FaultyStore(MemoryStore())
    away = Away()
    async with open_writer(store, clock=clock) as log:
        store.on("any", away, times=10**9)
        first = await give_up(log.append(b"exposed"), away, clock)
        assert isinstance(first, OutcomeUnknownError)
        second = await give_up(log.append(b"never put"), away, clock)  # it looks at the log first
        assert isinstance(second, StorageUnavailableError)
        assert (second.outcome, second.retriable) == ("not_written", True)


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_sealed_under_way(kind: str) -> None:
    """Appends come before the seal or are refused, and none is in doubt."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    ledger = Ledger()
    objects_first = ChainSettings(inline_bytes=0)
    async with open_writer(store, kind=kind, chain=objects_first) as log:
        await ledger.append(log, b"before")

        async def close_it() -> None:
            await seal(URL, store=inner)

        release, reached = asyncio.Event(), asyncio.Event()
        store.on("put_if_absent", hang(release, reached), key_prefix=FRAGMENTS[kind])
        appending = asyncio.create_task(outcome(log.append(b"during")))
        await reached.wait()
        await close_it()
        release.set()
        told = await appending
        assert isinstance(told, LogSealedError)
        assert told.outcome == "not_written"
        assert isinstance(await outcome(log.append(b"after")), LogSealedError)
    with pytest.raises(LogSealedError):
        await open_writer(inner)
    await ledger.check(inner)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_cancelled_callers(kind: str) -> None:
    """A caller that goes away at any moment takes nothing with it: neither puts nor other appends."""
    for turns in range(0, 120, 3):
        store = FaultyStore(MemoryStore())
        async with open_writer(store, kind=kind) as log:
            first = asyncio.create_task(log.append(b"first"))
            others = [asyncio.create_task(log.append(b"%d" % number)) for number in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            offsets = await asyncio.gather(*others)
            await log.append(b"last")
        log = await found(store.inner)
        assert [log[offset] for offset in offsets] == [b"0", b"1", b"2"]
        assert sum(value == b"first" for value in log.values()) <= 1
        assert list(log.values())[-1] == b"last"
