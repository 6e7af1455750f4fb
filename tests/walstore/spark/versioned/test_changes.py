"""Streams of changes without Spark: readers are asked as Spark asks them."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import first_seed
from tests.walstore.spark.versioned.histories import (
    KEYS,
    append,
    batches_of,
    compact,
    counted,
    create,
    listened,
    snapshot,
)
from uploader import Collection, Controller
from walstore import (
    CollectionNotFoundError,
    CorruptionError,
    InvalidSettingsError,
    LeaseExpiredError,
    SinceViolationError,
)
from walstore.spark.features import HAS_LIMITS
from walstore.spark.versioned.changes import ChangeReader
from walstore.spark.versioned.source import CollectionSource

needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="this Spark passes no limits")


class Query:
    """A query with a checkpoint: it logs offsets before it reads, and commits the batch before."""

    def __init__(self, url: str, **options: Any) -> None:
        self.options = {"path": url, "reader": "query", "pollIntervalMs": "1"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.planned: list[str] = []
        self.done = 0
        self.rows: Counter[Any] = Counter()
        self.reader = self.start()

    def start(self) -> ChangeReader:
        source = CollectionSource(self.options)
        found = source.streamReader(source.schema())
        assert isinstance(found, ChangeReader)
        return found

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self.start()

    def step(self, *, dies: bool = False) -> bool:
        """Run a micro-batch; ``dies`` after it was planned and read, before it is done."""
        if not self.planned:
            self.planned.append(json.dumps(self.reader.initialOffset()))
        if self.done == len(self.planned) - 1:
            start = json.loads(self.planned[-1])
            limit = self.reader.getDefaultReadLimit()
            end = self.reader.latestOffset(start, limit)
            if end == start:
                return False
            self.planned.append(json.dumps(end))
        start, end = map(json.loads, self.planned[self.done : self.done + 2])
        found = rows_of(self.reader, start, end)
        if dies:
            self.restart()
            return True
        self.rows += found
        self.done += 1
        if self.done > 1:
            self.reader.commit(start)
        return True


def rows_of(reader: ChangeReader, start: dict[str, int], end: dict[str, int]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for partition in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        for batch in reader.read(partition):
            found += counted(pa.table(batch))
    return found


def expected_changes(table: pa.Table, kind: str) -> Counter[Any]:
    """Return updates as a stream has them.

    Without removals at time 0, before which there is nothing: a compaction may have left them out.
    """
    found: Counter[Any] = Counter()
    for row, count in counted(table).items():
        *values, time, effect = row
        if kind == "diff":
            found[(*values, time, "insert" if effect > 0 else "delete", effect)] += count
        elif time or not effect:
            found[(*values, time, "delete" if effect else "upsert")] += count
    return found


def first_removals(rows: Counter[Any]) -> Counter[Any]:
    """Return the removals at time 0 of an upsert collection."""
    return Counter({row: n for row, n in rows.items() if row[-2:] == (0, "delete")})


@pytest.mark.parametrize("name", ["numbers", "nulls"])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
)
def test_each_change_once(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    """Whatever is compacted and collected between the micro-batches, and wherever the query dies."""
    if kind == "upsert" and not KEYS[name][1]:
        pytest.skip("needs a key")
    chance = random.Random(seed + first_seed("changes"))
    url, plain = f"file://{tmp_path}/one", f"file://{tmp_path}/other"
    for one in (url, plain):
        asyncio.run(create(one, name, kind))
    limits = {"maxTimesPerTrigger": chance.randrange(1, 6)} if HAS_LIMITS else {}
    query = Query(url, minPartitions=chance.randrange(1, 4), **limits)
    upper = 0
    for table, lower, upper in batches_of(name, kind, chance):
        asyncio.run(append(url, table, lower, upper))
        asyncio.run(append(plain, table, lower, upper))
        for _ in range(chance.randrange(3)):
            query.step(dies=chance.random() < 0.3)
            if chance.random() < 0.3:
                asyncio.run(compact(url, collects=chance.random() < 0.5))
            if chance.random() < 0.3:
                query.restart()
    while query.step():
        pass
    found = query.rows - first_removals(query.rows)
    assert found == expected_changes(asyncio.run(listened(plain, upper)), kind)
    query.reader.stop()


async def hold(url: str, since: int) -> None:
    """Give up all times before one, and compact."""
    async with (
        Collection.open(url) as collection,
        await collection.reader(since=since),
        Controller.open(url) as controller,
    ):
        await controller.compact(full=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diff", "upsert"])
def test_it_begins_with_what_was_compacted(kind: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    asyncio.run(create(url, "numbers", kind))
    batches = batches_of("numbers", kind, random.Random(5))
    for table, lower, upper in batches:
        asyncio.run(append(url, table, lower, upper))
    since = batches[1][2]
    content = asyncio.run(snapshot(url, since))
    later = asyncio.run(listened(url, batches[-1][2]))
    asyncio.run(hold(url, since))
    query = Query(url)
    while query.step():
        pass
    first: Counter[Any] = Counter()
    for row, count in counted(content).items():
        if kind == "diff":
            first[(*row[:-1], since, "insert" if row[-1] > 0 else "delete", row[-1])] += count
        else:
            first[(*row, since, "upsert")] += count
    expected = expected_changes(later, kind)
    time = len(KEYS["numbers"][0])
    assert query.rows == first + Counter(
        {row: count for row, count in expected.items() if row[time] > since}
    )
    query.reader.stop()


def written(tmp_path: Path) -> tuple[str, int]:
    url = f"file://{tmp_path}"
    asyncio.run(create(url, "numbers", "upsert"))
    batches = batches_of("numbers", "upsert", random.Random(5))
    for table, lower, upper in batches:
        asyncio.run(append(url, table, lower, upper))
    return url, batches[-1][2]


def test_the_reader_holds_what_is_not_done(tmp_path: Path) -> None:
    """Spark commits a micro-batch when it plans the next one; then its times are given up."""
    url, upper = written(tmp_path)
    query = Query(url)
    query.step()
    assert since_of(url) == 0
    asyncio.run(append(url, pa.table({"k": [1], "j": [1], "v": ["x"]}), upper, upper + 9))
    query.step()
    asyncio.run(append(url, pa.table({"k": [1], "j": [1], "v": ["y"]}), upper + 9, upper + 10))
    query.step()
    query.reader.stop()
    assert since_of(url) == upper + 8


def since_of(url: str) -> int:
    async def look() -> int:
        async with Collection.open(url) as collection:
            return (await collection.status()).since

    return asyncio.run(look())


def test_latest_is_decided_once(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url, startingFrom="latest")
    assert query.reader.initialOffset() == {"frontier": upper}
    query.restart()
    asyncio.run(append(url, pa.table({"k": [1], "j": [1], "v": ["x"]}), upper, upper + 9))
    assert query.reader.initialOffset() == {"frontier": upper}, "as before the crash"
    assert query.step()
    assert [row[2] for row in query.rows] == ["x"]
    query.reader.stop()


@pytest.mark.slow
def test_it_begins_at_a_time(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url, startingFrom=upper - 1)
    query.step()
    assert {row[3] for row in query.rows} <= {upper - 1}
    query.reader.stop()
    asyncio.run(hold(url, upper - 1))
    other = Query(url, startingFrom=1, reader="other")
    with pytest.raises(SinceViolationError, match="earlier ones were compacted"):
        other.step()
    other.reader.stop()


@pytest.mark.slow
def test_a_lost_checkpoint_is_an_error(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url)
    for at in range(3):
        query.step()
        table = pa.table({"k": [1], "j": [1], "v": [str(at)]})
        asyncio.run(append(url, table, upper + at, upper + at + 1))
    query.reader.stop()
    again = Query(url)
    with pytest.raises(SinceViolationError, match="its checkpoint is another one"):
        again.step()
    again.reader.stop()


@pytest.mark.slow
def test_a_reader_that_was_released(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url, startingFrom=2)
    query.step()
    query.reader.stop()

    async def release() -> None:
        async with Controller.open(url) as controller:
            await controller.expire("query")

    asyncio.run(release())
    asyncio.run(hold(url, upper - 1))
    again = Query(url)
    with pytest.raises(SinceViolationError) as caught:
        again.reader.partitions({"frontier": 2}, {"frontier": upper})
    assert "it was released" in caught.value.__notes__[0]
    again.reader.stop()


def test_two_queries_with_one_reader(tmp_path: Path) -> None:
    url, _ = written(tmp_path)
    first, second = Query(url), Query(url)
    first.reader.initialOffset()
    second.reader.initialOffset()
    with pytest.raises(LeaseExpiredError, match="took over"):
        first.reader.latestOffset({"frontier": 0}, first.reader.getDefaultReadLimit())
    for query in (first, second):
        query.reader.stop()


def test_a_reader_of_another_program(tmp_path: Path) -> None:
    url, _ = written(tmp_path)

    async def take() -> None:
        async with Collection.open(url) as collection:
            reader = await collection.critical("query")
            await reader.compare_and_downgrade("", "mine", 0)

    asyncio.run(take())
    with pytest.raises(InvalidSettingsError, match="belongs to another program"):
        Query(url).step()


def test_another_collection_than_the_checkpoint_is_of(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url)
    with pytest.raises(CorruptionError, match="another one than the checkpoint is of"):
        query.reader.partitions({"frontier": 1}, {"frontier": upper + 1})
    query.reader.stop()
    with pytest.raises(CollectionNotFoundError):
        Query(f"file://{tmp_path}/elsewhere")


@pytest.mark.slow
@needs_limits
def test_micro_batches_by_rows_and_bytes(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    asyncio.run(create(url, "numbers", "upsert"))
    for at in range(6):
        table = pa.table({"k": [*range(10)], "j": [at] * 10, "v": ["x"] * 10})
        asyncio.run(append(url, table, at, at + 1))
        if at == 2:
            asyncio.run(compact(url))
    other = Query(url, maxBytesPerTrigger=1, reader="other")
    other.step()
    query = Query(url, maxRowsPerTrigger=20)
    while query.step():
        pass
    assert [json.loads(offset)["frontier"] for offset in query.planned] == [0, 2, 4, 6]
    query.reader.stop()
    while other.step():
        pass
    assert [json.loads(offset)["frontier"] for offset in other.planned] == [*range(7)]
    other.reader.prepareForTriggerAvailableNow()
    assert other.reader.reportLatestOffset() == {"frontier": 6}
    other.reader.stop()


@pytest.mark.slow
@needs_limits
def test_the_content_at_first_is_a_micro_batch_of_its_own(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    asyncio.run(hold(url, 7))
    query = Query(url, maxTimesPerTrigger=5)
    while query.step():
        pass
    ends = [json.loads(offset)["frontier"] for offset in query.planned]
    assert ends == [0, *range(8, upper, 5), upper]
    query.reader.stop()


def test_it_looks_no_more_often_than_it_is_told(tmp_path: Path) -> None:
    url, upper = written(tmp_path)
    query = Query(url, pollIntervalMs=3_600_000)
    query.step()
    asyncio.run(append(url, pa.table({"k": [1], "j": [1], "v": ["x"]}), upper, upper + 9))
    assert not query.step()
    query.reader.prepareForTriggerAvailableNow()
    assert query.step()
    query.reader.stop()
