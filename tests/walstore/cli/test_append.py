"""walstore append: every line becomes a record, and what cannot be appended is said in one line."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local import stored_batches
from tests.walstore.cli.conftest import Cli, Held, make_newer
from walstore import Record, Settings


def _records(path: Path) -> list[Record]:
    return [record for batch in stored_batches(path) for record in batch]


def test_a_line_a_record(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, stdin=b"one\n\ntwo\r\nlast")
    assert done.code == 0
    assert done.lines[0].split(maxsplit=1) == ["offsets", "[1, 5)"]
    assert [record.value for record in _records(log_directory)] == [b"one", b"", b"two\r", b"last"]


def test_json_says_which_offsets(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory, stdin=b"one\n")
    done = cli("append", log_directory, "--json", stdin=b"two\nthree\n")
    assert done.json == {
        "directory": str(log_directory),
        "start": 2,
        "limit": 4,
        "records": 2,
        "bytes": 8,
    }


def test_no_input_makes_an_empty_log(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, "--json")
    assert (done.json["start"], done.json["limit"], done.json["records"]) == (1, 1, 0)


def test_key_and_stream_and_levels(cli: Cli, log_directory: Path) -> None:
    for level in ("memory", "disk"):
        options = ("--key", "k", "--stream", "s", "--durability", level)
        assert cli("append", log_directory, *options, stdin=b"a\nb\n").code == 0
    assert {(r.key, r.stream) for r in _records(log_directory)} == {(b"k", "s")}
    assert len(_records(log_directory)) == 4


def test_length_prefixed(cli: Cli, log_directory: Path) -> None:
    values = [b"", b"with\nnewline", bytes(300_000)]
    data = b"".join(struct.pack(">I", len(value)) + value for value in values)
    assert cli("append", log_directory, "--length-prefixed", stdin=data).code == 0
    assert [record.value for record in _records(log_directory)] == values


def test_more_than_the_channel_holds(
    cli: Cli, log_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from walstore.cli import appending

    little = Settings(channel_bytes=1 << 20, max_record_bytes=1 << 20)
    monkeypatch.setattr(appending, "Settings", lambda **_: little)
    lines = b"".join(b"%06d %s\n" % (number, b"x" * 1000) for number in range(5000))
    assert cli("append", log_directory, "--json", stdin=lines).json["records"] == 5000
    assert b"\n".join([*(r.value for r in _records(log_directory)), b""]) == lines


def test_with_a_tier(cli: Cli, log_directory: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    options = ("--tier", url, "--durability", "cloud")
    assert cli("append", log_directory, *options, stdin=b"a\nb\n").code == 0
    assert [row["value"] for row in cli("dump", url).rows] == ["a", "b"]


def test_cloud_without_a_tier(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, "--durability", "cloud", stdin=b"a\n")
    assert (done.code, done.error) == (1, "--durability cloud needs --tier URL")
    assert not log_directory.exists()


@pytest.mark.parametrize("level", ["fast", "replicated"])
def test_unknown_level(cli: Cli, log_directory: Path, level: str) -> None:
    done = cli("append", log_directory, "--durability", level, stdin=b"a\n")
    assert done.code == 1
    assert "durability" in done.err
    assert not log_directory.exists()


def test_a_line_over_the_limit_keeps_those_before_it(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, stdin=b"one\ntwo\n" + bytes(17 << 20) + b"\nthree\n")
    assert done.code == 1
    assert done.out == b""
    assert "(2 records before this are on disk: [1, 3); none behind it)" in done.error
    assert "line 3 is longer than 16777216 bytes; --max-record-bytes allows" in done.error
    assert [record.value for record in _records(log_directory)] == [b"one", b"two"]


@pytest.mark.slow
def test_the_limit_can_be_raised_and_lowered(cli: Cli, log_directory: Path, tmp_path: Path) -> None:
    """The option that the message names helps; records before the refused one are in the log."""
    line = bytes(17 << 20)
    done = cli("append", log_directory, "--max-record-bytes", 17 << 20, stdin=line + b"\nnext\n")
    assert done.code == 0
    assert [len(record.value) for record in _records(log_directory)] == [17 << 20, 4]
    url = (tmp_path / "store").as_uri()
    assert cli("append", url, "--max-record-bytes", 17 << 20, stdin=line).code == 0
    for place in (tmp_path / "little", (tmp_path / "stored").as_uri()):
        done = cli("append", place, "--max-record-bytes", 3, stdin=b"one\ntwo\nthree\nfour\n")
        assert done.code == 1
        assert "(2 records before this are " in done.error
        assert "line 3 is longer than 3 bytes; --max-record-bytes" in done.error
        assert [row["value"] for row in cli("dump", place).rows] == ["one", "two"]
    prefixed = struct.pack(">I1sI", 1, b"a", 9)
    done = cli("append", place, "--max-record-bytes", 8, "--length-prefixed", stdin=prefixed)
    assert done.code == 1
    assert "1 records before this are committed" in done.error
    assert "--max-record-bytes" in done.err


def test_input_that_is_not_length_prefixed(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, "--length-prefixed", stdin=b"plain text")
    assert done.code == 1
    assert "record 1 of the input claims" in done.err
    done = cli("append", log_directory, "--length-prefixed", stdin=struct.pack(">I", 5) + b"123")
    assert done.code == 1
    assert "the input ends within record 1" in done.err


@pytest.mark.slow
def test_a_log_that_is_open_elsewhere(cli: Cli, log: Path, held: Held) -> None:
    with held(log):
        done = cli("append", log)
    assert done.code == 4
    assert "open for writing elsewhere" in done.error


def test_a_damaged_log(cli: Cli, damaged: Path) -> None:
    done = cli("append", damaged, stdin=b"a\n")
    assert done.code == 2
    assert "nothing was changed" in done.error
    assert ".wal at byte" in done.error


def test_a_newer_format(cli: Cli, log: Path) -> None:
    make_newer(max(log.glob("*.wal")))
    done = cli("append", log, stdin=b"a\n")
    assert done.code == 1
    assert "newer version" in done.error


def test_a_foreign_file(cli: Cli, log_directory: Path) -> None:
    log_directory.mkdir()
    (log_directory / "mine.wal").write_bytes(b"hello")
    done = cli("append", log_directory, stdin=b"a\n")
    assert done.code == 2
    assert "mine.wal" in done.error


def test_a_file_instead_of_a_directory(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    done = cli("append", path, stdin=b"a\n")
    assert done.code == 1
    assert str(path) in done.error


def test_a_directory_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions do not bind root; see test_a_read_only_file_system")
    tmp_path.chmod(0o500)
    done = cli("append", tmp_path / "log", stdin=b"a\n")
    tmp_path.chmod(0o700)
    assert done.code == 1
    assert "cannot be written" in done.error


def test_a_read_only_file_system(cli: Cli) -> None:
    """The kernel's own file system refuses everybody."""
    done = cli("append", "/proc/walstore-log", stdin=b"a\n")
    assert done.code == 1
    assert "/proc/walstore-log" in done.error


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["directory", "store"])
def test_a_signal_ends_the_input(tmp_path: Path, number: signal.Signals, place: str) -> None:
    """Whole lines that were read are appended; half a line is not, and stderr says so."""
    url = (tmp_path / "store").as_uri()
    location, looking = {
        "directory": (tmp_path / "log", _WAIT_FOR_A_RECORD),
        "store": (url, _WAIT_FOR_A_STORED_RECORD),
    }[place]
    process = subprocess.Popen(
        [sys.executable, "-m", "walstore.cli", "append", str(location), "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    follower = subprocess.Popen([sys.executable, "-c", looking, str(location)])
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nunfinished")
    process.stdin.flush()
    assert follower.wait(timeout=60) == 0
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == b"walstore: stopped within a record: its first 10 bytes were not appended\n"
    assert json.loads(out)["records"] == 2


_WAIT_FOR_A_RECORD = """
import asyncio, sys
from walstore import LogNotFoundError, Wal

async def main():
    while True:
        try:
            async with Wal.open_readonly(sys.argv[1]) as log:
                if log.limit > 1:
                    break
        except LogNotFoundError:
            pass

asyncio.run(main())
"""

_WAIT_FOR_A_STORED_RECORD = """
import asyncio, sys
from uploader import CloudLog
from walstore.errors import LogNotFoundError

async def main():
    while True:
        try:
            async with CloudLog.open(sys.argv[1]) as log:
                if log.tail > 1:
                    break
        except LogNotFoundError:
            pass

asyncio.run(main())
"""


@pytest.mark.parametrize("stream", ["", "x" * 257])
def test_a_stream_without_a_name_and_one_with_too_long_a_name(
    cli: Cli, tmp_path: Path, stream: str
) -> None:
    for place in (str(tmp_path / "log"), (tmp_path / "store").as_uri()):
        done = cli("append", place, "--stream", stream, stdin=b"x\n")
        assert done.code == 1
        assert "--stream needs a name of 1 to 256 characters" in done.err
        assert "Traceback" not in done.err
