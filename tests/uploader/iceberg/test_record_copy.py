"""A log's records in an Iceberg table with typed columns: each once, in files of the table's own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from tests.golden.test_golden_rust import DIRECTORY as RUST
from tests.uploader.iceberg.lakehouse import (
    FaultyCatalog,
    Killed,
    Lakehouse,
    after,
    fail_before,
    happen_then_fail,
    in_another_process,
)
from uploader import (
    CloudLog,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    JsonColumn,
    LogTable,
)
from walstore.errors import InvalidSettingsError, OffsetTrimmedError, OutcomeUnknownError

pytestmark = pytest.mark.slow

COLUMNS = ["id:long", "city:string:/address/city"]
AT_ONCE = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakehouse]:
    FaultyCatalog.faults.clear()
    yield Lakehouse(tmp_path)
    assert not FaultyCatalog.faults


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "log").as_uri()


async def fill(url: str, *values: bytes, **more: Any) -> None:
    """Append records, a fragment each."""
    async with CloudWriter.open(url, create=True) as writer:
        for value in values:
            await writer.append(value, **more)


async def copy(url: str, lake: Lakehouse, *, faulty: bool = False, **options: Any) -> int:
    """Copy what there is, and return the number of misfits."""
    misfits = 0
    options = {"columns": COLUMNS, **options}
    async with LogTable.open(url, lake.target(faulty=faulty), **options) as table:
        while (done := await table.step()).records:
            misfits += done.misfits
    return misfits


async def rows(lake: Lakehouse, *names: str) -> list[tuple[Any, ...]]:
    found = sorted(await asyncio.to_thread(lake.rows), key=lambda row: row["offset"])
    return [tuple(row[name] for name in ("offset", *names)) for row in found]


async def test_records_are_copied_with_their_typed_columns(url: str, lake: Lakehouse):
    await fill(
        url, b'{"id": 7, "address": {"city": "Bern"}}', key=b"k", stream="s", headers={"h": b"v"}
    )
    await fill(url, b'{"id": "x", "address": null}', b"no JSON")
    assert await copy(url, lake) == 2
    assert await copy(url, lake) == 0
    found = await rows(lake, "id", "city", "body", "key", "stream")
    assert found == [
        (1, 7, "Bern", b'{"id": 7, "address": {"city": "Bern"}}', b"k", "s"),
        (2, None, None, b'{"id": "x", "address": null}', None, None),
        (3, None, None, b"no JSON", None, None),
    ]
    async with CloudLog.open(url) as log:
        times = [(record.offset, record.timestamp_us) async for record in log.reader()]
    assert await rows(lake, "timestamp_us") == times
    log_files = Path(url.removeprefix("file://"))
    assert not any(path.is_relative_to(log_files) for path in await asyncio.to_thread(lake.files))


async def test_the_log_may_be_collected_once_its_records_are_copied(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1}', b'{"id": 2}')
    await copy(url, lake)
    async with CloudLog.open(url) as log:
        (cursor,) = await log.cursors.list()
        assert cursor.position == 3
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.collect()
    await fill(url, b'{"id": 3}')
    await copy(url, lake)
    assert await rows(lake, "id") == [(1, 1), (2, 2), (3, 3)]
    async with LogTable.open(url, lake.target(), columns=COLUMNS) as table:
        with pytest.raises(InvalidSettingsError, match="files of its own"):
            await table.release(2)


async def test_fragments_of_rust(tmp_path: Path, lake: Lakehouse):
    url = Path(shutil.copytree(RUST / "whole", tmp_path / "log")).as_uri()
    async with CloudLog.open(url) as log:
        expected = [(record.offset, record.value) async for record in log.reader()]
    assert await copy(url, lake) == len(expected)
    assert await rows(lake, "body") == expected


async def test_columns_may_be_added_and_never_changed(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1, "n": 5}')
    await copy(url, lake)
    await fill(url, b'{"id": 2, "n": 6}')
    more = [*COLUMNS, JsonColumn("n", "int", "/n")]
    await copy(url, lake, columns=more)
    assert await rows(lake, "id", "n") == [(1, 1, None), (2, 2, 6)]
    await fill(url, b'{"id": 3, "n": 7}')
    for wrong in (COLUMNS, [*COLUMNS, "n:long"], [*COLUMNS, "n:int:/m"], ["n:int", COLUMNS[0]]):
        with pytest.raises(InvalidSettingsError, match="typed column"):
            await copy(url, lake, columns=wrong)
    with pytest.raises(InvalidSettingsError, match="records"):
        await copy(url, lake, columns=None)
    assert len(await rows(lake)) == 2
    await copy(url, lake, columns=more)
    assert await rows(lake, "id", "n") == [(1, 1, None), (2, 2, 6), (3, 3, 7)]


async def test_a_table_of_fragments_gets_no_copies(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1}')
    await copy(url, lake, columns=None)
    with pytest.raises(InvalidSettingsError, match="the rows of log"):
        await copy(url, lake)


async def test_strict(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1}', b'{"id": 2.5}')
    with pytest.raises(InvalidSettingsError, match="offset 2 has no value that fits id"):
        await copy(url, lake, strict=True)
    assert await rows(lake) == []
    await fill(url, b"[]")
    await copy(url, lake)
    await fill(url, b"")
    with pytest.raises(InvalidSettingsError, match="offset 4 is no JSON object"):
        await copy(url, lake, strict=True)
    with pytest.raises(InvalidSettingsError, match="give columns"):
        LogTable.open(url, lake.target(), strict=True)


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize(
    "error", [CommitFailedException("lost"), ConnectionError("gone"), Killed()]
)
async def test_commits_with_any_report(
    url: str, lake: Lakehouse, error: BaseException, happens: bool
):
    await fill(url, b'{"id": 1}')
    FaultyCatalog.faults.append(happen_then_fail(error) if happens else fail_before(error))
    try:
        await copy(url, lake, faulty=True)
    except (OutcomeUnknownError, Killed):
        await copy(url, lake)
    assert await rows(lake, "id") == [(1, 1)]


async def test_two_at_once(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1}', b'{"id": 2}')
    FaultyCatalog.faults.append(after(in_another_process(lambda: copy(url, lake))))
    await copy(url, lake, faulty=True)
    assert await rows(lake, "id") == [(1, 1), (2, 2)]
    files = await asyncio.to_thread(lake.files)
    assert len(list(files[0].parent.glob("*.parquet"))) == len(files)  # the loser's is removed


async def test_a_commit_that_arrives_late(url: str, lake: Lakehouse):
    """The catalog says nothing, another program copies the records, and then the commit arrives."""
    await fill(url, b'{"id": 1}')
    late: list[Any] = []

    def later(commit: Any) -> None:
        late.append(commit)
        raise CommitStateUnknownException("timeout")

    FaultyCatalog.faults.append(later)
    with pytest.raises(OutcomeUnknownError):
        await copy(url, lake, faulty=True)
    await copy(url, lake)
    with pytest.raises(CommitFailedException):
        await asyncio.to_thread(late[0])
    assert await rows(lake, "id") == [(1, 1)]


async def test_records_that_were_collected_before_they_were_copied(url: str, lake: Lakehouse):
    await fill(url, b'{"id": 1}', b'{"id": 2}', b'{"id": 3}')
    await copy(url, lake)
    await fill(url, b'{"id": 4}', b'{"id": 5}')
    async with CloudLog.open(url) as log:
        (cursor,) = await log.cursors.list()
        await log.cursors.delete(cursor.name)
        await log.cursors.commit("other", 6)
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.collect()
    with pytest.raises(OffsetTrimmedError):
        await copy(url, lake)
    assert await rows(lake, "id") == [(1, 1), (2, 2), (3, 3)]


async def test_copies_without_typed_columns_have_no_unsigned_ones(
    url: str, lake: Lakehouse
) -> None:
    await fill(url, b"no json", key=b"k", stream="s", headers={"h": b"v"})
    assert await copy(url, lake, copy=True, columns=None) == 0
    await fill(url, b"{}")
    assert await copy(url, lake, copy=True, columns=None) == 0
    assert await copy(url, lake, copy=True, columns=None) == 0
    rows = sorted(await asyncio.to_thread(lake.rows), key=lambda row: row["offset"])
    assert [(row["offset"], row["body"]) for row in rows] == [(1, b"no json"), (2, b"{}")]
    assert (rows[0]["key"], rows[0]["stream"], rows[0]["headers"]) == (b"k", "s", [("h", b"v")])
    for file in await asyncio.to_thread(lake.files):
        assert not any("isSigned=false" in str(kind) for kind in types(file))
    with pytest.raises(InvalidSettingsError, match="has files of its own"):
        async with LogTable.open(url, lake.target(), copy=True) as table:
            await table.release(2)


async def test_a_table_of_fragments_does_not_become_one_of_copies(
    url: str, lake: Lakehouse
) -> None:
    await fill(url, b"a")
    async with LogTable.open(url, lake.target()) as table:
        await table.step()
    with pytest.raises(InvalidSettingsError, match="give it a table of its own"):
        await copy(url, lake, copy=True, columns=None)
    assert len(await asyncio.to_thread(lake.rows)) == 1


async def test_typed_columns_may_follow_to_a_table_of_copies(url: str, lake: Lakehouse) -> None:
    await fill(url, b'{"id": 1}')
    await copy(url, lake, copy=True, columns=None)
    await fill(url, b'{"id": 2}')
    await copy(url, lake, columns=["id:long"])
    rows = sorted(await asyncio.to_thread(lake.rows), key=lambda row: row["offset"])
    assert [row["id"] for row in rows] == [None, 2]
    with pytest.raises(InvalidSettingsError, match="has the typed column id"):
        await copy(url, lake, copy=True, columns=None)


def types(file: Path) -> list[Any]:
    """Return the logical types of the columns of a Parquet file."""
    schema = pq.ParquetFile(file).schema
    return [schema.column(at).logical_type for at in range(len(schema))]
