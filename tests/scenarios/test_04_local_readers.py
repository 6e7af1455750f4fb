"""L4–L6: readers get everything, however small the cache and however slow they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import SMALL, check_contiguous, read_all
from walstore import Wal


async def test_L4_reads_right_after_the_ack_with_a_cache_smaller_than_the_backlog(
    log_directory: Path,
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for n in range(5000):
            wal.append_nowait(b"%04d" % n * 10)
            if n % 500 == 499:
                await wal.append(b"")
        tail = wal.tail
        await wal.append(b"last")
        assert wal.statistics().cache_bytes < 20 * 1024
        records = await read_all(wal)
        check_contiguous(records)
        assert len(records) == tail
        assert wal.statistics().file_reads > 0


@pytest.mark.parametrize("paused_at", [0, 1, 500])
async def test_L5_a_reader_paused_while_10_000_records_pass_gets_them_all(
    log_directory: Path, paused_at: int
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        reader = wal.follow()
        await wal.append_many([b"%05d" % n for n in range(1000)])
        seen = [(await anext(reader)).value for _ in range(paused_at)]
        for start in range(1000, 11_000, 500):
            await wal.append_many([b"%05d" % n for n in range(start, start + 500)])
        while not reader.is_caught_up:
            seen.append((await anext(reader)).value)
        assert seen == [b"%05d" % n for n in range(11_000)]


async def test_L6_latest_readers_under_a_burst_get_all(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append_many([b"old"] * 100)
        readers = [wal.follow("latest") for _ in range(5)]
        assert all(reader.position == 101 for reader in readers)

        async def follow(reader) -> list[bytes]:
            return [(await anext(reader)).value for _ in range(20_000)]

        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(follow(reader)) for reader in readers]
            for n in range(20_000):
                await wal.append(b"%05d" % n, durability="memory")
        for task in following:
            assert task.result() == [b"%05d" % n for n in range(20_000)]


async def test_readers_follow_across_rotations_seeks_and_restarts(log_directory: Path) -> None:
    position = 1
    seen: list[int] = []
    for round_ in range(3):
        async with Wal.open(log_directory, settings=SMALL) as wal:

            async def produce(wal: Wal = wal) -> None:
                for n in range(400):
                    await wal.append(b"x" * 400, durability="memory" if n % 10 else "disk")
                    if n % 100 == 50:
                        await wal.rotate()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce())
                reader = wal.follow(position, stop=400 * (round_ + 1) + 1)
                async for record in reader:
                    seen.append(record.offset)
                    if record.offset % 97 == 0:
                        reader.seek(record.offset + 1)
                position = reader.position
    assert seen == list(range(1, 1201))


async def test_slow_and_fast_readers_of_every_kind_beside_producers(log_directory: Path) -> None:
    total = 3000
    async with Wal.open(log_directory, settings=SMALL) as wal:

        async def produce(name: int) -> None:
            for n in range(total // 3):
                await wal.append(b"%d-%d" % (name, n) * 30, durability="memory")
                if n % 50 == 0:
                    await wal.flush()

        async def by_record() -> list[int]:
            return [record.offset async for record in wal.follow(stop=total + 1)]

        async def by_batch() -> list[int]:
            found: list[int] = []
            async for batch in wal.follow(stop=total + 1).batches():
                found += range(batch.start, batch.limit)
                await asyncio.sleep(0)
            return found

        async def by_fetch() -> list[int]:
            reader, found = wal.follow(), []
            while len(found) < total:
                batch = await reader.fetch(max_records=17, max_wait_seconds=0.01)
                found += [record.offset for record in batch]
            return found

        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(way()) for way in (by_record, by_batch, by_fetch)]
            for name in range(3):
                tasks.create_task(produce(name))
        for task in readers:
            assert task.result() == list(range(1, total + 1))
