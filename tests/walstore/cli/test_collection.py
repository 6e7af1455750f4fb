"""walstore collection create and show: what they make and tell, and mistakes that all verbs share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli, make_people, objects, run_and_forget
from uploader import Collection, Controller

PEOPLE = ("--column", "id:int64", "--column", "name:string:null", "--key", "id", "--kind", "upsert")


def test_a_collection_is_created_once(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "people").as_uri()
    made = cli("collection", "create", url, *PEOPLE, "--json")
    assert (made.code, made.err) == (0, "")
    assert made.json == {
        "location": url,
        "created": True,
        "collection": made.json["collection"],
        "kind": "upsert",
        "key": ["id"],
        "columns": [
            {"name": "id", "type": "int64", "nullable": False},
            {"name": "name", "type": "string", "nullable": True},
        ],
    }
    again = cli("collection", "create", url, *PEOPLE)
    assert (again.code, again.error) == (0, "the collection exists; nothing was changed")
    assert "name string, may be null" in again.out.decode()
    other = cli("collection", "create", url, "--column", "id:int64")
    assert other.code == 1
    assert "the collection has kind 'upsert'" in other.error


def test_columns_like_those_of_a_file(cli: Cli, tmp_path: Path) -> None:
    """Without those that say what an update is; dictionaries are what they stand for."""
    table = pa.table(
        {"city": pa.array(["Ulm"]).dictionary_encode(), "n": [1], "_d": [2], "_h": [3]}
    )
    pq.write_table(table, tmp_path / "like.parquet")
    url = (tmp_path / "cities").as_uri()
    made = cli("collection", "create", url, "--like", tmp_path / "like.parquet", "--json").json
    assert made["kind"] == "diff"
    assert [(one["name"], one["type"]) for one in made["columns"]] == [
        ("city", "string"),
        ("n", "int64"),
    ]


def test_columns_that_make_no_collection(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no parquet")
    url = (tmp_path / "c").as_uri()
    for options, message in (
        ((), "give the columns, with --column for each or with --like FILE"),
        (("--column", "a:int64", "--like", "x"), "give the columns"),
        (("--column", "a:integer"), "--column a:integer: give NAME:TYPE"),
        (("--column", "a"), "no column has the type ''"),
        (("--column", "_a:int64"), "does not begin with an underscore"),
        (("--column", "a:int64", "--column", "a:string"), "the column 'a' occurs twice"),
        (("--column", "a:int64", "--key", "b"), "the key has 'b'"),
        (("--column", "a:int64", "--kind", "upsert"), "an upsert collection needs key columns"),
        (("--like", tmp_path / "notes.txt"), "cannot be read as a Parquet file"),
    ):
        with case(message):
            done = cli("collection", "create", url, *options)
            assert done.code == 1
            assert message in done.error
    missing = cli("collection", "create", url, "--like", tmp_path / "missing")
    assert (missing.code, missing.error) == (
        3,
        f"no such file or directory: {tmp_path / 'missing'}",
    )
    assert not (tmp_path / "c").exists()


def test_show_tells_what_holds_it_back(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "people").as_uri()
    run_and_forget(_hold(url))
    found = cli("collection", "show", url, "--json").json
    assert (found["upper"], found["merged_upper"], found["since"]) == (20, 20, 5)
    assert (found["behind"], found["held_by"]) == (14, ["backup"])
    assert (found["version"], found["controller"], found["epoch"]) == (1, "nightly", 1)
    batches = [(one["lower"], one["upper"], one["rows"]) for one in found["batches"]]
    assert batches == [(0, 20, 3)]
    assert found["pending"] == {"batches": 0, "rows": 0, "bytes": 0}
    report, backup = found["readers"]
    assert (report["name"], report["frontier"], report["behind"]) == ("report", 12, 7)
    assert 800 < report["lease_seconds"] <= 900
    assert (backup["frontier"], backup["version"], backup["lease_seconds"]) == (5, None, None)
    lines = cli("collection", "show", url).lines
    assert "behind      14 times, held by backup" in lines
    assert "controller  nightly" in lines
    assert any(re.fullmatch(r"report +0 +12 +7 +\d+ s", line) for line in lines)
    assert any(re.fullmatch(r"backup +- +5 +14 +critical, no lease", line) for line in lines)


async def _hold(url: str) -> None:
    """Make a collection with a leased and a critical reader, and a controller that does not resign."""
    await make_people(url)
    collection = await Collection.open(url)
    await collection.critical("backup", since=5)
    await collection.reader("report", since=12)
    controller = await Controller.open(url, name="nightly")
    await controller.compact()


def test_without_readers_since_stays(cli: Cli, people: str) -> None:
    found = cli("collection", "show", people, "--json").json
    assert (found["held_by"], found["readers"]) == ([], [])
    assert (
        "there is no reader, so since stays where it is"
        in cli("collection", "show", people).out.decode()
    )


VERBS = (
    ("show",),
    ("read",),
    ("read", "--follow"),
    ("write", "-"),
    ("compact",),
    ("compact", "--confirm"),
    ("gc",),
    ("gc", "--confirm"),
    ("expire", "report"),
    ("delete",),
    ("delete", "--confirm"),
)


def test_no_collection(cli: Cli, tmp_path: Path, stored: str) -> None:
    """There is nothing, a log, or no store; nothing is made there."""
    nowhere = (tmp_path / "nowhere").as_uri()
    log = objects(stored)
    for verb, *rest in VERBS:
        with case((verb, *rest)):
            done = cli("collection", verb, nowhere, *rest)
            assert done.code == 3
            assert done.error == (
                f"there is no collection at {nowhere}; 'walstore collection create' makes one"
            )
            done = cli("collection", verb, stored, *rest)
            assert done.code == 3
            assert done.error.startswith(f"there is a log at {stored}, no collection;")
            done = cli("collection", verb, tmp_path, *rest)
            assert done.code == 1
            assert done.error.startswith(f"collection {verb} needs a store URL")
    created = cli("collection", "create", stored, *PEOPLE)
    assert (created.code, created.error) == (
        1,
        f"there is a log at {stored}; choose a prefix of its own",
    )
    assert objects(stored) == log
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_head(cli: Cli, people: str, tmp_path: Path) -> None:
    (tmp_path / "people" / "head").write_bytes(b"{}")
    for verb in ("show", "read", "compact", "delete"):
        with case(verb):
            done = cli("collection", verb, people)
            assert done.code == 2
            assert "head" in done.error


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """In order; the lines of the block after them are among what they print."""
    page = (Path(__file__).parents[3] / "docs" / "versioned_collections.md").read_text()
    ((code, output),) = re.findall(r"```sh\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in output.splitlines() if line not in printed] == []
    assert pq.read_table(tmp_path / "people.parquet").to_pylist() == [{"id": 1, "name": "Bea"}]


@pytest.mark.parametrize("verb", ["nonsense", "destroy"])
def test_an_unknown_verb(cli: Cli, verb: str) -> None:
    done = cli("collection", verb)
    assert done.code == 1
    assert done.error == f"no such command '{verb}'; see 'walstore collection --help'"
