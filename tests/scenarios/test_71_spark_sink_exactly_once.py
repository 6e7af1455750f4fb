"""A stream into a partitioned log is killed again and again; each row is in it once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.spark_classes import python_path
from tests.uploader.partitioned.writes import keys_in, records_in
from uploader.stores import open_store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

CHILD = Path(__file__).with_name("spark_sink_child.py")
ROOT = Path(__file__).parents[2]
FILES = 14
ROWS = 120
KILLS = some(10)


def write_files(directory: Path) -> list[tuple[str, str]]:
    """Write files of rows, and return all rows."""
    directory.mkdir()
    rows = [(f"key-{at % 17}", f"value-{at:06d}-" + "x" * 60) for at in range(FILES * ROWS)]
    for number in range(FILES):
        part = rows[number * ROWS : (number + 1) * ROWS]
        lines = [json.dumps({"key": key, "value": value}) for key, value in part]
        (directory / f"{number:04d}.json").write_text("\n".join(lines))
    return rows


def start(tmp_path: Path) -> subprocess.Popen[str]:
    arguments = [tmp_path / "files", f"file://{tmp_path}/store/orders", tmp_path / "checkpoint"]
    with (tmp_path / "errors").open("a") as errors:
        return subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": python_path(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def run_and_kill(tmp_path: Path, chance: random.Random) -> bool:
    """Kill the program some time after a few micro-batches; return whether it had come to its end."""
    child = start(tmp_path)
    try:
        assert child.stdout is not None
        for _ in range(chance.randint(1, 4)):
            line = child.stdout.readline()
            assert line, (tmp_path / "errors").read_text()[-4000:]
            if line == "done\n":
                return True
        try:  # anywhere in what comes next
            child.wait(chance.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            return False
        return child.returncode == 0
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_each_row_is_in_the_log_once(tmp_path: Path) -> None:
    rows = write_files(tmp_path / "files")
    chance = random.Random(first_seed("a Spark sink"))
    for _ in range(KILLS):
        if run_and_kill(tmp_path, chance):
            break
    last = start(tmp_path)
    output, _ = last.communicate(timeout=400)
    assert output.endswith("done\n"), (tmp_path / "errors").read_text()[-4000:]
    asyncio.run(check(f"file://{tmp_path}/store/orders", rows))


async def check(url: str, rows: list[tuple[str, str]]) -> None:
    """Each row is there once, the rows of a key lie in one log, and nothing else is left."""
    store = open_store(url)
    found = [await records_in(store, partition) for partition in range(3)]
    assert Counter((record.key, record.value) for log in found for record in log) == Counter(
        (key.encode(), value.encode()) for key, value in rows
    )
    for log in found:
        assert [record.offset for record in log] == list(range(1, len(log) + 1))
    for key in {key.encode() for key, _ in rows}:
        assert sum(any(record.key == key for record in log) for log in found) == 1
    staged = [key for key in await keys_in(store, "sink/") if "queries/" not in key]
    assert staged == []
    await store.aclose()
