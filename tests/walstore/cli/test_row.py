"""Lines that say more than a value: keys, times, and whole records as dump writes them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from walstore import Record, Wal
from walstore.cli.errors import UsageError
from walstore.cli.output import to_json
from walstore.cli.records import ValueEncoding, encoder, to_json_lines
from walstore.cli.row import JsonParser, LineParser


def test_a_line_may_begin_with_a_time_and_a_key() -> None:
    at = 1_700_000_000_000_000
    for parser, line, row in (
        (LineParser(), b"a\tb\r", (b"a\tb\r", {})),
        (LineParser(has_crlf=True), b"a\r", (b"a", {})),
        (LineParser(has_crlf=True), b"a", (b"a", {})),
        (LineParser(key_delimiter=b"\t"), b"k\tv\tw", (b"v\tw", {"key": b"k"})),
        (LineParser(key_delimiter=b"::"), b"v", (b"v", {})),
        (LineParser(key_delimiter=b":"), b":v", (b"v", {"key": b""})),
        (LineParser(time_delimiter=b" "), b"%d v" % at, (b"v", {"timestamp_us": at})),
        (LineParser(time_delimiter=b" "), b"2023-11-14T22:13:20Z v", (b"v", {"timestamp_us": at})),
        (LineParser(time_delimiter=b" "), b"2023-11-14T23:13:20+01:00 v", (b"v", {"timestamp_us": at})),
        (LineParser(time_delimiter=b"|"), b"2023-11-14 22:13:20|v", (b"v", {"timestamp_us": at})),
        (
            LineParser(time_delimiter=b" "),
            b"2023-11-14T22:13:20.000001000Z v",
            (b"v", {"timestamp_us": at + 1}),
        ),
        (
            LineParser(time_delimiter=b" ", key_delimiter=b"="),
            b"%d k=v" % at,
            (b"v", {"timestamp_us": at, "key": b"k"}),
        ),
    ):  # fmt: skip
        with case(line, parser):
            assert parser(line) == row


def test_a_line_that_is_wrong_is_named() -> None:
    json_parser, timed = JsonParser(), LineParser(time_delimiter=b" ")
    timed(b"0 v")
    for parser, line, why in (
        (timed, b"v", "line 2 has no time before ' '"),
        (timed, b"soon v", "line 3 begins with no time: 'soon'"),
        (timed, b"\xff v", "line 4 begins with no time"),
        (timed, b"2023-11-14T22:13:20.123456789Z v", "line 5: the time is finer than 6 digits"),
        (timed, b"2023-11-14T22:13:20,0000001+01:00 v", "line 6: the time is finer than 6 digits"),
        (timed, b"20231114T221320.0000001 v", "line 7: the time is finer than 6 digits"),
        (json_parser, b"", "line 1 is no record"),
        (json_parser, b"[]", "not an object"),
        (json_parser, b"{}", "'value' is missing"),
        (json_parser, b'{"value": 1}', "'value' is neither text nor"),
        (json_parser, b'{"value": {"base64": "%"}}', "'value' is no base64"),
        (json_parser, b'{"value": "", "key": []}', "'key' is neither"),
        (json_parser, b'{"value": "", "kye": ""}', "no field is called 'kye'"),
        (json_parser, b'{"value": "", "stream": 1}', "'stream' is no text"),
        (json_parser, b'{"value": "", "headers": [1]}', "'headers' is no object"),
        (json_parser, b'{"value": "", "timestamp_us": true}', "'timestamp_us' is no whole number"),
        (json_parser, b"[" * 100_000, "line 11 is no record"),
        (json_parser, b'{"value": "a", "value": "b"}', "'value' occurs twice"),
        (json_parser, b'{"value": "", "headers": {"a": "1", "a": "2"}}', "'a' occurs twice"),
        (json_parser, b'{"value": "", "headers": ""}', "'headers' is no object"),
        (json_parser, b'{"value": "", "headers": {"a": null}}', "'a' is neither"),
        (json_parser, b'{"value": null}', "'value' is neither"),
        (json_parser, b'{"value": "\\ud800"}', "lone surrogate"),
    ):
        with case(line[:40]):
            with pytest.raises(UsageError) as raised:
                parser(line)
            assert why in str(raised.value)


@given(
    rows=st.lists(
        st.tuples(
            st.binary(max_size=20),
            st.none() | st.binary(max_size=9),
            st.none() | st.text("ab/ü", min_size=1, max_size=5),
            st.dictionaries(st.text("hé", min_size=1, max_size=3), st.binary(max_size=5), max_size=2),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_dump_and_append_are_inverse(
    rows: list[tuple[bytes, bytes | None, str | None, dict[str, bytes]]],
) -> None:
    records = [
        Record(1 + at, value, key, stream, headers, 5 + at)
        for at, (value, key, stream, headers) in enumerate(rows)
    ]
    lines = to_json_lines(records, encoder(ValueEncoding.AUTO)).splitlines()
    parser = JsonParser()
    for record, line in zip(records, lines, strict=True):
        assert line.decode() == to_json(json.loads(line)), "as the JSON encoder writes it"
        value, options = parser(line)
        assert value == record.value
        assert options.get("key") == record.key
        assert options.get("stream") == record.stream
        assert options.get("headers", {}) == dict(record.headers)
        assert options["timestamp_us"] == record.timestamp_us


async def _fill(path: Path) -> None:
    async with Wal.open(path) as wal:
        for n in range(50):
            await wal.append(
                b"v%d\xff" % n if n % 3 else b"v\n%d" % n,
                None if n % 5 == 0 else b"k%d" % (n % 7),
                "s" if n % 2 else None,
                {"h": b"\x00%d" % n} if n % 4 == 0 else None,
                durability="memory",
            )


@pytest.mark.parametrize("target", ["directory", "store"])
def test_a_copy_through_a_pipe_is_the_same_log(cli: Cli, tmp_path: Path, target: str) -> None:
    asyncio.run(_fill(tmp_path / "log"))
    copy = str(tmp_path / "copy") if target == "directory" else (tmp_path / "store").as_uri()
    dumped = cli("dump", tmp_path / "log").out
    done = cli("append", copy, "--format", "json", stdin=dumped)
    assert (done.code, done.err) == (0, "")
    assert cli("dump", copy).out == dumped


def test_what_came_before_a_wrong_line_stays(cli: Cli, tmp_path: Path) -> None:
    lines = b'{"value": "a"}\n{"value": "b", "key": "own"}\nnonsense\n{"value": "c"}\n'
    done = cli("append", tmp_path / "log", "--format", "json", "--key", "given", stdin=lines)
    assert done.code == 1
    assert "line 3 is no record" in done.err
    assert "2 records before this are on disk: [1, 3)" in done.err
    found = cli("dump", tmp_path / "log").rows
    assert [(one["value"], one["key"]) for one in found] == [("a", "given"), ("b", "own")]


def test_options_that_do_not_go_together(cli: Cli, tmp_path: Path) -> None:
    for options, why in (
        (("--format", "json", "--crlf"), "are for lines that are values"),
        (("--length-prefixed", "--key-delimiter", ","), "are for lines that are values"),
        (("--format", "json", "--length-prefixed"), "not for --length-prefixed"),
        (("--key-delimiter", ""), "never empty"),
        (("--key", "k", "--key-delimiter", ","), "not both"),
    ):
        with case(options):
            done = cli("append", tmp_path / "log", *options, stdin=b"v\n")
            assert done.code == 1
            assert why in done.error
    assert not (tmp_path / "log").exists()


def test_a_log_of_lines_with_times_and_keys(cli: Cli, tmp_path: Path) -> None:
    lines = b"2026-01-01T00:00:00Z eu,one\r\n2026-01-01T00:00:01Z us,two\r\n"
    options = ("--time-delimiter", " ", "--key-delimiter", ",", "--crlf")
    assert cli("append", tmp_path / "log", *options, stdin=lines).code == 0
    found = [json.loads(line) for line in cli("dump", tmp_path / "log").lines]
    assert [(one["key"], one["value"]) for one in found] == [("eu", "one"), ("us", "two")]
    assert found[1]["timestamp_us"] - found[0]["timestamp_us"] == 1_000_000
