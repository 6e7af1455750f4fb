"""A reader in one process, a writer in another that is killed again and again, and power failures."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.local import SMALL, check_contiguous, read_all
from tests.scenarios.readonly_child import settings
from tests.waiting import until
from walstore import LogNotFoundError, OffsetTrimmedError, Record, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.log.readonly import ReadonlyWal
from walstore.testing import PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

CHILD = Path(__file__).with_name("readonly_child.py")


class Child:
    """A writing process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.tail = 0
        self.acknowledged: dict[int, bytes] = {}
        self._is_dead = False
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, directory: Path, name: str, *, lanes=3, size=300, retention_bytes=0
    ) -> Child:
        arguments = (directory, name, lanes, size, retention_bytes)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        await until(lambda: child.tail > 0 or child._listening.done(), seconds=60)
        return child

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break
            word, _, rest = line.strip().partition(b" ")
            if word == b"tail":
                self.tail = int(rest)
            else:
                self.acknowledged[int(word)] = rest

    def delete_before(self, offset: int) -> None:
        self._say(b"%d\n" % offset)

    def append_next(self) -> None:
        self._say(b"next\n")

    def _say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        if not self._is_dead:
            self.process.stdin.write(line)

    async def kill(self) -> None:
        self._is_dead = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL, "it died of nothing else"
        await self._listening


def said(record: Record) -> bytes:
    """Return name and counter of a record's value."""
    return b" ".join(record.value.split(b" ")[:2])


async def open_soon(directory: Path) -> ReadonlyWal:
    """Open a log that is just being made."""
    while True:
        with contextlib.suppress(LogNotFoundError):
            return await ReadonlyWal.open(directory)
        await asyncio.sleep(0)


class Life:
    """One log through several lives of its writer, and a reader that never stops."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: list[Record] = []
        self.acknowledged: dict[int, bytes] = {}
        self.child: Child | None = None
        self.log: ReadonlyWal | None = None
        self.largest_head = 1

    async def read(self) -> None:
        async with await open_soon(self.directory) as log:
            self.log = log
            async for record in log.follow():
                assert record.offset == len(self.records) + 1, "each once, in order"
                self.records.append(record)
                assert record.offset < log.limit
                assert log.head >= self.largest_head
                self.largest_head = log.head
                if record.offset % 100 == 0 and self.child is not None:
                    self.child.delete_before(record.offset)

    async def live(self, name: str, *, records: int) -> None:
        """Let a child append so many more records and delete old ones, then kill it."""
        before, head = len(self.records), self.largest_head
        self.child = child = await Child.start(self.directory, name)
        assert child.tail > before, "what was seen is there when the next writer has recovered"
        await until(lambda: len(self.records) >= before + records, seconds=60)
        await until(lambda: self.log is not None and self.log.head > head, seconds=60)
        await child.kill()
        self.acknowledged |= child.acknowledged

    async def check(self) -> None:
        """Wait for all that was acknowledged, then compare with what the next writer finds."""
        last = max(self.acknowledged)
        await until(lambda: len(self.records) >= last, seconds=60)
        for offset, name in self.acknowledged.items():
            assert said(self.records[offset - 1]) == name
        async with Wal.open(self.directory, settings=settings(None)) as wal:
            await until(lambda: len(self.records) == wal.tail - 1, seconds=60)
            kept = await read_all(wal)
        assert kept == self.records[kept[0].offset - 1 :]
        check_contiguous(self.records)
        names = [said(record) for record in self.records]
        assert len(set(names)) == len(names), "no record twice"


async def run_lives(directory: Path, *, lives: int, records: int) -> Life:
    life = Life(directory)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(life.read())
        for number in range(lives):
            await life.live(f"life-{number}", records=records)
        await life.check()
        reading.cancel()
    return life


@pytest.mark.kill
@pytest.mark.slow
async def test_a_reader_survives_its_writers(tmp_path: Path) -> None:
    """Rotations, deletions behind the reader, kills and restarts."""
    life = await run_lives(tmp_path / "log", lives=2, records=200)
    assert life.largest_head > 1, "segments were deleted meanwhile"


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(240)
async def test_a_reader_survives_many_writers(tmp_path: Path) -> None:
    life = await run_lives(tmp_path / "log", lives=some(50), records=700)
    assert len(life.records) > some(50) * 700
    assert life.largest_head > some(50) * 300


@pytest.mark.slow
@pytest.mark.kill
async def test_a_slow_reader_is_told_what_retention_took(tmp_path: Path) -> None:
    """A small budget for a fast writer: the reader is overtaken, goes on at the head, and never
    gets a record out of order or twice."""
    directory = tmp_path / "log"
    child = await Child.start(directory, "fast", size=2000, retention_bytes=1)
    overtaken = 0
    async with ReadonlyWal.open(directory) as log:
        reader = log.follow()
        reader._read_bytes = 4096
        position = reader.position
        while overtaken < 2:
            try:
                record = await anext(reader)
            except OffsetTrimmedError as error:
                assert error.requested == reader.position == position  # noqa: PT017 - it is one of many
                assert error.requested < error.head <= log.head  # noqa: PT017
                overtaken += 1
                reader.seek(log.head)
                position = reader.position
                continue
            assert record.offset == position
            position += 1
            behind = log.limit
            await until(lambda: log.limit > behind + 10, seconds=60)  # noqa: B023
    await child.kill()


@pytest.mark.kill
@pytest.mark.slow
async def test_each_append_reaches_another_process_before_there_is_a_next_one(
    tmp_path: Path,
) -> None:
    """None waits for more to be written, or for a look now and then. ``bench`` has the figures."""
    directory = tmp_path / "log"
    child = await Child.start(directory, "one", lanes=0, size=25)
    async with ReadonlyWal.open(directory) as log:
        async for record in log.follow():
            if record.offset == 300:
                break
            assert said(record) == b"one %d" % (record.offset - 1)
            child.append_next()
    await child.kill()
    assert set(child.acknowledged) <= set(range(1, 301))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_what_a_reader_saw_survives_a_power_failure(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    power = PowerLossFileSystem(root, PosixFileSystem())
    seed += first_seed("readers and power")
    chance = random.Random(seed)
    seen: list[Record] = []
    options = SMALL.replace(transaction_memory_bytes=8192)
    wal = await Wal.open(root / "log", settings=options, fs=power)

    async def write() -> None:
        while True:
            if chance.random() < 0.1:
                async with wal.transaction() as transaction:
                    for _ in range(12):
                        await transaction.append(bytes(1000))
            else:
                await wal.append_many([bytes(chance.randrange(3000))] * chance.randrange(1, 9))

    async def read() -> None:
        async with ReadonlyWal.open(root / "log") as log:
            async for record in log.follow():
                seen.append(record)

    enough = chance.randrange(50, 600)
    tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
    await until(lambda: len(seen) >= enough, seconds=60)
    power.cut()
    await asyncio.wait(tasks[:1])
    assert tasks[0].exception() is not None
    with contextlib.suppress(Exception):
        await wal.aclose()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    for outcome in (LOSE_ALL, KEEP_ALL, seed, seed + 100):
        into = tmp_path / f"crashed-{outcome}"
        await asyncio.to_thread(power.crash, outcome, into)
        async with ReadonlyWal.open(into / "log") as log:
            before = [record async for record in log.reader(follow=False)]
            async with Wal.open(into / "log", settings=options) as recovered:
                found = await read_all(recovered)
            assert found[: len(seen)] == seen
            assert found[: len(before)] == before, "nor does one who reads before recovery"
            assert [record async for record in log.reader(follow=False)] == found
