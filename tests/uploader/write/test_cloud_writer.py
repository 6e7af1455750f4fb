"""CloudWriter: what its methods do while nothing fails. The rest is in tests/scenarios."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cloud import FAST, LOG_ID, URL, cloud_log, put_fragment, snapshot, tier
from tests.local import turns
from tests.uploader.parquet import copy_as_wal3
from tests.waiting import until
from uploader import CollectorSettings, GarbageCollector, destroy, seal
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout
from uploader.root.ownership import writer_name
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, timeout
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import Wal
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LimitExceededError,
    LogNotFoundError,
    LogSealedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    StorageUnavailableError,
    StreamClosedError,
    WalClosedError,
)
from walstore.testing import ManualClock


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def open_writer(store: FaultyStore | MemoryStore, **options) -> CloudWriter:
    return CloudWriter.open(URL, store=store, retry=FAST, **options)


async def records(store: FaultyStore | MemoryStore):
    async with cloud_log(store) as log:
        await log.verify()
        return [record async for record in log.reader()]


async def test_what_is_appended_is_what_is_read(store) -> None:
    """Every option survives; offsets go on from one append to the next."""
    moment = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    async with open_writer(store) as log:
        assert (log.head, log.tail) == (1, 1)
        assert await log.append(b"1", timestamp_us=moment) == 1
        assert await log.append(b"2", b"key", "eu", {"h": b"x"}) == 2
        span = await log.append_many([b"3", b"4"], key=b"k", stream="us", headers={"i": b"y"})
        assert span == range(3, 5)
        assert (log.tail, log.manifest.next_offset, log.url) == (5, 5, store.url)
    found = await records(store.inner)
    assert [(item.offset, item.value, item.key, item.stream) for item in found] == [
        (1, b"1", None, None),
        (2, b"2", b"key", "eu"),
        (3, b"3", b"k", "us"),
        (4, b"4", b"k", "us"),
    ]
    assert [dict(item.headers) for item in found] == [{}, {"h": b"x"}, {"i": b"y"}, {"i": b"y"}]
    assert found[0].timestamp_us == moment


async def test_time_never_goes_back(store, clock: ManualClock) -> None:
    """Neither for one writer, nor when the next one's clock is behind."""
    now = clock.now_us()
    async with open_writer(store, clock=clock) as log:
        await log.append(b"1", timestamp_us=now + 5_000_000)
        await log.append(b"2", timestamp_us=now)
    behind = ManualClock(now - 60_000_000)
    async with open_writer(store, clock=behind) as log:
        await log.append(b"3")
    assert [item.timestamp_us - now for item in await records(store.inner)] == [5_000_000] * 3


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_a_log_that_is_destroyed_while_it_is_opened(store, kind: Layout) -> None:
    """The last fragment, whose time is looked at, is gone because the log is: that is no damage."""
    async with open_writer(store, layout=kind) as log:
        await log.append(b"1")

    async def destroy_first(request):
        await destroy(URL, store=store.inner, confirm=True)
        return await request()

    store.on("get_range", destroy_first)
    with pytest.raises((LogSealedError, LogNotFoundError)):
        await open_writer(store)


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_a_last_fragment_that_is_collected_meanwhile(store, kind: Layout) -> None:
    """The log went on since the manifest was read, and all that this named was collected."""
    settings = CollectorSettings(interval_seconds=0, max_drop_fraction=1)
    async with open_writer(store, layout=kind) as log:
        await log.append(b"1")

    async def go_on_first(request):
        async with open_writer(store.inner) as other:
            await other.append(b"2")
            await other.cursors.commit("c", 2)
        async with GarbageCollector.open(URL, store=store.inner, settings=settings) as collector:
            assert (await collector.collect()).head == 2
        return await request()

    store.on("get_range", go_on_first)
    async with open_writer(store) as log:
        assert await log.append(b"3") == 3
    assert [item.value for item in await records(store.inner)] == [b"2", b"3"]


