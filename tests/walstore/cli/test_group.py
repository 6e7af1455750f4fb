"""walstore group: what there is, and removing it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.walstore.cli.conftest import Cli
from tests.walstore.cluster.replication.cluster import Cluster
from tests.walstore.serve.served import serving
from uploader import CloudLog, CloudWriter
from walstore import Wal
from walstore.serve import Server


async def _fill(path: Path) -> None:
    async with Wal.open(path) as wal:
        await wal.append_many([b"v"] * 5)
        async with wal.group("workers") as group:
            await group.ack(await group.fetch(2))


def test_a_directory(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path / "log"))
    (found,) = cli("group", tmp_path / "log", "--json").json["groups"]
    assert (found["name"], found["floor"], found["behind"]) == ("workers", 3, 3)
    assert (found["in_use"], found["pending"]) == (False, None)
    dry = cli("group", tmp_path / "log", "--delete", "workers")
    assert (dry.code, "give --confirm" in dry.err, dry.lines[1].split()[0]) == (0, True, "workers")
    for more in ((), ("--confirm",)):
        missing = cli("group", tmp_path / "log", "--delete", "none", *more)
        assert (missing.code, "there is no group 'none'" in missing.error) == (3, True)
    for more in ((), ("--confirm",)):
        odd = cli("group", tmp_path / "log", "--delete", "../x", *more)
        assert (odd.code, "does not begin with a dot" in odd.error) == (1, True)
    assert cli("group", tmp_path / "log", "--delete", "workers", "--confirm").code == 0
    empty = cli("group", tmp_path / "log")
    assert (empty.code, "there are no groups" in empty.err, empty.out) == (0, True, b"")


async def test_a_copy_of_a_replicated_log(cli: Cli, tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        wal = await cluster.primary(0)
        await wal.append_many([b"v"] * 5)
        async with wal.group("workers") as group:
            await group.ack(await group.fetch(2))
        await wal.aclose()
        copy = cluster.machines[1].path / "orders"
        (found,) = (await asyncio.to_thread(cli, "group", copy, "--json")).json["groups"]
        assert (found["name"], found["floor"], found["behind"]) == ("workers", 3, 3)


async def test_a_log_in_a_store(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    async with CloudWriter.open(url) as writer:
        await writer.append_many([b"v"] * 5)
    async with CloudLog.open(url) as log, log.group("workers") as group:
        await group.ack(await group.fetch(2))
    (found,) = (await asyncio.to_thread(cli, "group", url, "--json")).json["groups"]
    assert (found["name"], found["floor"], found["behind"]) == ("workers", 3, 3)
    done = await asyncio.to_thread(cli, "group", url, "--delete", "workers", "--confirm")
    assert (done.code, "there are no groups" in done.err) == (0, True)
    missing = await asyncio.to_thread(cli, "group", url, "--delete", "workers", "--confirm")
    assert (missing.code, "there is no group 'workers'" in missing.error) == (3, True)


async def test_a_damaged_group_at_an_address(cli: Cli, tmp_path: Path) -> None:
    async with serving(tmp_path / "log") as served:
        async with served.wal.group("good"):
            (tmp_path / "log/groups/torn").write_bytes(b"not a group")
        listed = await asyncio.to_thread(cli, "group", served.address, "--json")
    _, torn = listed.json["groups"]
    assert (listed.code, "torn" in torn["problem"]) == (0, True)
    assert f"group torn: {torn['problem']}" in listed.err


async def test_a_group_whose_object_is_damaged(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with CloudWriter.open(store.as_uri()) as writer:
        await writer.append_many([b"v"] * 5)
    async with CloudLog.open(store.as_uri()) as log, log.group("bad"), log.group("good"):
        pass
    (store / "group/bad.json").write_bytes(b"not a group")
    listed = await asyncio.to_thread(cli, "group", store.as_uri(), "--json")
    bad, good = listed.json["groups"]
    assert (listed.code, bad["in_use"], bad["pending"], good["problem"]) == (0, False, None, None)
    assert f"group bad: {bad['problem']}" in listed.err
    gone = await asyncio.to_thread(
        cli, "group", store.as_uri(), "--delete", "bad", "--confirm", "--json"
    )
    assert [one["name"] for one in gone.json["groups"]] == ["good"]


async def test_a_served_log(cli: Cli, tmp_path: Path) -> None:
    await _fill(tmp_path / "log")
    address = f"unix://{tmp_path / 's.sock'}"
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock"),
        wal.group("workers") as group,
    ):
        await group.fetch()
        done = await asyncio.to_thread(cli, "group", address, "--json")
        assert done.json["groups"][0]["pending"] == 1
        locked = await asyncio.to_thread(
            cli, "group", tmp_path / "log", "--delete", "workers", "--confirm"
        )
        assert locked.code == 4
        assert address in locked.error
        gone = await asyncio.to_thread(cli, "group", address, "--delete", "workers", "--confirm")
        assert (gone.code, gone.out) == (0, b"")
        assert await wal.groups() == []


async def _bury(wal: Wal, count: int) -> None:
    await wal.append_many([b"v"] * count)
    async with wal.group("workers") as group:
        jobs = 0
        while jobs < count:
            for job in await group.fetch(count):
                await job.term("bad")
                jobs += 1


async def test_dead_letters_are_redriven_in_a_directory_and_at_an_address(
    cli: Cli, tmp_path: Path
) -> None:
    async with serving(tmp_path / "log") as served:
        await _bury(served.wal, 3)
        place = served.address
        one = await asyncio.to_thread(cli, "group", place, "--redrive", "workers", "--letter", 5)
        assert (one.code, "1 dead letter of group 'workers' redriven, 2 left" in one.err) == (
            0,
            True,
        )
        some = await asyncio.to_thread(
            cli, "group", place, "--redrive", "workers", "--limit", 1, "--json"
        )
        assert some.json["redriven"] == {
            "group": "workers",
            "letters": [4],
            "skipped": [],
            "left": 1,
        }
        locked = await asyncio.to_thread(cli, "group", tmp_path / "log", "--redrive", "workers")
        assert locked.code == 4
    for letters in ([6], []):
        done = await asyncio.to_thread(
            cli, "group", tmp_path / "log", "--redrive", "workers", "--json"
        )
        assert done.json["redriven"]["letters"] == letters
    async with Wal.open(tmp_path / "log") as wal, wal.group("workers") as group:
        assert (await group.fetch(9))[0].value == b"v"


def test_what_cannot_be_redriven(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path / "log"))
    none = cli("group", tmp_path / "log", "--redrive", "none")
    assert (none.code, "there is no group 'none'" in none.error) == (3, True)
    missing = cli("group", tmp_path / "nowhere", "--redrive", "workers")
    assert (missing.code, (tmp_path / "nowhere").exists()) == (3, False)
    stored = cli("group", (tmp_path / "store").as_uri(), "--redrive", "workers")
    assert (stored.code, "redrive at its directory or its server" in stored.error) == (1, True)
    for more in (("--limit", "3"), ("--letter", "3"), ("--dead-letters", "s")):
        odd = cli("group", tmp_path / "log", *more)
        assert (odd.code, f"{more[0]} needs --redrive NAME" in odd.error) == (1, True)
    both = cli("group", tmp_path / "log", "--redrive", "a", "--delete", "b")
    assert (both.code, "not both" in both.error) == (1, True)
