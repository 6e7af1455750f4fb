"""The dirty log: nothing that was written is forgotten, and finding it costs what writing it did."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_values, put_fragment, tier
from uploader.care.dirty.dirty_log import Dirty, DirtyLog, Purge, coalesce, parse_marker
from uploader.format import layout
from uploader.read.cloud_log import CloudLog
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import Fault
from uploader.write.cloud_tier import CloudTier
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import CorruptionError, CursorMovedError, LogSealedError, Wal
from walstore.errors import InvalidSettingsError, WalClosedError, WalError

QUICK = WriterSettings(interval_seconds=0.0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def opened(store: ObjectStore):
    return DirtyLog.open(URL, store=store, retry=FAST, settings=QUICK)


def stretches(found: list[Dirty]) -> dict[str, tuple[int, int]]:
    return {dirty.name: (dirty.start, dirty.limit) for dirty in found}


# -- markers ---------------------------------------------------------------------------------


def test_a_marker_is_that_of_wal3() -> None:
    marker = Dirty(name="n", start=3, limit=10, first_us=5, reinserted=2)
    document = (
        b'{"mark_dirty":{"collection_id":"n","log_position":3,"num_records":7,"reinsert_count":2,'
        b'"initial_insertion_epoch_us":5}}'
    )
    assert marker.serialise() == document
    assert parse_marker(document, path="p") == marker
    assert Purge("n").serialise() == b'{"purge":{"collection_id":"n"}}'
    assert parse_marker(Purge("n").serialise(), path="p") == Purge("n")
    assert parse_marker(b'"clear"', path="p") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"{}",
        b'{"mark_dirty":3}',
        b'{"mark_dirty":{"collection_id":"n","log_position":3}}',
        Dirty(name="n", start=3, limit=10, first_us=5).serialise().replace(b":7", b":0"),
    ],
)
def test_what_is_no_marker(data) -> None:
    with pytest.raises(CorruptionError, match="place"):
        parse_marker(data, path="place")


@pytest.mark.parametrize(("start", "limit"), [(3, 3), (4, 3), (-1, 3), (1, 1 << 64)])
def test_stretches_that_are_none(start, limit) -> None:
    with pytest.raises(ValueError):
        Dirty(name="n", start=start, limit=limit, first_us=0)


def test_markers_are_joined() -> None:
    """However often, in whatever order: a crash leaves some of them twice."""
    marks = [
        Dirty(name="a", start=3, limit=5, first_us=9, reinserted=1),
        Dirty(name="b", start=1, limit=2, first_us=1),
        Dirty(name="a", start=5, limit=8, first_us=7),
    ]
    expected = {
        "a": Dirty(name="a", start=3, limit=8, first_us=7, reinserted=1),
        "b": marks[1],
    }
    for order in (marks, marks[::-1], marks + marks):
        known: dict[str, Dirty] = {}
        coalesce(known, order)
        assert known == expected


def test_a_purge_is_about_what_comes_before() -> None:
    known: dict[str, Dirty] = {}
    mark = Dirty(name="a", start=3, limit=5, first_us=9)
    coalesce(known, [mark, Purge("a"), Purge("b"), None])
    assert known == {}
    coalesce(known, [Purge("a"), mark])
    assert known == {"a": mark}


# -- writing and reading ---------------------------------------------------------------------


async def test_what_was_noted_is_dirty(store) -> None:
    async with opened(store) as log:
        assert await log.dirty() == []
        await log.mark("a", 1, 3)
        await log.mark("b", 7, 9)
        await log.mark("a", 3, 4)
        assert stretches(await log.dirty()) == {"a": (1, 4), "b": (7, 9)}
        await log.purge("b")
        assert stretches(await log.dirty()) == {"a": (1, 4)}
    async with opened(store.inner) as log:
        assert stretches(await log.dirty()) == {"a": (1, 4)}


async def test_the_longest_waiting_comes_first(store) -> None:
    async with opened(store) as log:
        for name in ("c", "a", "b"):
            await log.mark(name, 1, 2)
        await log.mark("c", 2, 3)
        assert [dirty.name for dirty in await log.dirty()] == ["c", "a", "b"]


async def test_a_writer_notes_what_it_publishes(store) -> None:
    """With one marker for a run of fragments."""
    async with opened(store) as log:
        note = log.note_for("orders")
        elsewhere = MemoryStore()
        first = await put_fragment(elsewhere, 1, 1, [b"a", b"b"])
        second = await put_fragment(elsewhere, 2, 3, [b"c"])
        await note([first, second])
        await note([])
        assert stretches(await log.dirty()) == {"orders": (1, 4)}
    assert len(await cloud_values(store.inner)) == 1


async def test_finding_work_costs_what_was_written(store) -> None:
    """A thousand marks of three logs among millions: a handful of requests, whatever logs there are."""
    async with opened(store) as log:
        async with asyncio.TaskGroup() as group:
            for at in range(1, 1001):
                group.create_task(log.mark(f"log {at % 3}", at, at + 1))
        assert len(await log.dirty()) == 3
        await log.roll_up({})
        before = store.requests
        assert len(await log.dirty()) == 3
        assert store.requests - before <= 4
    size = sum([len(data) async for data in _data(store.inner)])
    assert size < 1000 * 150


async def _data(store: ObjectStore):
    async for listed in store.list("log/"):
        yield (await store.get(listed.key)).data


# -- rolling up ------------------------------------------------------------------------------


async def test_what_is_done_is_forgotten_and_the_rest_is_kept(store) -> None:
    async with opened(store) as log:
        for name, start, limit in (("a", 1, 3), ("b", 1, 5), ("c", 4, 6), ("a", 3, 9)):
            await log.mark(name, start, limit)
        before = {dirty.name: dirty for dirty in await log.dirty()}
        done = await log.roll_up({"a": 9, "b": 3, "unknown": 7})
        assert (done.markers, done.logs, done.kept) == (4, 3, 2)
        assert done.position == 5
        after = {dirty.name: dirty for dirty in await log.dirty()}
        assert stretches(list(after.values())) == {"b": (3, 5), "c": (4, 6)}
        for name, dirty in after.items():
            assert dirty.first_us == before[name].first_us
            assert dirty.reinserted == 1
    found = [json.loads(record) for record in await cloud_values(store.inner)]
    assert len(found) == 6


async def test_what_comes_meanwhile_is_not_lost(store) -> None:
    async with opened(store) as log:
        await log.mark("a", 1, 3)
        writing = FaultyStore(store.inner)

        async with opened(writing) as other:

            async def mark() -> None:
                await other.mark("b", 1, 2)
                await other.mark("a", 3, 4)

            # The first one says of the new cursor that it was checked; the second moves it.
            store.on("put_if_match", faults.call(mark), nth=2, key_prefix="cursor/")
            await log.roll_up({"a": 3})
            assert stretches(await log.dirty()) == {"a": (3, 4), "b": (1, 2)}


async def test_a_roll_up_that_gains_nothing_writes_nothing(store) -> None:
    async with opened(store) as log:
        for name in ("a", "b", "c"):
            await log.mark(name, 1, 3)
        await log.roll_up({})
        before = len(await cloud_values(store.inner))
        assert before == 3
        await log.mark("a", 3, 4)
        await log.roll_up({})
        assert len(await cloud_values(store.inner)) == 4
        for at in range(4, 8):
            await log.mark("a", at, at + 1)
        done = await log.roll_up({})
        assert (done.markers, done.kept) == (8, 3)
        assert stretches(await log.dirty()) == {"a": (1, 8), "b": (1, 3), "c": (1, 3)}


async def test_all_is_done(store) -> None:
    async with opened(store) as log:
        await log.mark("a", 1, 3)
        done = await log.roll_up({"a": 3})
        assert (done.kept, done.position) == (0, 2)
        assert await log.dirty() == []
        assert (await log.roll_up({})).position == 2


async def test_two_that_roll_up_at_once(store) -> None:
    """The second one is told; whatever it wrote again is joined."""
    async with opened(store) as log, opened(FaultyStore(store.inner)) as other:
        for name in ("a", "b"):
            await log.mark(name, 1, 3)
        await log.roll_up({})

        async def roll_up() -> None:
            await other.roll_up({"a": 3})

        store.on("put_if_absent", faults.call(roll_up), key_prefix="log/")
        with pytest.raises(CursorMovedError):
            await log.roll_up({"b": 3})
        found = stretches(await log.dirty())
        assert found in ({"a": (1, 3)}, {"a": (1, 3), "b": (1, 3)})
        await log.roll_up({"a": 3, "b": 3})
        assert await log.dirty() == []


async def test_what_lies_before_the_cursor_may_be_collected(store) -> None:
    """The cursor is one of the log's own, so a collector sees it."""
    async with opened(store) as log:
        for at in range(1, 5):
            await log.mark("a", at, at + 1)
        position = (await log.roll_up({})).position
    stored = await store.inner.get(layout.cursor_path("stable_prefix"))
    assert json.loads(stored.data)["position"] == {"offset": position}
    assert position == 5


