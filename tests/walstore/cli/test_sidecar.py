"""walstore sidecar: mistakes that show before Spark starts, what is printed, and signals."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from tests.walstore.cli.conftest import Cli
from walstore.cli import landing, sidecar
from walstore.cli.errors import UsageError
from walstore.spark import problem
from walstore.spark.sidecar import Landed, Started

A, B = ("orders", 0), ("orders", 1)
STARTED = Started({A: 1, B: 7}, is_resumed=False, cursor="lander", checkpoint="/t/_checkpoint")
LANDED = Landed(3, 1200, {A: 900, B: 308}, {A: 900, B: 7}, {A: 950, B: 308}, 1.26)


def needs_java() -> None:
    missing = problem()
    if missing:
        pytest.skip(missing)


def test_a_log_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    needs_java()
    for location in (tmp_path / "nothing", (tmp_path / "nothing").as_uri()):
        done = cli("sidecar", location, "--to", tmp_path / "table", "--once")
        assert done.code == 3
        assert "there is no log at" in done.error
    assert list(tmp_path.iterdir()) == []


def test_java_that_is_not_there(cli: Cli, stored: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = cli("sidecar", stored, "--to", tmp_path / "table")
    assert done.code == 1
    assert "Spark needs Java 17 or newer and finds none" in done.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--partition-by", "value"), "can be divided by"),
        (("--cursor", "a-b"), "a cursor's name"),
        (("--trigger-seconds", "-1"), "0 seconds or more"),
        (("--max-records-per-trigger", "0"), "one record or more"),
        (("--config", "spark.ui.port"), "NAME=VALUE"),
        (("--packages", "io.delta:delta-spark_4.2_2.13"), "GROUP:NAME:VERSION"),
        (("--format", "csv"), "'csv'"),
        (("--subscribe", "a", "--subscribe-pattern", "b"), "not both"),
        (("--format", "iceberg"), "needs a checkpoint"),
    ],
)
def test_bad_options(cli: Cli, stored: str, tmp_path: Path, options, message) -> None:
    done = cli("sidecar", stored, "--to", tmp_path / "table", *options)
    assert done.code == 1
    assert message in done.error


def test_a_table_is_needed(cli: Cli, stored: str) -> None:
    done = cli("sidecar", stored)
    assert done.code == 1
    assert "--to" in done.error


def test_settings_of_spark() -> None:
    assert sidecar.parse_config(["a.b=c=d", " e = f "]) == {"a.b": "c=d", "e": "f"}
    assert sidecar.add_packages({}, ["a:b:1, c:d:2", "e:f:3"]) == {
        "spark.jars.packages": "a:b:1,c:d:2,e:f:3"
    }
    named = {"spark.jars.packages": "a:b:1"}
    assert sidecar.add_packages(named, ["c:d:2"]) == {"spark.jars.packages": "a:b:1,c:d:2"}
    assert sidecar.add_packages(named, []) == named
    assert sidecar.add_packages({}, []) == {}
    for text in ("a", "=b"):
        with pytest.raises(UsageError):
            sidecar.parse_config([text])


def test_plain_lines(capsys) -> None:
    with landing.showing(as_json=False) as observer:
        observer.started(STARTED)
        observer.landed(LANDED)
        observer.warned("the cursor stays")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "walstore: begins at orders 1, orders/1 7, cursor lander",
        "walstore: batch 3: 1 200 records, landed up to orders 900, orders/1 308, 50 to go, 1.3 s",
        "walstore: the cursor stays",
    ]


def test_a_line_that_moves_on_a_terminal(monkeypatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(landing, "terminal", lambda: console)
    with landing.showing(as_json=False) as observer:
        observer.started(STARTED)
        observer.landed(LANDED)
        observer.landed(LANDED)
    assert "2 400 records; batch 3" in screen.getvalue()


def test_json_lines_and_their_page(capsys) -> None:
    with landing.showing(as_json=True) as observer:
        observer.started(STARTED)
        observer.landed(LANDED)
    started, landed = map(json.loads, capsys.readouterr().out.splitlines())
    assert started["positions"] == {"orders": {"0": 1, "1": 7}}
    assert (landed["batch"], landed["records"], landed["lag_records"]) == (3, 1200, 50)
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    section = page.partition("\n### sidecar\n")[2].partition("\n### ")[0]
    assert {*started, *landed, "started", "landed"} <= set(re.findall(r"`(\w+)`", section))


def test_the_first_signal_stops_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stopped: list[bool] = []
    with sidecar._stopping_on_signal(lambda: stopped.append(True)) as take:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark does
        take()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped == [True]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        take()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
