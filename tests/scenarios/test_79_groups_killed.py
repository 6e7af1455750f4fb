"""Members of a group in several processes, and the owner of the log, killed in turn."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.effort import first_seed, some
from tests.programs import Program, start
from tests.scenarios.story import Story
from tests.scenarios.test_78_served_and_killed import start_server
from walstore import Wal, connect

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

KILLS = some(80)
JOBS = 3000
MEMBERS = 4
LEASE_SECONDS = 2.0
OPTIONS: dict[str, Any] = {"ack_wait_seconds": LEASE_SECONDS, "ordered": True}
MEMBER = """
import asyncio, os, sys, time
from walstore import connect

async def main():
    address, story = sys.argv[1:]
    file = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def tell(*words):
        os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    async with connect(address, connect_seconds=60, reconnect_seconds=60) as wal:
        async with wal.group("g", ack_wait_seconds=2.0, ordered=True) as group:
            while True:
                asked = time.monotonic()
                [job] = await group.fetch()
                tell("took", job.offset, asked, time.monotonic())
                await job.ack()
                tell("acknowledged", job.offset, time.monotonic())

asyncio.run(main())
"""


def start_member(address: str, story: Story) -> Program:
    return start(MEMBER, address, story.path)


def test_each_job_is_done_and_by_one_member_at_a_time(tmp_path: Path) -> None:
    chance = random.Random(first_seed("serving groups"))
    socket, story = tmp_path / "s.sock", Story(tmp_path / "story")
    fill(tmp_path / "log")
    server = start_server(tmp_path / "log", socket)
    members = [start_member(f"unix://{socket}", story) for _ in range(MEMBERS)]
    try:
        for kill in range(KILLS):
            story.wait("acknowledged", (kill + 1) * JOBS // (KILLS + 2))
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
    check(story.look())


def fill(directory: Path) -> None:
    async def append() -> None:
        async with Wal.open(directory) as wal:
            for n in range(JOBS):
                await wal.append(b"%d" % n, key=b"%d" % (n % 50), durability="memory")

    asyncio.run(append())


async def wait_for_the_end(address: str) -> None:
    """Return when every job is settled. A member may be killed before it can tell of its last one."""
    async with connect(address) as wal, wal.group("g", **OPTIONS) as group:
        async with asyncio.timeout(120):
            while (await group.statistics()).floor <= JOBS:
                pass


def check(story: list[str]) -> None:
    """Each job was done; none was taken after its acknowledgement, nor by two members within a lease.

    A job was leased between the moments when its member asked and when it noted that; a busy machine only
    lets these be further apart.
    """
    took: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    done: dict[int, float] = {}
    for line in story:
        what, offset, *moments = line.split()
        if what == "took":
            asked, noted = map(float, moments)
            took[int(offset)].append((asked, noted))
        else:
            done.setdefault(int(offset), float(moments[0]))
    assert set(took) == set(range(1, JOBS + 1))
    assert len(done) >= JOBS - KILLS  # one that is killed cannot tell of what it had just done
    for offset, leases in took.items():
        for asked, _ in leases:
            assert asked < done.get(offset, inf), f"{offset} was taken after it was acknowledged"
        for (one_asked, one_noted), (asked, noted) in combinations(leases, 2):
            assert max(noted - one_asked, one_noted - asked) >= LEASE_SECONDS, offset
