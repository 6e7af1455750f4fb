"""The fragments of a log in an Iceberg table: each once, and there for as long as the table needs them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from tests.cloud import write_without_objects
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
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector, LogTable
from uploader.iceberg.log_table import file_prefix
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore
from uploader.testing.faults import StoreKilled, call, happen_then_kill, kill
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

pytestmark = pytest.mark.slow

AT_ONCE = CollectorSettings(interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakehouse]:
    FaultyCatalog.faults.clear()
    FaultyCatalog.is_down = False
    yield Lakehouse(tmp_path)
    assert not FaultyCatalog.faults
    FaultyCatalog.is_down = False


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "log").as_uri()


async def fill(url: str, *values: bytes) -> None:
    """Append records, a fragment each."""
    async with CloudWriter.open(url, create=True) as writer:
        for value in values:
            await writer.append(value)


async def register(url: str, lake: Lakehouse, *, faulty: bool = False, **options: Any) -> None:
    async with LogTable.open(url, lake.target(faulty=faulty), **options) as table:
        while (await table.step()).fragments:
            pass


async def collect(url: str) -> None:
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.collect()


async def values(lake: Lakehouse) -> list[bytes]:
    rows = await asyncio.to_thread(lake.rows)
    offsets = [row["offset"] for row in rows]
    assert len(set(offsets)) == len(offsets)
    return [row["body"] for row in sorted(rows, key=lambda row: row["offset"])]


async def position(url: str) -> int:
    async with CloudLog.open(url) as log:
        (cursor,) = await log.cursors.list()
        return cursor.position


async def test_fragments_are_registered_as_they_are_and_each_once(url: str, lake: Lakehouse):
    await fill(url, b"a", b"b", b"c")
    async with LogTable.open(url, lake.target()) as table:
        planned = await table.plan()
        assert (planned.start, planned.limit, planned.records, planned.fragments) == (1, 1, 3, 3)
        assert await table.cursor() is None
        done = await table.step()
        assert (done.start, done.limit, done.records, done.fragments) == (1, 4, 3, 3)
        assert (await table.step()).fragments == 0
        await fill(url, b"d")
        assert (await table.plan()).records == 1
        assert (await table.step()).limit == 5
        cursor = await table.log.cursors.load(await table.cursor() or "")
        assert cursor is not None
        assert cursor.position == 1
    assert await values(lake) == [b"a", b"b", b"c", b"d"]
    log = Path(file_prefix(url).removeprefix("file://")) / "log"
    assert all(file.is_relative_to(log) for file in await asyncio.to_thread(lake.files))


async def test_fragments_that_only_manifests_hold_are_put_first(
    url: str, tmp_path: Path, lake: Lakehouse
):
    await write_without_objects(LocalStore(tmp_path / "log"), b"a", b"b")
    await register(url, lake)
    assert await values(lake) == [b"a", b"b"]


async def test_fragments_that_rust_wrote_are_read_with_those_of_python(
    tmp_path: Path, lake: Lakehouse
):
    """wal3's have three columns, ours have more."""
    url = Path(shutil.copytree(RUST / "whole", tmp_path / "log")).as_uri()
    async with CloudWriter.open(url) as writer:
        await writer.append(b"ours", key=b"k", stream="s", headers={"h": b"v"})
    async with CloudLog.open(url) as log:
        expected = [record.value async for record in log.reader()]
        head = log.head
    await register(url, lake)
    assert await values(lake) == expected
    async with LogTable.open(url, lake.target()) as table:
        assert await position_of(table) == head
    rows = sorted(await asyncio.to_thread(lake.rows), key=lambda row: row["offset"])
    assert rows[0]["stream"] is rows[0]["record_timestamp_us"] is None
    assert (rows[-1]["key"], rows[-1]["stream"], rows[-1]["headers"]) == (b"k", "s", [("h", b"v")])


