"""Read-only verbs on what is no log: one line, the documented exit code, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, make_newer

VERBS = ("tail", "dump", "inspect", "verify")


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_directory_that_is_not_there(cli: Cli, verb: str, tmp_path: Path) -> None:
    done = cli(verb, tmp_path / "nowhere")
    assert (done.code, done.out) == (3, b"")
    assert done.error == f"there is no log at {tmp_path / 'nowhere'}"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_log(cli: Cli, verb: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = cli(verb, tmp_path)
    assert (done.code, done.out) == (3, b"")


def test_a_file(cli: Cli, verb: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    done = cli(verb, path)
    assert (done.code, done.out) == (3, b"")
    assert str(path) in done.error


def test_a_segment_of_something_else(cli: Cli, verb: str, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000001.wal"
    path.write_bytes(b"something else altogether, and long enough for a header" * 10)
    done = cli(verb, tmp_path)
    assert done.code == 2
    assert str(path) in done.err
    assert "not a walstore segment" in done.err


def test_a_newer_version(cli: Cli, verb: str, log: Path) -> None:
    make_newer(max(log.glob("*.wal")))
    done = cli(verb, log)
    assert (done.code, done.out) == (1, b"")
    assert "newer version" in done.error
    assert "found 99" in done.error


def test_a_store_without_a_log(cli: Cli, verb: str, tmp_path: Path) -> None:
    done = cli(verb, (tmp_path / "empty").as_uri())
    assert (done.code, done.out) == (3, b"")
    assert "there is no log at" in done.error


def test_nothing_is_changed_and_no_lock_is_taken(cli: Cli, verb: str, log: Path) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in log.iterdir()}
    (log / "LOCK").chmod(0o000)
    assert cli(verb, log).code == 0
    (log / "LOCK").chmod(0o644)
    after = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in log.iterdir()}
    assert after == before
