"""A stream's cursor in a store that loses answers, or dies at any call."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.walstore.spark.streaming.querying import Query, offsets
from tests.walstore.spark.streaming.test_stream_directory import local_cursor
from tests.walstore.spark.streaming.test_stream_reader import append, cursor
from uploader import CloudLog, open_store
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import fail, happen_then_fail, happen_then_kill, kill, timeout
from walstore import Wal
from walstore.errors import InvalidSettingsError, WalError


class Store:
    """The store of a query, new for each of its lives, with faults that the test asks for."""

    def __init__(self) -> None:
        self.plans: list = []

    def open(self, url: str) -> ObjectStore:
        found = FaultyStore(open_store(url))
        for plan in self.plans:
            plan(found)
        return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"file://{tmp_path}/store/orders"
    append(found, 10)
    return found


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
@pytest.mark.parametrize("nth", range(1, 14))
def test_latest_is_one_offset_wherever_the_first_start_dies(url, fault, nth):
    """Until the first batch is planned nothing but the cursor remembers the start."""
    store = Store()
    store.plans = [lambda found: found.on("any", fault(), nth=nth)]
    query = Query(url, startingOffsets="latest", cursorName="etl", open_store=store.open)
    told = None
    with contextlib.suppress(StoreKilled, WalError):
        told = query.reader.initialOffset()
    store.plans = []
    held = cursor(url, "etl")
    append(url, 5)
    query.restart()
    start = query.reader.initialOffset()
    if told is not None:
        assert start == told == {"orders": {"0": 11}}
    elif held is not None:
        assert start == {"orders": {"0": 11}}  # it was there, although nobody was told
    rows = offsets(query.drain())
    assert rows == list(range(start["orders"]["0"], 16))


@pytest.mark.parametrize("fault", [fail(timeout()), happen_then_fail(timeout())])
def test_a_lost_answer_to_the_first_commit(url, fault):
    store = Store()
    store.plans = [lambda found: found.on("put_if_absent", fault, key_prefix="cursor/")]
    query = Query(url, startingOffsets="latest", cursorName="etl", open_store=store.open)
    try:
        assert query.reader.initialOffset() == {"orders": {"0": 11}}
    except WalError:
        store.plans = []
        query.restart()
        assert query.reader.initialOffset() == {"orders": {"0": 11}}
    assert cursor(url, "etl") == 11


@pytest.mark.parametrize("fault", [fail(timeout()), happen_then_fail(timeout())])
@pytest.mark.parametrize("kind", ["get", "put_if_match", "any"])
def test_a_cursor_in_trouble_does_not_fail_the_query(url, fault, kind, caplog):
    store = Store()
    query = Query(url, cursorName="etl", maxOffsetsPerTrigger=2, open_store=store.open)
    query.trigger()
    found = []

    def plan(opened: FaultyStore) -> None:
        found.append(opened)

    store.plans = [plan]
    query.restart()
    query.reader.latestOffset(query.start)  # opens the log
    found[0].on(kind, fault, key_prefix="cursor/", times=50)
    query.reader.commit({"orders": {"0": 3}})
    assert "cursor etl of orders was not moved to 3" in caplog.text or cursor(url, "etl") == 3
    append(url, 1)
    query.restart()
    store.plans = []
    assert offsets(query.drain()) == list(range(3, 12))
    assert cursor(url, "etl") == 11


def test_a_failed_move_is_made_up_for_by_the_next(url, caplog):
    found = []
    store = Store()
    store.plans = [found.append]
    query = Query(url, cursorName="etl", maxOffsetsPerTrigger=2, open_store=store.open)
    query.trigger()
    found[0].on("get", fail(timeout()), key_prefix="cursor/")
    query.trigger()
    assert "was not moved to 3" in caplog.text
    assert cursor(url, "etl") == 1
    query.trigger()
    assert cursor(url, "etl") == 5


def test_a_pin_is_no_cursor(url):
    async def pin() -> None:
        async with CloudLog.open(url) as log:
            await log.cursors.pin("etl", 1, seconds=3600)

    asyncio.run(pin())
    with pytest.raises(InvalidSettingsError, match="'etl' is a pin, which expires"):
        Query(url, cursorName="etl").trigger()


def test_a_name_that_no_cursor_can_have(url):
    with pytest.raises(InvalidSettingsError):
        Query(url, cursorName="no/such").trigger()


# -- where the cursor is in the store of the log, or in its directory ----------------------------


class StoredPlace:
    """A stored log of ten records, and its cursors."""

    topic = "orders"

    def __init__(self, path: Path) -> None:
        self.location = f"file://{path}/store/orders"
        self.append(10)

    def append(self, count: int) -> None:
        append(self.location, count)

    def cursor(self) -> int | None:
        return cursor(self.location, "etl")

    async def set(self, position: int | None) -> None:
        async with CloudLog.open(self.location) as log:
            await (
                log.cursors.delete("etl")
                if position is None
                else log.cursors.commit("etl", position)
            )


class LocalPlace(StoredPlace):
    """A log directory without a tier."""

    topic = "log"

    def __init__(self, path: Path) -> None:
        self.location = str(path / "log")
        self.append(10)

    def append(self, count: int) -> None:
        async def run() -> None:
            async with Wal.open(self.location) as wal:
                await wal.append_many([b"v"] * count)

        asyncio.run(run())

    def cursor(self) -> int | None:
        return local_cursor(Path(self.location), "etl")

    async def set(self, position: int | None) -> None:
        async with Wal.open_readonly(self.location) as log:
            if position is None:
                await log.delete_cursor("etl")
            else:
                await (await log.cursor("etl")).commit(position)


@pytest.fixture(params=[StoredPlace, LocalPlace])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoredPlace:
    return request.param(tmp_path)


def query_of(place: StoredPlace, **options: object) -> Query:
    return Query(place.location, cursorName="etl", **options)


def test_latest_is_resolved_once_and_held_by_the_cursor(place):
    query = query_of(place, startingOffsets="latest")
    assert query.reader.initialOffset() == {place.topic: {"0": 11}}
    assert place.cursor() == 11
    place.append(3)
    query.later()
    assert query.reader.initialOffset() == {place.topic: {"0": 11}}
    query.restart()  # before the first batch
    place.append(2)
    assert query.plan()
    query.restart()  # in the first batch
    assert offsets(query.drain()) == [11, 12, 13, 14, 15]


def test_a_new_query_goes_on_at_its_cursor(place):
    query_of(place, maxOffsetsPerTrigger=4).drain()
    assert place.cursor() == 9
    assert offsets(query_of(place, startingOffsets=1).drain()) == [9, 10]


def test_the_cursor_lags_one_batch(place):
    query = query_of(place, maxOffsetsPerTrigger=4)
    assert offsets(query.trigger()) == [1, 2, 3, 4]
    assert place.cursor() == 1
    query.trigger()
    assert place.cursor() == 5
    query.restart()
    query.drain()
    assert place.cursor() == 9


def test_the_cursor_never_goes_back(place):
    query = query_of(place)
    query.reader.commit({place.topic: {"0": 9}})
    query.reader.commit({place.topic: {"0": 4}})
    query.restart()
    query.reader.commit({place.topic: {"0": 4}})
    assert place.cursor() == 9


@pytest.mark.parametrize(("position", "left"), [(2, 3), (8, 8), (None, 3)])
def test_a_cursor_that_somebody_else_moved_or_deleted(place, caplog, position, left):
    query = query_of(place, maxOffsetsPerTrigger=2)
    query.trigger()
    asyncio.run(place.set(position))
    query.trigger()
    assert place.cursor() == left
    query.drain()
    assert place.cursor() == 9
    assert not caplog.messages
