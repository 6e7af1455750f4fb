"""A lane that holds the log's files while it works."""

from __future__ import annotations

import asyncio
import threading

from walstore.core.files.open_files import OpenFiles
from walstore.core.runtime.threads import Pool
from walstore.log.log_resources import FileLane, LogResources


async def test_files_are_parked_between_the_calls_of_their_log_only() -> None:
    files = OpenFiles(1)
    pool = Pool("test", threads=3)
    lanes = [FileLane(pool, files) for _ in range(4)]
    busy = [threading.Lock() for _ in lanes]
    parked = [0] * len(lanes)

    def park(at: int) -> None:
        assert busy[at].acquire(blocking=False)
        parked[at] += 1
        busy[at].release()

    def call(at: int) -> None:
        with busy[at]:
            assert busy[at].locked()

    for at, lane in enumerate(lanes):
        lane.slot.park = lambda at=at: park(at)
    await asyncio.gather(*(lane.run(call, at) for _ in range(100) for at, lane in enumerate(lanes)))
    assert sum(parked) > 0
    assert len(files) <= 1 + 3
    for lane in lanes:
        lane.close()
    assert len(files) == 0
    pool.close()


async def test_a_log_by_itself_is_never_parked() -> None:
    host = LogResources.alone()
    host.adopt(lambda: 1 // 0)
    assert await host.writing.run(divmod, 7, 2) == (3, 1)
    assert await host.reading.run(divmod, 7, 2) == (3, 1)
    spilling = host.make_spilling()
    assert await spilling.run(divmod, 7, 2) == (3, 1)
    spilling.close()
    host.close()
