"""walstore dump: records as JSON lines, from a directory and from a store alike."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import SMALL, Cli, fill
from walstore import Wal
from walstore.records import from_timestamp_us


@pytest.fixture(params=["directory", "store"])
def location(request: pytest.FixtureRequest) -> str:
    """The same 100 records in both places."""
    return str(request.getfixturevalue("log" if request.param == "directory" else "stored"))


def test_all_fields(cli: Cli, location: str) -> None:
    done = cli("dump", location)
    assert (done.code, done.err) == (0, "")
    assert [row["offset"] for row in done.rows] == list(range(1, 101))
    row = done.rows[41]
    assert isinstance(row.pop("timestamp_us"), int)
    assert row == {
        "offset": 42,
        "key": "key 42",
        "stream": "s",
        "headers": {"h": {"base64": "/w=="}},
        "value": "value 42",
    }
    assert cli("dump", location, "--json").out == done.out


def test_places(cli: Cli, location: str) -> None:
    for options, expected in (
        (["--from", "95"], range(95, 101)),
        (["--from", "-3"], range(98, 101)),
        (["--from", "-1000"], range(1, 101)),
        (["--from", "latest"], range(0)),
        (["--to", "4"], range(1, 4)),
        (["--to", "earliest"], range(0)),
        (["--to", "5000"], range(1, 101)),
        (["--from", "10", "--to", "5"], range(0)),
        (["--from", "10", "--limit", "3"], range(10, 13)),
        (["--limit", "0"], range(0)),
        (["--from", "-10", "--to", "-8"], range(91, 93)),
        (["--from", "2000-01-01"], range(1, 101)),
        (["--to", "2000-01-01T00:00:00+02:00"], range(0)),
        (["--from", "2200-01-01"], range(0)),
        (["--from", "101"], range(0)),
    ):
        with case(options, expected):
            done = cli("dump", location, *options)
            assert done.code == 0
            assert [row["offset"] for row in done.rows] == list(expected)


@pytest.fixture(params=["directory", "store"])
def streams(request: pytest.FixtureRequest, cli: Cli, log_directory: Path, tmp_path: Path) -> str:
    """10 000 records; those of stream ``eu`` have the offsets 7, 1007, 2007, ..., 9007."""

    async def append() -> None:
        async with Wal.open(log_directory, settings=SMALL) as wal:
            for offset in range(1, 10_001):
                wal.append_nowait(b"%d" % offset, stream="eu" if offset % 1000 == 7 else "us")
            await wal.flush()

    asyncio.run(append())
    if request.param == "directory":
        return str(log_directory)
    url = (tmp_path / "store").as_uri()
    assert cli("upload", log_directory, url).code == 0
    return url


def test_one_stream(cli: Cli, streams: str) -> None:
    expected = list(range(7, 10_001, 1000))

    def dump(*options: object) -> list[int]:
        done = cli("dump", streams, "--stream", "eu", *options)
        assert (done.code, done.err) == (0, "")
        assert all(row["stream"] == "eu" for row in done.rows)
        return [row["offset"] for row in done.rows]

    assert dump() == expected
    assert dump("--limit", 3) == expected[:3]
    assert dump("--limit", 0) == []
    assert dump("--from", 1007, "--limit", 2) == expected[1:3]
    assert dump("--from", 1008, "--to", 3007) == [2007]
    for count in (1, 2, 9, 10, 11, 20_000):
        assert dump("--from", -count) == expected[-count:]
    assert dump("--from", "-4", "--to", "-2") == expected[-4:-2]
    assert dump("--from", "-0") == []
    assert cli("dump", streams, "--stream", "nowhere").out == b""
    assert cli("dump", streams, "--stream", "nowhere", "--from", "-3").out == b""
    assert cli("tail", streams, "--stream", "eu").lines == [str(offset) for offset in expected]
    assert cli("tail", streams, "--stream", "eu", "--from", "-2").lines == ["8007", "9007"]


def test_no_stream_has_an_empty_name(cli: Cli, location: str) -> None:
    for verb in ("dump", "tail"):
        done = cli(verb, location, "--stream", "")
        assert (done.code, done.out) == (1, b"")
        assert "never empty" in done.error


def test_places_in_time(cli: Cli, log_directory: Path) -> None:
    """A batch that lies in the middle of a segment is found by its time."""
    asyncio.run(fill(log_directory, records=2000))
    asyncio.run(fill(log_directory, records=10, start=2001))
    moment = from_timestamp_us(cli("dump", log_directory, "--from", "2001").rows[0]["timestamp_us"])
    for text in (moment.isoformat(), moment.replace(tzinfo=None).isoformat()):
        assert len(cli("dump", log_directory, "--from", text).rows) == 10
        assert len(cli("dump", log_directory, "--to", text).rows) == 2000
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("dump", log_directory, "--from", later).rows == []


@pytest.mark.parametrize(
    ("option", "text", "binary"),
    [
        ("auto", "täxt", {"base64": "/wA="}),
        ("utf8", "täxt", "\ufffd\0"),
        ("hex", "täxt".encode().hex(), "ff00"),
        ("base64", base64.b64encode("täxt".encode()).decode(), "/wA="),
    ],
)
def test_values(cli: Cli, log_directory: Path, option: str, text: object, binary: object) -> None:
    async def append() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append_many(["täxt".encode(), b"\xff\0", b""])

    asyncio.run(append())
    done = cli("dump", log_directory, "--value", option)
    assert [row["value"] for row in done.rows] == [text, binary, ""]
    if option == "auto":
        assert "täxt" in done.out.decode()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("yesterday", "not a place in a log"),
        ("1.5", "not a place"),
        ("102", "has not been written"),
    ],
)
def test_places_that_are_none(cli: Cli, location: str, place: str, message: str) -> None:
    done = cli("dump", location, "--from", place)
    assert (done.code, done.out) == (1, b"")
    assert message in done.error


def test_offsets_that_were_removed(cli: Cli, log_directory: Path) -> None:
    asyncio.run(fill(log_directory, records=3000))
    oldest = min(log_directory.glob("*.wal"))
    oldest.unlink()
    (log_directory / "CHECKPOINT").unlink()
    (log_directory / "DURABLE").unlink()
    done = cli("dump", log_directory, "--from", "1")
    assert done.code == 1
    assert "was removed from the log" in done.error
    assert cli("dump", log_directory).rows[0]["offset"] > 1


def test_damage_ends_it_with_the_place(cli: Cli, damaged: Path) -> None:
    done = cli("dump", damaged)
    assert done.code == 2
    assert ".wal at byte" in done.error


def test_the_output_is_utf8_whatever_the_values(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory, stdin=b'\xe2\x82\xac\n\x00\n"\\\n')
    rows = [
        json.loads(line) for line in cli("dump", log_directory).out.decode("utf-8").split("\n")[:-1]
    ]
    assert [row["value"] for row in rows] == ["€", "\0", '"\\']