async def test_a_foreign_record_is_told(store) -> None:
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, settings=QUICK) as writer:
        await writer.append(b"not a marker")
    async with opened(store) as log:
        with pytest.raises(CorruptionError, match="offset 1"):
            await log.dirty()


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", [faults.kill, faults.happen_then_kill])
async def test_killed_at_every_call_nothing_is_forgotten(fault: type[Fault]) -> None:
    """What was noted, or not known not to be, is dirty until it is done."""
    for nth in range(1, 200):
        store = FaultyStore(MemoryStore())
        async with opened(store.inner) as log:
            for name in ("a", "b", "c"):
                await log.mark(name, 1, 3)
            await log.mark("a", 3, 4)
        store.on("any", fault(), nth=nth)
        noted = False
        with contextlib.suppress(faults.StoreKilled, BaseExceptionGroup, WalError):
            async with opened(store) as log:
                await log.mark("d", 1, 2)
                noted = True
                await log.roll_up({"a": 4, "b": 2})
        async with opened(store.inner) as log:
            found = stretches(await log.dirty())
            assert found.get("a") in {None, (1, 4)}
            assert found["b"] in {(1, 3), (2, 3)}
            assert found["c"] == (1, 3)
            assert found.get("d") == (1, 2) or not noted
            await log.roll_up({"a": 4, "b": 3, "c": 3, "d": 2})
            assert await log.dirty() == []
        if store._plans:
            assert nth > 15
            return
    pytest.fail("it never got to its end")


