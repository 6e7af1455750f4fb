"""walstore tail and dump: records of a directory and of a store, and what is appended meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sys
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import SMALL, Cli, fill
from uploader import CloudTier, UploadSettings
from walstore import Wal
from walstore.cli.output import visible
from walstore.records import from_timestamp_us


@pytest.mark.parametrize("kind", ["log", "stored"])
def test_the_last_ten_values(cli: Cli, kind: str, request: pytest.FixtureRequest) -> None:
    location = request.getfixturevalue(kind)
    done = cli("tail", location)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [f"value {number}" for number in range(91, 101)]
    assert cli("tail", location, "--from", "-2").lines == ["value 99", "value 100"]
    assert cli("tail", location, "--from", "latest").out == b""


@pytest.mark.parametrize("kind", ["log", "stored"])
def test_a_moment_after_all_records_is_no_failure_and_no_silence(
    cli: Cli, kind: str, request: pytest.FixtureRequest
) -> None:
    location = request.getfixturevalue(kind)
    for verb in ("tail", "dump"):
        with case(verb):
            done = cli(verb, location, "--from", "9999-12-31")
            assert (done.code, done.out) == (0, b"")
            assert done.err.startswith("walstore: no record is from the time given with --from")
            assert cli(verb, location, "--from", "101").err == ""
            assert cli(verb, location, "--from", "-1h").err == ""


def test_values_are_written_as_they_are(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory, stdin=b"\xff\0\n\nx\n")
    assert cli("tail", log_directory).out == b"\xff\0\n\nx\n"


def test_json_is_that_of_dump(cli: Cli, log: Path) -> None:
    assert cli("tail", log, "--json").out == cli("dump", log, "--from", "-10").out


def test_no_log_and_damage(cli: Cli, tmp_path: Path, damaged: Path) -> None:
    assert cli("tail", tmp_path / "nowhere").code == 3
    assert cli("tail", "-f", tmp_path / "nowhere").code == 3
    assert cli("tail", damaged).code == 2


async def _tail(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "walstore.cli", "tail", "-f", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _stop(process: asyncio.subprocess.Process, number: int) -> None:
    process.send_signal(number)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_follows_a_live_log_over_rotation_until_a_signal(
    log_directory: Path, number: int
) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"before")
        process = await _tail(log_directory, "--from", "earliest")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"before\n"
        for number_of in range(40):
            await wal.append_many([b"%d-%d " % (number_of, at) + bytes(200) for at in range(50)])
            await wal.append(b"last of %d" % number_of)
            while (await process.stdout.readline()) != b"last of %d\n" % number_of:
                pass
        assert len(list(log_directory.glob("*.wal"))) > 3
        await _stop(process, number)


@pytest.mark.slow
async def test_follows_one_stream(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await wal.append(b"before", stream="eu")
        process = await _tail(log_directory, "--stream", "eu")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"before\n"
        for number in range(10):
            await wal.append_many([bytes(200)] * 100, stream="us")
            await wal.append(b"%d" % number, stream="eu")
            assert await process.stdout.readline() == b"%d\n" % number
        await _stop(process, signal.SIGINT)


@pytest.mark.slow
async def test_follows_a_store(log_directory: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    tier = CloudTier(url, settings=UploadSettings(fragment_age_seconds=0.01))
    async with Wal.open(log_directory, tier=tier) as wal:
        await wal.append(b"one", durability="cloud")
        process = await _tail(url, "--json")
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["value"] == "one"
        await wal.append(b"two", durability="cloud")
        assert json.loads(await process.stdout.readline())["offset"] == 2
        await _stop(process, signal.SIGINT)


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
    assert cli("tail", streams, "--stream", "eu").lines == [str(offset) for offset in expected]
    assert cli("tail", streams, "--stream", "eu", "--from", "-2").lines == ["8007", "9007"]


def test_a_stream_that_no_record_has_is_no_failure_and_no_silence(cli: Cli, streams: str) -> None:
    for asked in (
        ("dump", "--stream", "nowhere"),
        ("dump", "--stream", "nowhere", "--from", "-3"),
        ("dump", "--stream", "eu", "--from", "8", "--to", "1007"),
        ("tail", "--stream", "nowhere"),
    ):
        with case(*asked):
            done = cli(asked[0], streams, *asked[1:])
            assert (done.code, done.out) == (0, b"")
            assert (
                done.err == f"walstore: no record that was asked for has the stream {asked[2]!r}\n"
            )
    for asked in (
        ("dump", "--stream", "eu", "--limit", "0"),
        ("dump", "--stream", "eu", "--limit", "1"),
        ("dump", "--stream", "eu", "--from", "latest"),
        ("tail", "--stream", "eu", "-n", "0"),
    ):
        with case(*asked):
            assert cli(asked[0], streams, *asked[1:]).err == ""


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
        ("tomorrow", "not a place in a log"),
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


ODD_NAMES = (
    "two\nlines",
    "tab\tand  spaces",
    "\r",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\x9b31m",
    "\u2028",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_name_with_control_characters_is_seen_as_it_is(
    name: str, cli: Cli, tmp_path: Path
) -> None:
    async def fill_it() -> None:
        async with Wal.open(tmp_path / "log") as wal:
            await wal.append(b"v", b"k", name, {name: b"h"})

    asyncio.run(fill_it())
    for verb in (("dump",), ("tail", "--json")):
        with case(verb):
            done = cli(*verb, tmp_path / "log")
            (line,) = done.lines
            assert not any(is_control(one) for one in line)
            shown = json.loads(line)
            assert (shown["stream"], shown["headers"]) == (name, {name: "h"})
            assert cli(*verb, tmp_path / "log", "--stream", name).lines == [line]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("verb", ["dump", "tail", "inspect", "ls", "verify", "top", "cursors"])
def test_an_error_shows_a_name_as_it_is(verb: str, name: str, cli: Cli, tmp_path: Path) -> None:
    done = cli(verb, tmp_path / name)
    assert visible(name) in done.error
    done = cli(verb, tmp_path / name, "--json")
    assert not any(is_control(one) for one in done.err.removesuffix("\n"))
    assert name in json.loads(done.err)["error"]


def test_a_wrong_command_line_shows_a_name_as_it_is(cli: Cli) -> None:
    assert r"(two  words\u2028)" in cli("dump", "one", "two  words\u2028").error


def is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Zl", "Zp"}
