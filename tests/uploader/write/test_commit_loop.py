"""Fragments of a CloudWriter that are begun before they are cut: what is told holds, used or not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud import FAST, URL, cloud_log
from tests.local import check_contiguous, turns
from tests.waiting import until
from uploader.care.admin.scrubber import Scrubber
from uploader.chain.chain_root import ChainSettings
from uploader.format.findings import Severity
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore
from uploader.testing.faults import Request, hang, happen_then_hang
from uploader.write import publish_pipeline
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Record
from walstore.errors import (
    AccessDeniedError,
    ContentionError,
    OffsetMismatchError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.testing import ManualClock

LAYOUTS = ["swap", "chain"]
FRAGMENTS = {"swap": "log/", "chain": "shard"}
INTERVAL = 10.0
SETTINGS = WriterSettings(interval_seconds=INTERVAL, parallel_puts=True)
BEFORE_CUT = 0.01
"""How long before a cut the head start has begun, and its time to sleep has not."""


@pytest.fixture(autouse=True)
def _however_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every fragment early, however little there is to do."""
    monkeypatch.setattr(publish_pipeline, "_HEAD_START_WORK", 0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


class Gathering:
    """A writer whose first fragment, one record, hangs in the store while the second one gathers."""

    def __init__(
        self, log: CloudWriter, store: FaultyStore, clock: ManualClock, prefix: str
    ) -> None:
        self.log = log
        self.store = store
        self.clock = clock
        self.prefix = prefix
        self.release = asyncio.Event()
        self.told: list[asyncio.Task[int]] = []

    async def append(self, value: bytes, **options) -> asyncio.Task[int]:
        """Begin an append; it is accepted when this returns, unless it has to wait for something."""
        task = asyncio.create_task(self.log.append(value, **options))
        self.told.append(task)
        await turns(3)
        return task

    @property
    def is_begun(self) -> bool:
        fragments = self.log._queue.fragments
        return bool(fragments) and fragments[0].encoding is not None

    async def come_near(self) -> None:
        """Let it be the time for a head start."""
        await self.clock.wait_for_sleepers(
            2
        )  # the one who watches the store's silence is there, too
        self.clock.advance(self.log.settings.interval_seconds - BEFORE_CUT)
        await turns()

    async def begin(self) -> None:
        """Let it be the time for a head start, which begins."""
        await self.come_near()
        assert self.is_begun
        assert self.log.statistics().fragments_under_way == 1

    async def cut(self) -> None:
        """Let it be the time for the cut, and the fragment be put."""
        await self.clock.wait_for_sleepers(2)
        put, go_on = asyncio.Event(), asyncio.Event()
        go_on.set()
        self.store.on("put_if_absent", happen_then_hang(go_on, put), key_prefix=self.prefix)
        self.clock.advance(BEFORE_CUT)
        await put.wait()  # turning the loop meanwhile would keep the threads from their work

    async def outcomes(self) -> list[int | BaseException]:
        """Return what each append returned or raised."""
        return await asyncio.gather(*self.told, return_exceptions=True)


@asynccontextmanager
async def gathering(
    store: FaultyStore,
    clock: ManualClock,
    *,
    kind: str = "swap",
    settings: WriterSettings = SETTINGS,
) -> AsyncIterator[Gathering]:
    async with CloudWriter.open(
        URL,
        store=store,
        retry=FAST,
        clock=clock,
        layout=kind,
        chain=ChainSettings(inline_bytes=0),
        settings=settings,
    ) as log:
        found, reached = Gathering(log, store, clock, FRAGMENTS[kind]), asyncio.Event()
        store.on("put_if_absent", hang(found.release, reached), key_prefix=FRAGMENTS[kind])
        await found.append(b"first")
        await reached.wait()
        try:
            yield found
        finally:
            found.release.set()
        await asyncio.wait(found.told)


@contextmanager
def busy_threads(log: CloudWriter) -> Iterator[threading.Event]:
    """Let the writer's threads do nothing else until the event is set, or the block is left."""
    gate = threading.Event()
    blocked = [asyncio.ensure_future(log._session.worker.run(gate.wait)) for _ in range(2)]
    try:
        yield gate
    finally:
        gate.set()
        del blocked


async def records(store: ObjectStore) -> list[Record]:
    """Return the log, in which nothing is wrong."""
    async with Scrubber.open(URL, store=store) as scrubber:
        found = (await scrubber.scrub()).findings
    assert [one for one in found if one.severity is not Severity.NOTE] == []
    async with cloud_log(store) as log:
        await log.verify()
        content = [record async for record in log.reader()]
    check_contiguous(content)
    return content


async def values(store: ObjectStore) -> list[bytes]:
    return [record.value for record in await records(store)]


async def row_groups(store: ObjectStore) -> list[list[int]]:
    """Return how many records each part of each fragment has."""
    async with cloud_log(store) as log:
        paths = [entry.path for entry in await log.fragments()]
    found = []
    for path in paths:
        footer = pq.read_metadata(pa.BufferReader((await store.get(path)).data))
        found.append([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
    return found


def where(told: list[int | BaseException], expected: list[bytes]) -> list[bytes]:
    """Return what lies at the offsets that appends were told."""
    return [expected[offset - 1] for offset in told if isinstance(offset, int)]


# -- one fragment ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_what_comes_before_and_after_is_one_fragment(store, clock, kind) -> None:
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.append(b"2")
        await scene.begin()
        await scene.append(b"3")
        group = asyncio.create_task(scene.log.append_many([b"4", b"5"]))
        await turns(3)
        await scene.cut()
        scene.release.set()
        assert await group == range(5, 7)
    assert await scene.outcomes() == [1, 2, 3, 4]
    assert await values(store.inner) == [b"first", b"1", b"2", b"3", b"4", b"5"]
    assert await row_groups(store.inner) == [[1], [2, 3]]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_nothing_may_come_after(store, clock, kind) -> None:
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.cut()
    assert await scene.outcomes() == [1, 2]
    assert await values(store.inner) == [b"first", b"1"]
    assert await row_groups(store.inner) == [[1], [1]]


async def test_it_begins_once_for_each_fragment(store, clock) -> None:
    async with gathering(store, clock) as scene:
        await scene.append(b"1")
        await scene.begin()
        building = scene.log._queue.fragments[0].encoding
        for number in range(2, 5):
            await scene.append(b"%d" % number)
            scene.log._commit_loop.wake()
            await turns()
        assert scene.log._queue.fragments[0].encoding is building
        await scene.cut()
    assert await row_groups(store.inner) == [[1], [1, 3]]


@pytest.mark.parametrize("is_early", [True, False])
async def test_columns_that_only_one_half_has(store, clock, is_early) -> None:
    plain: dict = {}
    full = {"key": b"k", "stream": "s", "headers": {"h": b"x"}}
    halves = (full, plain) if is_early else (plain, full)
    async with gathering(store, clock) as scene:
        await scene.log.open_stream("s")  # a stream's first append waits until it is listed
        await scene.append(b"1", **halves[0])
        await scene.append(b"2")
        await scene.begin()
        await scene.append(b"3", **halves[1])
        await scene.append(b"4")
        await scene.cut()
    found = await records(store.inner)
    assert await row_groups(store.inner) == [[1], [2, 2]]
    at = 1 if is_early else 3
    for number, record in enumerate(found):
        expected = (b"k", "s", {"h": b"x"}) if number == at else (None, None, {})
        assert (record.key, record.stream, dict(record.headers)) == expected
    async with cloud_log(store.inner) as log:
        assert [item.offset async for item in log.reader(stream="s")] == [at + 1]


async def test_little_is_not_worth_it(store, clock, monkeypatch) -> None:
    monkeypatch.setattr(publish_pipeline, "_HEAD_START_WORK", 1 << 20)
    async with gathering(store, clock) as scene:
        await scene.append(b"1")
        await scene.come_near()
        assert not scene.is_begun
        await scene.cut()
    assert await row_groups(store.inner) == [[1], [1]]


async def test_a_full_fragment_is_cut_in_the_middle_of_it(store, clock) -> None:
    """And the one behind it is another fragment."""
    settings = WriterSettings(interval_seconds=INTERVAL, parallel_puts=True, fragment_bytes=5000)
    async with gathering(store, clock, settings=settings) as scene:
        with busy_threads(scene.log):
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2".ljust(5000 - 9 - 8))
            await until(lambda: scene.log.statistics().fragments_under_way == 2)
            await scene.append(b"3")
            assert not scene.is_begun
        scene.release.set()
        await scene.log.flush()
    assert await scene.outcomes() == [1, 2, 3, 4]
    assert [value[:1] for value in await values(store.inner)] == [b"f", b"1", b"2", b"3"]


# -- appends at an offset --------------------------------------------------------------------


async def test_an_append_at_an_offset_may_join(store, clock) -> None:
    async with gathering(store, clock) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2", expect_offset=3)
        await scene.append(b"3")
        await scene.cut()
    assert await scene.outcomes() == [1, 2, 3, 4]
    assert await values(store.inner) == [b"first", b"1", b"2", b"3"]
    assert await row_groups(store.inner) == [[1], [1, 2]]


async def test_an_append_at_an_offset_gets_no_head_start(store, clock) -> None:
    """It may be refused at the cut."""
    async with gathering(store, clock) as scene:
        await scene.append(b"1", expect_offset=2)
        await scene.come_near()
        assert not scene.is_begun
        await scene.cut()
    assert await scene.outcomes() == [1, 2]
    assert await values(store.inner) == [b"first", b"1"]


async def test_an_append_at_a_wrong_offset_does_not_join(store, clock) -> None:
    async with gathering(store, clock) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2", expect_offset=2)  # everything is cut at once, to look
        scene.release.set()
    told = await scene.outcomes()
    assert told[:2] == [1, 2]
    assert isinstance(told[2], OffsetMismatchError)
    assert (told[2].expected, told[2].actual) == (2, 3)
    assert await values(store.inner) == [b"first", b"1"]


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_append_at_an_offset_is_refused_at_the_cut(store, clock, kind, is_first) -> None:
    """Another writer took its place: the others go on, those encoded before and those after."""
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.begin()
        if not is_first:
            await scene.append(b"2")
        await scene.append(b"at", expect_offset=3 + (not is_first))
        await scene.append(b"3")
        await append_elsewhere(store.inner, clock, b"t", b"u")
        scene.release.set()
    told = await scene.outcomes()
    (refused,) = [answer for answer in told if not isinstance(answer, int)]
    assert isinstance(refused, OffsetMismatchError)
    found = await values(store.inner)
    ours = [b"first", b"1", b"3"] if is_first else [b"first", b"1", b"2", b"3"]
    assert found == [b"t", b"u", *ours]
    assert where(told, found) == ours


async def test_a_refusal_at_the_very_place(store, clock) -> None:
    """The fragment's place is as expected, but an append inside it is not: nothing begun is used."""
    settings = WriterSettings(interval_seconds=INTERVAL, parallel_puts=True, contention_attempts=0)
    async with gathering(store, clock, settings=settings) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2", expect_offset=3)
        await append_elsewhere(store.inner, clock, b"theirs", timestamp_us=0)
        scene.release.set()
    told = await scene.outcomes()
    assert isinstance(told[0], ContentionError)
    assert told[1:] == [2, 3]
    assert await values(store.inner) == [b"theirs", b"1", b"2"]


# -- other writers ---------------------------------------------------------------------------


async def append_elsewhere(
    store: ObjectStore, clock: ManualClock, *content: bytes, timestamp_us: int | None = None
) -> None:
    """Append as another writer."""
    async with CloudWriter.open(URL, store=store, retry=FAST, clock=clock) as other:
        await other.append_many(content, timestamp_us=timestamp_us)


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_times_may_go_back_behind_another_writer_of_as_many_records(
    store, clock, kind
) -> None:
    """What we put behind our lost fragment still fits, and somebody may name it: docs/cloud_writer.md."""
    newer_us = clock.now_us() + 3600 * 10**6
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.cut()
        await append_elsewhere(store.inner, clock, b"theirs", timestamp_us=newer_us)
        scene.release.set()
    async with Scrubber.open(URL, store=store.inner) as scrubber:
        found = (await scrubber.scrub()).findings
    wrong = [one for one in found if one.severity is not Severity.NOTE]
    assert [one.severity for one in wrong] == [Severity.WARNING]
    assert "older than some" in wrong[0].what
    async with cloud_log(store.inner) as log:
        content = [record.value async for record in log.reader()]
    assert sorted(content) == [b"1", b"first", b"theirs"]


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("count", [2, 3])
async def test_another_writer_is_quicker(store, clock, kind, count) -> None:
    """The head start was for another place: everything is encoded anew."""
    theirs = [b"theirs %d" % number for number in range(count)]
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.append(b"2")
        await scene.begin()
        await append_elsewhere(store.inner, clock, *theirs)
        await scene.append(b"3")
        scene.release.set()
    told = await scene.outcomes()
    assert told == [count + 1, count + 2, count + 3, count + 4]
    found = await values(store.inner)
    assert found == [*theirs, b"first", b"1", b"2", b"3"]
    assert await row_groups(store.inner) == [[count], [1], [3]]
    assert scene.log.statistics().contentions == 1


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_another_writer_is_quicker_than_the_cut(store, clock, kind) -> None:
    """Both fragments are put, the second one with its head start, and neither can be named."""
    async with gathering(store, clock, kind=kind) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2")
        await scene.cut()
        await append_elsewhere(store.inner, clock, b"t", b"u")
        scene.release.set()
    found = await values(store.inner)
    assert sorted(found) == sorted([b"t", b"u", b"first", b"1", b"2"])
    assert where(await scene.outcomes(), found) == [b"first", b"1", b"2"]


async def test_the_other_writer_fills_the_gap(store, clock) -> None:
    """With as many records as the lost fragment: the one behind it, begun early, fits after all."""
    async with gathering(store, clock, kind="chain") as scene:
        await scene.append(b"1")
        await scene.begin()
        await append_elsewhere(store.inner, clock, b"theirs")
        await scene.append(b"2")
        await scene.cut()
        scene.release.set()
    assert await scene.outcomes() == [4, 2, 3]
    assert await values(store.inner) == [b"theirs", b"1", b"2", b"first"]
    assert await row_groups(store.inner) == [[1], [1, 1], [1]]


async def test_the_same_place_behind_another_writer(store, clock) -> None:
    """As many records of another writer, not newer: what was begun is used, and right."""
    settings = WriterSettings(interval_seconds=INTERVAL, parallel_puts=True, contention_attempts=0)
    async with gathering(store, clock, settings=settings) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2")
        await append_elsewhere(store.inner, clock, b"theirs", timestamp_us=0)
        scene.release.set()
    told = await scene.outcomes()
    assert isinstance(told[0], ContentionError)
    assert told[0].outcome == "not_written"
    assert told[1:] == [2, 3]
    assert await values(store.inner) == [b"theirs", b"1", b"2"]
    assert await row_groups(store.inner) == [[1], [1, 1]]


# -- times -----------------------------------------------------------------------------------


async def test_the_same_place_behind_newer_records(store, clock) -> None:
    """What was begun holds records that are too old: it is not used."""
    settings = WriterSettings(interval_seconds=INTERVAL, parallel_puts=True, contention_attempts=0)
    newer = clock.now_us() + 3600 * 10**6
    async with gathering(store, clock, settings=settings) as scene:
        await scene.append(b"1")
        await scene.begin()
        await scene.append(b"2")
        await append_elsewhere(store.inner, clock, b"theirs", timestamp_us=newer)
        scene.release.set()
    assert (await scene.outcomes())[1:] == [2, 3]
    assert [item.timestamp_us for item in await records(store.inner)] == [newer] * 3
    assert await row_groups(store.inner) == [[1], [2]]


async def test_time_never_goes_back_after_a_head_start(store, clock) -> None:
    """Neither behind a caller's time, nor when the clock is set back."""
    now = clock.now_us()
    ahead = now + 60 * 10**6
    async with gathering(store, clock) as scene:
        await scene.append(b"1")
        await scene.append(b"2", timestamp_us=ahead)
        await scene.begin()
        clock.shift_wall(-3600)
        await scene.append(b"3", timestamp_us=now)
        await scene.append(b"4")
        await scene.append(b"5", timestamp_us=ahead + 1 - 3600 * 10**6)
        await scene.cut()
        scene.release.set()
        await asyncio.wait(scene.told)
        await scene.append(b"6")
    begun = now + round((INTERVAL - BEFORE_CUT) * 1e6)
    times = [item.timestamp_us for item in await records(store.inner)]
    assert times == [now, begun, *[ahead] * 5]
    assert await row_groups(store.inner) == [[1], [2, 3], [1]]


async def test_callers_times_on_both_sides(store, clock) -> None:
    now = clock.now_us()
    async with gathering(store, clock) as scene:
        await scene.append(b"1", timestamp_us=now + 5)
        await scene.append(b"2", timestamp_us=now + 3)
        await scene.begin()
        await scene.append(b"3", timestamp_us=now + 4)
        await scene.append(b"4", timestamp_us=now + 9)
        await scene.cut()
    times = [item.timestamp_us - now for item in await records(store.inner)]
    assert times == [0, 5, 5, 5, 9]


# -- ends ------------------------------------------------------------------------------------


async def test_closing_in_the_middle_of_it(store, clock) -> None:
    async with gathering(store, clock) as scene:
        with busy_threads(scene.log):
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2")
            closing = asyncio.create_task(scene.log.aclose())
            await until(lambda: scene.log.statistics().fragments_under_way == 2)
            late = await scene.append(b"late")
            assert isinstance(late.exception(), WalClosedError)
            assert not closing.done()
        scene.release.set()
        await closing
    assert (await scene.outcomes())[:3] == [1, 2, 3]
    assert await values(store.inner) == [b"first", b"1", b"2"]
    assert await row_groups(store.inner) == [[1], [1, 1]]


async def test_flushing_in_the_middle_of_it(store, clock) -> None:
    async with gathering(store, clock) as scene:
        with busy_threads(scene.log):
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2")
            flushing = asyncio.create_task(scene.log.flush())
            await until(lambda: scene.log.statistics().fragments_under_way == 2)
            assert not flushing.done()
        scene.release.set()
        await flushing
        assert scene.log.tail == 4
    assert await scene.outcomes() == [1, 2, 3]
    assert await row_groups(store.inner) == [[1], [1, 1]]


@pytest.mark.parametrize("doomed", [1, 2])
async def test_a_caller_that_goes_away_in_the_middle_of_it(store, clock, doomed) -> None:
    """Its record stays: it was accepted."""
    async with gathering(store, clock) as scene:
        with busy_threads(scene.log):
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2")
            scene.told[doomed].cancel()
            await turns()
        await scene.append(b"3")
        await scene.cut()
    told = await scene.outcomes()
    assert isinstance(told.pop(doomed), asyncio.CancelledError)
    found = await values(store.inner)
    assert found == [b"first", b"1", b"2", b"3"]
    del found[doomed]
    assert [offset - 1 for offset in told if isinstance(offset, int)] == [
        at for at in range(4) if at != doomed
    ]


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_store_that_is_given_up_in_the_middle_of_it(store, clock, is_busy) -> None:
    """What was not put is not written; what is appended later is not mixed up with it."""
    patience = INTERVAL - BEFORE_CUT / 2  # between the head start and the cut
    settings = WriterSettings(
        interval_seconds=INTERVAL, parallel_puts=True, patience_seconds=patience
    )
    async with gathering(store, clock, settings=settings) as scene:
        with busy_threads(scene.log) as gate:
            if not is_busy:
                gate.set()
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2")
            await clock.wait_for_sleepers(2)
            clock.advance(BEFORE_CUT / 2 + 0.0001)
            first, *others = await scene.outcomes()
        assert isinstance(first, OutcomeUnknownError)
        assert len(others) == 2
        for error in others:
            assert isinstance(error, StorageUnavailableError)
            assert error.outcome == "not_written"
        assert scene.log.statistics().waiting_records == 0
        assert await scene.log.append(b"again") == 1
    assert await values(store.inner) == [b"again"]


async def test_a_store_that_refuses_in_the_middle_of_it(store, clock) -> None:
    release = asyncio.Event()

    async def refuse(_request: Request) -> object:
        await release.wait()
        raise StorageUnavailableError("forbidden", retriable=False, outcome="not_written")

    async with gathering(store, clock) as scene:
        store.on("put_if_absent", refuse, key_prefix="log/")
        with busy_threads(scene.log):
            await scene.append(b"1")
            await scene.begin()
            await scene.append(b"2")
            flushing = asyncio.create_task(scene.log.flush())  # cut, and not built yet
            await until(lambda: scene.log.statistics().fragments_under_way == 2)
            await scene.append(b"3")
        await until(lambda: store.count("put_if_absent").requests >= 2)
        release.set()
        await flushing
        told = await scene.outcomes()
        assert all(isinstance(error, WalError) for error in told)
        outcomes = [error.outcome for error in told if isinstance(error, WalError)]
        # That of the first is under way; the second one itself is refused, so nothing of it is there.
        assert outcomes == ["unknown", "not_written", "not_written", "not_written"]
        assert await scene.log.append(b"again") == 1
    assert await values(store.inner) == [b"again"]


async def test_a_cancellation_in_the_moment_of_an_error_ends_the_writer(store) -> None:
    """As when a program ends without closing it: its task must not wait for work for ever."""
    log = await CloudWriter.open(URL, store=store, retry=FAST, settings=SETTINGS)
    (writing,) = (task for task in asyncio.all_tasks() if task.get_name() == f"walstore {log.url}")

    async def refuse(_: Request[object]) -> object:
        writing.cancel()
        raise AccessDeniedError("not yours")

    store.on("put_if_absent", refuse, key_prefix=FRAGMENTS["swap"])
    with pytest.raises(WalError):
        await log.append(b"a")
    await asyncio.wait((writing,), timeout=60)
    assert writing.cancelled()
