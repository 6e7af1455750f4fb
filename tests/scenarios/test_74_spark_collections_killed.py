"""A query from one collection into another is killed again and again; each change is in the copy once.

Meanwhile the first collection grows, is compacted, and its garbage is collected.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.effort import first_seed, some
from tests.spark_classes import python_path
from tests.walstore.spark.versioned.histories import append, compact, counted, snapshot
from uploader import Collection

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

CHILD = Path(__file__).with_name("collection_stream_child.py")
ROOT = Path(__file__).parents[2]
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
BATCHES = 8
KILLS = some(10)


async def create(*urls: str) -> None:
    for url in urls:
        async with Collection.open(url, create=True, schema=COLUMNS):
            pass


def changes(chance: random.Random) -> pa.Table:
    """Return insertions of some rows, and deletions of others."""
    ids = [chance.randrange(50) for _ in range(40)]
    return pa.table(
        {
            "id": ids,
            "name": [f"name-{one % 7}" for one in ids],
            "_d": [chance.choice([1, 1, -1]) for _ in ids],
        }
    )


def start(tmp_path: Path) -> subprocess.Popen[str]:
    arguments = [f"file://{tmp_path}/one", f"file://{tmp_path}/copy", str(tmp_path / "checkpoint")]
    with (tmp_path / "errors").open("a") as errors:
        return subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": python_path(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def run_and_kill(tmp_path: Path, chance: random.Random) -> None:
    """Kill the program some time after its first micro-batches, or at its end."""
    child = start(tmp_path)
    try:
        assert child.stdout is not None
        for _ in range(chance.randint(1, 2)):
            line = child.stdout.readline()
            assert line, (tmp_path / "errors").read_text()[-4000:]
            if line == "done\n":
                return
        try:  # anywhere in what comes next
            child.wait(chance.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            return
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_each_change_is_in_the_copy_once(tmp_path: Path) -> None:
    one, copy = f"file://{tmp_path}/one", f"file://{tmp_path}/copy"
    asyncio.run(create(one, copy))
    chance = random.Random(first_seed("collections in Spark"))
    upper = 0
    for _ in range(KILLS):
        for _ in range(BATCHES):
            asyncio.run(append(one, changes(chance), upper, upper + 5))
            upper += 5
        run_and_kill(tmp_path, chance)
        asyncio.run(compact(one, collects=True))
    last = start(tmp_path)
    output, _ = last.communicate(timeout=400)
    assert output.endswith("done\n"), (tmp_path / "errors").read_text()[-4000:]
    assert counted(asyncio.run(snapshot(copy))) == counted(asyncio.run(snapshot(one)))
    left = [path.name for path in (tmp_path / "copy" / "staging").rglob("*") if path.is_file()]
    assert sorted(left) == ["done", "intent"]
    asyncio.run(compact(one))
    assert since_of(one) > 0, "what the query has read is given up"


def since_of(url: str) -> int:
    async def look() -> int:
        async with Collection.open(url) as collection:
            return (await collection.status()).since

    return asyncio.run(look())
