"""walstore collection compact, gc, expire and delete: their dry runs, and one controller at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli, objects, run_and_forget
from uploader import Collection, Controller
from walstore.core.runtime.clock import SystemClock


def test_compaction(cli: Cli, people: str) -> None:
    before = objects(people)
    dry = cli("collection", "compact", people, "--json")
    assert (dry.code, dry.error) == (0, "nothing was changed; give --confirm to do this")
    plan = dry.json["plan"]
    assert (plan["lower"], plan["upper"], plan["batches"], plan["pending"]) == (0, 20, 0, 2)
    assert (plan["rows"], dry.json["applied"], dry.json["passes"]) == (3, False, None)
    assert "inputs      0 batches, 2 pending" in cli("collection", "compact", people).lines
    assert objects(people) == before
    done = cli("collection", "compact", people, "--confirm", "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.json["applied"], done.json["passes"], done.json["upper"]) == (True, 1, 20)
    assert (done.json["rows_read"], done.json["rows_written"]) == (3, 3)
    assert "first pass  nothing to do" in cli("collection", "compact", people).lines
    assert "passes        0" in cli("collection", "compact", people, "--confirm").lines


def test_a_full_compaction_forgets_what_was_overwritten(cli: Cli, people: str) -> None:
    cli("collection", "compact", people, "--confirm")
    asyncio.run(_forget(people))
    assert cli("collection", "compact", people, "--json").json["plan"] is None
    assert cli("collection", "compact", people, "--full", "--json").json["plan"]["since"] == 19
    done = cli("collection", "compact", people, "--full", "--confirm", "--json").json
    assert (done["rows_read"], done["rows_written"], done["since"]) == (3, 2, 19)


async def _forget(url: str) -> None:
    async with Collection.open(url) as collection, await collection.reader() as reader:
        await reader.downgrade_since(19)


@contextmanager
def _later(monkeypatch: pytest.MonkeyPatch, seconds: int) -> Iterator[None]:
    """Let the system's clock be ahead."""
    now_us = SystemClock.now_us
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now_us", lambda self: now_us(self) + seconds * 1_000_000)
        yield


def test_garbage(cli: Cli, people: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("collection", "compact", people, "--confirm")
    assert cli("collection", "gc", people, "--json").json["pending"] == 0
    before = objects(people)
    with _later(monkeypatch, 4000):
        dry = cli("collection", "gc", people, "--json")
        assert (dry.code, dry.error) == (0, "nothing was changed; give --confirm to do this")
        assert (dry.json["applied"], dry.json["pending"], dry.json["purged"]) == (False, 2, 20)
        assert objects(people) == before
        done = cli("collection", "gc", people, "--confirm", "--json")
        assert done.json == dry.json | {"applied": True}
        assert not [key for key in objects(people) if key.startswith("pending/")]
        lines = cli("collection", "gc", people, "--confirm").lines
        assert "kept from  version 1 on, no reader holds an older one" in lines
    assert len(cli("collection", "read", people, "--json").rows) == 2


def test_a_reader_is_expired(cli: Cli, people: str) -> None:
    asyncio.run(_leave(people))
    before = objects(people)
    dry = cli("collection", "expire", people, "report", "--json")
    assert (dry.code, dry.error) == (0, "nothing was changed; give --confirm to do this")
    assert (dry.json["reader"], dry.json["frontier"], dry.json["applied"]) == ("report", 7, False)
    assert objects(people) == before
    done = cli("collection", "expire", people, "report", "--confirm", "--json")
    assert (done.code, done.err, done.json["applied"]) == (0, "", True)
    assert cli("collection", "show", people, "--json").json["readers"] == []
    done = cli("collection", "expire", people, "report", "--confirm")
    assert (done.code, done.error) == (3, f"the collection at {people} has no reader 'report'")


async def _leave(url: str) -> None:
    """Leave a critical reader behind."""
    async with Collection.open(url) as collection:
        await collection.critical("report", since=7)


def test_another_controller_at_work(cli: Cli, people: str) -> None:
    """The lease of one whose program has ended; dry runs go on, and do not fence it."""
    asyncio.run(_leave(people))
    run_and_forget(_control(people))
    verbs = (("compact",), ("gc",), ("expire", "report"))
    before = objects(people)
    for verb, *rest in verbs:
        with case(verb):
            assert cli("collection", verb, people, *rest).code == 0
            done = cli("collection", verb, people, *rest, "--confirm")
            assert done.code == 4
            assert "nightly" in done.error
    assert objects(people) == before
    for verb, *rest in verbs:
        with case(verb):
            run_and_forget(_control(people))
            done = cli("collection", verb, people, *rest, "--confirm", "--take-over")
            assert (done.code, done.err) == (0, "")


async def _control(url: str) -> None:
    """Become the controller, and end without resigning."""
    await Controller.open(url, name="nightly", take_over=True)


def test_a_collection_is_deleted(cli: Cli, people: str) -> None:
    before = objects(people)
    dry = cli("collection", "delete", people, "--json")
    assert (dry.code, dry.error) == (0, "nothing was changed; give --confirm to do this")
    assert (dry.json["rows"], dry.json["objects"], dry.json["readers"]) == (3, 2, [])
    assert objects(people) == before
    done = cli("collection", "delete", people, "--confirm", "--json")
    assert (done.code, done.err, done.json["objects"]) == (0, "", 2)
    gone = f"the collection at {people} was deleted"
    for verb in ("show", "read", "delete"):
        assert (cli("collection", verb, people).code, cli("collection", verb, people).error) == (
            3,
            gone,
        )
    created = cli("collection", "create", people, "--column", "id:int64")
    assert (created.code, created.error) == (3, gone)


def test_a_damaged_collection_can_be_deleted(cli: Cli, people: str, tmp_path: Path) -> None:
    pending = tmp_path / "people" / "pending" / "main" / "0000000000000000.parquet"
    pending.write_bytes(pending.read_bytes()[:-9])
    dry = cli("collection", "delete", people, "--json")
    assert (dry.code, dry.json["rows"], dry.json["objects"]) == (0, None, 2)
    assert "the collection is damaged" in dry.err
    assert cli("collection", "delete", people, "--confirm", "--json").json["objects"] == 2


def test_an_interrupted_deletion_is_continued(
    cli: Cli, people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Collection, "_remove_all", fail)
        assert cli("collection", "delete", people, "--confirm").code == 1
    assert "pending/main/0000000000000000.parquet" in objects(people)
    dry = cli("collection", "delete", people, "--json")
    assert (dry.code, dry.json["rows"], dry.json["objects"]) == (0, None, 2)
    assert cli("collection", "delete", people, "--confirm", "--json").json["objects"] == 2
    assert "pending/main/0000000000000000.parquet" not in objects(people)


def test_spark_without_java(cli: Cli, people: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    failed = cli("collection", "compact", people, "--engine", "spark", "--confirm")
    assert failed.code == 1
    assert "openjdk-17" in failed.error
    plan = cli("collection", "compact", people, "--engine", "spark", "--json").json["plan"]
    assert plan["pending"] == 2  # a dry run needs no Spark
