"""Real processes are killed while they move cursors and copy logs: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cursors import on_disk
from tests.effort import first_seed, some
from tests.local import SMALL, read_values
from tests.programs import start_script
from walstore import Wal

CHILD = Path(__file__).with_name("consumer_child.py")


async def run_child(*arguments: object, kill_after_seconds: float | None) -> tuple[int, list[str]]:
    """Run a child, kill it so long after it opened its logs; return its code and whole lines."""
    child = await asyncio.to_thread(start_script, CHILD, *arguments, stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = await asyncio.to_thread(child.stdout.readline)
    if kill_after_seconds is not None:
        asyncio.get_running_loop().call_later(kill_after_seconds, child.kill)
    rest, _ = await asyncio.to_thread(child.communicate)
    lines = (first + rest).splitlines(keepends=True)
    return child.wait(), [line.decode().strip() for line in lines if line.endswith(b"\n")]


MOST_KILLS = 20
"""For each that is asked for: on a busy machine most of them may come before anything is done."""


async def copy_under_fire(
    directory: Path, *, total: int, kills: int, copied: int, seed: int
) -> None:
    """Kill copying processes until so many had copied something, then let one finish."""
    chance = random.Random(seed)
    directory.mkdir()
    positions = [1]
    for turn in range(MOST_KILLS * kills):
        if turn >= kills and len(set(positions)) > copied:
            break
        code, lines = await run_child(
            "copy", directory, total, seed + turn, kill_after_seconds=chance.uniform(0, 0.15)
        )
        assert code in (0, -signal.SIGKILL)
        if lines:
            positions.append(int(lines[0].split()[-1]))
    code, lines = await run_child("copy", directory, total, seed, kill_after_seconds=None)
    assert code == 0
    positions.append(int(lines[0].split()[-1]))
    assert positions == sorted(positions), "what was committed once stays committed"
    async with Wal.open(directory / "out", settings=SMALL) as out:
        values = await read_values(out)
    assert [int(value.rstrip(b"\0")) for value in values] == list(range(total))
    async with Wal.open(directory / "in", settings=SMALL) as wal:
        assert wal.tail == total + 1
    assert on_disk(directory / "in", "copy").position == total + 1
    assert len(set(positions)) > copied


@pytest.mark.slow
@pytest.mark.kill
async def test_a_few_kills_while_copying(tmp_path: Path) -> None:
    seed = first_seed("copying")
    await copy_under_fire(tmp_path / "logs", total=300, kills=3, copied=1, seed=seed)


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(2))
async def test_many_kills_while_copying(tmp_path: Path, seed: int) -> None:
    seed += first_seed("much copying")
    await copy_under_fire(
        tmp_path / "logs", total=some(8000), kills=some(40), copied=some(20), seed=seed
    )


async def commit_under_fire(directory: Path, *, kills: int, commits: int, seed: int) -> None:
    """Kill processes that move a cursor, until more than so many commits had returned."""
    chance = random.Random(seed)
    async with Wal.open(directory / "in", settings=SMALL) as wal:
        await wal.append_many([b""] * 20_000)
    acknowledged, position = 0, 1
    for turn in range(MOST_KILLS * kills):
        if turn >= kills and acknowledged > commits:
            break
        code, lines = await run_child(
            "commit", directory, kill_after_seconds=chance.uniform(0, 0.15)
        )
        assert code == -signal.SIGKILL
        assert lines[0] == f"open at {position}"
        told = [position, *map(int, lines[1:])]
        acknowledged += len(told) - 1
        position = on_disk(directory / "in").position
        assert position in (told[-1], told[-1] + 1), "the last commit may have been under way"
    assert acknowledged > commits


@pytest.mark.kill
async def test_a_few_kills_while_committing(tmp_path: Path) -> None:
    await commit_under_fire(tmp_path, kills=3, commits=0, seed=first_seed("committing"))


@pytest.mark.slow
@pytest.mark.kill
async def test_many_kills_while_committing(tmp_path: Path) -> None:
    seed = first_seed("much committing")
    await commit_under_fire(tmp_path, kills=some(60), commits=some(200), seed=seed)