async def test_the_collector_leaves_what_the_table_needs_until_it_is_released(
    url: str, lake: Lakehouse
):
    await fill(url, b"a", b"b", b"c", b"d")
    await register(url, lake)
    async with CloudLog.open(url) as log:
        await log.cursors.commit("reader", 5)
    await collect(url)
    assert await values(lake) == [b"a", b"b", b"c", b"d"]
    async with LogTable.open(url, lake.target()) as table:
        assert (await table.release(3, dry_run=True)).records == 2
        assert await position_of(table) == 1
        done = await table.release(3)
        assert (done.start, done.limit, done.records) == (3, 5, 2)
        assert (await table.release(2)).records == 0
        assert await position_of(table) == 3
    await collect(url)
    assert await values(lake) == [b"c", b"d"]
    async with CloudLog.open(url) as log:
        assert log.head == 3
    await fill(url, b"e")
    await register(url, lake)
    assert await values(lake) == [b"c", b"d", b"e"]
    async with LogTable.open(url, lake.target()) as table:
        assert (await table.release(99)).start == 6
        assert (await table.step()).fragments == 0
    assert await values(lake) == []


async def position_of(table: LogTable) -> int:
    cursor = await table.log.cursors.load(await table.cursor() or "")
    assert cursor is not None
    return cursor.position


async def test_a_release_goes_to_the_beginning_of_a_fragment(url: str, lake: Lakehouse):
    async with CloudWriter.open(url, create=True) as writer:
        await asyncio.gather(*(writer.append(value) for value in (b"a", b"b", b"c")))
        await writer.append(b"d")
    await register(url, lake)
    async with LogTable.open(url, lake.target()) as table:
        assert (await table.release(3)).start == 1
        assert (await table.release(4)).start == 4
    assert await values(lake) == [b"d"]


@pytest.mark.parametrize(
    "fault",
    [
        happen_then_fail(CommitFailedException("conflict (injected)")),
        happen_then_fail(CommitStateUnknownException("timeout (injected)")),
        happen_then_fail(ConnectionError("reset (injected)")),
    ],
    ids=["conflict", "unknown", "reset"],
)
async def test_a_commit_that_happened_and_was_reported_as_failed(
    url: str, lake: Lakehouse, fault: Any
):
    await fill(url, b"a", b"b")
    FaultyCatalog.faults.append(fault)
    await register(url, lake, faulty=True)
    assert await values(lake) == [b"a", b"b"]


async def test_a_commit_that_failed_is_repeated_by_the_next_run(url: str, lake: Lakehouse):
    await fill(url, b"a")
    FaultyCatalog.faults.append(fail_before(ConnectionError("reset (injected)")))
    with pytest.raises(OutcomeUnknownError, match="run it again"):
        await register(url, lake, faulty=True)
    await register(url, lake)
    assert await values(lake) == [b"a"]


async def test_a_commit_that_happens_an_hour_later_changes_nothing(url: str, lake: Lakehouse):
    await fill(url, b"a")
    late: list[Any] = []

    def postpone(commit: Any) -> Any:
        late.append(commit)
        raise CommitStateUnknownException("timeout (injected)")

    FaultyCatalog.faults.append(postpone)
    async with LogTable.open(url, lake.target(faulty=True)) as table:
        with pytest.raises(OutcomeUnknownError):
            await table.step()
        await register(url, lake)
        with pytest.raises(CommitFailedException):
            await asyncio.to_thread(late[0])
        assert (await table.step()).fragments == 0
    assert await values(lake) == [b"a"]


async def test_a_catalog_that_goes_down_in_a_commit(url: str, lake: Lakehouse):
    await fill(url, b"a")

    def go_down(commit: Any) -> Any:
        commit()
        FaultyCatalog.is_down = True
        raise ConnectionError("reset (injected)")

    FaultyCatalog.faults.append(go_down)
    with pytest.raises(OutcomeUnknownError, match="cannot be read now"):
        await register(url, lake, faulty=True)
    with pytest.raises(StorageUnavailableError, match="nobody answers"):
        await register(url, lake, faulty=True)
    FaultyCatalog.is_down = False
    await register(url, lake, faulty=True)
    assert await values(lake) == [b"a"]


async def test_a_commit_lost_to_another_program(url: str, lake: Lakehouse):
    """Both begin at the same offset; the other one is first, and the log has grown meanwhile."""
    await fill(url, b"a", b"b")

    async def other() -> None:
        await register(url, lake)
        await fill(url, b"c")

    FaultyCatalog.faults.append(after(in_another_process(other)))
    await register(url, lake, faulty=True)
    assert await values(lake) == [b"a", b"b", b"c"]


async def test_a_release_lost_to_another_program(url: str, lake: Lakehouse):
    await fill(url, b"a", b"b", b"c")
    await register(url, lake)

    async def other() -> None:
        await fill(url, b"d")
        await register(url, lake)

    async with LogTable.open(url, lake.target(faulty=True)) as table:
        FaultyCatalog.faults.append(after(in_another_process(other)))
        done = await table.release(3)
        assert (done.start, done.limit) == (3, 5)
    assert await values(lake) == [b"c", b"d"]
    assert await position(url) == 3


