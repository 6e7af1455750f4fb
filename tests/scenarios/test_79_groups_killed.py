"""Members of a group in several processes, and the owner of the log, killed in turn."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.effort import first_seed, some
from tests.programs import Program, start
from tests.scenarios.test_78_served_and_killed import start_server
from walstore import Wal, connect

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(300)]

KILLS = some(80)
JOBS = 3000
MEMBERS = 4
LEASE_SECONDS = 2.0
OPTIONS: dict[str, Any] = {"ack_wait_seconds": LEASE_SECONDS, "is_ordered": True}
SLACK_SECONDS = 1.0
"""How much later than the server a client may note the time of a delivery, on a busy machine."""
MEMBER = """
import asyncio, os, sys, time
from walstore import connect

async def main():
    address, story = sys.argv[1:]
    file = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def tell(what, job):
        os.write(file, f"{what} {job.offset} {os.getpid()} {time.monotonic()}\\n".encode())
    async with connect(address, connect_seconds=60, reconnect_seconds=60) as wal:
        async with wal.group("g", ack_wait_seconds=2.0, is_ordered=True) as group:
            async for job in group:
                tell("took", job)
                await job.ack()
                tell("acknowledged", job)

asyncio.run(main())
"""


def start_member(address: str, story: Path) -> Program:
    return start(MEMBER, address, story)


def test_each_job_is_done_and_by_one_member_at_a_time(tmp_path: Path) -> None:
    chance = random.Random(first_seed("serving groups"))
    socket, story = tmp_path / "s.sock", tmp_path / "story"
    story.touch()
    fill(tmp_path / "log")
    server = start_server(tmp_path / "log", socket)
    members = [start_member(f"unix://{socket}", story) for _ in range(MEMBERS)]
    try:
        for kill in range(KILLS):
            wait_until(story, done=(kill + 1) * JOBS // (KILLS + 2))
            if kill % 2:
                victim = members.pop(chance.randrange(len(members)))
                victim.kill()
                victim.wait()
                members.append(start_member(f"unix://{socket}", story))
            else:
                server.send_signal(signal.SIGKILL)
                server.communicate()
                server = start_server(tmp_path / "log", socket)
        asyncio.run(wait_for_the_end(f"unix://{socket}"))
    finally:
        for process in (*members, server):
            process.kill()
            process.communicate()
    check(story.read_text())


def fill(directory: Path) -> None:
    async def append() -> None:
        async with Wal.open(directory) as wal:
            for n in range(JOBS):
                await wal.append(b"%d" % n, key=b"%d" % (n % 50), durability="memory")

    asyncio.run(append())


async def wait_for_the_end(address: str) -> None:
    """Return when every job is settled. A member may be killed before it can tell of its last one."""
    async with connect(address) as wal, wal.group("g", **OPTIONS) as group:
        async with asyncio.timeout(60):
            while (await group.statistics()).floor <= JOBS:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


def acknowledged(text: str) -> set[str]:
    return {line.split()[1] for line in text.splitlines() if line.startswith("ack")}


def wait_until(story: Path, *, done: int) -> None:
    for _ in range(10_000):
        if len(acknowledged(story.read_text())) >= done:
            return
        threading.Event().wait(0.01)
    raise TimeoutError(f"only {len(acknowledged(story.read_text()))} of {done} jobs are done")


def check(story: str) -> None:
    """Each job was done; none was taken after its acknowledgement, nor by two members within a lease."""
    took: defaultdict[int, list[float]] = defaultdict(list)
    done: Counter[int] = Counter()
    for line in story.splitlines():
        what, offset, _, moment = line.split()
        if what == "took":
            assert not done[int(offset)], f"{offset} was taken after it was acknowledged"
            took[int(offset)].append(float(moment))
        else:
            done[int(offset)] += 1
    assert set(took) == set(range(1, JOBS + 1))
    assert len(done) >= JOBS - KILLS  # one that is killed cannot tell of what it had just done
    for offset, moments in took.items():
        for before, after in pairwise(moments):
            assert after - before > LEASE_SECONDS - SLACK_SECONDS, offset
