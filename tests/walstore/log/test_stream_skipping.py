"""A reader of one stream does not read segments that hold none of its records, in whichever way they came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.local import SMALL
from walstore import Wal
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.segment_file import load_streams
from walstore.log.readonly import ReadonlyWal

UNCACHED = SMALL.replace(cache_bytes=0)


async def fill(wal: Wal, *, segments: int = 6) -> None:
    """One segment for each stream ``s0``, ``s1``, ..., and a record without a stream in each."""
    for number in range(segments):
        for _ in range(5):
            await wal.append_many([bytes(200)] * 10, stream=f"s{number}")
        await wal.append(b"plain")
        await wal.rotate()


async def read(wal: Wal, stream: str) -> tuple[list[int], int]:
    """Return the offsets of a stream's records, and how often files were read for them."""
    before = wal.statistics().file_reads
    reader = wal.reader(stream=stream, follow=False)
    offsets = [record.offset async for record in reader]
    assert reader.position == wal.durable_limit
    return offsets, wal.statistics().file_reads - before


async def of_stream(wal: Wal, stream: str) -> list[int]:
    return [r.offset async for r in wal.reader(follow=False) if r.stream == stream]


async def test_only_segments_that_hold_the_stream_are_read(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        await fill(wal)
        for number in range(6):
            offsets, reads = await read(wal, f"s{number}")
            assert offsets == await of_stream(wal, f"s{number}")
            assert len(offsets) == 50
            assert reads <= 5, "those of one segment"
        assert await read(wal, "nowhere") == ([], 0)
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        offsets, reads = await read(wal, "s3")
        assert (len(offsets), reads <= 5) == (50, True)
        assert await read(wal, "nowhere") == ([], 0)
        assert all(segment.index is None for segment in wal._state.sealed_segments()[:3]), (
            "asking for the streams does not keep the indexes"
        )


async def test_the_active_segment_is_always_looked_at(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        await fill(wal, segments=2)
        await wal.append(b"new", stream="s0")
        offsets, _ = await read(wal, "s0")
        assert offsets == await of_stream(wal, "s0")
        assert offsets[-1] == wal.durable_limit - 1


async def test_a_segment_of_two_openings_denies_nothing(log_directory: Path) -> None:
    """What an earlier opening wrote into it was not noted."""
    for name in ("first", "second"):
        async with Wal.open(log_directory, settings=UNCACHED) as wal:
            await wal.append(b"x", stream=name)
            if name == "second":
                await wal.rotate()
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        (sealed,) = wal._state.sealed_segments()
        assert (await read(wal, "first"))[0] == [1]
        assert (await read(wal, "second"))[0] == [2]
        assert (await read(wal, "nowhere"))[0] == []
        assert sealed.known_streams is not None
        assert not sealed.known_streams.is_known


async def test_a_large_transaction_names_its_streams(log_directory: Path) -> None:
    settings = UNCACHED.replace(transaction_memory_bytes=1 << 14)
    async with Wal.open(log_directory, settings=settings) as wal:
        await wal.append(b"before", stream="other")
        async with wal.transaction() as transaction:
            for number in range(200):
                await transaction.append(bytes(500), stream="eu" if number % 50 == 7 else "us")
        await wal.append(b"behind", stream="other")
        sealed = wal._state.sealed_segments()
        assert any(len(segment.known_streams or ()) == 2 for segment in sealed)
        for name, count in (("eu", 4), ("us", 196), ("other", 2)):
            offsets, _ = await read(wal, name)
            assert offsets == await of_stream(wal, name)
            assert len(offsets) == count


async def test_too_many_streams_for_a_list(log_directory: Path, monkeypatch) -> None:
    monkeypatch.setattr("walstore.core.format.segment.MOST_STREAMS", 3)
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        for number in range(10):
            await wal.append(b"x", stream=f"s{number}")
        await wal.rotate()
        assert (await read(wal, "s7"))[0] == [8]
        assert (await read(wal, "nowhere"))[0] == []


async def test_a_footer_that_cannot_be_read_is_met_by_reading(log_directory: Path, faulty) -> None:
    async with Wal.open(log_directory, settings=UNCACHED, fs=faulty) as wal:
        await fill(wal, segments=2)
    async with Wal.open(log_directory, settings=UNCACHED, fs=faulty) as wal:
        faulty.fail("open")
        assert len((await read(wal, "s1"))[0]) == 50


async def test_verify_finds_nothing_wrong(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        await fill(wal)
    assert not (await asyncio.to_thread(verify_directory, log_directory)).problems


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_a_follower_over_rotations(log_directory: Path, cache_bytes: int) -> None:
    async with Wal.open(log_directory, settings=SMALL.replace(cache_bytes=cache_bytes)) as wal:
        reader = wal.follow(stream="s3")
        await fill(wal)
        found = [(await anext(reader)).offset for _ in range(50)]
        assert found == await of_stream(wal, "s3")
        await fill(wal)
        found = [(await anext(reader)).offset for _ in range(50)]
        assert found == (await of_stream(wal, "s3"))[50:]
        assert load_streams(wal._engine.source._fs, wal._state.sealed_segments()[0]).is_known


async def test_beside_the_writer(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=UNCACHED) as wal:
        await fill(wal)
        async with ReadonlyWal.open(log_directory) as beside:
            await check_beside(wal, beside)
            await fill(wal)
            await check_beside(wal, beside)


async def check_beside(wal: Wal, beside: ReadonlyWal) -> None:
    read: list[int] = []
    inner = beside._files.read

    def count(position: int, *args):
        read.append(position)
        return inner(position, *args)

    beside._files.read = count
    expected = await of_stream(wal, "s3")
    assert [r.offset async for r in beside.reader(stream="s3", follow=False)] == expected
    segments = {wal._state.segment_of(position).start for position in read}
    assert len(segments) == len({wal._state.segment_of(offset).start for offset in expected})
    read.clear()
    assert [r async for r in beside.reader(stream="nowhere", follow=False)] == []
    assert read == []
    del beside._files.read