async def test_many_programs_at_once(url: str, lake: Lakehouse):
    await fill(url, b"0")
    await register(url, lake)

    async def append() -> None:
        async with CloudWriter.open(url) as writer:
            for number in range(1, 30):
                await writer.append(b"%d" % number)

    async def run() -> None:
        async with LogTable.open(url, lake.target()) as table:
            done = await table.step()
            while done.limit < 31:
                done = await table.step()

    await asyncio.gather(append(), run(), run(), run())
    assert await values(lake) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("put", ["put_if_absent", "put_if_match"])
@pytest.mark.parametrize("fault", [kill(), happen_then_kill()], ids=["before", "after"])
async def test_killed_in_a_put_of_the_cursor(url: str, lake: Lakehouse, put: Any, fault: Any):
    await fill(url, b"a", b"b")
    path = Path(file_prefix(url).removeprefix("file://"))
    store = FaultyStore(LocalStore(path))
    store.on(put, fault, key_prefix="cursor/")
    with pytest.raises(StoreKilled):
        await register(url, lake, store=store)
    await register(url, lake)
    assert await values(lake) == [b"a", b"b"]
    assert await position(url) == 1


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_killed_in_a_commit(url: str, lake: Lakehouse, happens: bool):
    """Before the first commit, the cursor holds already what the table will refer to."""
    await fill(url, b"a", b"b")
    FaultyCatalog.faults.append((happen_then_fail if happens else fail_before)(Killed()))
    with pytest.raises(Killed):
        await register(url, lake, faulty=True)
    async with CloudLog.open(url) as log:
        await log.cursors.commit("reader", 3)
    await collect(url)
    await register(url, lake)
    assert await values(lake) == [b"a", b"b"]


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_killed_in_a_release(url: str, lake: Lakehouse, happens: bool):
    """The cursor stays until the rows are gone; the next run moves it."""
    await fill(url, b"a", b"b", b"c")
    await register(url, lake)
    FaultyCatalog.faults.append((happen_then_fail if happens else fail_before)(Killed()))
    async with LogTable.open(url, lake.target(faulty=True)) as table:
        with pytest.raises(Killed):
            await table.release(3)
    assert await position(url) == 1
    await register(url, lake)
    assert await position(url) == (3 if happens else 1)
    assert await values(lake) == ([b"c"] if happens else [b"a", b"b", b"c"])


async def test_a_collection_comes_before_the_cursor(url: str, lake: Lakehouse):
    """Then the table begins with what is left."""
    await fill(url, b"a", b"b", b"c")
    store = FaultyStore(LocalStore(Path(file_prefix(url).removeprefix("file://"))))

    async def other() -> None:
        async with CloudLog.open(url) as log:
            await log.cursors.commit("reader", 3)
        await collect(url)

    store.on("put_if_absent", call(other), key_prefix="cursor/")
    await register(url, lake, store=store)
    assert await values(lake) == [b"c"]


async def test_a_table_whose_cursor_was_removed(url: str, lake: Lakehouse):
    await fill(url, b"a", b"b")
    await register(url, lake)
    async with CloudLog.open(url) as log:
        (cursor,) = await log.cursors.list()
        await log.cursors.delete(cursor.name)
    await register(url, lake)
    assert await position(url) == 1
    async with CloudLog.open(url) as log:
        await log.cursors.delete(cursor.name)
        await log.cursors.commit("reader", 3)
    await collect(url)
    with pytest.raises(OffsetTrimmedError):
        await register(url, lake)


async def test_snapshots_of_others_and_expired_ones(url: str, lake: Lakehouse):
    """What the table has is known also if no snapshot says so any more."""
    await fill(url, b"a", b"b")
    await register(url, lake)

    def maintain() -> None:
        with lake.table() as table:
            table.delete("offset = 1")
            (old,) = [one for one in table.snapshots() if one.parent_snapshot_id is None]
            table.maintenance.expire_snapshots().by_id(old.snapshot_id).commit()

    await asyncio.to_thread(maintain)
    await fill(url, b"c")
    await register(url, lake)
    assert await values(lake) == [b"b", b"c"]


