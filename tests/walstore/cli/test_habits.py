"""What people expect of any command line: -h, tail -n, times like -1h, and JSON also of failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from tests.walstore.cli.test_app import COLLECTION_VERBS, VERBS
from walstore.cli.errors import UsageError
from walstore.cli.location import StartPlace, parse_place
from walstore.records import to_timestamp_us

NOW = datetime(2025, 6, 2, 15, 30, tzinfo=UTC)


def test_help_is_short(cli: Cli) -> None:
    for words in ((), *((verb,) for verb in VERBS), *(("collection", v) for v in COLLECTION_VERBS)):
        with case(*words):
            short, long = cli(*words, "-h"), cli(*words, "--help")
            assert (short.code, short.out) == (0, long.out)
            assert short.out.startswith(b"Usage: walstore")


def test_the_last_records(cli: Cli, log: Path) -> None:
    for count in (0, 1, 5, 1000):
        with case(count):
            done = cli("tail", log, "-n", count)
            assert (done.code, done.out) == (0, cli("tail", log, "--from", f"-{count}").out)
            assert len(done.lines) == min(count, 100)
    for wrong, word in (
        (("-n", "-1"), "greater"), (("-n", "x"), "integer"), (("-n", "3", "--from", "-3"), "not both"),
    ):  # fmt: skip
        with case(*wrong):
            done = cli("tail", log, *wrong)
            assert done.code == 1
            assert word in done.error


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("-90s", datetime(2025, 6, 2, 15, 28, 30, tzinfo=UTC)),
        ("-45m", datetime(2025, 6, 2, 14, 45, tzinfo=UTC)),
        ("-1h", datetime(2025, 6, 2, 14, 30, tzinfo=UTC)),
        ("-2d", datetime(2025, 5, 31, 15, 30, tzinfo=UTC)),
        (" -1W ", datetime(2025, 5, 26, 15, 30, tzinfo=UTC)),
        ("today", datetime(2025, 6, 2, tzinfo=UTC)),
        ("Yesterday", datetime(2025, 6, 1, tzinfo=UTC)),
        ("-0s", NOW),
        ("-999999999999999999w", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_relative_times(text: str, moment: datetime) -> None:
    assert parse_place(text, now=NOW) == StartPlace(timestamp_us=to_timestamp_us(moment))


@pytest.mark.parametrize("text", ["-1y", "1h", "-h", "-1.5h", "- 1h", "tomorrow", "-1h30m", "--1h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="not a place"):
        parse_place(text, now=NOW)


def test_records_of_the_last_hour(cli: Cli, log: Path) -> None:
    assert len(cli("tail", log, "--from", "-1h").lines) == 100
    assert cli("tail", log, "--from", "now").lines == []
    assert len(cli("dump", log, "--from", "yesterday", "--to", "now").lines) == 100


def test_failures_in_json(cli: Cli, log: Path, tmp_path: Path) -> None:
    for words, expected in (
        (("inspect", tmp_path / "none"), (3, "LogNotFoundError")),
        (("tail", log, "--from", "nowhere"), (1, "UsageError")),
        (("inspect", log, "--nonsense"), (1, "UsageError")),
        (("nonsense", log), (1, "UsageError")),
        (("inspect",), (1, "UsageError")),
    ):
        with case(*words):
            plain, done = cli(*words), cli(*words, "--json")
            assert (done.code, done.out) == (plain.code, b"")
            (line,) = done.err.splitlines()
            found = json.loads(line)
            assert (found["exit_code"], found["type"]) == expected
            assert (found["outcome"], found["retriable"]) == ("not_written", False)
            assert found["error"] == plain.error


def test_json_behind_the_options_is_none(cli: Cli) -> None:
    assert cli("inspect", "--", "--json").err.startswith("walstore: ")


@pytest.mark.slow
def test_completion() -> None:
    command = [sys.executable, "-m", "walstore"]

    def ask(**variables: str) -> str:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    for words, found in (
        ("walstore se", "serve segments seal"),
        ("walstore tail --f", "--follow --from"),
    ):
        with case(words):
            cursor = str(words.count(" "))
            shown = ask(COMP_WORDS=words, COMP_CWORD=cursor, _WALSTORE_COMPLETE="complete_bash")
            assert shown.split() == found.split()
