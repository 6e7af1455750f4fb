"""walstore collection read and write: rows in and out, intervals, and what stops them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli, objects
from uploader import Collection, CollectionReader, CollectionWriter
from walstore import OutcomeUnknownError

ADA, BOB, BEA = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}, {"id": 2, "name": "Bea"}


def test_content_at_a_time(cli: Cli, people: str) -> None:
    assert cli("collection", "read", people, "--json").rows == [ADA, BEA]
    assert cli("collection", "read", people, "--as-of", 13, "--json").rows == [ADA, BOB]
    assert cli("collection", "read", people).lines == ["id  name", " 1  Ada", " 2  Bea"]
    assert cli("collection", "read", people, "--limit", 1, "--json").rows == [ADA]
    assert cli("collection", "show", people, "--json").json["readers"] == []


def test_changes_after_a_time(cli: Cli, people: str) -> None:
    changed = BEA | {"_t": 14, "_deleted": False}
    assert cli("collection", "read", people, "--after", 9, "--json").rows == [changed]
    every = cli("collection", "read", people, "--after", -1, "--json").rows
    assert every == [
        ADA | {"_t": 0, "_deleted": False},
        BOB | {"_t": 0, "_deleted": False},
        changed,
    ]
    assert (
        cli("collection", "read", people, "--after", -1, "--limit", 1, "--json").rows == every[:1]
    )
    done = cli("collection", "read", people, "--after", 19)
    assert (done.code, done.out, done.err) == (0, b"", "")


def test_a_parquet_file(cli: Cli, people: str, tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    path.write_bytes(b"an older file")
    done = cli("collection", "read", people, "--output", path, "--json")
    assert done.json == {"location": people, "output": str(path), "rows": 2}
    assert pq.read_table(path).to_pylist() == [ADA, BEA]
    assert cli("collection", "read", people, "--after", 9, "--output", path).code == 0
    assert pq.read_table(path).column("_t").to_pylist() == [14]
    done = cli("collection", "read", people, "--after", 19, "--output", path)
    assert (done.code, pq.read_table(path).num_rows) == (1, 1)
    assert "no changes after that time" in done.error
    assert cli("collection", "read", people, "--output", tmp_path / "no" / "file").code == 3
    assert [one.name for one in tmp_path.glob("*parquet*")] == ["people.parquet"]


def test_readings_that_are_refused(cli: Cli, people: str) -> None:
    asyncio.run(_forget(people, 15))
    for options, message in (
        (("--as-of", 3, "--after", 3), "give --as-of for the content or --after for changes"),
        (("--follow", "--output", "x"), "--output needs an end"),
        (("--as-of", 20), "the collection ends at 20, so nothing is known about 20 yet"),
        (("--after", 20), "nothing is known about 20 yet"),
        (("--as-of", 14), "as_of=14 since=15"),
        (("--after", 3), "as_of=3 since=15"),
        (("--as-of", -1), "invalid value for '--as-of'"),
    ):
        with case(options):
            done = cli("collection", "read", people, *options)
            assert done.code == 1
            assert message in done.error
    assert cli("collection", "show", people, "--json").json["readers"] == []


async def _forget(url: str, since: int) -> None:
    async with Collection.open(url) as collection, await collection.reader() as reader:
        await reader.downgrade_since(since)


async def _follow(url: str, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "walstore.cli", "collection", "read", url, "--follow", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
async def test_follows_until_a_signal_and_releases_its_reader(people: str, number: int) -> None:
    process = await _follow(people, "--json")
    assert process.stdout is not None
    found = [json.loads(await process.stdout.readline()) for _ in range(2)]
    assert [row["name"] for row in found] == ["Ada", "Bea"]
    async with Collection.open(people) as collection:
        (name,) = (await collection.status()).readers
        assert name.startswith("walstore-read-")
        await collection.writer().append(pa.table({"id": [3], "name": ["Cai"]}), lower=20, upper=21)
        assert json.loads(await process.stdout.readline())["name"] == "Cai"
        process.send_signal(number)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 0
        assert (await collection.status()).readers == {}


@pytest.mark.slow
async def test_the_names_of_columns_are_printed_once(people: str) -> None:
    """Above what is there; what follows has the same columns."""
    process = await _follow(people)
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(3)]
    async with Collection.open(people) as collection:
        writer = collection.writer()
        for at, name in ((20, "Cai"), (21, "Dee"), (22, "Eve")):
            await writer.append(pa.table({"id": [at], "name": [name]}), lower=at, upper=at + 1)
            lines.append(await process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert await process.communicate() == (b"", b"")
    assert b"".join(lines).decode().splitlines() == [
        "id  name  _t  _deleted",
        " 1  Ada   19  false",
        " 2  Bea   19  false",
        "20  Cai   20  false",
        "21  Dee   21  false",
        "22  Eve   22  false",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_content_that_is_interrupted(
    cli: Cli, people: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is no content: the code is 1, no file is written, and the reader is released."""

    async def interrupted(*_: object) -> AsyncIterator[pa.Table]:
        signal.raise_signal(number)
        await asyncio.Event().wait()
        yield None

    with monkeypatch.context() as broken:
        broken.setattr(CollectionReader, "snapshot", lambda *_, **__: anext(interrupted()))
        done = cli("collection", "read", people, "--output", tmp_path / "x")
    assert (done.code, done.out, done.error) == (1, b"", "interrupted")
    assert not (tmp_path / "x").exists()
    assert cli("collection", "show", people, "--json").json["readers"] == []


