"""walstore segments: every file of a log, also beside a live writer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.local import stored_batches
from tests.walstore.cli.conftest import SMALL, Cli, fill, flip
from walstore import Wal


def test_one_segment(cli: Cli, log: Path) -> None:
    done = cli("segments", log)
    assert (done.code, done.err) == (0, "")
    head, row = done.lines
    assert head.split() == [
        "start",
        "limit",
        "records",
        "batches",
        "bytes",
        "first",
        "last",
        "state",
    ]
    assert row.split()[:3] == ["1", "101", "100"]
    assert row.split()[-1] == "active"


def test_many_segments_as_json(cli: Cli, log_directory: Path) -> None:
    asyncio.run(fill(log_directory, records=5000))
    done = cli("segments", log_directory, "--json").json
    found = done["segments"]
    assert [one["name"] for one in found] == sorted(p.name for p in log_directory.glob("*.wal"))
    assert [one["start"] for one in found[1:]] == [one["limit"] for one in found[:-1]]
    assert sum(one["records"] for one in found) == 5000
    assert [one["sealed"] for one in found] == [True] * (len(found) - 1) + [False]
    assert sum(one["bytes"] for one in found) == sum(
        path.stat().st_size for path in log_directory.glob("*.wal")
    )
    times = [(one["min_timestamp_us"], one["max_timestamp_us"]) for one in found if one["records"]]
    assert times == sorted(times)
    assert sum(one["batches"] for one in found) == len(list(stored_batches(log_directory)))


def test_an_empty_log(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory)
    (found,) = cli("segments", log_directory, "--json").json["segments"]
    assert (found["records"], found["batches"], found["min_timestamp_us"]) == (0, 0, None)
    assert cli("segments", log_directory).lines[1].split()[:4] == ["1", "1", "0", "0"]


async def test_beside_a_writer(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for _ in range(30):
            await wal.append(bytes(5000))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "walstore.cli", "segments", str(log_directory)),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert len(out.splitlines()) > 3
    assert out.splitlines()[-1].split()[1] == b"31"


def test_a_damaged_batch_is_told_with_its_place(cli: Cli, log: Path) -> None:
    (path,) = log.glob("*.wal")
    flip(path, 64)
    done = cli("segments", log)
    assert done.code == 2
    assert f"{path} at byte 64" in done.error


def test_nothing_there(cli: Cli, tmp_path: Path) -> None:
    assert cli("segments", tmp_path).code == 3
    assert cli("segments", tmp_path / "nowhere").code == 3


@pytest.mark.parametrize("verb", ["segments", "trim", "repair", "bench"])
def test_stores_have_no_such_thing(cli: Cli, verb: str) -> None:
    before = ["--before", "5"] if verb == "trim" else []
    done = cli(verb, "s3://bucket/orders", *before)
    assert done.code == 1
    assert f"{verb} needs a log directory" in done.error
