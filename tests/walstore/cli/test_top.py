"""walstore top, ls, and inspect of a directory of logs: what there is, and what happens to it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.walstore.cli.conftest import Cli
from uploader import CloudTier
from walstore import Wal, WalStore
from walstore.cli.samples import Sample, look_at
from walstore.cli.top import History, draw, sparkline
from walstore.core.runtime.statistics import GroupStatistics
from walstore.serve import Server


def picture(*histories: History, sort: Any = "name") -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(draw("somewhere", list(histories), sort))
    return console.export_text()


def history(*samples: Sample) -> History:
    made = History()
    for at, sample in enumerate(samples):
        made.add(sample, float(at))
    return made


def test_rates_are_between_looks() -> None:
    made = history(
        Sample("a", 1, 1, 0, files={"1": 100}),
        Sample("a", 1, 501, 0, files={"1": 600}),
        Sample("a", 400, 1501, 0, files={"2": 700}),  # the first file was removed
    )
    assert (made.records_rate, made.bytes_rate) == (1000, 700)
    assert list(made.rates) == [500, 1000]
    assert sparkline(made.rates) == "▅█"


def test_the_picture_of_a_log_says_who_holds_it_back() -> None:
    sample = Sample(
        "a",
        1,
        1001,
        1 << 20,
        segments=3,
        uploaded_limit=501,
        tier_url="s3://bucket/a",
        cursors=(
            ("slow", 101, True),
            ("fast", 1001, True),
            ("gone", 50, False),
            ("bad", None, True),
        ),
        groups=(GroupStatistics("workers", 10, 20, 30, 40, 50, 60, 70),),
        notes=(("failure", "the disk is gone"),),
    )
    lines = picture(history(sample)).splitlines()

    def line(name: str) -> str:
        (found,) = (one for one in lines if one.split()[:1] == [name])
        return found

    assert "500 records to s3://bucket/a" in next(one for one in lines if "not shipped" in one)
    assert line("slow").split()[1:3] == ["101", "900"]
    assert "holds retention back" in line("slow")
    assert "holds" not in line("fast")
    assert "its lease ended" in line("gone")
    assert "cannot be read" in line("bad")
    assert line("workers").split()[1:] == ["10", "40", "20", "30", "50", "60", "70"]
    assert "the disk is gone" in line("failure")
    assert sum(one.count("▼") for one in lines) == 3


def test_several_logs_are_a_table_in_the_wanted_order() -> None:
    shown = (
        history(Sample("a", 1, 101, 10)),
        history(Sample("b", 1, 11, 999, cursors=(("c", 1, True),))),
    )
    assert picture(*shown).index("\na ") < picture(*shown).index("\nb ")
    assert picture(*shown, sort="bytes").index("\nb ") < picture(*shown, sort="bytes").index("\na ")
    assert picture(*shown, sort="lag").index("\nb ") < picture(*shown, sort="lag").index("\na ")
    assert "0 logs" in picture()


async def test_beside_the_writer(cli: Cli, tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        await wal.append_many([b"v"] * 10)
        await wal.cursor("report")
        done = await asyncio.to_thread(cli, "top", tmp_path / "log", "--count", "1", "--json")
        (found,) = done.json["logs"]
        assert (found["records"], found["name"]) == (10, "log")
        assert f"process {os.getpid()}" in found["writer"]
        assert found["cursors"] == [{"name": "report", "position": 1, "pins": True}]
        plain = await asyncio.to_thread(
            cli, "top", tmp_path / "log", "--count", "2", "--interval", "0.1"
        )
        assert plain.code == 0
        assert sum("10 records" in line for line in plain.lines) == 2


async def test_a_served_log_tells_of_its_groups(cli: Cli, tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "log", tier=CloudTier("memory://top")) as wal,
        Server.open(wal, unix=tmp_path / "s.sock"),
        wal.group("workers") as group,
    ):
        await wal.append(b"v", durability="cloud")
        await group.fetch()
        address = f"unix://{tmp_path / 's.sock'}"
        done = await asyncio.to_thread(cli, "top", address, "--count", "1", "--json")
        (found,) = done.json["logs"]
        assert found["groups"][0]["pending"] == 1
        assert found["uploaded_limit"] == 2


async def test_a_stored_log(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    async with Wal.open(tmp_path / "log", tier=CloudTier(url)) as wal:
        await wal.append(b"v", durability="cloud")
    done = await asyncio.to_thread(cli, "top", url, "--count", "1", "--json")
    assert done.json["logs"][0]["records"] == 1


async def test_a_directory_of_logs(cli: Cli, tmp_path: Path) -> None:
    async with WalStore.open(tmp_path / "store") as store:
        await (await store.wal("b/c")).append(b"v")
        await (await store.wal("a")).append(b"v")
    for verb in (("ls",), ("inspect",), ("top", "--count", "1")):
        done = await asyncio.to_thread(cli, *verb, tmp_path / "store")
        assert [line.split()[0] for line in done.lines[-2:]] == ["a", "b/c"], verb
    found = (await asyncio.to_thread(cli, "ls", tmp_path / "store", "--json")).json
    assert [one["records"] for one in found["logs"]] == [1, 1]


async def test_a_damaged_log_does_not_hide_the_others(cli: Cli, tmp_path: Path) -> None:
    for name in ("a", "b"):
        async with Wal.open(tmp_path / name) as wal:
            await wal.append(b"v")
    (segment,) = (tmp_path / "a").glob("*.wal")
    segment.write_bytes(b"x" * 4096)
    done = await asyncio.to_thread(cli, "ls", tmp_path)
    assert done.code == 0
    assert "magic" in done.lines[1] or "damage" in done.lines[1] or "header" in done.lines[1]
    assert done.lines[2].split()[1] == "1"


async def test_no_logs(cli: Cli, tmp_path: Path) -> None:
    async with WalStore.open(tmp_path / "empty"):
        pass
    assert (await asyncio.to_thread(cli, "ls", tmp_path / "empty", "--json")).json["logs"] == []
    (tmp_path / "nothing").mkdir()
    for verb in (("ls",), ("top",)):
        done = await asyncio.to_thread(cli, *verb, tmp_path / "nothing")
        assert done.code == 3
        assert "there is no log" in done.error


async def test_what_cannot_be_read_is_listed_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "b") as wal:
        await wal.append(b"v")
    (tmp_path / "a").symlink_to("a")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    done = await asyncio.to_thread(cli, "ls", tmp_path, "--json")
    assert done.code == 0
    found = {one["name"]: one for one in done.json["logs"]}
    assert found.keys() == {"a", "b"}
    assert "too many levels of symbolic links" in found["a"]["problem"]
    assert (found["b"]["records"], found["b"]["problem"]) == (1, None)
    alone = await asyncio.to_thread(cli, "ls", tmp_path / "a")
    assert (alone.code, "too many levels of symbolic links" in alone.error) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_a_log_of_somebody_else(scratch: Path, mode: int) -> None:
    """As a user that may not read it, who is nobody if the tests run as root.

    Not below pytest's own directory, which each session of pytest closes to others as it begins.
    """
    for name in ("mine", "theirs"):
        asyncio.run(_make(scratch / name))
    for path in (scratch, *scratch.parents):
        if path.stat().st_uid == os.getuid() and path != Path(path.anchor):
            path.chmod(path.stat().st_mode | 0o055)
    for path in (scratch / "mine", *(scratch / "mine").iterdir()):
        path.chmod(0o755)
    (scratch / "theirs").chmod(mode)
    try:
        for verb, code in (
            (("ls", str(scratch)), 0),
            (("ls", str(scratch / "theirs")), 1),
            (("inspect", str(scratch / "theirs")), 1),
            (("top", str(scratch / "theirs"), "--count", "1"), 1),
            (("tail", str(scratch / "theirs")), 1),
        ):
            done = _as_nobody(verb)
            assert done.returncode == code, (verb, done)
            assert "permission denied" in (done.stderr if code else done.stdout).lower(), verb
            assert "Traceback" not in done.stderr
    finally:
        (scratch / "theirs").chmod(0o755)


def _as_nobody(verb: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command line as nobody; as root before, since modules may be for root alone."""
    program = """
import contextlib, io, os, sys, zoneinfo
from walstore.cli.app import run
with contextlib.redirect_stderr(io.StringIO()):
    sys.stdout = io.TextIOWrapper(io.BytesIO())
    run(sys.argv[1:])
sys.stdout = sys.__stdout__
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", program, *verb]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_bytes_are_those_that_were_written(cli: Cli, tmp_path: Path) -> None:
    """The file of the active segment is longer: its space is reserved."""
    async with Wal.open(tmp_path / "log") as wal:
        (before,) = await asyncio.to_thread(look_at, tmp_path / "log")
        made = History()
        made.add(before, 0.0)
        await wal.append_many([os.urandom(1000)] * 100, durability="disk")
        (after,) = await asyncio.to_thread(look_at, tmp_path / "log")
        made.add(after, 1.0)
        assert 100_000 <= made.bytes_rate < 110_000
        assert 100_000 <= after.size_bytes < 110_000
        done = await asyncio.to_thread(cli, "ls", tmp_path, "--json")
        assert done.json["logs"][0]["bytes"] == after.size_bytes
    (closed,) = await asyncio.to_thread(look_at, tmp_path / "log")
    assert 100_000 <= closed.size_bytes < 110_000


async def test_a_server_of_many_logs_says_what_to_give(cli: Cli, tmp_path: Path) -> None:
    async with WalStore.open(tmp_path / "store") as store, Server.open(store, unix=tmp_path / "s"):
        address = f"unix://{tmp_path}/s"
        for verb, end in (
            (("top", "--count", "1"), ""), (("tail",), "?log="), (("append",), ""), (("group",), ""),
        ):  # fmt: skip
            done = await asyncio.to_thread(cli, *verb, f"{address}{end}")
            assert done.code == 1
            assert done.error == (
                f"the server at {address} has many logs; name one: {address}?log=NAME"
            ), verb


async def test_names_do_not_reach_the_terminal_as_commands(cli: Cli, tmp_path: Path) -> None:
    odd = "x\x1b[2J\x07[red]\x9b\u202e\nz"
    for name in (odd, "y"):
        async with Wal.open(tmp_path / name) as wal:
            await wal.append(b"v")
    (tmp_path / f"{odd}loop").symlink_to(f"{odd}loop")
    shown = r"x\x1b[2J\x07[red]\x9b\u202e"
    for verb in (
        ("ls", tmp_path),
        ("ls", tmp_path / odd),
        ("top", tmp_path, "--count", "1"),
        ("top", tmp_path / odd, "--count", "1"),
        ("inspect", tmp_path / odd),
        ("verify", tmp_path / odd),
        ("segments", tmp_path / odd / "none"),
        ("ls", tmp_path / f"{odd}loop"),
    ):
        done = await asyncio.to_thread(cli, *verb)
        text = done.out.decode() + done.err
        assert all(line.isprintable() for line in text.splitlines()), (verb, text)
        if verb[:2] != ("top", tmp_path):  # whose table is as wide as the terminal
            assert shown in text.replace("\n", ""), (verb, text)


@pytest.mark.slow
def test_on_a_terminal_it_is_drawn_until_a_signal(tmp_path: Path) -> None:
    asyncio.run(_make(tmp_path / "log"))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "walstore", "top", str(tmp_path / "log"), "--interval", "0.1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as shown:
        os.close(theirs)
        seen = b""
        try:
            while seen.count(b"records/s") < 3:
                seen += os.read(ours, 65_536)
            shown.send_signal(signal.SIGINT)
            with suppress(OSError):  # the terminal's other end is closed
                while more := os.read(ours, 65_536):
                    seen += more
            assert shown.wait(timeout=60) == 0
        finally:
            shown.kill()
    os.close(ours)
    assert b"\x1b[?1049h" in seen  # a screen of its own
    assert b"\x1b[?1049l" in seen  # and back
    assert b"Traceback" not in seen


async def _make(path: Path) -> None:
    async with Wal.open(path) as wal:
        await wal.append(json.dumps({}).encode())
