"""walstore inspect: what a log is like, without touching it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.walstore.cli.conftest import SMALL, Cli, fill
from walstore import Wal
from walstore.cli.inspect import find_holder
from walstore.files.log_snapshot import LogSnapshot


def test_a_directory(cli: Cli, log: Path) -> None:
    done = cli("inspect", log)
    assert (done.code, done.err) == (0, "")
    fields = dict(line.split(maxsplit=1) for line in done.lines if not line.startswith(" "))
    assert fields["offsets"] == "[1, 101)"
    assert fields["records"] == "100"
    assert fields["writer"] == "none"
    assert len(done.lines) < 24


def test_a_directory_as_json(cli: Cli, log: Path) -> None:
    found = cli("inspect", log, "--json").json
    view = LogSnapshot.open(log)
    assert found["kind"] == "directory"
    assert (found["log_id"], found["head"], found["durable_limit"]) == (view.log_id, 1, 101)
    assert (found["records"], found["epoch"], found["writer"]) == (100, 1, None)
    assert found["bytes"] == sum(file.stat().st_size for file in log.glob("*.wal"))
    assert (found["tier_url"], found["uploaded_limit"]) == (None, None)
    (segment,) = found["segments"]
    assert (segment["start"], segment["limit"], segment["sealed"]) == (1, 101, False)


def test_many_segments_stay_on_one_screen(cli: Cli, log_directory: Path) -> None:
    asyncio.run(fill(log_directory, records=20_000))
    done = cli("inspect", log_directory)
    assert "older ones are not shown" in done.out.decode()
    assert len(done.lines) < 24
    segments = cli("inspect", log_directory, "--json").json["segments"]
    assert len(segments) == len(list(log_directory.glob("*.wal"))) > 8
    assert [s["start"] for s in segments[1:]] == [s["limit"] for s in segments[:-1]]


async def test_who_holds_a_log(log_directory: Path) -> None:
    assert await asyncio.to_thread(find_holder, log_directory) is None
    async with Wal.open(log_directory, settings=SMALL):
        holder = await asyncio.to_thread(find_holder, log_directory)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert f"process {os.getpid()} on " in holder.note
    assert await asyncio.to_thread(find_holder, log_directory) is None


def test_locks_of_others_are_not_taken_for_ours(log: Path, tmp_path: Path) -> None:
    inode = (log / "LOCK").stat().st_ino
    table = tmp_path / "locks"
    lines = [
        f"1: POSIX  ADVISORY  WRITE 10 00:00:{inode} 0 EOF",
        f"2: -> FLOCK  ADVISORY  WRITE 11 00:00:{inode} 0 EOF",
        f"3: FLOCK  ADVISORY  WRITE 12 00:00:{inode + 1} 0 EOF",
        f"4: FLOCK  ADVISORY  WRITE 13 00:00:{inode} 0 EOF",
    ]
    table.write_text("\n".join(lines))
    assert find_holder(log, locks=table) is None
    (log / "LOCK").write_text("process 13 on here")
    holder = find_holder(log, locks=table)
    assert holder is not None
    assert holder.pid == 13
    assert find_holder(log, locks=tmp_path / "none") is None


def test_the_writer_and_the_tier_are_shown(cli: Cli, log: Path, stored: str) -> None:
    async def look() -> tuple[bytes, bytes]:
        async with Wal.open(log):
            return await _inspect(log), await _inspect(log, "--json")

    plain, as_json = asyncio.run(look())
    assert b"process %d on " % os.getpid() in plain
    assert stored.encode() in plain
    assert b'"pid":%d' % os.getpid() in as_json


async def _inspect(*arguments: object) -> bytes:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "walstore.cli", "inspect", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


def test_a_store(cli: Cli, stored: str, log: Path) -> None:
    done = cli("inspect", stored)
    assert done.code == 0
    assert "[1, 101)" in done.out.decode()
    found = cli("inspect", stored, "--json").json
    assert (found["kind"], found["location"]) == ("store", stored)
    assert (found["head"], found["tail"], found["records"]) == (1, 101, 100)
    assert (found["fragments"], found["snapshots"], found["next_fragment"]) == (1, 0, 2)
    assert len(found["setsum"]) == 64
    assert found["bytes"] == found["appended_bytes"] > 0
    assert found["writer"].endswith(LogSnapshot.open(log).log_id)
