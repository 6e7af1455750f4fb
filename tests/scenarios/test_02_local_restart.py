"""L1–L3, L11: what a restart finds is what was there before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local import SMALL, check_contiguous, contents, read_all, segments
from walstore import OffsetTrimmedError, Settings, Wal
from walstore.core.format import frame, segment


async def test_L1_a_clean_restart_continues_at_the_next_offset(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        for n in range(100):
            assert await wal.append(b"%d" % n) == n + 1
    async with Wal.open(log_directory) as wal:
        assert (wal.head, wal.tail, wal.durable_limit) == (1, 101, 101)
        assert await wal.append(b"100") == 101
    records = await contents(log_directory)
    check_contiguous(records)
    assert [record.value for record in records] == [b"%d" % n for n in range(101)]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [5])
async def test_L2_also_with_many_rotated_files(log_directory: Path, restarts: int) -> None:
    count = 0
    for _ in range(restarts):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            assert wal.tail == count + 1
            for _ in range(160):
                await wal.append(b"%05d" % count * 200)
                count += 1
            check_contiguous(await read_all(wal))
    assert len(segments(log_directory)) > 10
    records = await contents(log_directory, SMALL)
    check_contiguous(records)
    assert [record.value for record in records] == [b"%05d" % n * 200 for n in range(count)]


async def test_L3_each_file_holds_exactly_its_interval(log_directory: Path) -> None:
    """By the files alone: names, headers, footers and frames agree, and nothing is left over."""
    for settings in (SMALL, Settings(segment_bytes=128 * 1024)):
        async with Wal.open(log_directory, settings=settings) as wal:
            for n in range(300):
                wal.append_nowait(b"%03d" % n * 300)
                if n % 20 == 19:
                    await wal.flush()
                if n == 150:
                    await wal.rotate()
    expected = 1
    paths = segments(log_directory)
    for path in paths:
        data = path.read_bytes()
        header = segment.decode_header(data[: segment.HEADER_BYTES], str(path))
        assert header.start == segment.parse_file_name(path.name) == expected
        end = len(data)
        if path != paths[-1]:
            sealed_at = segment.parse_seal(data[-segment.SEAL.size :])
            assert sealed_at is not None
            footer = segment.decode_footer(data[sealed_at:], header.start, str(path))[0]
            end = footer.data_bytes
        at = segment.HEADER_BYTES
        while at < end:
            found = frame.parse_header(memoryview(data), at)
            assert found is not None
            assert frame.is_whole(memoryview(data), found, frame.place(header.salt, at))
            assert found.start == expected
            expected, at = found.limit, found.end
        assert at == end
        if path != paths[-1]:
            assert footer.limit == expected
    assert expected == 601


async def test_L11_retention_stays_in_force_after_append_flush_reopen(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for n in range(250):
            await wal.append(b"%03d" % n * 330)
        head = wal._state.sealed_segments()[2].start
        await wal.trim(head)
    kept = [path.name for path in segments(log_directory)]
    for _ in range(3):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            assert wal.head == head
            await wal.append(b"more" * 1000)
            await wal.flush()
            with pytest.raises(OffsetTrimmedError) as found:
                await read_all(wal, 1)
            assert (found.value.requested, found.value.head) == (1, head)
            check_contiguous(await read_all(wal), head)
    assert [path.name for path in segments(log_directory)][: len(kept)] == kept
