"""Every verb that reads lines, on odd ones: an error that names the line, or the record as it was given."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from walstore import Settings, Wal
from walstore.cli.errors import UsageError
from walstore.cli.row import JsonParser, LineParser, RowCheck
from walstore.errors import RecordTooLargeError

NO_JSON = (
    b"[[",
    b"nonsense",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b"{" * 100_000,
    b"{}}",
    b"9" * 5000,
)
"""Bytes that no verb takes for a JSON value."""
NO_OBJECT = (b"[]", b"null", b'"x"', b"1", b"true", b"NaN")
TWICE = (b'{"%b":1,"%b":2}', b'{"%b":1,"%b":1}', b'{"%b":{"x":1,"x":2}}')
"""Objects that say something twice, of a field."""
ODD_VALUES = (
    b"null", b"true", b"1", b"-1", b"1.5", b"1e400", b"NaN", b"-Infinity", b"9" * 30, b"9" * 5000,
    b"[]", b"[1]", b"{}", b'{"base64":"%"}', b'{"base64":1}', b'{"base64":"AA==","x":1}',
    b'{"base64":"AA==","base64":""}',
    b'""', b'"\\ud800"', b'"\\u0000"', b'"\\u001b[31m"', b'"' + b"x" * 300 + b'"',
)  # fmt: skip
ODD_TIMES = (
    b"", b"0", b"-1", b"1.5", b"1e9", b"9" * 19, b"9" * 400, b"soon", b"\xff", b"1969-12-31",
    b"1969-12-31T23:59:59Z", b"0001-01-01", b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59",
    b"9999-12-31",
    b"2026-02-30", b"24:00", "\u0661".encode(), b"2026-01-01T00:00:00+99:00",
)  # fmt: skip


def one_error(code: int, err: str, number: int) -> None:
    """Check that a verb failed with one short line that names a line of the input."""
    assert code == 1
    (told,) = err.splitlines()
    assert f"line {number}" in told
    assert len(told) < 800
    assert told.isprintable()


@pytest.mark.slow
def test_append_of_objects(cli: Cli, tmp_path: Path) -> None:
    fields = (b"value", b"key", b"stream", b"headers", b"timestamp_us", b"\\ud800", b"", b"other")
    lines = [*NO_JSON, *NO_OBJECT, b"", b"{}"]
    lines += [line.replace(b"%b", field) for line in TWICE for field in fields]
    lines += [
        b'{"value":"v","%b":%b}' % (field, value) for field in fields[1:] for value in ODD_VALUES
    ]
    lines += [b'{"value":%b}' % value for value in ODD_VALUES]
    lines += [b'{"value":"v","headers":{"%b":%b}}' % (name, value)
              for name in (b"h", b"", b"\\ud800") for value in ODD_VALUES]  # fmt: skip
    for at, line in enumerate(lines):
        with case(line[:80]):
            log = tmp_path / str(at)
            given_lines = b'{"value":"first"}\n%b\n{"value":"last"}\n' % line
            done = cli("append", log, "--format", "json", stdin=given_lines)
            found = [row["value"] for row in cli("dump", log).rows]
            if done.code:
                one_error(done.code, done.err, 2)
                assert found == ["first"]
            else:
                value = json.loads(line)["value"]
                expected = "\0" if value == {"base64": "AA=="} else value
                assert found == ["first", expected, "last"]


@pytest.mark.slow
def test_append_of_lines_with_times(cli: Cli, tmp_path: Path) -> None:
    for at, moment in enumerate(ODD_TIMES):
        with case(moment[:40]):
            log = tmp_path / str(at)
            done = cli("append", log, "--time-delimiter", " ", stdin=b"0 a\n%b b\n0 c\n" % moment)
            found = [row["value"] for row in cli("dump", log).rows]
            if done.code:
                one_error(done.code, done.err, 2)
                assert found == ["a"]
            else:
                assert moment == b"0"


@pytest.mark.slow
def test_rows_of_a_collection(cli: Cli, tmp_path: Path) -> None:
    columns = (
        "--column",
        "id:int64",
        "--column",
        "name:string:null",
        "--column",
        "at:date32[day]:null",
    )
    for kind, key in (("diff", ()), ("upsert", ("--key", "id"))):
        url = (tmp_path / kind).as_uri()
        assert cli("collection", "create", url, "--kind", kind, *columns, *key).code == 0
        fields = (b"id", b"name", b"at", b"_t", b"_d", b"_deleted", b"\\ud800", b"", b"other")
        lines = [*NO_JSON, *NO_OBJECT]
        lines += [line.replace(b"%b", field) for line in TWICE for field in fields]
        lines += [b'{"%b":%b}' % (field, value) for field in fields for value in ODD_VALUES]
        for line in lines:
            with case(kind, line[:80]):
                done = cli("collection", "write", url, "-", stdin=b'{"id":7}\n%b\n' % line)
                assert done.code in (0, 1)
                if done.code:
                    (told,) = done.err.splitlines()
                    assert len(told) < 800
                    assert told.isprintable()
                assert b"occurs twice" not in line or done.code


@pytest.mark.slow
def test_records_for_a_collection(cli: Cli, tmp_path: Path) -> None:
    """The offset of a record is the number of its line here."""
    columns = (
        "--create",
        "--column",
        "id:int64",
        "--column",
        "name:string:null",
        "--column",
        "at:date32[day]:null",
    )
    lines = [*NO_JSON, *NO_OBJECT]
    lines += [b'{"id":1,"%b":%b}' % (field, value)
              for field in (b"name", b"at", b"\\ud800", b"other") for value in ODD_VALUES]  # fmt: skip
    lines += [b'{"id":%b}' % value for value in ODD_VALUES]
    for at, line in enumerate(lines):
        with case(line[:80]):
            log, url = tmp_path / f"{at}", (tmp_path / f"{at}-to").as_uri()
            assert cli("append", log, stdin=b'{"id":7,"at":"2026-01-01"}\n%b\n' % line).code == 0
            done = cli("collection", "materialize", log, url, "--envelope", "append", *columns)
            assert done.code in (0, 1)
            if done.code:
                begins, told = done.err.splitlines()
                assert "begins at" in begins
                assert "the record at offset 2 cannot become an update" in told
                assert len(told) < 800
                assert told.isprintable()


@given(
    line=st.binary(max_size=40)
    | st.text(max_size=20).map(lambda text: json.dumps({"value": text, "key": text}).encode())
)
def test_a_line_is_a_record_or_a_usage_error(line: bytes) -> None:
    for parser in (JsonParser(), LineParser(time_delimiter=b" "), LineParser(key_delimiter=b"=")):
        check = RowCheck({}, unit="line", most_bytes=30, lead_seconds=0)
        try:
            ((value, chosen),) = check.rows(map(parser, [line]))
        except (UsageError, RecordTooLargeError) as error:
            told = str(error)
        else:
            told = "line 1"
            assert isinstance(value, bytes)
            assert isinstance(chosen.get("key"), bytes | None)
        assert "line 1" in told


async def test_what_passes_the_check_passes_the_log(tmp_path: Path) -> None:
    """The check of the command line refuses at least what the log does, at every limit."""
    rows = [
        (b"v", {"key": b"k" * size, "stream": "s", "headers": {"h": b""}}) for size in range(20)
    ]
    settings = Settings(max_record_bytes=16)
    async with Wal.open(tmp_path / "log", settings=settings) as wal:
        check = RowCheck({}, unit="line", most_bytes=16)
        with pytest.raises(RecordTooLargeError, match="line 11 is a record of 17 bytes"):
            for value, chosen in check.rows(iter(rows)):
                wal.append_nowait(value, **chosen)
        with pytest.raises(RecordTooLargeError):
            wal.append_nowait(rows[10][0], **rows[10][1])
        await asyncio.wait_for(wal.flush(), 60)