async def test_a_last_fragment_that_is_missing(store) -> None:
    """The newest manifest names it: that is damage, and said."""
    async with open_writer(store) as log:
        await log.append(b"1")
    await store.inner.delete([layout.fragment_path(1)])
    with pytest.raises(CorruptionError, match="missing"):
        await open_writer(store)


async def test_appends_at_once_go_together(store) -> None:
    async with open_writer(store) as log:
        before = log.statistics().put_fragments
        offsets = await asyncio.gather(*(log.append(b"%d" % number) for number in range(500)))
        assert log.statistics().put_fragments == before + 1
    assert offsets == list(range(1, 501))
    assert [item.value for item in await records(store.inner)] == [b"%d" % n for n in range(500)]


async def test_the_interval_between_fragments(store, clock: ManualClock) -> None:
    """While one is under way the next one gathers company; flush, a full one and closing do not wait."""
    settings = WriterSettings(interval_seconds=10, fragment_bytes=4096, parallel_puts=True)
    release, reached = asyncio.Event(), asyncio.Event()
    async with open_writer(store, settings=settings, clock=clock) as log:
        store.on("put_if_absent", hang(release, reached), key_prefix="log/")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(log.append(b"first"))
            await reached.wait()
            tasks.create_task(log.append(b"second"))
            await clock.wait_for_sleepers(2)  # and the one who watches the store's silence
            assert log.statistics().fragments_under_way == 1
            clock.advance(10)
            await until(lambda: log.statistics().put_fragments == 1)
            tasks.create_task(log.append(bytes(5000)))
            await until(lambda: log.statistics().put_fragments == 2)
            tasks.create_task(log.append(b"third"))
            await turns(5)
            tasks.create_task(log.flush())
            await until(lambda: log.statistics().put_fragments == 3)
            release.set()
    assert len(await records(store.inner)) == 4


async def test_records_that_never_fill_a_fragment_exactly_are_cut_at_once(
    store, clock: ManualClock
) -> None:
    """What comes next does not fit: the fragment is whole, and waits for no interval."""
    settings = WriterSettings(interval_seconds=10, fragment_bytes=64 << 10, parallel_puts=True)
    release = asyncio.Event()
    store.on("put_if_absent", hang(release), key_prefix="log/", times=9)
    async with open_writer(store, settings=settings, clock=clock) as log:
        appends = [asyncio.create_task(log.append(bytes(1000))) for _ in range(65 * 8 + 1)]
        await until(lambda: log.statistics().fragments_under_way == 8)
        assert clock.monotonic() == 0
        release.set()
        assert await asyncio.gather(*appends) == list(range(1, 65 * 8 + 2))


async def test_too_much_is_held_back(store) -> None:
    settings = WriterSettings(pending_bytes=64 << 10, interval_seconds=0)
    release = asyncio.Event()
    async with open_writer(store, settings=settings) as log, asyncio.TaskGroup() as tasks:
        store.on("put_if_absent", hang(release), key_prefix="log/", times=100)
        for _ in range(10):
            tasks.create_task(log.append(bytes(16 << 10)))
        await until(lambda: log.statistics().blocked_appends == 7)
        assert log.statistics().waiting_bytes <= 64 << 10
        release.set()
    assert len(await records(store.inner)) == 10


async def test_an_idle_log_makes_no_request(store) -> None:
    async with open_writer(store) as log:
        await log.append(b"v")
        await log.flush()
        before = store.requests
        await turns(200)
        assert store.requests == before


