"""walstore table: what it prints, refuses and leaves alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.uploader.iceberg.lakehouse import Lakehouse
from tests.walstore.cli.conftest import Cli

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return Lakehouse(tmp_path)


def options(lake: Lakehouse) -> list[str]:
    uri, warehouse = lake.properties["uri"], lake.properties["warehouse"]
    return ["--to", "iceberg:shop.orders", "--catalog-uri", uri, "--warehouse", warehouse]


def test_registering_and_releasing(cli: Cli, stored: str, lake: Lakehouse) -> None:
    given = options(lake)
    done = cli("table", stored, *given, "--dry-run")
    assert (done.code, done.error) == (0, "nothing was changed; leave --dry-run out to do this")
    found = cli("table", stored, *given, "--dry-run", "--json").json
    assert (found["applied"], found["cursor"], found["records"]) == (False, None, 100)
    assert cli("cursors", stored, "--json").json["cursors"] == []
    found = cli("table", stored, *given, "--json").json
    assert (found["applied"], found["start"], found["limit"]) == (True, 1, 101)
    assert cli("table", stored, *given, "--json").json["records"] == 0
    assert len(lake.rows()) == 100
    (cursor,) = cli("cursors", stored, "--json").json["cursors"]
    assert (cursor["name"], cursor["position"]) == (found["cursor"], 1)
    done = cli("table", stored, *given, "--release", "latest")
    assert (done.code, done.error) == (0, "nothing was changed; give --confirm to do this")
    assert len(lake.rows()) == 100
    done = cli("table", stored, *given, "--release", "latest", "--confirm")
    assert (done.code, done.err) == (0, "")
    assert lake.rows() == []
    assert cli("cursors", stored, "--json").json["cursors"][0]["position"] == 101


def test_following_until_a_signal(stored: str, log: Path, cli: Cli, lake: Lakehouse) -> None:
    command = [sys.executable, "-m", "walstore", "table", stored, *options(lake), "-f", "--json"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        text=True,
    )
    with child, contextlib.ExitStack() as ending:
        ending.callback(child.kill)
        assert child.stdout is not None
        assert child.stderr is not None
        assert '"limit":101,"records":100' in child.stdout.readline()
        assert cli("append", log, stdin=b"x\n").code == 0
        assert cli("upload", log, stored).code == 0
        assert '"limit":102,"records":1' in child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert (child.wait(30), child.stderr.read()) == (0, "")
    assert len(lake.rows()) == 101


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--to", "shop.orders"), "give a table as iceberg:"),
        (("--to", "iceberg:orders"), "named namespace.table"),
        (("--to", "iceberg:a.b", "--confirm"), "goes with --release"),
        (("--to", "iceberg:a.b", "--follow", "--dry-run"), "without an end"),
        (("--to", "iceberg:a.b", "--release", "5", "--dry-run"), "leave --dry-run out"),
        (("--to", "iceberg:nowhere/a.b"), "not configured"),
        (("--to", "iceberg:a.b", "--catalog-uri", "http://127.0.0.1:1"), "nothing was changed"),
    ],
)
def test_tables_that_cannot_be(cli: Cli, stored: str, given: tuple[str, ...], message: str) -> None:
    done = cli("table", stored, *given)
    assert done.code == 1
    assert message in done.error


def test_logs_that_cannot_be(cli: Cli, log: Path, tmp_path: Path, lake: Lakehouse) -> None:
    assert cli("table", log, *options(lake)).code == 1
    done = cli("table", (tmp_path / "nothing").as_uri(), *options(lake))
    assert done.code == 3


def test_without_the_extra(
    cli: Cli, stored: str, lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyiceberg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)  # type: ignore[arg-type]
    done = cli("table", stored, *options(lake))
    assert done.code == 1
    assert 'pip install "walstore[iceberg]"' in done.error


def test_typed_columns(cli: Cli, stored: str, lake: Lakehouse) -> None:
    given = [*options(lake), "--column", "id:long", "--column", "city:string:/address/city"]
    found = cli("table", stored, *given, "--dry-run", "--json").json
    assert (found["applied"], found["records"], found["misfits"]) == (False, 100, 0)
    done = cli("table", stored, *given)
    assert (done.code, done.err) == (0, "")
    assert "misfits    100" in done.lines
    rows = lake.rows()
    assert len(rows) == 100
    assert {"offset", "body", "id", "city"} <= rows[0].keys()
    done = cli("table", stored, *given, "--strict")
    assert (done.code, done.err) == (0, "")  # there is nothing new
    for wrong, word in (
        (["--column", "id:int"], "typed column"),
        (["--column", "id:text"], "type is one of"),
        (["--strict"], "--column"),
        (["--column", "id:long", "--release", "3"], "--release"),
    ):
        done = cli("table", stored, *options(lake), *wrong)
        assert done.code == 1
        assert word in done.error
