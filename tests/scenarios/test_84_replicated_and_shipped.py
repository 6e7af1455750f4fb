"""A replicated log that ships, in processes that are killed and stopped while they ship; others take over.

What was acknowledged, by copies or bucket, is in the log once, and the bucket has the beginning of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.effort import first_seed, some
from tests.programs import CLOUD, start
from tests.scenarios.story import Story
from tests.scenarios.test_82_replicas_killed import Machine, wait_for_more, wait_until_whole
from tests.waiting import wait_until
from uploader import CloudLog, CloudTier, Scrubber, UploadSettings
from walstore import Replication, Settings, Wal

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(900)]

FAULTS = some(80)
PRODUCERS = 4
PRIMARY = """
import asyncio, os, sys, itertools
from uploader import CloudTier, UploadSettings
from walstore import Replication, Wal, WalError, Settings

async def main():
    path, nodes, story, url, layout = sys.argv[1:6]
    file = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def tell(text):
        os.write(file, (text + "\\n").encode())
    replication = Replication(nodes=nodes.split(","), name="orders", patience_seconds=60)
    settings = Settings(segment_bytes=65536, retention_bytes=65536)
    small = UploadSettings(fragment_bytes=8192, fragment_age_seconds=0.05, drain_seconds=1.0)
    tier = CloudTier(url, layout=layout, settings=small)
    async with Wal.open(path, replication=replication, settings=settings, tier=tier) as wal:
        tell(f"primary {os.getpid()} {wal.statistics().epoch} {wal.statistics().local_head}")
        async def produce(number):
            producer = wal.producer(f"p{number}")
            for at in itertools.count(await producer.last_sequence() + 1):
                value = f"{number} {at}".encode() + b"." * (at % 900)
                level = "cloud" if at % 5 == number else None
                await producer.append(value, sequence=at, durability=level)
                tell(f"ok {number} {at}")
        await asyncio.gather(*(produce(number) for number in range(4)))

asyncio.run(main())
"""


class ShippingMachine(Machine):
    """A machine whose process serves a copy, or is the primary and ships."""

    def ship(self, others: list[ShippingMachine], story: Story, url: str, shape: str) -> None:
        nodes = ",".join(other.address for other in others)
        arguments = (self.path / "orders", nodes, story.path, url, shape)
        self.process = start(PRIMARY, *arguments, imports=CLOUD, stderr=subprocess.DEVNULL)

    def stop(self, bucket: Path) -> int:
        """Stop the process, but not within the lock of the directory that stands for an object store.

        Return how often it was within.
        """
        assert self.process is not None
        for count in itertools.count():
            self.send(signal.SIGSTOP)
            # A thread that is not stopped yet may still take the lock.
            wait_until(self._stands_still, seconds=60)
            with (bucket / ".tmp/lock").open("a") as lock, contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return count
            self.send(signal.SIGCONT)
        raise AssertionError

    def _stands_still(self) -> bool:
        """Return whether all of its threads are stopped, or gone."""
        assert self.process is not None
        found = [path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/stat")]
        return all(text.rpartition(") ")[2][0] in "TZX" for text in found)


@pytest.mark.parametrize("shape", ["swap", "chain"])
def test_what_was_acknowledged_is_there_once_and_in_the_bucket(tmp_path: Path, shape: Any) -> None:
    chance, story = random.Random(first_seed("shipping")), Story(tmp_path / "story")
    url = f"file://{tmp_path}/bucket"
    machines = [ShippingMachine(tmp_path / f"m{number}") for number in range(3)]
    for machine in machines:
        machine.path.mkdir()
    leader, happened = machines[0], Counter[str]()
    try:
        for machine in machines[1:]:
            machine.serve()
        leader.ship(machines[1:], story, url, shape)
        for turn in range(FAULTS):
            wait_for_more(story, 150, leader)  # so much that copies lose their first segments
            # Within a put or a swap, as it happens: they follow each other without a pause.
            wait_for_more(story, chance.randrange(10), leader)
            others = [machine for machine in machines if machine is not leader]
            old, leader = leader, chance.choice(others)
            fault = chance.choice(["kill", "stop", "new disk"] if turn else ["kill"])
            happened[fault] += 1
            if fault != "kill":
                wait_until_whole(others)
            if fault == "stop":
                happened["within the lock"] += old.stop(tmp_path / "bucket")
            else:
                old.send(signal.SIGKILL)
            leader.kill()
            leader.ship([one for one in machines if one is not leader], story, url, shape)
            if fault == "stop":
                wait_for_more(story, 20, leader)
                old.send(signal.SIGCONT)  # goes on where it was, in the bucket, too
                wait_for_more(story, 20, leader)
                wait_until(old.has_ended, seconds=120)  # once it learns that it was passed over
                old.kill()
            elif fault == "new disk":
                wait_for_more(story, 20, leader)
                old.kill()
                for path in (old.path / "orders").iterdir():
                    path.unlink()
            else:
                old.kill()
            old.serve()
        wait_for_more(story, 30, leader)
        leader.kill()
        asyncio.run(check(leader, machines, url, shape, story.look()))
    finally:
        for machine in machines:
            machine.kill()
    print(json.dumps(happened))


async def check(
    leader: Machine, machines: list[ShippingMachine], url: str, shape: Any, story: list[str]
) -> None:
    """Compare what was told, the log, and the bucket before and after the last takeover."""
    before = await shipped(url)
    nodes = [machine.address for machine in machines if machine is not leader]
    replication = Replication(nodes=nodes, name="orders", patience_seconds=60)
    tier = CloudTier(url, layout=shape, settings=UploadSettings(fragment_bytes=8192))
    path, settings = leader.path / "orders", Settings(segment_bytes=65536)
    async with Wal.open(path, replication=replication, tier=tier, settings=settings) as wal:
        assert wal.head == 1
        async with wal.reader(follow=False) as reader:
            found = [record.value async for record in reader]
        assert wal.statistics().local_head > 1
    assert found[: len(before)] == before
    assert await shipped(url) == found
    values = [value.rstrip(b".").decode() for value in found]
    counts = Counter(values)
    assert [value for value, times in counts.items() if times > 1] == []
    acknowledged = [line.removeprefix("ok ") for line in story if line.startswith("ok ")]
    assert [value for value in acknowledged if value not in counts] == []
    in_cloud = [text for text in acknowledged if is_cloud(*map(int, text.split()))]
    named = {value.rstrip(b".").decode() for value in before}
    assert in_cloud
    assert [value for value in in_cloud if value not in named] == []
    for number in range(PRODUCERS):
        own = [int(value.split()[1]) for value in values if value.startswith(f"{number} ")]
        assert own == list(range(1, len(own) + 1))
    heads = [int(line.split()[3]) for line in story if line.startswith("primary")]
    assert max(heads) > 1, "no primary began with a copy that had lost its first segments"
    print(json.dumps({"acknowledged": len(acknowledged), "primaries": len(heads)}))


def is_cloud(number: int, at: int) -> bool:
    """Whether a record was acknowledged only once the bucket had it."""
    return at % 5 == number


async def shipped(url: str) -> list[bytes]:
    """Return what the bucket has, every byte of it checked."""
    async with Scrubber.open(url) as scrubber:
        report = await scrubber.scrub()
    assert report.is_sound, report.findings
    async with CloudLog.open(url) as log:
        await log.verify()
        return [record.value async for record in log.reader()]
