"""walstore inspect and segments: what a log is like, without touching it, also next to a live writer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.local import stored_batches
from tests.walstore.cli.conftest import SMALL, Cli, Held, fill, flip
from walstore import Wal
from walstore.cli.holder import find_holder
from walstore.core.files.log_files import LogSnapshot


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_writer_and_the_tier_are_shown(cli: Cli, log: Path, stored: str, held: Held) -> None:
    with held(log) as pid:
        plain, as_json = cli("inspect", log), cli("inspect", log, "--json")
    assert (plain.code, as_json.code) == (0, 0)
    assert f"process {pid} on " in plain.out.decode()
    assert stored in plain.out.decode()
    assert as_json.json["writer"]["pid"] == pid


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


async def test_beside_a_writer(cli: Cli, log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for _ in range(30):
            await wal.append(bytes(5000))
        done = await asyncio.to_thread(cli, "segments", log_directory)
    assert done.code == 0
    assert len(done.lines) > 3
    assert done.lines[-1].split()[1] == "31"


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