async def test_a_table_that_is_rolled_back_has_the_rows_again_with_the_next_run(
    url: str, lake: Lakehouse
):
    await fill(url, b"a", b"b")
    await register(url, lake)

    def snapshot() -> int:
        with lake.table() as table:
            found = table.current_snapshot()
            assert found is not None
            return found.snapshot_id

    before = await asyncio.to_thread(snapshot)
    await fill(url, b"c")
    await register(url, lake)
    async with LogTable.open(url, lake.target()) as opened:
        await opened.release(3)

    def roll_back() -> None:
        with lake.table() as table:
            table.manage_snapshots().rollback_to_snapshot(before).commit()

    await asyncio.to_thread(roll_back)
    await register(url, lake)
    assert await values(lake) == [b"a", b"b", b"c"]
    assert await position(url) == 1


async def test_following_a_log_until_it_is_sealed(url: str, lake: Lakehouse):
    from uploader import seal

    await fill(url, b"a")
    FaultyCatalog.faults += [lambda commit: commit(), fail_before(ConnectionError("injected"))]
    async with LogTable.open(url, lake.target(faulty=True)) as table:
        limits = []
        async for done in table.follow(poll_seconds=0.01):
            limits.append(done.limit)
            if done.limit == 2:
                await fill(url, b"b")
            else:
                await seal(url)
    assert limits == [2, 3]
    assert await values(lake) == [b"a", b"b"]


async def test_tables_that_cannot_be(url: str, lake: Lakehouse, tmp_path: Path):
    await fill(url, b"a")
    await register(url, lake)
    other = (tmp_path / "other").as_uri()
    await fill(other, b"x")
    with pytest.raises(InvalidSettingsError, match="not those of log"):
        await register(other, lake)
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LogNotFoundError):
        await register(url, lake)
    await fill(url)
    with pytest.raises(CorruptionError, match="another log"):
        await register(url, lake)
    assert len(await asyncio.to_thread(lake.files)) == 1


async def test_locations_that_no_table_can_refer_to():
    for url in ("memory://log", "file:///srv/a%23b", "file:///srv/a%3Fb", "file:///srv/a%25b"):
        with pytest.raises(InvalidSettingsError):
            await LogTable.open(url, "iceberg:a.b")
    assert file_prefix("file:///srv/my%20log/") == "file:///srv/my log"
    assert file_prefix("s3://bucket/a/b?endpoint_url=http://x:1") == "s3://bucket/a/b"


async def test_a_missing_fragment(url: str, lake: Lakehouse, tmp_path: Path):
    await fill(url, b"a")
    (fragment,) = (tmp_path / "log" / "log").rglob("*.parquet")
    fragment.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        await register(url, lake)


async def test_a_catalog_that_is_not_there(url: str, tmp_path: Path, lake: Lakehouse):
    from uploader import IcebergTarget

    await fill(url, b"a")
    for uri, error in (
        ("http://127.0.0.1:1", StorageUnavailableError),
        (f"sqlite:///{tmp_path}/no/catalog.db", StorageUnavailableError),
        ("gopher://x", InvalidSettingsError),
    ):
        with pytest.raises(error, match=r"iceberg:a\.b"):
            await register_at(url, IcebergTarget(table="a.b", properties={"uri": uri}))


async def register_at(url: str, target: Any) -> None:
    async with LogTable.open(url, target) as table:
        await table.step()


async def test_a_commit_that_happened_and_was_followed_before_it_was_reported_as_failed(
    url: str, lake: Lakehouse
):
    """The marks are another program's by then; the files of the commit must stay."""
    await fill(url, b"a", b"b")

    async def other() -> None:
        await fill(url, b"c")
        await register(url, lake)

    def fault(commit: Any) -> Any:
        commit()
        in_another_process(other)()
        raise CommitFailedException("conflict (injected)")

    FaultyCatalog.faults.append(fault)
    async with LogTable.open(url, lake.target(faulty=True)) as table:
        assert (await table.step()).limit == 3
        assert (await table.step()).limit == 4
    assert await values(lake) == [b"a", b"b", b"c"]


async def test_a_lost_commit_leaves_no_metadata(url: str, lake: Lakehouse):
    await fill(url, b"a", b"b")

    async def other() -> None:
        await register(url, lake)

    FaultyCatalog.faults.append(after(in_another_process(other)))
    await register(url, lake, faulty=True)
    assert len(list((lake.path / "warehouse").rglob("*.avro"))) == 2