async def test_statistics(store) -> None:
    async with open_writer(store) as log:
        await log.append_many([b"12345678"] * 3)
        found = log.statistics()
    assert dataclasses.asdict(found) | {"put_seconds": 0, "publish_seconds": 0, "put_bytes": 0} == {
        "head": 1,
        "tail": 4,
        "waiting_bytes": 0,
        "waiting_records": 0,
        "blocked_appends": 0,
        "fragments_under_way": 0,
        "committed_records": 3,
        "committed_bytes": 48,
        "put_fragments": 1,
        "put_bytes": 0,
        "adopted_fragments": 0,
        "contentions": 0,
        "reappended_fragments": 0,
        "unknown_records": 0,
        "put_seconds": 0,
        "publish_seconds": 0,
    }
    assert found.put_bytes > 0
    assert found.put_seconds > 0
    assert found.publish_seconds > 0


async def test_closing_ships_what_was_accepted(store) -> None:
    log = await open_writer(store)
    appending = asyncio.create_task(log.append(b"v"))
    await asyncio.sleep(0)
    await log.aclose()
    assert await appending == 1
    await log.aclose()
    with pytest.raises(WalClosedError):
        await log.append(b"late")
    assert repr(log) == f"<CloudWriter {store.url}>"


async def test_an_append_at_an_offset_ends_though_the_writer_is_closed(store) -> None:
    """It waits for those before it, to look where the log ends; meanwhile the last look was taken."""
    release, reached = asyncio.Event(), asyncio.Event()
    log = await open_writer(store)
    store.on("put_if_absent", hang(release, reached), key_prefix="log/")
    # So many that the writer has ended before the last of them is told.
    first = asyncio.gather(*(log.append(b"%d" % number) for number in range(6400)))
    await reached.wait()
    waiting = asyncio.create_task(log.append(b"at an offset", expect_offset=9))
    await turns()
    closing = asyncio.create_task(log.aclose())
    await turns()
    release.set()
    await closing
    async with asyncio.timeout(60):
        with pytest.raises(WalClosedError) as told:
            await waiting
        with pytest.raises(WalClosedError):
            await log.append(b"late", expect_offset=9)
    assert told.value.outcome == "not_written"
    assert await first == list(range(1, 6401))


async def test_the_last_offset(store) -> None:
    """What has no offset is refused; nothing else is, and closing is as ever."""
    last = layout.MAX_U64 - 3
    manifest = dataclasses.replace(
        Manifest.initial("x"), initial_offset=last, initial_seq_no=layout.FIRST_SEQ_NO
    )
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    async with open_writer(store) as log:
        assert await log.append(b"1") == last
        with pytest.raises(LimitExceededError, match="no offsets") as told:
            await log.append_many([b"2", b"3", b"4"])
        assert told.value.outcome == "not_written"
        assert await log.append_many([b"2", b"3"]) == range(last + 1, last + 3)
        with pytest.raises(LimitExceededError):
            await log.append(b"4")
    assert [item.offset for item in await records(store.inner)] == [last, last + 1, last + 2]


async def test_the_last_offset_was_taken_by_another_writer(store) -> None:
    last = layout.MAX_U64 - 1
    manifest = dataclasses.replace(
        Manifest.initial("x"), initial_offset=last, initial_seq_no=layout.FIRST_SEQ_NO
    )
    await store.inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    async with open_writer(store) as log, open_writer(store.inner) as other:
        assert await other.append(b"theirs") == last
        with pytest.raises(LimitExceededError):
            await log.append(b"ours")
        assert log.statistics().waiting_records == 0
    assert [item.value for item in await records(store.inner)] == [b"theirs"]


async def test_a_defect_is_told_by_a_typed_error(store) -> None:
    """Appends that were not put learn that they are not written; who closes learns why."""
    log = await open_writer(store)
    store.on("put_if_match", fail(ZeroDivisionError("a defect")), key_prefix=layout.MANIFEST)
    first = asyncio.create_task(log.append(b"exposed"))
    with pytest.raises(OutcomeUnknownError) as told:
        await first
    assert isinstance(told.value.__cause__, WalClosedError)
    with pytest.raises(WalClosedError) as late:
        await log.append(b"late")
    assert (late.value.reason, late.value.outcome) == ("failed", "not_written")
    with pytest.raises(WalClosedError, match="a defect") as closed:
        await log.aclose()
    assert isinstance(closed.value.__cause__, ZeroDivisionError)


