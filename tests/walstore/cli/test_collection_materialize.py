"""walstore collection materialize, and a sidecar that keeps a collection: progress, mistakes, signals."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.cases import case
from tests.sidecars import SidecarProcess
from tests.walstore.cli.conftest import Cli, objects
from uploader import CloudLog, CloudWriter, seal
from walstore import ReadonlyWal, Wal

COLUMNS = ("--create", "--column", "k:int64", "--column", "v:string")


def row(number: int, text: str = "x") -> bytes:
    return json.dumps({"k": number, "v": text}).encode()


async def write(path: Path, *values: bytes) -> None:
    async with Wal.open(path) as log:
        await log.append_many(values)


async def cursor_of(path: Path, name: str) -> int:
    async with ReadonlyWal.open(path) as log:
        return (await log.cursor(name)).position


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    """A log of three rows."""
    path = tmp_path / "changes"
    asyncio.run(write(path, row(1), row(2), row(1)))
    return path


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "target").as_uri()


def read(cli: Cli, url: str) -> list[Any]:
    return [tuple(one.values()) for one in cli("collection", "read", url, "--json").rows]


def test_a_directory_once_and_again(cli: Cli, changes: Path, target: str) -> None:
    verb = ("collection", "materialize", changes, target, "--envelope", "append", *COLUMNS)
    done = cli(*verb)
    assert done.code == 0
    assert done.lines == [
        f"location      {changes}",
        f"table         {target}",
        "records       3",
        "landed up to  changes 4",
        "cursor        none, the log is not retained",
        "ended         all has landed",
    ]
    assert done.err.splitlines()[0] == "walstore: begins at changes 1"
    assert read(cli, target) == [(1, "x", 2), (2, "x", 1)]
    asyncio.run(write(changes, row(3)))
    again = cli(*verb, "--json", "--cursor", "target")
    started, landed, ended = again.rows
    assert (started["event"], started["positions"]) == ("started", {"changes": {"0": 4}})
    assert (started["resumed"], started["cursor"], started["checkpoint"]) == (
        True,
        "target",
        target,
    )
    assert (landed["event"], landed["records"], landed["lag_records"]) == ("landed", 1, 0)
    assert landed["positions"] == landed["cursors"] == {"changes": {"0": 5}}
    assert asyncio.run(cursor_of(changes, "target")) == 5
    assert (ended["event"], ended["records"], ended["stopped"]) == ("ended", 1, False)
    assert ended["cursors"] == landed["cursors"]
    assert [one["event"] for one in cli(*verb, "--json").rows] == ["started", "ended"]
    assert read(cli, target) == [(1, "x", 2), (2, "x", 1), (3, "x", 1)]


def test_a_stored_log(cli: Cli, changes: Path, target: str, tmp_path: Path) -> None:
    stored = (tmp_path / "stored").as_uri()
    assert cli("upload", changes, stored).code == 0
    verb = ("collection", "materialize", stored, target, "--envelope", "upsert", "--cursor", "c")
    done = cli(*verb, *COLUMNS, "--key", "k", "--json")
    assert done.code == 0
    assert done.rows[-1]["cursors"] == {"stored": {"0": 4}}
    assert read(cli, target) == [(1, "x"), (2, "x")]
    assert cli("collection", "show", target, "--json").json["kind"] == "upsert"

    async def position() -> int | None:
        async with CloudLog.open(stored) as log:
            found = await log.cursors.load("c")
            return None if found is None else found.position

    assert asyncio.run(position()) == 4


def test_a_record_that_does_not_fit(cli: Cli, changes: Path, target: str) -> None:
    verb = ("collection", "materialize", changes, target, "--envelope", "append", *COLUMNS)
    assert cli(*verb, "--cursor", "c").code == 0
    asyncio.run(write(changes, row(4), b"no json", row(5)))
    for _ in range(2):
        done = cli(*verb, "--cursor", "c")
        assert (done.code, done.out) == (1, b"")
        assert "the record at offset 5 cannot become an update: its value is not JSON" in done.err
    assert cli("collection", "show", target, "--json").json["upper"] == 4
    assert asyncio.run(cursor_of(changes, "c")) == 4


def test_what_is_refused(cli: Cli, changes: Path, people: str, target: str, tmp_path: Path) -> None:
    before = objects(people)
    for arguments, code, message in (
        ((tmp_path / "none", people, "--envelope", "upsert"), 3, "there is no log"),
        (((tmp_path / "none").as_uri(), people, "--envelope", "upsert"), 3, "there is no log"),
        ((changes, target, "--envelope", "append"), 3, "'walstore collection create' makes one"),
        ((changes, "target", "--envelope", "append"), 1, "needs a store URL"),
        ((changes, people, "--envelope", "append"), 1, "needs a collection of kind diff"),
        ((changes, people, "--envelope", "csv"), 1, "'csv'"),
        ((changes, people), 1, "missing option '--envelope'"),
        ((changes, people, "--envelope", "upsert", "--key", "k"), 1, "go with --create"),
        ((changes, people, "--envelope", "upsert", "--create"), 1, "give the columns"),
        ((changes, people, "--envelope", "upsert", *COLUMNS, "--kind", "diff"), 1, "--kind upsert"),
        ((changes, people, "--envelope", "upsert", *COLUMNS, "--key", "k"), 1, "has kind"),
        ((changes, people, "--envelope", "upsert", "--cursor", "a-b"), 1, "a cursor's name"),
        ((changes, people, "--envelope", "upsert", "--trigger-seconds", "3"), 1, "with --follow"),
        ((changes, people, "--envelope", "upsert"), 1, "needs a collection of its own"),
    ):
        with case(arguments):
            done = cli("collection", "materialize", *arguments)
            assert (done.code, done.out) == (code, b"")
            assert message in done.error
    assert objects(people) == before
    assert not (tmp_path / "target").exists()


def test_another_log_is_refused(cli: Cli, changes: Path, target: str, tmp_path: Path) -> None:
    asyncio.run(write(tmp_path / "short", row(1)))
    verb = ("collection", "materialize", "--envelope", "append", *COLUMNS)
    assert cli(*verb, changes, target).code == 0
    done = cli(*verb, tmp_path / "short", target)
    assert (done.code, "made from another log" in done.error) == (1, True)


def test_a_log_that_is_missing_makes_no_collection(cli: Cli, target: str, tmp_path: Path) -> None:
    done = cli(
        "collection", "materialize", tmp_path / "no", target, "--envelope", "append", *COLUMNS
    )
    assert done.code == 3
    assert not (tmp_path / "target").exists()


def test_a_cursor_beyond_the_collection(cli: Cli, changes: Path, target: str) -> None:
    cli("cursors", changes, "--set", "c", "3", "--confirm")
    verb = ("collection", "materialize", changes, target, "--envelope", "append", *COLUMNS)
    done = cli(*verb, "--cursor", "c")
    assert done.code == 1
    assert "cursor 'c' of changes stands at 3" in done.error
    assert "--set c 1 --confirm" in done.error
    assert cli("collection", "show", target, "--json").json["upper"] == 0
    cli("cursors", changes, "--set", "c", "1", "--confirm")
    assert cli(*verb, "--cursor", "c").code == 0
    assert asyncio.run(cursor_of(changes, "c")) == 4


def test_a_sealed_log_ends_what_follows_it(cli: Cli, target: str, tmp_path: Path) -> None:
    url = (tmp_path / "sealed").as_uri()

    async def make() -> None:
        async with CloudWriter.open(url) as log:
            await log.append_many([row(1), row(2)])
        await seal(url)

    asyncio.run(make())
    verb = ("collection", "materialize", url, target, "--envelope", "append", "--follow", *COLUMNS)
    done = cli(*verb, "--trigger-seconds", 0)
    assert done.code == 0
    assert "all has landed" in done.out.decode()
    assert len(read(cli, target)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follows_until_a_signal(cli: Cli, changes: Path, target: str, number: int) -> None:
    process = SidecarProcess(
        *(changes, target, "--envelope", "append", "--follow", *COLUMNS),
        command=(sys.executable, "-m", "walstore.cli", "collection", "materialize"),
    )
    try:
        process.read_until(4, "changes")
        asyncio.run(write(changes, row(3)))
        process.read_until(5, "changes")
        process.signal(signal.Signals(number))
        assert (process.end(), process.err) == (0, "")
    finally:
        process.close()
    assert len(read(cli, target)) == 3


def test_a_sidecar_keeps_a_collection(cli: Cli, changes: Path, target: str) -> None:
    create = ("collection", "create", target, "--column", "k:int64", "--column", "v:string")
    assert cli(*create).code == 0
    verb = ("sidecar", changes, "--to", target, "--format", "collection", "--envelope", "append")
    done = cli(*verb, "--once", "--json", "--max-records-per-trigger", "2")
    assert (done.code, done.err) == (0, "")
    started, first, second, ended = done.rows
    assert ended["event"] == "ended"
    assert started["cursor"].startswith("sidecar_target_")
    assert [first["records"], second["records"]] == [2, 1]
    assert asyncio.run(cursor_of(changes, started["cursor"])) == 4
    done = cli(*verb, "--once")
    assert f"cursor        {started['cursor']} at changes 4" in done.lines
    for options, message in (
        (("--checkpoint", "/c"), "a checkpoint: that is for tables"),
        (("--subscribe", "a"), "several logs: that is"),
        (("--partition-by", "date"), "partition columns"),
        (("--no-headers",), "without headers"),
        (("--master", "local"), "a master"),
        (("--packages", "a:b:1"), "settings of Spark"),
        (("--spark-log", "info"), "--spark-log is for tables"),
        (("--to", "target"), "needs a store URL"),
    ):
        with case(options):
            refused = cli(*verb, *options)
            assert (refused.code, refused.out) == (1, b"")
            assert message in refused.error
    assert "needs an envelope" in cli(*verb[:-2]).error
    table = cli("sidecar", changes, "--to", "t", "--envelope", "append")
    assert "an envelope is for collections" in table.error


@pytest.mark.slow
def test_metrics_of_a_sidecar_that_keeps_a_collection(cli: Cli, changes: Path, target: str) -> None:
    create = ("collection", "create", target, "--column", "k:int64", "--column", "v:string")
    assert cli(*create).code == 0
    process = SidecarProcess(
        *(changes, "--to", target, "--format", "collection", "--envelope", "append"),
        *("--metrics-port", 0, "--trigger-seconds", 0),
    )
    try:
        process.read_until(4, "changes")
        port = process.err.rpartition(" ")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            shown = answer.read().decode()
        assert 'walstore_sidecar_landed_offset{log="changes"} 4.0' in shown
        assert 'walstore_collection_readers{collection="target"} 0.0' in shown
        process.signal(signal.SIGTERM)
        assert process.end() == 0
    finally:
        process.close()


@pytest.mark.slow
def test_spark_is_not_needed() -> None:
    """Neither by the verb nor by the sidecar's mode; PySpark is not even imported."""
    code = (
        "import sys; import walstore.cli.app, walstore.spark.sidecar.collection_landing; "
        "assert 'pyspark' not in sys.modules"
    )
    assert programs.run(code).returncode == 0
