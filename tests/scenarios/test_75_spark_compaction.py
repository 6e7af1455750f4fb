"""A Spark compaction is killed, or its tasks are repeated: the content stays, and garbage is collected.

One that is killed has a JVM of its own, which ends with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark_jvm import SparkJvm
from uploader import Collection, Controller
from walstore.core.runtime.clock import SystemClock
from walstore.spark import problem

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(problem() is not None, reason="Spark cannot run here"),
]
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ROWS = 1000


class Later(SystemClock):
    """A clock that is three hours ahead."""

    def now_us(self) -> int:
        return super().now_us() + 3 * 3_600_000_000


def child(url: str, what: str, environment: Mapping[str, str] | None = None) -> int:
    program = Path(__file__).with_name("spark_compaction_child.py")
    done = subprocess.run(
        [sys.executable, program, url, what],
        env={**os.environ, **(environment or {})},
        timeout=240,
        check=False,
    )
    return done.returncode


async def fill(collection: Collection) -> None:
    writer = collection.writer()
    for at in range(4):
        ids = list(range(at, ROWS + at))
        rows = pa.table({"id": ids, "name": [f"{at}-{n}" for n in ids]})
        await writer.append(rows, lower=10 * at, upper=10 * at + 10)


async def snapshot(collection: Collection) -> pa.Table:
    async with await collection.reader() as reader:
        return await reader.snapshot()


@pytest.mark.kill
@pytest.mark.parametrize("what", ["before", "after"])
async def test_killed_the_content_stays_and_garbage_goes(tmp_path: Path, what: str) -> None:
    await check(tmp_path, what, -signal.SIGKILL, {})


def test_tasks_repeated_the_content_stays_and_garbage_goes(
    tmp_path: Path, spark_jvm: SparkJvm
) -> None:
    with spark_jvm.lend() as environment:
        asyncio.run(check(tmp_path, "flaky", 0, environment))


async def check(tmp_path: Path, what: str, code: int, environment: Mapping[str, str]) -> None:
    url = f"file://{tmp_path}/c"
    async with Collection.open(
        url, create=True, schema=COLUMNS, key=("id",), kind="upsert"
    ) as collection:
        await fill(collection)
        wanted = await snapshot(collection)
        assert child(url, what, environment) == code
        assert (await snapshot(collection)).equals(wanted)
        committed = (await collection.status()).batches
        assert bool(committed) == (what != "before")
        put = sorted(Path(tmp_path, "c", "merged").rglob("*.parquet"))
        if what == "flaky":  # both attempts of each task have put theirs
            assert len(put) == 2 * sum(len(batch.keys) for batch in committed)
        async with Controller.open(url, take_over=True, clock=Later()) as keeper:
            await keeper.compact(full=True)
        async with Controller.open(url, clock=Later()) as keeper:
            await keeper.gc()
        kept = {key for batch in (await collection.status()).batches for key in batch.keys}
        found = Path(tmp_path, "c")
        assert kept <= {str(path.relative_to(found)) for path in found.rglob("merged/**/*.parquet")}
        if what != "after":
            assert len(kept) == len(sorted(found.rglob("merged/**/*.parquet")))
        assert (await snapshot(collection)).equals(wanted)
