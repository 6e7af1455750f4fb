"""A collection in a directory, its writers and controllers killed: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tests.effort import first_seed
from uploader import Collection, Controller
from walstore import Wal

pytestmark = [pytest.mark.slow, pytest.mark.kill, pytest.mark.timeout(300)]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROUNDS = 8
WRITER = """
import asyncio, sys
import pyarrow as pa
from uploader import Collection

async def main():
    async with await Collection.open(sys.argv[1]) as collection:
        writer = collection.writer()
        lower = await writer.upper()
        while True:
            rows = pa.table({"k": [lower % 50], "v": [lower]})
            await writer.append(rows, lower=lower, upper=lower + 1)
            lower += 1
            print(lower, flush=True)

asyncio.run(main())
"""
CONTROLLER = """
import asyncio, sys
from uploader import Controller

async def main():
    async with Controller.open(sys.argv[1], take_over=True) as controller:
        while True:
            print((await controller.compact(full=True)).upper, flush=True)
            await controller.gc()

asyncio.run(main())
"""


@contextmanager
def started(program: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program; it does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_number(process: subprocess.Popen[str]) -> int:
    """Wait for the next line; return its number."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> list[int]:
    """Kill a process with SIGKILL and return the numbers that it printed since."""
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    return [int(line) for line in out.splitlines()[:-1]]


def materialize(log: Path, url: str, *options: str) -> list[str]:
    """Return the command that brings the collection up to date with the log."""
    verb = ("-m", "walstore.cli", "collection", "materialize", str(log), url, "--json")
    return [sys.executable, *verb, "--envelope", "append", "--cursor", "kept", *options]


async def test_a_materializer_is_killed_while_the_log_is_trimmed(tmp_path: Path) -> None:
    """What was trimmed is in the collection, each record is there once, and none is missing."""
    url, path = f"file://{tmp_path}/collection", tmp_path / "log"
    written, chance = 0, random.Random(first_seed("materializing"))
    async with (
        Wal.open(path) as log,
        Collection.open(url, create=True, schema=SCHEMA) as collection,
    ):
        await log.cursor("kept")
        for _ in range(ROUNDS):
            following = materialize(path, url, "--follow", "--trigger-seconds", "0")
            with subprocess.Popen(following, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                try:
                    started = json.loads(await asyncio.to_thread(process.stdout.readline))
                    assert started["event"] == "started"
                    for _ in range(chance.randrange(5, 60)):
                        await log.append(json.dumps({"k": 1, "v": written}).encode())
                        written += 1
                        assert await log.trim(log.durable_limit) <= await upper_of(collection)
                finally:
                    process.kill()
            assert await log.trim(log.durable_limit) <= await upper_of(collection)
        done = await asyncio.to_thread(subprocess.run, materialize(path, url), check=False)
        assert done.returncode == 0
        assert await log.trim(log.durable_limit) == log.tail
        async with await collection.reader() as reader:
            found = await reader.snapshot()
    assert sorted(found["v"].to_pylist()) == list(range(written))
    assert set(found["_d"].to_pylist()) == {1}


async def upper_of(collection: Collection) -> int:
    """Return where it ends; the first offset of a log is 1."""
    return max((await collection.status()).upper, 1)


async def test_writers_and_controllers_are_killed(tmp_path: Path) -> None:
    await kill_again_and_again(f"file://{tmp_path}/collection", ROUNDS)


async def kill_again_and_again(url: str, rounds: int) -> None:
    """Kill a writer and a controller at random moments; check what was acknowledged."""
    chance = random.Random(first_seed("collections killed"))
    async with Collection.open(url, create=True, schema=SCHEMA, key=("k",)) as collection:
        acknowledged = 0
        for _ in range(rounds):
            with started(WRITER, url) as writer, started(CONTROLLER, url) as keeper:
                next_number(keeper)
                for _ in range(chance.randrange(1, 30)):
                    acknowledged = next_number(writer)
                kill(keeper)
                acknowledged = max([acknowledged, *kill(writer)])
            async with await collection.reader() as reader:
                found = await reader.snapshot()
                assert sorted(found["v"].to_pylist()) == list(range(found.num_rows))
                assert found.num_rows >= acknowledged
                assert set(found["_d"].to_pylist()) <= {1}
    async with Controller.open(url, take_over=True) as controller:
        assert (await controller.compact(full=True)).upper >= acknowledged
