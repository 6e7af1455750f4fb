"""L10: a real process is killed at random moments; what it acknowledged is there, and stays there."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.local import check_contiguous, read_all
from tests.programs import start_script
from tests.scenarios.kill_child import SETTINGS
from walstore import Wal

CHILD = Path(__file__).with_name("kill_child.py")
LANES = 2
"""Children at the same time, each with its own log: as many as there are cores in the smallest machine."""
KILLS = some(100)
"""Kills in each lane. ``make storm`` makes the many."""
ROUNDS_PER_LOG = 12
NAME = re.compile(rb"(\S+)/(\d+) \.*")


class Victim:
    """One log, and everything its killed writers ever acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged: dict[int, bytes] = {}
        """Name and place of the record at each acknowledged offset."""
        self.groups: dict[bytes, int] = {}
        self.tail = 1
        self.position = 1
        self.known: list[bytes] = []
        """What every record said when it was first read, by offset."""

    async def kill(self, round_: int, *, seconds: float, after_open: bool) -> int:
        """Let a child append, kill it, and check the log; return how many calls were acknowledged."""
        child = await asyncio.to_thread(
            start_script, CHILD, self.directory, round_, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        lines: list[bytes] = []
        if after_open:
            lines.append(await asyncio.to_thread(child.stdout.readline))
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, child.kill)
        rest, _ = await asyncio.to_thread(child.communicate)
        lines += rest.splitlines(keepends=True)
        assert child.wait() == -signal.SIGKILL, "it died of nothing else"
        heard = [line.split() for line in lines if line.endswith(b"\n")]
        if heard:
            word, tail = heard.pop(0)
            assert word == b"tail"
            assert int(tail) == self.tail, "a child sees what the last check saw"
        for start, count, name in heard:
            self.groups[name] = int(count)
            for at in range(int(count)):
                offset = int(start) + at
                assert offset not in self.acknowledged, "no offset is used twice"
                assert offset >= self.tail
                self.acknowledged[offset] = b"%s/%d" % (name, at)
        await self.check()
        return len(heard)

    async def check(self) -> None:
        """Open the log as the next writer would, and compare."""
        async with Wal.open(self.directory, settings=SETTINGS) as wal:
            assert wal.recovery.missing_from is None
            records = await read_all(wal)
            self.tail = wal.tail
        check_contiguous(records)
        assert len(records) == self.tail - 1
        said = [_said(record.value) for record in records]
        assert said[: len(self.known)] == self.known, "what was read once does not change"
        self.known = said
        for offset, expected in self.acknowledged.items():
            assert said[offset - 1] == expected
        found: dict[bytes, int] = {}
        for item in said:
            name, at = item.rsplit(b"/", 1)
            assert int(at) == found.get(name, 0), "each record once, groups in order"
            found[name] = int(at) + 1
        for name, count in self.groups.items():
            assert found[name] == count
        for name, count in found.items():
            turn = int(name.rsplit(b"-", 1)[1])
            assert count == (2 + turn % 7 if turn % 5 == 4 else 1), "a group is there as a whole"


def _said(value: bytes) -> bytes:
    match = NAME.fullmatch(value)
    assert match is not None, value[:50]
    return b"%s/%s" % match.groups()


async def run_lane(scratch: Path, lane: int) -> tuple[int, int]:
    """Kill one child after the other; return kills and acknowledged calls."""
    chance = random.Random(lane + first_seed("kills"))
    acknowledged = 0
    victim = Victim(scratch / "none")
    for round_ in range(KILLS):
        if round_ % ROUNDS_PER_LOG == 0:
            victim = Victim(scratch / f"lane-{lane}-log-{round_ // ROUNDS_PER_LOG}")
        # One in five dies somewhere in its start: creation, recovery, first appends.
        after_open = chance.random() < 0.8
        seconds = chance.uniform(0.0, 0.15) if after_open else chance.uniform(0.0, 0.1)
        acknowledged += await victim.kill(round_, seconds=seconds, after_open=after_open)
    return KILLS, acknowledged


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(240)
async def test_L10_kill_9_at_random_points(tmp_path: Path) -> None:
    lanes = await asyncio.gather(*(run_lane(tmp_path, lane) for lane in range(LANES)))
    assert sum(kills for kills, _ in lanes) >= some(100)
    assert sum(acknowledged for _, acknowledged in lanes) > some(1000)


@pytest.mark.slow
async def test_L10_a_few_kills(tmp_path: Path) -> None:
    victim = Victim(tmp_path / "log")
    acknowledged = 0
    for round_, seconds in enumerate((0.02, 0.0, 0.06)):
        acknowledged += await victim.kill(round_, seconds=seconds, after_open=True)
    assert acknowledged > 0
    assert victim.tail > 1
