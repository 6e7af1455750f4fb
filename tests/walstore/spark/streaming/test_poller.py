"""What following costs, and what happens when a store does not answer or logs come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.walstore.spark.streaming.querying import Query, offsets
from tests.walstore.spark.streaming.test_stream_reader import append
from uploader import open_store
from uploader.partitioned import create_partitions
from uploader.stores.metering import MeteredStore
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, timeout
from walstore.errors import LogNotFoundError, StorageUnavailableError
from walstore.spark.features import ReadAllAvailable
from walstore.spark.streaming.poller import PATIENCE_SECONDS, PollPace

TURNS_A_SECOND = 50
"""How often Spark asks with its default trigger (trap 5)."""


class Meters:
    """Stores that count, faulty on demand, by URL."""

    def __init__(self) -> None:
        self.stores: dict[str, MeteredStore] = {}
        self.faulty: dict[str, FaultyStore] = {}

    def open(self, url: str) -> ObjectStore:
        self.faulty[url] = FaultyStore(open_store(url))
        self.stores[url] = MeteredStore(self.faulty[url])
        return self.stores[url]

    def requests(self, kind: str | None = None) -> int:
        return sum(
            usage.requests
            for store in self.stores.values()
            for name, usage in store.usage().kinds.items()
            if kind in (None, name)
        )


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def place(tmp_path: Path) -> Callable[[str], str]:
    return lambda name: f"file://{tmp_path}/store/{name}".rstrip("/")


def idle(query: Query, seconds: int) -> None:
    """Do what Spark does while nothing comes."""
    start = query.start
    for _ in range(seconds * TURNS_A_SECOND):
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        assert end == start
        query.reader.reportLatestOffset()
        query.later(1 / TURNS_A_SECOND)


@pytest.mark.parametrize("layout", ["swap", "chain"])
def test_an_idle_query_asks_the_store_once_a_second(place, meters, layout):
    """Trap 5, however long the manifest is and whichever layout."""
    for _ in range(3):
        append(place("orders"), 10, layout=layout)
    query = Query(place("orders"), open_store=meters.open)
    assert len(query.drain()) == 30
    idle(query, 5)
    before, listed = meters.requests(), meters.requests("list")
    idle(query, 60)
    assert 30 <= meters.requests() - before <= 62
    # A chain is listed at times, because a slot behind the head may have been pruned.
    assert meters.requests("list") - listed <= (0 if layout == "swap" else 13)


@pytest.mark.slow
def test_ten_idle_logs_ask_once_a_second_together(place, meters):
    for at in range(10):
        append(place(f"log{at}"), 1)
    names = ",".join(f"log{at}" for at in range(10))
    query = Query(place(""), subscribe=names, open_store=meters.open)
    assert len(query.drain()) == 10
    idle(query, 60)
    before = meters.requests()
    idle(query, 60)
    assert meters.requests() - before <= 62


def test_new_records_are_seen_within_the_pause(place):
    append(place("orders"), 1)
    query = Query(place("orders"))
    query.drain()
    idle(query, 30)
    append(place("orders"), 1)
    query.later(1.01)
    assert offsets(query.trigger()) == [2]
    append(place("orders"), 1)
    query.later(0.51)
    assert offsets(query.trigger()) == [3]


def test_many_logs_in_fair_shares(place):
    append(place("a"), 100)
    append(place("b"), 3)
    append(place("c"), 100)
    query = Query(place(""), subscribe="a,b,c", maxOffsetsPerTrigger=23)
    rows = query.trigger()
    assert [len(offsets(rows, name)) for name in "abc"] == [10, 3, 10]
    rows += query.drain()
    for name, count in (("a", 100), ("b", 3), ("c", 100)):
        assert offsets(rows, name) == list(range(1, count + 1))
    assert query.start == {"a": {"0": 101}, "b": {"0": 4}, "c": {"0": 101}}


def test_a_partitioned_log(place):
    """One partition has no record, and no manifest, yet."""
    make_partitions(place("orders"), 3)
    append(place("orders/0"), 5)
    append(place("orders/2"), 7)
    query = Query(place("orders"), startingOffsets="earliest", cursorName="etl")
    rows = query.drain()
    assert [len(offsets(rows, "orders", at)) for at in range(3)] == [5, 0, 7]
    assert query.start == {"orders": {"0": 6, "1": 1, "2": 8}}
    append(place("orders/1"), 4)
    query.later()
    assert offsets(query.drain(), "orders", 1) == [1, 2, 3, 4]


def test_latest_of_a_partition_without_records_is_held_too(place):
    make_partitions(place("orders"), 2)
    append(place("orders/0"), 5)
    query = Query(place("orders"), startingOffsets="latest", cursorName="etl")
    assert query.reader.initialOffset() == {"orders": {"0": 6, "1": 1}}
    append(place("orders/1"), 4)
    query.restart()
    rows = query.drain()
    assert offsets(rows, "orders", 1) == [1, 2, 3, 4]
    append(place("orders/1"), 2)
    query.later()
    assert offsets(query.drain(), "orders", 1) == [5, 6]
    query.restart()
    assert offsets(query.drain()) == []


def test_new_logs_join_at_their_beginning(place):
    append(place("orders-eu"), 5)
    query = Query(place(""), subscribePattern="orders-.*")
    assert len(query.drain()) == 5
    append(place("orders-us"), 3)
    append(place("clicks"), 3)
    query.later(1)
    assert query.drain() == []  # not looked for yet
    query.later(30)
    rows = query.drain()
    assert offsets(rows, "orders-us") == [1, 2, 3]
    assert {row["topic"] for row in rows} == {"orders-us"}
    assert query.start == {"orders-eu": {"0": 6}, "orders-us": {"0": 4}}


def test_a_log_joins_in_a_batch_that_says_where_it_begins(place):
    """So that the same batch, read again after a crash, begins at the same record."""
    append(place("orders-eu"), 5)
    query = Query(place(""), subscribePattern="orders-.*", is_told=True)
    query.drain()
    append(place("orders-us"), 3)
    query.later(31)
    assert query.trigger() == []
    assert query.start == {"orders-eu": {"0": 6}, "orders-us": {"0": 1}}
    query.restart()
    assert offsets(query.drain(), "orders-us") == [1, 2, 3]


def test_a_log_that_an_older_spark_did_not_start_with_is_read_from_its_head(place):
    append(place("orders-eu"), 5)
    append(place("orders-us"), 3)
    reader = Query(place(""), subscribePattern="orders-.*").reader
    end = reader.latestOffset()
    assert end == {"orders-eu": {"0": 6}, "orders-us": {"0": 4}}
    (partition,) = reader.partitions({"orders-eu": {"0": 6}}, end)
    assert (partition.topic, partition.start, partition.limit) == ("orders-us", 1, 4)


def test_a_log_that_an_older_spark_forgets_is_told(place, tmp_path, caplog):
    """With its availableNow wrapper it asks for the end first; what it has planned then stays planned."""
    append(place("orders-eu"), 5)
    append(place("orders-us"), 3)

    def query(fails: str) -> Query:
        options = {"subscribePattern": "orders-.*", "failOnDataLoss": fails}
        return Query(place(""), is_told=False, **options)

    strict, lenient = query("true"), query("false")
    assert len(strict.drain()) == len(lenient.drain()) == 8
    (tmp_path / "store" / "orders-us").rename(tmp_path / "gone")
    append(place("orders-eu"), 1)
    lenient.reader = query("false").reader
    assert offsets(lenient.drain()) == [6]
    assert "orders-us: the query has read this log before" in caplog.text
    with pytest.raises(LogNotFoundError, match="orders-us: the query has read this log before"):
        strict.restart()  # nothing is planned
    strict.reader = query("true").reader
    assert strict.plan()
    with pytest.raises(LogNotFoundError, match="orders-us: the query has read this log before"):
        strict.read()
    (tmp_path / "gone").rename(tmp_path / "store" / "orders-us")
    strict.restart()
    with pytest.raises(LogNotFoundError, match="another checkpointLocation"):
        strict.read()


def test_available_now_leaves_out_logs_that_come_later(place):
    append(place("orders-eu"), 5)
    query = Query(place(""), subscribePattern="orders-.*", maxOffsetsPerTrigger=2)
    query.reader.prepareForTriggerAvailableNow()
    append(place("orders-us"), 3)
    query.later(31)
    assert len(query.drain()) == 5
    query.restart()
    assert len(query.once()) == 3


def test_a_log_that_disappears_fails_the_query(place, tmp_path):
    append(place("orders"), 5)
    query = Query(place("orders"))
    query.drain()
    (tmp_path / "store/orders/manifest/MANIFEST").unlink()
    query.later()
    with pytest.raises(LogNotFoundError):
        query.trigger()


# -- a store that does not answer ----------------------------------------------------------------


def test_a_store_that_does_not_answer_is_asked_again(place, meters, caplog):
    append(place("orders"), 5)
    query = Query(place("orders"), open_store=meters.open)
    query.drain()
    append(place("orders"), 5)
    (store,) = meters.faulty.values()
    store.on("any", fail(timeout()), times=20)
    for _ in range(20):
        query.later(2)
        assert query.trigger() == []
    assert any("orders does not answer and is asked again" in text for text in caplog.messages)
    query.later(2)
    assert offsets(query.trigger()) == [6, 7, 8, 9, 10]


def test_after_minutes_of_silence_the_query_fails(place, meters):
    append(place("orders"), 5)
    query = Query(place("orders"), open_store=meters.open)
    query.drain()
    (store,) = meters.faulty.values()
    store.on("any", fail(timeout()), times=1000)
    waited = 0
    with pytest.raises(StorageUnavailableError):
        while waited < PATIENCE_SECONDS * 2:
            query.later(10)
            waited += 10
            query.trigger()
    assert waited >= PATIENCE_SECONDS


def test_one_silent_log_does_not_hold_up_the_others(place, meters):
    append(place("a"), 5)
    append(place("b"), 5)
    query = Query(place(""), subscribe="a,b", open_store=meters.open)
    query.drain()
    append(place("a"), 5)
    append(place("b"), 5)
    meters.faulty[place("a")].on("any", fail(timeout()), times=2)
    query.later()
    rows = query.trigger()
    assert (len(offsets(rows, "a")), len(offsets(rows, "b"))) == (0, 5)
    query.later()
    query.later()
    assert len(offsets(query.drain(), "a") + offsets(query.trigger(), "a")) in {0, 5}
    query.later()
    query.drain()
    assert query.start == {"a": {"0": 11}, "b": {"0": 11}}


def test_available_now_does_not_pass_over_a_silent_log(place, meters):
    append(place("orders"), 5)
    query = Query(place("orders"), open_store=meters.open)
    query.drain()
    (store,) = meters.faulty.values()
    store.on("any", fail(timeout()))
    with pytest.raises(StorageUnavailableError):
        query.reader.prepareForTriggerAvailableNow()


def test_a_query_that_cannot_start_holds_nothing(place, meters):
    append(place("a"), 5)
    query = Query(place(""), subscribe="a,b", open_store=meters.open)
    with pytest.raises(LogNotFoundError):
        query.trigger()
    append(place("b"), 5)
    assert len(query.trigger(ReadAllAvailable())) == 10


def make_partitions(url: str, count: int) -> None:
    async def run() -> None:
        store = open_store(url)
        await create_partitions(store, count, retry=RetryPolicy())
        await store.aclose()

    asyncio.run(run())


def asked(
    pace: PollPace, seconds: float, *, step: float = 0.02, is_new: bool = False
) -> list[float]:
    """Offer a turn every 20 ms, as Spark does; return when the log was asked."""
    found = []
    for turn in range(int(seconds / step)):
        now = turn * step
        if pace.is_due(now):
            found.append(now)
            pace.answered(now, is_new=is_new)
    return found


def test_an_idle_log_is_asked_once_a_second():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    times = asked(pace, 100)
    assert times[0] == 0
    assert len(times) <= 101


def test_a_busy_log_is_asked_more_often():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    assert len(asked(pace, 100, is_new=True)) == pytest.approx(200, abs=10)


def test_news_end_the_long_pauses():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=8.0)
    asked(pace, 60)
    pace.answered(60, is_new=True)
    assert not pace.is_due(60.49)
    assert pace.is_due(60.5)


def test_the_shortest_pause_may_be_the_longest():
    pace = PollPace(shortest_seconds=5, longest_seconds=1)
    assert asked(pace, 11, step=1) == [0, 5, 10]


def test_silence_is_measured_from_its_beginning():
    pace = PollPace(shortest_seconds=0.5, longest_seconds=1.0)
    assert pace.failed(10) == 0
    assert not pace.is_due(10.5)
    assert pace.failed(17) == 7
    pace.answered(18, is_new=False)
    assert pace.failed(30) == 0
