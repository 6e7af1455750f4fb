"""walstore cursors: listing, moving and removing them, with every mistake in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, Held, fill, flip
from walstore.cli import cursors
from walstore.core.files.posix import PosixFileSystem
from walstore.positions.cursors.directory import hold_cursors


def _set(cli: Cli, log: Path, name: str, offset: int) -> None:
    assert cli("cursors", log, "--set", name, offset, "--confirm").code == 0


def test_none(cli: Cli, log: Path) -> None:
    done = cli("cursors", log)
    assert (done.code, done.out) == (0, b"")
    assert done.error == f"there are no cursors in {log}"
    assert cli("cursors", log, "--json").json["cursors"] == []
    assert not (log / "cursors").exists()


def test_setting_and_listing(cli: Cli, log: Path) -> None:
    dry = cli("cursors", log, "--set", "billing", 40)
    assert dry.code == 0
    assert "give --confirm to set cursor 'billing' to 40 (there is none yet)" in dry.err
    assert cli("cursors", log, "--json").json["cursors"] == []
    done = cli("cursors", log, "--set", "billing", 40, "--confirm")
    assert (done.code, done.err) == (0, "")
    assert done.lines[1].split()[:4] == ["billing", "40", "61", "yes"]
    _set(cli, log, "audit", 101)
    _set(cli, log, "billing", 7)
    found = cli("cursors", log, "--json").json
    assert (found["head"], found["durable_limit"]) == (1, 101)
    audit, billing = found["cursors"]
    assert (audit["name"], audit["position"], audit["behind"]) == ("audit", 101, 0)
    assert (billing["name"], billing["position"], billing["pins"]) == ("billing", 7, True)
    assert "process" in billing["owner"]
    assert billing["updated_us"] > 0


def test_deleting(cli: Cli, log: Path) -> None:
    _set(cli, log, "billing", 40)
    dry = cli("cursors", log, "--delete", "billing")
    assert "remove cursor 'billing' (it stands at 40)" in dry.err
    assert len(cli("cursors", log, "--json").json["cursors"]) == 1
    assert cli("cursors", log, "--delete", "billing", "--confirm", "--json").json["cursors"] == []
    done = cli("cursors", log, "--delete", "billing", "--confirm")
    assert done.code == 3
    assert "there is no cursor 'billing'" in done.error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--set", "a", "102"), 1, "has not been written yet"),
        (("--set", "a", "0"), 1, "was removed from the log"),
        (("--set", "a/b", "5"), 1, "a cursor's name has"),
        (("--set", "a"), 1, "invalid value for '--set'"),
        (("--set", "a", "soon"), 1, "invalid value for '--set'"),
        (("--set", "a", "5", "--delete", "a"), 1, "not both"),
        (("--delete", ".lock"), 1, "a cursor's name has"),
    ],
)
def test_mistakes(cli: Cli, log: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = cli("cursors", log, *arguments, "--confirm")
    assert (done.code, done.out) == (code, b"")
    assert message in done.error
    assert not (log / "cursors").exists()


def test_a_damaged_cursor_is_shown_and_can_be_replaced(cli: Cli, log: Path) -> None:
    _set(cli, log, "billing", 40)
    flip(log / "cursors" / "billing", 20)
    (found,) = cli("cursors", log, "--json").json["cursors"]
    assert (found["position"], found["pins"]) == (None, True)
    assert "damaged" in found["problem"]
    assert "damaged" in cli("cursors", log).lines[1]
    _set(cli, log, "billing", 41)
    (found,) = cli("cursors", log, "--json").json["cursors"]
    assert (found["position"], found["problem"]) == (41, None)


@pytest.mark.slow
def test_beside_a_writer(cli: Cli, log: Path, held: Held) -> None:
    asyncio.run(fill(log, records=1, start=101))
    with held(log):
        done = cli("cursors", log, "--set", "x", 102, "--confirm")
    assert done.code == 0
    assert done.lines[1].split()[:3] == ["x", "102", "0"]


def test_somebody_holds_the_cursors(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "_PATIENCE_SECONDS", 0.02)
    with hold_cursors(PosixFileSystem(), log, owner="a stuck process"):
        done = cli("cursors", log, "--set", "billing", "5", "--confirm")
    assert done.code == 4
    assert "held by a stuck process" in done.error
    assert cli("cursors", log, "--set", "billing", "5", "--confirm").code == 0


def test_no_log(cli: Cli, tmp_path: Path) -> None:
    assert cli("cursors", tmp_path / "nowhere").code == 3
