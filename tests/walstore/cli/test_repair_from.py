"""walstore repair --from-tier and --from: damaged records come back from where the log was shipped to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, fill, flip
from walstore.core.format import checkpoint


def damage(log: Path) -> Path:
    """Damage the first batch of the log so that no single bit explains it."""
    (path,) = log.glob("*.wal")
    place = path.read_bytes().index(b"value 50")
    for position in (place, place + 3):
        flip(path, position)
    return path


@pytest.mark.parametrize("how", ["--from-tier", "--from"])
def test_a_dry_run_and_doing_it(cli: Cli, log: Path, stored: str, how: str) -> None:
    (path,) = log.glob("*.wal")
    pristine, expected = path.read_bytes(), cli("dump", log).out
    damage(log)
    damaged = path.read_bytes()
    arguments = (how,) if how == "--from-tier" else (how, stored)
    dry = cli("repair", log, *arguments)
    assert (dry.code, dry.error) == (2, "nothing was changed; give --confirm to do this")
    assert f"take the records [1, 101) from {stored}, bit for bit" in dry.out.decode()
    assert "restored      [1, 101)" in dry.out.decode()
    assert "lost          nothing" in dry.out.decode()
    assert path.read_bytes() == damaged
    done = cli("repair", log, *arguments, "--confirm")
    assert (done.code, done.out) == (0, dry.out)
    assert path.read_bytes().rstrip(b"\0") == pristine.rstrip(b"\0")
    assert cli("verify", log).code == 0
    assert cli("dump", log).out == expected
    assert (log / "damaged" / path.name).read_bytes() == damaged
    assert cli("append", log, stdin=b"next\n").code == 0
    assert cli("upload", log, stored).code == 0


def test_as_json(cli: Cli, log: Path, stored: str) -> None:
    damage(log)
    found = cli("repair", log, "--from-tier", "--json", "--confirm").json
    assert (found["applied"], found["from"], found["lost"]) == (True, stored, [])
    assert found["restored"] == [{"start": 1, "limit": 101}]
    assert [step["kind"] for step in found["steps"]] == ["restore"]


def test_the_tier_is_named_if_it_helps(cli: Cli, log: Path, stored: str) -> None:
    damage(log)
    assert f"with --from-tier the records come from {stored}" in cli("repair", log).err
    verified = cli("verify", log)
    assert verified.code == 2
    assert f"'walstore repair {log} --from-tier' puts back what {stored} holds of " in verified.err
    assert cli("verify", log, "--json").json["healable"] == ["00000000000000000001.wal"]


def test_nothing_is_asked_of_a_store_if_nothing_is_damaged(cli: Cli, log: Path) -> None:
    done = cli("repair", log, "--from", "file:///nowhere/at/all")
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_mistakes(cli: Cli, log: Path, stored: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    asyncio.run(fill(other, records=10))
    other_url = (tmp_path / "elsewhere").as_uri()
    assert cli("upload", other, other_url).code == 0
    path = damage(log)
    before = path.read_bytes()
    for arguments, code, message in (
        (("--from", other_url), 1, "holds another log"),
        (("--from", (tmp_path / "none").as_uri()), 3, "there is no log"),
        (("--from", "data/orders"), 1, "needs a store URL"),
        (("--from-tier", "--from", stored), 1, "not both"),
    ):
        done = cli("repair", log, *arguments, "--confirm")
        assert done.code == code, arguments
        assert message in done.error
    (log / checkpoint.FILE_NAME).unlink()
    done = cli("repair", log, "--from-tier")
    assert done.code == 1
    assert "give --from URL" in done.error
    assert path.read_bytes() == before
    assert cli("repair", log, "--from", stored, "--confirm").code == 0
