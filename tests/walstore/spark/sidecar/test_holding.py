"""Cursors of a sidecar: made before anything is planned, moved after it has landed, over lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud import values
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector, open_store
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Fault, fail, happen_then_fail, happen_then_kill, kill, timeout
from uploader.write.writer_settings import WriterSettings
from walstore import Wal
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    OffsetTrimmedError,
    StorageUnavailableError,
)
from walstore.spark.logs import NamedLog, find_logs
from walstore.spark.options import Selection, parse_location
from walstore.spark.sidecar.holding import HeldLogs

NAME = "sidecar"
ORDERS = ("orders", 0)
OUTAGE = StorageUnavailableError("no", retriable=False)


class Place:
    """A log of 30 records in fragments of ten, and sidecars that hold it."""

    def __init__(self, path: Path) -> None:
        self.url = (path / "orders").as_uri()
        self.stores: list[FaultyStore] = []
        self.held: list[HeldLogs] = []
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        settings = WriterSettings(interval_seconds=0)
        async with CloudWriter.open(self.url, settings=settings) as log:
            for start in (1, 11, 21):
                await log.append_many(values(10, start=start))

    def hold(self) -> HeldLogs:
        """Open as a sidecar does that has just been started."""
        made = HeldLogs(NAME, open_store=self._open)
        self.held.append(made)
        made.open(find_logs(parse_location(self.url, {}), Selection()))
        return made

    def _open(self, url: str) -> ObjectStore:
        self.stores.append(FaultyStore(open_store(url)))
        return self.stores[-1]

    def plan_fault(self, kind, fault: Fault, **where) -> None:
        self.stores[-1].on(kind, fault, **where)

    @property
    def position(self) -> int | None:
        """Where the cursor stands, as the next program sees it."""

        async def look() -> int | None:
            async with CloudLog.open(self.url) as log:
                found = await log.cursors.load(NAME)
                return None if found is None else found.position

        return asyncio.run(look())

    def set(self, position: int | None, name: str = NAME) -> None:
        async def move() -> None:
            async with CloudLog.open(self.url) as log:
                if position is None:
                    await log.cursors.delete(name)
                else:
                    await log.cursors.rewind(name, position)

        asyncio.run(move())

    def collect(self) -> int:
        """Remove what no cursor asks for; return the head."""

        async def collect() -> int:
            settings = CollectorSettings(interval_seconds=0, max_drop_fraction=1)
            async with GarbageCollector.open(self.url, settings=settings) as collector:
                await collector.collect()
                return (await collector.plan()).head

        return asyncio.run(collect())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for one in made.held:
        one.close()


def test_the_first_start_holds_the_log_from_its_head(place: Place):
    held = place.hold()
    assert held.begin(None) == {ORDERS: 1}
    assert held.positions == {ORDERS: 1}
    assert place.position == 1
    place.set(30, "billing")
    assert place.collect() == 1, "nothing goes while the sidecar has landed nothing"


def test_where_it_would_begin_is_asked_without_a_trace(place: Place):
    held = place.hold()
    assert held.begins() == {ORDERS: 1}
    assert place.position is None
    held.begin({ORDERS: 11})
    assert place.hold().begins() == {ORDERS: 11}


def test_the_head_is_where_a_collection_left_it(place: Place):
    place.set(11, "billing")
    assert place.collect() == 11
    assert place.hold().begin(None) == {ORDERS: 11}


def test_killed_before_the_first_batch(place: Place):
    place.set(11)
    assert place.hold().begin(None) == {ORDERS: 11}, "the cursor says where it began"


def test_moves_to_what_has_landed_and_lets_that_go(place: Place):
    held = place.hold()
    held.begin(None)
    held.advance({ORDERS: 21})
    held.advance({ORDERS: 21})
    assert held.positions == {ORDERS: 21}
    assert place.position == 21
    assert place.collect() == 21
    held.advance({ORDERS: 11})
    assert place.position == 21, "never back"


def test_killed_between_the_commit_and_the_cursor(place: Place):
    place.hold().begin(None)
    held = place.hold()
    assert held.begin({ORDERS: 21}) == {ORDERS: 21}
    assert place.position == 21


@pytest.mark.parametrize(
    "fault", [happen_then_fail(timeout()), fail(timeout())], ids=["done", "not done"]
)
def test_lost_answers(place: Place, fault: Fault):
    held = place.hold()
    place.plan_fault("put_if_absent", fault)
    assert held.begin(None) == {ORDERS: 1}
    place.plan_fault("put_if_match", fault)
    held.advance({ORDERS: 21})
    assert place.position == 21


@pytest.mark.parametrize("fault", [kill(), happen_then_kill()], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
def test_dies_at_a_put(place: Place, kind, fault: Fault):
    held = place.hold()
    place.plan_fault(kind, fault)
    with pytest.raises(StoreKilled):
        held.begin(None)
        held.advance({ORDERS: 21})
    assert place.position in {None, 1, 21}
    landed = None if kind == "put_if_absent" else {ORDERS: 21}
    assert place.hold().begin(landed) == (landed or {ORDERS: 1})
    assert place.position == (21 if landed else 1)


def test_an_outage_leaves_the_cursor_where_it_is_until_the_next_try(place: Place):
    held = place.hold()
    held.begin(None)
    place.plan_fault("any", fail(OUTAGE))
    with pytest.raises(StorageUnavailableError):
        held.advance({ORDERS: 11})
    assert held.positions == {ORDERS: 1}
    assert place.position == 1
    held.advance({ORDERS: 21})
    assert place.position == 21


def test_a_cursor_that_somebody_moved_on(place: Place):
    place.set(25)
    with pytest.raises(InvalidSettingsError, match=r"stands at 25, .* --set sidecar 21 --confirm"):
        place.hold().begin({ORDERS: 21})


def test_a_cursor_that_somebody_removed(place: Place):
    held = place.hold()
    assert held.begin({ORDERS: 11}) == {ORDERS: 11}
    assert place.position == 11
    place.set(None)
    place.set(21, "billing")
    assert place.collect() == 21
    with pytest.raises(OffsetTrimmedError) as caught:
        place.hold().begin({ORDERS: 11})
    assert "records since that did not land" in "".join(caught.value.__notes__)
    assert place.position is None


def test_a_cursor_from_which_the_log_is_gone(place: Place):
    place.set(21, "billing")
    place.collect()
    place.set(None)
    asyncio.run(_put_cursor(place.url))
    with pytest.raises(OffsetTrimmedError, match="was removed from the log"):
        place.hold().begin(None)


async def _put_cursor(url: str) -> None:
    """Put a cursor that holds nothing, as a program does that dies before it looks for a collection."""
    from uploader.format.cloud_cursor import CloudCursor

    store = open_store(url)
    cursor = CloudCursor(name=NAME, position=5, epoch_us=0, writer="x")
    await store.put_if_absent(f"cursor/{NAME}.json", cursor.serialise())
    await store.aclose()


def test_another_log_at_the_same_place(place: Place):
    with pytest.raises(InvalidSettingsError, match="it is another log"):
        place.hold().begin({ORDERS: 999})


def test_a_log_that_is_not_there(tmp_path: Path):
    held = HeldLogs(NAME)
    location = parse_location((tmp_path / "nothing").as_uri(), {})
    with pytest.raises(LogNotFoundError):
        held.open([NamedLog("nothing", 0, location)])
    held.close()


def test_a_log_directory(log_directory: Path):
    async def fill() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append_many(values(20))

    async def position() -> int:
        async with Wal.open(log_directory) as wal:
            return (await wal.cursor(NAME)).position

    asyncio.run(fill())
    held = HeldLogs(NAME)
    held.open([NamedLog("log", 0, parse_location(str(log_directory), {}))])
    assert held.begin(None) == {("log", 0): 1}
    held.advance({("log", 0): 11})
    held.close()
    assert asyncio.run(position()) == 11


def test_a_log_that_is_found_while_the_sidecar_runs(place: Place, tmp_path: Path):
    held = place.hold()
    held.begin(None)
    other = Place(tmp_path / "more")
    held.open([NamedLog("payments", 0, parse_location(other.url, {}))])
    held.advance({ORDERS: 11, ("payments", 0): 21})
    assert (place.position, other.position) == (11, 21)


def test_a_partition_to_which_nobody_has_written_yet(tmp_path: Path):
    url = (tmp_path / "orders").as_uri()
    held = HeldLogs(NAME)
    held.open([NamedLog("orders", 1, parse_location(url, {}), is_part=True)])
    assert held.begin(None) == {("orders", 1): 1}
    other = Place(tmp_path)
    held.advance({("orders", 1): 11})
    held.close()
    assert other.position == 11