# -- who is told of what is published ------------------------------------------------------------


async def test_a_cloud_writer_tells_before_it_publishes(store) -> None:
    """Each append that returned is covered by a marker that was there before."""
    target = FaultyStore(MemoryStore())
    async with opened(store) as dirty:
        seen: list[dict[str, tuple[int, int]]] = []

        async def look() -> None:
            seen.append(stretches(await dirty.dirty()))

        target.on("put_if_match", faults.call(look), key_prefix="manifest/", times=2)
        note = dirty.note_for("orders")
        async with CloudWriter.open(
            URL, store=target, retry=FAST, settings=QUICK, note=note
        ) as log:
            await log.append_many([b"a", b"b"])
            await log.append(b"c")
        assert seen == [{"orders": (1, 3)}, {"orders": (1, 4)}]
        assert stretches(await dirty.dirty()) == {"orders": (1, 4)}


async def test_what_cannot_be_noted_is_not_published(store) -> None:
    target = MemoryStore()

    async def refuse(_fragments) -> None:
        raise LogSealedError("the dirty log is sealed", location="there")

    async with CloudWriter.open(URL, store=target, retry=FAST, settings=QUICK, note=refuse) as log:
        with pytest.raises(WalError):
            await log.append(b"a")
    async with CloudLog.open(URL, store=target) as reading:
        assert reading.tail == 1


async def test_a_local_log_tells_too(store, tmp_path) -> None:
    """Also of fragments that a crash left behind, and that are published at the next opening."""
    target = MemoryStore()
    async with opened(store) as dirty:
        dying = FaultyStore(target)
        dying.on("put_if_match", faults.kill(), key_prefix="manifest/")
        with contextlib.suppress(faults.StoreKilled, BaseExceptionGroup, WalClosedError):
            async with Wal.open(tmp_path / "log", tier=tier(dying)) as wal:
                await wal.append(b"v", durability="cloud")
        assert await dirty.dirty() == []
        noted = CloudTier(
            URL, store=target, retry=FAST, settings=SMALL, note=dirty.note_for("local")
        )
        async with Wal.open(tmp_path / "log", tier=noted) as wal:
            await wal.wait_durable(1, "cloud")
        assert stretches(await dirty.dirty()) == {"local": (1, 2)}


# -- what callers pass -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((None, 1, 2), TypeError),
        ((5, 1, 2), TypeError),
        ((b"a", 1, 2), TypeError),
        (("a", 1.0, 2), TypeError),
        (("a", 1, 2.0), TypeError),
        (("a", True, 9), TypeError),
        (("a", None, 9), TypeError),
        (("a", "1", 9), TypeError),
        (("a", 9, 3), ValueError),
        (("a", -1, 3), ValueError),
        (("a", 1, 1 << 64), ValueError),
        (("\udcff", 1, 2), ValueError),
        (("a" * 65_537, 1, 2), InvalidSettingsError),
    ],
)
async def test_a_marker_that_nobody_could_read_is_not_written(store, arguments, error) -> None:
    async with opened(store) as log:
        await log.mark("good", 1, 5)
        with pytest.raises(error):
            await log.mark(*arguments)
        assert stretches(await log.dirty()) == {"good": (1, 5)}
        assert (await log.roll_up({"good": 5})).kept == 0


@pytest.mark.parametrize("name", [None, 7, b"a", "\udcff", "a" * 65_537])
async def test_what_is_no_name_is_refused_everywhere(store, name) -> None:
    async with opened(store) as log:
        with pytest.raises((TypeError, ValueError), match="the name of a log"):
            log.note_for(name)
        with pytest.raises((TypeError, ValueError), match="the name of a log"):
            await log.purge(name)
        assert await log.dirty() == []


async def test_the_longest_name_can_be_read_however_it_is_written(store) -> None:
    async with opened(store) as log:
        for name in ("\0" * 65_536, '"' * 65_536, "", "\U0001f600" * 16_384):
            await log.mark(name, 1, 2)
        assert len(await log.dirty()) == 4
        assert (await log.roll_up({})).kept == 4
        assert len(await log.dirty()) == 4


@pytest.mark.parametrize(
    "compacted", [5, None, ["a"], {"a": 5.0}, {"a": True}, {5: 5}, {"a": None}]
)
async def test_what_is_done_is_said_in_offsets(store, compacted) -> None:
    async with opened(store) as log:
        await log.mark("a", 1, 5)
        with pytest.raises(TypeError):
            await log.roll_up(compacted)
        assert stretches(await log.dirty()) == {"a": (1, 5)}
