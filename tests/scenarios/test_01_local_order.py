"""L7: offsets, disk order and reading order are one order, whoever appends."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

from tests.local import SMALL, check_contiguous, contents, segments
from walstore import Wal
from walstore.core.format import frame, segment

WRITERS = 8
EACH = 10_000


async def test_L7_eight_concurrent_appenders_of_10_000_are_strictly_in_order_on_disk(
    log_directory: Path,
) -> None:
    settings = SMALL.replace(segment_bytes=1 << 20, batch_bytes=64 * 1024, channel_bytes=1 << 20)
    async with Wal.open(log_directory, settings=settings) as wal:

        async def append(name: int) -> list[int]:
            offsets = []
            for n in range(EACH):
                level = "memory" if n % 100 else "disk"
                offsets.append(await wal.append(b"%d:%d" % (name, n), durability=level))
                if n % 7 == name:
                    await asyncio.sleep(0)
            return offsets

        async with asyncio.TaskGroup() as tasks:
            appending = [tasks.create_task(append(name)) for name in range(WRITERS)]
    offsets = [task.result() for task in appending]
    assert sorted(chain.from_iterable(offsets)) == list(range(1, WRITERS * EACH + 1))
    assert all(mine == sorted(mine) for mine in offsets)

    expected = 1
    for path in segments(log_directory):
        data = memoryview(path.read_bytes())
        at = segment.HEADER_BYTES
        while (found := frame.parse_header(data, at)) is not None:
            assert found.start == expected
            expected, at = found.limit, found.end
    assert expected == WRITERS * EACH + 1

    records = await contents(log_directory, settings)
    check_contiguous(records)
    for name, mine in enumerate(offsets):
        assert [records[offset - 1].value for offset in mine] == [
            b"%d:%d" % (name, n) for n in range(EACH)
        ]
