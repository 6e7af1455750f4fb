"""Peers of the benchmarks: each is measured, or named with what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import peer_servers
from bench.peer_servers import HTTP_SERVERS, REFERENCE, REFERENCE_PLACE, SERVERS
from bench.report.__main__ import ROOT
from bench.report.figures import Report
from bench.spark_scans import DELTA
from tests.lakes import open_lake

if TYPE_CHECKING:
    from tests.spark_jvm import SparkJvm

ALL = {server.name: server for server in (*SERVERS, *HTTP_SERVERS)}
OTHERS = {name: server for name, server in ALL.items() if not name.startswith("walstore")}
SYNCED_JETSTREAM = ALL["JetStream, synced"]
REFERENCE_SERVER = ALL["Durable Streams' reference server"]


def quick_run(suite: str, output: Path, environment: Mapping[str, str] | None = None) -> Report:
    command = [sys.executable, "-m", "bench.report", "--quick", f"--suite={suite}"]
    subprocess.run(
        [*command, "--output", str(output)],
        check=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    return Report.from_json(json.loads((output / "report.json").read_text()))


def test_servers_say_what_they_need_and_what_an_acknowledgement_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_servers, "program_path", lambda _: None)
    monkeypatch.delenv(REFERENCE_PLACE, raising=False)
    assert all(server.promise for server in ALL.values())
    needs = {name: server.lacks() for name, server in OTHERS.items()}
    assert needs == {
        "JetStream": "nats-server, and the module nats for Python",
        "JetStream, synced": "nats-server, and the module nats for Python",
        "Redis Streams": "redis-server, and the module redis for Python",
        "Redis Streams, everysec": "redis-server, and the module redis for Python",
        "Durable Streams' reference server": (
            "node, and @durable-streams/server of npm in the directory WALSTORE_BENCH_DURABLE_STREAMS"
        ),
    }
    assert peer_servers.versions() == {}


@pytest.mark.parametrize(
    ("status", "need"), [(0, None), (1, "a nats-server that knows sync_interval: always")]
)
def test_a_server_is_asked_whether_it_knows_the_option(
    status: int, need: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nats-server"
    program.write_text(
        f'#!/bin/sh\ngrep -q "sync_interval: always" "$2" || exit 9\nexit {status}\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(peer_servers, "program_path", lambda _: str(program))
    monkeypatch.setattr(peer_servers, "lacking", lambda *_: None)
    assert SYNCED_JETSTREAM.lacks() == need


def test_the_environment_names_where_npm_installed_the_reference_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "node_modules" / REFERENCE / "package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"version": "1.2.3"}')
    monkeypatch.setattr(
        peer_servers, "program_path", lambda name: "node" if name == "node" else None
    )
    monkeypatch.setenv(REFERENCE_PLACE, str(tmp_path))
    assert REFERENCE_SERVER.lacks() is None
    assert peer_servers.versions() == {REFERENCE: "1.2.3"}
    package.unlink()
    assert REFERENCE_SERVER.lacks() is not None


def test_jars_that_are_not_at_hand_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WALSTORE_DELTA_JARS", str(tmp_path))
    (tmp_path / "delta-spark_3.0_2.13-3.2.1.jar").touch()
    with pytest.raises(LookupError, match=r"here: delta-spark_3\.0_2\.13-3\.2\.1\.jar"):
        open_lake("delta", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_with_servers(tmp_path: Path) -> None:
    """It measures those that are installed, and names the others."""
    found = quick_run("producers", tmp_path)
    measured = {one.system for one in found.figures}
    assert measured >= {"walstore", *ALL.keys() - OTHERS.keys()}
    assert measured | found.skipped.keys() >= ALL.keys()
    assert all(one.value > 0 for one in found.figures)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_quick_run_of_spark(tmp_path: Path, spark_jvm: SparkJvm) -> None:
    with spark_jvm.lend() as environment:
        found = quick_run("spark", tmp_path, environment)
    measured = {one.system for one in found.figures}
    assert measured >= {"walstore, fast path", "walstore, Python source, all columns"}
    assert (DELTA in measured) is not (DELTA in found.skipped)
