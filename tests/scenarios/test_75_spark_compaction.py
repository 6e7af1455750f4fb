"""A Spark compaction is killed, or its tasks are repeated: the content stays, and garbage is collected."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from uploader import Collection, Controller
from walstore.runtime.clock import SystemClock
from walstore.spark import problem

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.kill,
    pytest.mark.timeout(300),
    pytest.mark.skipif(problem() is not None, reason="Spark cannot run here"),
]
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ROWS = 1000


class Later(SystemClock):
    """A clock that is three hours ahead."""

    def now_us(self) -> int:
        return super().now_us() + 3 * 3_600_000_000


def child(url: str, what: str) -> int:
    program = Path(__file__).with_name("spark_compaction_child.py")
    done = subprocess.run([sys.executable, program, url, what], timeout=240, check=False)
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


@pytest.mark.parametrize(("what", "code"), [("before", -9), ("after", -9), ("flaky", 0)])
async def test_the_content_stays_and_garbage_goes(tmp_path: Path, what: str, code: int) -> None:
    assert -signal.SIGKILL == -9
    url = f"file://{tmp_path}/c"
    async with Collection.open(
        url, create=True, schema=COLUMNS, key=("id",), kind="upsert"
    ) as collection:
        await fill(collection)
        wanted = await snapshot(collection)
        assert child(url, what) == code
        assert (await snapshot(collection)).equals(wanted)
        committed = (await collection.status()).batches
        assert bool(committed) == (what != "before")
        put = sorted(Path(tmp_path, "c", "merged").rglob("*.parquet"))
        if what == "flaky":  # both attempts of each task have put theirs
            assert len(put) == 2 * sum(len(batch.keys) for batch in committed)
        async with Controller.open(url, take_over=True, clock=Later()) as keeper:
            await keeper.compact(is_full=True)
        async with Controller.open(url, clock=Later()) as keeper:
            await keeper.gc()
        kept = {key for batch in (await collection.status()).batches for key in batch.keys}
        found = Path(tmp_path, "c")
        assert kept <= {str(path.relative_to(found)) for path in found.rglob("merged/**/*.parquet")}
        if what != "after":
            assert len(kept) == len(sorted(found.rglob("merged/**/*.parquet")))
        assert (await snapshot(collection)).equals(wanted)
