"""What operations cost, in counts: calls of the disk, wake-ups of the event loop, requests to a store.

Times differ between machines by a factor; counts do not. One that grows here is a slower log everywhere. The
requests are those of the table in docs/stores.md.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bench.cloud_requests import CASES, LAYOUTS
from tests.waiting import until
from walstore import Settings, Wal
from walstore.testing import FaultyFileSystem

DOCS = Path(__file__).parents[2] / "docs" / "stores.md"


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
async def wal(tmp_path: Path, disk: FaultyFileSystem) -> AsyncIterator[Wal]:
    async with Wal.open(tmp_path / "log", fs=disk) as opened:
        await opened.append(b"first")  # reserves space
        yield opened


async def calls_of(disk: FaultyFileSystem, work: Callable[[], Awaitable[Any]]) -> Counter[str]:
    """Return the calls of the disk that some work makes, by kind."""
    before = len(disk.calls)
    await work()
    return Counter(call.kind for call in disk.calls[before:])


COMMIT = {"pwrite": 1, "datasync": 1, "store": 1}
"""Of one commit: a write, a sync, and eighty bytes of shared memory for other processes."""


async def test_an_append(wal: Wal, disk: FaultyFileSystem) -> None:
    assert await calls_of(disk, lambda: wal.append(b"v" * 1000)) == COMMIT


async def test_a_group(wal: Wal, disk: FaultyFileSystem) -> None:
    assert await calls_of(disk, lambda: wal.append_many([b"v" * 1000] * 256)) == COMMIT


async def test_many_producers_share_a_commit(wal: Wal, disk: FaultyFileSystem) -> None:
    async def together() -> None:
        await asyncio.gather(*(wal.append(b"v" * 1000) for _ in range(256)))

    assert await calls_of(disk, together) == COMMIT


async def test_an_append_to_memory_waits_for_nothing(wal: Wal, disk: FaultyFileSystem) -> None:
    """What it writes later is the commit of all that came meanwhile."""

    async def nowait() -> None:
        for _ in range(1000):
            wal.append_nowait(b"v")

    assert await calls_of(disk, nowait) == {}
    assert await calls_of(disk, wal.flush) == COMMIT


async def test_a_reader_that_keeps_up_reads_no_file(wal: Wal, disk: FaultyFileSystem) -> None:
    async with wal.follow(wal.tail) as reader:

        async def append_and_read() -> None:
            for number in range(100):
                await wal.append(b"%d" % number)
                batch = await reader.fetch()
                assert len(batch) == 1

        found = await calls_of(disk, append_and_read)
    assert found == {kind: 100 * count for kind, count in COMMIT.items()}


async def test_a_rotation(tmp_path: Path, disk: FaultyFileSystem) -> None:
    """The old segment is sealed, the new one made and named, a checkpoint written: five syncs."""
    async with Wal.open(tmp_path / "log", fs=disk, settings=Settings(segment_bytes=1 << 20)) as wal:
        await wal.append(b"first")
        found = await calls_of(disk, wal.rotate)
        assert found["datasync"] + found["sync_directory"] <= 5
        assert found["remove"] <= 1


async def test_wake_ups_of_the_event_loop(wal: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread wakes it once for each commit; the callers and the writer's task run then."""
    loop = asyncio.get_running_loop()
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(loop, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(loop, name, call)

    counted("call_soon_threadsafe")
    counted("call_soon")
    for _ in range(50):
        await wal.append(b"v" * 1000)
    assert counts["call_soon_threadsafe"] == 50
    assert counts["call_soon"] <= 1
    counts.clear()
    await asyncio.gather(*(wal.append(b"v" * 1000) for _ in range(256)))
    assert counts["call_soon_threadsafe"] == 1
    # Of each caller: its task, and what gather() is told.
    assert counts["call_soon"] <= 2 * 256 + 4


async def test_what_a_record_leaves_behind(wal: Wal) -> None:
    """Nothing but the values, which the cache keeps as long as it has room."""
    values = [b"%07d" % number for number in range(10_000)]
    await wal.append_many(values)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(10):
        await wal.append_many(values)
    await until(lambda: wal.durable_limit == wal.tail)
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000  # of 100 000 records


@pytest.mark.parametrize("name", [name for name in CASES if name != "ship a MiB"])
async def test_requests_are_those_that_are_documented(name: str) -> None:
    (row,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {name} |")]
    documented = [cell.strip() for cell in row.split("|")[2:4]]
    assert [str(await CASES[name](layout)) for layout in LAYOUTS] == documented
