"""walstore trim: dry until confirmed, held back by cursors, never beyond what is shipped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, Held, fill


@pytest.fixture
def long_log(log_directory: Path) -> Path:
    """A log of several segments."""
    asyncio.run(fill(log_directory, records=5000))
    return log_directory


def _names(log: Path) -> list[str]:
    return sorted(path.name for path in log.glob("*.wal"))


def test_a_dry_run_changes_nothing(cli: Cli, long_log: Path) -> None:
    names = _names(long_log)
    found = cli("segments", long_log, "--json").json["segments"]
    third = found[2]["start"]
    done = cli("trim", long_log, "--before", third + 1)
    assert done.code == 0
    assert done.error == "nothing was changed; give --confirm to do this"
    assert names[0] in done.out.decode()
    as_json = cli("trim", long_log, "--before", third + 1, "--json").json
    assert (as_json["applied"], as_json["head"], as_json["new_head"]) == (False, 1, third + 1)
    assert [one["name"] for one in as_json["segments"]] == names[:2]
    assert as_json["bytes"] == sum((long_log / name).stat().st_size for name in names[:2])
    assert as_json["records"] == third
    assert _names(long_log) == names


def test_doing_it(cli: Cli, long_log: Path) -> None:
    names = _names(long_log)
    done = cli("trim", long_log, "--before", "-100", "--confirm", "--json").json
    assert (done["applied"], done["before"], done["new_head"]) == (True, 4901, 4901)
    assert set(_names(long_log)).isdisjoint(names[:-2])
    assert cli("inspect", long_log, "--json").json["head"] == 4901
    assert len(cli("dump", long_log).lines) == 100


def test_cursors_hold_it_back(cli: Cli, long_log: Path) -> None:
    cli("cursors", long_log, "--set", "billing", "1000", "--confirm")
    dry = cli("trim", long_log, "--before", "latest", "--json").json
    assert dry["new_head"] == 1000
    assert dry["pinned_by"] == [{"name": "billing", "position": 1000}]
    assert "cursor billing at 1000" in cli("trim", long_log, "--before", "latest").out.decode()
    assert (
        cli("trim", long_log, "--before", "latest", "--confirm", "--json").json["new_head"] == 1000
    )


def test_before_a_time(cli: Cli, log: Path) -> None:
    done = cli("trim", log, "--before", "2001-01-01", "--json").json
    assert (done["before"], done["new_head"], done["records"]) == (1, 1, 0)


def test_what_is_not_shipped_yet_stays(cli: Cli, log: Path, stored: str) -> None:
    asyncio.run(fill(log, records=10, start=101))
    assert cli("trim", log, "--before", "50", "--json").code == 0
    done = cli("trim", log, "--before", "105", "--confirm")
    assert done.code == 1
    assert f"{stored} held offsets below 101" in done.error
    assert cli("inspect", log, "--json").json["head"] == 1


@pytest.mark.slow
def test_a_log_that_is_open(cli: Cli, log: Path, held: Held) -> None:
    with held(log):
        done = cli("trim", log, "--before", 5, "--confirm")
    assert done.code == 4
    assert "open for writing elsewhere" in done.error


def test_mistakes(cli: Cli, log: Path, damaged: Path, tmp_path: Path) -> None:
    assert cli("trim", tmp_path / "nowhere", "--before", "5", "--confirm").code == 3
    assert not (tmp_path / "nowhere").exists()
    done = cli("trim", log, "--before", "1000", "--confirm")
    assert done.code == 1
    assert "durable" in done.error
    done = cli("trim", log, "--before", "someday")
    assert done.code == 1
    assert "not a place in a log" in done.error
    done = cli("trim", log)
    assert done.code == 1
    assert "missing option '--before'" in done.error
    done = cli("trim", damaged, "--before", "5", "--confirm")
    assert done.code == 2