def test_an_append_of_unknown_outcome(
    cli: Cli, people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the times with which it is repeated."""

    async def unknown(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("the store did not answer; append it again")

    monkeypatch.setattr(CollectionWriter, "append", unknown)
    done = cli("collection", "write", people, "-", stdin=b'{"id":3,"name":"Cai"}')
    assert done.code == 1
    assert done.error.endswith("append it again (repeat it with --lower 20 --upper 21)")


def test_rows_from_stdin(cli: Cli, people: str) -> None:
    lines = b'{"id":3,"name":"Cai"}\n\n{"id":1,"_deleted":true}\n'
    done = cli("collection", "write", people, "-", "--json", stdin=lines)
    assert (done.code, done.err) == (0, "")
    assert done.json == {"location": people, "writer": "main", "lower": 20, "upper": 21, "rows": 2}
    assert cli("collection", "read", people, "--json").rows == [BEA, {"id": 3, "name": "Cai"}]
    assert "[21, 30)" in cli("collection", "write", people, "-", "--upper", 30).out.decode()
    assert cli("collection", "show", people, "--json").json["upper"] == 30


def test_rows_from_a_file(cli: Cli, people: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [3], "name": ["Cai"], "_t": [25]}), path)
    done = cli("collection", "write", people, path)
    assert (done.code, done.error) == (1, "_t must be in [20, 21), not 25 to 25")
    assert cli("collection", "write", people, path, "--upper", 30).code == 0
    assert cli("collection", "read", people, "--after", 20, "--json").rows[0]["_t"] == 25
    again = cli("collection", "write", people, path, "--lower", 20, "--upper", 30, "--json")
    assert (again.code, again.json["upper"]) == (0, 30)


def test_what_is_derived_again_is_left_out(cli: Cli, people: str) -> None:
    done = cli("collection", "write", people, "-", "--definite")
    assert (done.code, "--definite needs --lower and --upper" in done.error) == (1, True)
    lines = b'{"id":2,"name":"Bea","_t":14}\n{"id":4,"name":"Dee","_t":22}\n'
    write = ("collection", "write", people, "-", "--lower", 10, "--upper", 30, "--definite")
    assert cli(*write, stdin=lines).code == 0
    assert cli("collection", "read", people, "--after", 14, "--json").rows[0]["_t"] == 22
    assert cli(*write, stdin=lines).code == 0
    upper = cli("collection", "show", people, "--json").json["upper"]
    done = cli(*write[:5], 10, "--upper", 40, "--definite", "--json", stdin=lines)
    assert (upper, done.code, done.json["upper"]) == (30, 0, 40)
    assert cli("collection", "show", people, "--json").json["pending"]["batches"] == 4
    gap = cli(*write[:5], 50, "--upper", 60, "--definite")
    assert (gap.code, "the shard main ends at 40, not at 50" in gap.error) == (1, True)


def test_an_input_without_rows_takes_no_time_unless_it_has_an_interval(
    cli: Cli, people: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    before = objects(people)
    for file in ("-", tmp_path / "none.parquet"):
        done = cli("collection", "write", people, file, "--json", stdin=b"\n")
        assert (done.code, done.json["lower"], done.json["upper"], done.json["rows"]) == (
            0,
            20,
            20,
            0,
        )
        assert objects(people) == before
    done = cli("collection", "write", people, "-", "--upper", 25, "--json", stdin=b"")
    assert (done.code, done.json["lower"], done.json["upper"]) == (0, 20, 25)
    assert objects(people) != before


def test_what_is_not_written(cli: Cli, people: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no parquet")
    pq.write_table(pa.table({"id": ["one"]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"id": [1], "age": [3]}), tmp_path / "more.parquet")
    before = objects(people)
    row = b'{"id":3,"name":"Cai"}'
    for options, lines, message in (
        (("-", "--lower", 30), row, "the shard main ends at 20, not at 30"),
        (("-", "--lower", 10, "--upper", 20), row, "the shard main ends at 20, not at 10"),
        (("-", "--lower", 30, "--upper", 20), row, "an interval needs 0 <= lower < upper"),
        (("-", "--writer", "a/b"), row, "the name of a writer must be"),
        (("-",), b'{"id":3}\n{"id":"x"}', "line 2 of stdin: the column 'id' is int64, not \"x\""),
        (("-",), b'{"id":3,"age":7}', "line 1 of stdin has 'age'; the columns are id, name, _t"),
        (("-",), b'{"name":"Cai"}', "the updates have no column 'id'"),
        (("-",), row + b'\n{"name":"Cai"}', "the column 'id' must not be null"),
        (("-",), b"\n[1]", "line 2 of stdin is no JSON object, but [1]"),
        (("-",), b"id,name", "line 1 of stdin is no JSON"),
        (("-",), b"{}", "line 1 of stdin has no column of the collection"),
        ((tmp_path / "notes.txt",), b"", "cannot be read as a Parquet file"),
        ((tmp_path / "other.parquet",), b"", "the column 'id' must be int64, not string"),
        ((tmp_path / "more.parquet",), b"", "the collection has no column 'age'"),
    ):
        with case((options, lines)):
            done = cli("collection", "write", people, *options, stdin=lines)
            assert done.code == 1
            assert message in done.error
    assert cli("collection", "write", people, tmp_path / "missing").code == 3
    assert objects(people) == before


def test_a_diff_collection_goes_round(cli: Cli, tmp_path: Path) -> None:
    """What is read as JSON or as a file is written to another one as it is."""
    one, other, third = ((tmp_path / name).as_uri() for name in ("one", "other", "third"))
    for url in (one, other, third):
        assert cli("collection", "create", url, "--column", "city:string").code == 0
    lines = b'{"city":"Ulm","_d":3}\n{"city":"Bonn"}\n{"city":"Ulm","_d":-1}\n'
    assert cli("collection", "write", one, "-", stdin=lines).code == 0
    found = cli("collection", "read", one, "--json")
    assert found.rows == [{"city": "Bonn", "_d": 1}, {"city": "Ulm", "_d": 2}]
    assert cli("collection", "write", other, "-", stdin=found.out).code == 0
    assert cli("collection", "read", other, "--json").out == found.out
    assert cli("collection", "read", one, "--output", tmp_path / "one.parquet").code == 0
    assert cli("collection", "write", third, tmp_path / "one.parquet").code == 0
    assert cli("collection", "read", third, "--json").out == found.out


def test_an_empty_collection(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "empty").as_uri()
    cli("collection", "create", url, "--column", "n:int64")
    done = cli("collection", "read", url)
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert cli("collection", "read", url, "--output", tmp_path / "empty.parquet").code == 0
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
