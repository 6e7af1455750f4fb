"""--layout, --alpha and --shards: how a new stored log is laid out, and what prevents it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli
from tests.walstore.cli.test_repair import fragment_keys

STDIN = b"one\ntwo\n"


def test_append_to_a_new_store(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "store"
    done = cli("append", place.as_uri(), "--layout", "chain", "--shards", "3", stdin=STDIN)
    assert done.code == 0, done.err
    for _ in range(5):
        assert cli("append", place.as_uri(), "--shards", "3", stdin=STDIN).code == 0
    assert len({key.partition("/")[0] for key in fragment_keys(place)}) == 3
    assert len(cli("dump", place.as_uri()).lines) == 12


def test_a_tier_of_a_directory(cli: Cli, log_directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    options = ("--tier", place.as_uri(), "--durability", "cloud", "--layout", "chain")
    assert cli("append", log_directory, *options, "--alpha", "2", stdin=STDIN).code == 0
    assert len(fragment_keys(place)) == 1
    assert cli("dump", place.as_uri()).out == cli("dump", log_directory).out


@pytest.mark.parametrize("verb", ["append", "upload"])
def test_the_other_layout_is_there(cli: Cli, verb: str, log: Path, stored: str) -> None:
    line = ("append", stored) if verb == "append" else ("upload", log, stored)
    done = cli(*line, "--layout", "chain", stdin=STDIN)
    assert (done.code, done.out) == (1, b"")
    assert "has the layout 'swap'" in done.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "tree"), "--layout"),
        (
            ("--layout", "chain", "--alpha", "0"),
            "alpha must be a whole number, from 1 to 32, not 0",
        ),
        (("--shards", "13"), "shards must be a whole number, from 1 to 12, not 13"),
        (("--layout", "swap", "--alpha", "2"), "--alpha and --shards are for --layout chain"),
    ],
)
def test_what_a_chain_cannot_have(
    cli: Cli, options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = cli("append", (tmp_path / "store").as_uri(), *options, stdin=STDIN)
    assert (done.code, done.out) == (1, b"")
    assert message in done.error
    assert not (tmp_path / "store").exists()


def test_a_directory_without_a_tier(cli: Cli, log_directory: Path) -> None:
    done = cli("append", log_directory, "--layout", "chain", stdin=STDIN)
    assert (done.code, done.error) == (1, "--layout, --alpha and --shards need --tier URL")
    assert not log_directory.exists()


def test_a_prefix_is_taken_back_for_a_directory(cli: Cli, tmp_path: Path) -> None:
    done = cli("append", tmp_path / "log", "--take-over")
    assert (done.code, done.error) == (1, "--take-over needs --tier URL")
    done = cli("append", (tmp_path / "store").as_uri(), "--take-over")
    expected = "--durability, --tier and --take-over are for log directories"
    assert (done.code, done.error) == (1, expected)
    assert list(tmp_path.iterdir()) == []