async def test_an_append_that_was_never_put_is_not_in_doubt(store) -> None:
    """Whatever befalls one that was: the type of the error says as much as its outcome."""
    release, reached = asyncio.Event(), asyncio.Event()
    log = await open_writer(store, settings=WriterSettings(fragment_bytes=4096))
    store.on("put_if_absent", hang(release, reached), key_prefix="log/")
    store.on("put_if_match", fail(ZeroDivisionError("a defect")), key_prefix=layout.MANIFEST)
    exposed = asyncio.create_task(log.append(bytes(5000)))
    await reached.wait()
    kept = asyncio.create_task(log.append(bytes(5000)))
    await turns()
    log._commit_loop.fail(OutcomeUnknownError("in doubt"))
    told = await asyncio.gather(exposed, kept, return_exceptions=True)
    assert [type(error) for error in told] == [OutcomeUnknownError, ContentionError]
    assert [error.outcome for error in told] == ["unknown", "not_written"]
    assert told[1].retriable
    release.set()
    with pytest.raises(WalClosedError):
        await log.aclose()


FORBIDDEN = StorageUnavailableError("forbidden", retriable=False)


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_a_store_that_may_only_be_read_has_nothing_of_an_append(store, kind: Layout) -> None:
    """The refusal itself says that nothing was put, so nothing is in doubt."""
    async with open_writer(store, layout=kind) as log:
        store.on("put_if_absent", fail(FORBIDDEN))
        with pytest.raises(StorageUnavailableError, match="forbidden") as told:
            await log.append(b"1")
        assert (told.value.outcome, told.value.retriable) == ("not_written", False)
        assert log.statistics().unknown_records == 0
        assert await log.append(b"2") == 1
    assert [record.value for record in await records(store.inner)] == [b"2"]


async def test_a_refusal_after_a_lost_answer_leaves_the_append_in_doubt(store) -> None:
    """The put before the last one may have happened, so the refusal of the last one proves nothing."""
    async with open_writer(store) as log:
        store.on("put_if_absent", fail(timeout()), times=FAST.attempts)
        store.on("get", fail(timeout()), times=FAST.attempts)
        store.on("put_if_absent", fail(FORBIDDEN))
        with pytest.raises(OutcomeUnknownError) as told:
            await log.append(b"1")
        assert told.value.__cause__ is not None
        assert log.statistics().unknown_records == 1


async def test_a_manifest_that_is_refused_leaves_the_append_in_doubt(store) -> None:
    """Its fragment is in the store: another writer may publish it."""
    async with open_writer(store) as log:
        store.on("put_if_match", fail(FORBIDDEN))
        with pytest.raises(OutcomeUnknownError, match="forbidden"):
            await log.append(b"1")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda log: log.append("text"), TypeError),
        (lambda log: log.append_many([]), ValueError),
        (lambda log: log.append(b"", timestamp_us=1.5), TypeError),
        (lambda log: log.append(b"", timestamp_us=1 << 62), ValueError),
        (lambda log: log.append(bytes(101)), RecordTooLargeError),
        (lambda log: log.append_many([b"", bytes(101)]), RecordTooLargeError),
    ],
)
async def test_bad_appends(store, call, error) -> None:
    async with open_writer(store, settings=WriterSettings(max_record_bytes=100)) as log:
        with pytest.raises(error):
            await call(log)
        assert await log.append(b"good") == 1


