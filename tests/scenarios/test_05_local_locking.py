"""L15: of two openers one wins, and the other learns who."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local import contents
from walstore import Wal, WalLockedError

RACER = """
import asyncio, sys
from walstore import Wal, WalLockedError

async def main():
    sys.stdin.readline()
    try:
        async with Wal.open(sys.argv[1]) as wal:
            await wal.append(sys.argv[2].encode())
            print("won", flush=True)
            sys.stdin.readline()
    except WalLockedError:
        print("locked", flush=True)

asyncio.run(main())
"""


async def test_L15_two_openers_in_one_process(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        with pytest.raises(WalLockedError) as found:
            await Wal.open(log_directory)
        assert found.value.owner is not None
        assert await wal.append(b"a") == 1
    async with Wal.open(log_directory) as wal:
        assert await wal.append(b"b") == 2


@pytest.mark.slow
async def test_L15_openers_in_many_processes_at_once(log_directory: Path) -> None:
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            RACER,
            log_directory,
            str(n),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for n in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"go\n")
    said = [await racer.stdout.readline() for racer in racers if racer.stdout]
    assert sorted(said) == [b"locked\n"] * 3 + [b"won\n"]
    await asyncio.gather(*(racer.communicate(b"end\n") for racer in racers))
    winner = said.index(b"won\n")
    assert [record.value for record in await contents(log_directory)] == [b"%d" % winner]
