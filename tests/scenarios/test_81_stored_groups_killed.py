"""Members of a group of a log in a store, in processes that know nothing of each other, killed in turn."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.programs import CLOUD, Program, start
from tests.scenarios import test_79_groups_killed as checks
from tests.scenarios.story import Story
from uploader import CloudLog, CloudWriter

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

KILLS = some(60)
MEMBER = """
import asyncio, os, sys, time
from uploader import CloudLog

async def main():
    url, story = sys.argv[1:]
    file = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def tell(what, jobs, *moments):
        for job in jobs:
            line = " ".join(map(str, (what, job.offset, *moments)))
            os.write(file, (line + "\\n").encode())
    async with CloudLog.open(url) as log:
        async with log.group("g", ack_wait_seconds=2.0, ordered=True) as group:
            while True:
                asked = time.monotonic()
                jobs = await group.fetch(5)
                tell("took", jobs, asked, time.monotonic())
                await group.ack(jobs)
                tell("acknowledged", jobs, time.monotonic())

asyncio.run(main())
"""


def start_member(url: str, story: Story) -> Program:
    return start(MEMBER, url, story.path, imports=CLOUD)


def test_each_job_is_done_and_by_one_member_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "JOBS", 1000)
    monkeypatch.setattr(checks, "KILLS", 5 * KILLS)  # one that is killed has up to five jobs
    chance = random.Random(first_seed("stored groups"))
    url, story = (tmp_path / "store").as_uri(), Story(tmp_path / "story")
    asyncio.run(fill(url))
    members = [start_member(url, story) for _ in range(4)]
    try:
        for kill in range(KILLS):
            story.wait("acknowledged", (kill + 1) * checks.JOBS // (KILLS + 2))
            victim = members.pop(chance.randrange(len(members)))
            victim.kill()
            victim.wait()
            members.append(start_member(url, story))
        asyncio.run(wait_for_the_end(url))
    finally:
        for process in members:
            process.kill()
            process.communicate()
    checks.check(story.look())


async def fill(url: str) -> None:
    async with CloudWriter.open(url) as writer:
        for n in range(0, checks.JOBS, 100):
            calls = (writer.append(b"%d" % at, key=b"%d" % (at % 50)) for at in range(n, n + 100))
            await asyncio.gather(*calls)


async def wait_for_the_end(url: str) -> None:
    async with CloudLog.open(url) as log, log.group("g", **checks.OPTIONS) as group:
        async with asyncio.timeout(120):
            while (await group.statistics()).floor <= checks.JOBS:
                pass