# -- opening ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout_name", [None, "swap", "chain"])
async def test_only_a_log_that_exists(layout_name: Layout | None) -> None:
    """Nothing is made where there is none, and one that is there is written as always."""
    store = MemoryStore()
    with pytest.raises(LogNotFoundError, match="no log"):
        await open_writer(store, create=False, layout=layout_name)
    assert await snapshot(store) == {}
    async with open_writer(store, layout=layout_name) as log:
        assert await log.append(b"one") == 1
    async with open_writer(store, create=False) as log:
        assert await log.append(b"two") == 2
    assert [record.value for record in await records(store)] == [b"one", b"two"]


@pytest.mark.parametrize("kind", ["swap", "chain"])
@pytest.mark.parametrize("create", [True, False])
async def test_only_a_log_that_takes_records(kind: Layout, *, create: bool) -> None:
    """Not a sealed one, nor where one was destroyed; nothing is put, asked for either layout."""
    store = MemoryStore()
    async with open_writer(store, layout=kind) as log:
        await log.append(b"one")
    for end, error in ((seal, LogSealedError), (destroy, LogNotFoundError)):
        await end(URL, store=store)
        before = await snapshot(store)
        for asked in (None, kind):
            with pytest.raises(error):
                await open_writer(store, create=create, layout=asked)
        assert await snapshot(store) == before


async def test_a_writer_begins_no_other_log_in_the_place_of_its_own(store) -> None:
    """Somebody deleted the manifest while it was open."""
    async with open_writer(store) as log:
        await log.append(b"one")
        await store.inner.delete([layout.MANIFEST])
        with pytest.raises(OutcomeUnknownError, match="gone"):
            await log.append(b"two")
        with pytest.raises(LogNotFoundError, match="gone"):
            await log.append(b"three")
    assert await store.inner.head(layout.MANIFEST) is None


async def test_a_fragment_that_nobody_published(store) -> None:
    """The first one that continues the log is adopted; what fits nowhere is replaced when its turn comes."""
    await put_fragment(store.inner, 1, 1, [b"1", b"2"])
    await put_fragment(store.inner, 2, 9, [b"x"])
    async with open_writer(store) as log:
        assert log.tail == 3
        assert log.statistics().adopted_fragments == 1
        assert await log.append(b"3") == 3
    assert [item.value for item in await records(store.inner)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_longer", [False, True])
async def test_a_log_whose_fragments_have_other_lengths(store, is_longer) -> None:
    """wal3's copy of one of ours; time goes on behind its last record."""
    async with open_writer(store) as log:
        await log.append(b"1")
    async with cloud_log(store.inner) as log:
        await copy_as_wal3(store.inner, log.manifest, is_longer=is_longer)
    async with open_writer(store) as log:
        assert await log.append(b"2") == 2
    found = await records(store.inner)
    assert [item.value for item in found] == [b"1", b"2"]
    assert found[0].timestamp_us <= found[1].timestamp_us


async def test_something_else_lies_there(store) -> None:
    await store.inner.put_if_absent(layout.fragment_path(1), b"?")
    with pytest.raises(CorruptionError):
        await open_writer(store)


async def test_a_local_log_ships_there(store) -> None:
    name = writer_name(bytes.fromhex(LOG_ID))
    await store.inner.put_if_absent(layout.MANIFEST, Manifest.initial(name).serialise())
    with pytest.raises(ContentionError, match="belongs to a local log"):
        await open_writer(store)


async def test_a_local_log_takes_over_under_way(store) -> None:
    """An empty log of nobody in particular that a local one begins to ship to."""
    async with open_writer(store) as log:
        name = writer_name(bytes.fromhex(LOG_ID))
        entry = await put_fragment(store.inner, 1, 1, [b"theirs"])
        taken = Manifest.initial(name).apply_fragments([entry], name)
        etag = (await store.inner.get(layout.MANIFEST)).etag
        await store.inner.put_if_match(layout.MANIFEST, taken.serialise(), etag)
        with pytest.raises(ContentionError, match="belongs to a local log"):
            await log.append(b"ours", expect_offset=2)
    assert [item.value for item in await records(store.inner)] == [b"theirs"]


async def test_a_local_log_cannot_ship_to_ours(store, tmp_path: Path) -> None:
    async with open_writer(store) as log:
        await log.append(b"v")
    with pytest.raises(ContentionError, match="CloudWriter"):
        await Wal.open(tmp_path / "log", tier=tier(store))


async def test_the_log_of_another_program(store) -> None:
    """wal3's writers contend with ours as with each other."""
    entry = await put_fragment(store.inner, 1, 1, [b"theirs"])
    theirs = Manifest.initial("rust").apply_fragments([entry], "rust")
    await store.inner.put_if_absent(layout.MANIFEST, theirs.serialise())
    async with open_writer(store) as log:
        assert await log.append(b"ours") == 2


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
@pytest.mark.parametrize("kind", ["get", "put_if_absent"])
async def test_opening_gives_up_a_store_that_does_nothing(
    store, clock: ManualClock, kind, hangs
) -> None:
    """Once it did nothing for ``patience_seconds``; not sooner."""
    fault = hang(asyncio.Event()) if hangs else fail(timeout("not_written"))
    store.on(kind, fault, times=10**9)
    retry = RetryPolicy(clock=clock, longest_wait_seconds=1)
    settings = WriterSettings(patience_seconds=20)
    opening = asyncio.ensure_future(
        CloudWriter.open(URL, store=store, settings=settings, clock=clock, retry=retry).__aenter__()
    )
    while clock.monotonic() < 19.5:
        await turns(20)
        clock.advance(0.5)
    assert not opening.done()
    while not opening.done() and clock.monotonic() < 25:
        clock.advance(0.5)
        await turns(20)
    error = opening.exception()
    assert isinstance(error, StorageUnavailableError)
    assert "fulfilled no request for 20 s" in str(error)


async def test_nothing_is_left_open_if_opening_fails(store) -> None:
    with pytest.raises(InvalidSettingsError):
        async with open_writer(store, layout="swap") as log:
            await log.append(b"v")
        await open_writer(store, layout="chain")


@pytest.mark.parametrize(
    "changes",
    [
        {"fragment_bytes": 4095},
        {"max_in_flight": 0},
        {"max_in_flight": 65},
        {"pending_bytes": 1},
        {"pending_records": 0},
        {"max_record_bytes": 0},
        {"contention_attempts": -1},
        {"interval_seconds": -1},
        {"patience_seconds": float("nan")},
        {"patience_seconds": 0},
    ],
)
def test_settings_out_of_range(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidSettingsError):
        WriterSettings(**changes)


@pytest.mark.parametrize("has_closings", [False, True])
@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_a_log_destroyed_under_its_writer_is_gone(
    store, kind: Layout, has_closings: bool
) -> None:
    """Destroying takes the table of streams away, which is no damage then, and nothing is put there."""
    async with open_writer(store, layout=kind) as log:
        await log.append(b"1", stream="a")
        if has_closings:
            await log.close_stream("a")
        await destroy(URL, store=store.inner, confirm=True)
        before = await snapshot(store.inner)
        for call in (
            log.streams,
            lambda: log.open_stream("a"),
            lambda: log.close_stream("a"),
            lambda: log.close_stream("b"),
            lambda: log.cursors.commit("c", 2),
            lambda: log.cursors.create("c", 2),
            lambda: log.cursors.pin("c", 2, seconds=9),
        ):
            with pytest.raises(LogNotFoundError):
                await call()
            assert await snapshot(store.inner) == before
        assert await log.cursors.list() == []


@pytest.mark.parametrize("kind", ["swap", "chain"])
async def test_a_log_without_streams_that_is_sealed_has_none(store, kind: Layout) -> None:
    async with open_writer(store, layout=kind) as log:
        await log.append(b"1")
        await seal(URL, store=store.inner)
        assert await log.streams() == {}
        with pytest.raises(StreamClosedError):
            await log.close_stream("a")
