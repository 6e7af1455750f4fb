"""Verbs at the address of a server: records, trim, rotate, cursors, check, inspect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cloud import tier
from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.cli.conftest import Cli
from uploader.stores.memory import MemoryStore
from uploader.testing.faults import FaultyStore, Request
from walstore import CursorMovedError, StorageUnavailableError, Wal, WalStore, connect
from walstore.cli import location
from walstore.serve import Server


@asynccontextmanager
async def served(path: Path, **options: Any) -> AsyncIterator[tuple[Wal, str]]:
    async with (
        Wal.open(path / "log", **options) as wal,
        Server.open(wal, unix=path / "s.sock") as server,
    ):
        yield wal, str(server.addresses[0])


@contextmanager
def refusing(store: FaultyStore, error: StorageUnavailableError) -> Iterator[None]:
    """Refuse new objects until the block ends."""
    is_refusing = True

    async def refuse(request: Request[Any]) -> object:
        if is_refusing:
            raise error
        return await request()

    store.on("put_if_absent", refuse, times=10**9)
    try:
        yield
    finally:
        is_refusing = False


async def test_trim_and_rotate_where_a_server_has_the_log(cli: Cli, tmp_path: Path) -> None:
    """The directory is locked; the server does it, by the same rules, with the same report."""
    async with served(tmp_path) as (wal, address):
        for number in range(3):
            await wal.append_many([b"%d" % number] * 10)
            done = await asyncio.to_thread(cli, "rotate", address, "--json")
            assert done.json == {"location": address, "sealed": True, "segments": number + 2}
        again = await asyncio.to_thread(cli, "rotate", address)
        assert "it had no records" in again.out.decode()
        await wal.append(b"v")
        cursor = await wal.cursor("billing")
        await cursor.commit(15)
        locked = await asyncio.to_thread(cli, "trim", tmp_path / "log", "--before", 21, "--confirm")
        assert locked.code == 4
        trim = ("trim", address, "--before", 21)
        dry = await asyncio.to_thread(cli, *trim, "--json")
        of_files = await asyncio.to_thread(cli, "trim", tmp_path / "log", "--before", 21, "--json")
        for name in ("before", "head", "new_head", "durable_limit", "records", "pinned_by"):
            assert of_files.json[name] == dry.json[name]
        names = [[one["name"] for one in done.json["segments"]] for done in (dry, of_files)]
        assert names[0] == names[1] == ["00000000000000000001.wal"]
        assert (dry.json["new_head"], dry.json["applied"]) == (15, False)
        assert dry.json["pinned_by"] == [{"name": "billing", "position": 15}]
        assert await wal.delete_cursor("billing")
        done = await asyncio.to_thread(cli, *trim, "--confirm", "--json")
        assert (done.json["new_head"], done.json["applied"]) == (21, True)
        assert len(done.json["segments"]) == 2
        assert wal.head == 21


async def test_trim_keeps_what_is_not_shipped(cli: Cli, tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with served(tmp_path, tier=tier(store)) as (wal, address):
        await wal.append(b"v", durability="cloud")
        with refusing(store, StorageUnavailableError("away")):
            await wal.append(b"w")
            trim = ("trim", address, "--before", "latest", "--confirm")
            refused = await asyncio.to_thread(cli, *trim)
            assert (refused.code, "held offsets below 2 now" in refused.err) == (1, True)


async def test_cursors_of_a_served_log(cli: Cli, tmp_path: Path) -> None:
    async with served(tmp_path) as (wal, address):
        await wal.append_many([b"v"] * 10)
        cursor = await wal.cursor("billing", lease_seconds=1000)
        await cursor.commit(5)
        shown = await asyncio.to_thread(cli, "cursors", address, "--json")
        of_files = await asyncio.to_thread(cli, "cursors", tmp_path / "log", "--json")
        assert shown.json == {**of_files.json, "location": address}
        dry = await asyncio.to_thread(cli, "cursors", address, "--set", "billing", 3)
        assert "give --confirm" in dry.error
        found: list[dict[str, Any]] = []
        for name, offset in (("billing", 3), ("new", 7), ("billing", 8)):
            change = ("cursors", address, "--set", name, offset, "--confirm", "--json")
            found = (await asyncio.to_thread(cli, *change)).json["cursors"]
            assert {one["name"]: one["position"] for one in found}[name] == offset
        (kept,) = (one for one in found if one["name"] == "billing")
        assert kept["lease_seconds"] == 1000
        with pytest.raises(CursorMovedError):
            await cursor.commit(9)
        beyond = await asyncio.to_thread(cli, "cursors", address, "--set", "new", 12, "--confirm")
        assert beyond.code == 1
        delete = ("cursors", address, "--delete", "new", "--confirm")
        assert (await asyncio.to_thread(cli, *delete)).code == 0
        assert [one.name for one in await wal.cursors()] == ["billing"]
        assert (await asyncio.to_thread(cli, *delete)).code == 3


async def test_check_and_inspect_a_served_log(cli: Cli, tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with served(tmp_path, tier=tier(store)) as (wal, address):
        await wal.append(b"v", durability="cloud")
        await wal.cursor("slow")
        good = await asyncio.to_thread(cli, "check", address, "--max-upload-lag", 0, "--json")
        assert (good.code, good.json["upload_lag"], good.json["writer"]) == (0, 0, address)
        inspected = await asyncio.to_thread(cli, "inspect", address, "--json")
        of_files = await asyncio.to_thread(cli, "inspect", tmp_path / "log", "--json")
        same = ("log_id", "head", "durable_limit", "records", "epoch")
        assert [inspected.json[name] for name in same] == [of_files.json[name] for name in same]
        assert inspected.json["uploaded_limit"] == 2
        assert "shipped to" in (await asyncio.to_thread(cli, "inspect", address)).out.decode()
        late = await asyncio.to_thread(cli, "check", address, "--max-lag", 0)
        assert (late.code, "cursor 'slow' is 1 records behind" in late.err) == (1, True)
        with refusing(store, StorageUnavailableError("the token expired", retriable=False)):
            with pytest.raises(StorageUnavailableError):
                await wal.append(b"w", durability="cloud")
            bad = await asyncio.to_thread(cli, "check", address, "--json")
            assert (bad.code, bad.json["failures"]) == (1, ["shipping: the token expired"])


async def test_records_go_in_and_come_out(cli: Cli, tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "log") as wal,
        Server.open(wal, unix=tmp_path / "s.sock") as server,
    ):
        address = str(server.addresses[0])
        lines = b"".join(b"%d\n" % number for number in range(3000))
        made = await asyncio.to_thread(cli, "append", address, "--json", stdin=lines)
        assert made.json == {
            "address": address,
            "start": 1,
            "limit": 3001,
            "records": 3000,
            "bytes": len(lines) - 3000,
        }
        tailed = await asyncio.to_thread(cli, "tail", "-n", "2", address)
        assert tailed.out == b"2998\n2999\n"
        dumped = await asyncio.to_thread(cli, "dump", address, "--from", "-1")
        assert (dumped.rows[0]["offset"], dumped.rows[0]["value"]) == (3000, "2999")
        timed = await asyncio.to_thread(cli, "dump", address, "--from", "-1h", "--limit", "1")
        assert timed.rows[0]["offset"] == 1
        late = await asyncio.to_thread(cli, "tail", address, "--from", "9999")
        assert (late.code, "has not been written yet" in late.error) == (1, True)
        keyed = ("--key", "k", "--stream", "eu")
        assert (await asyncio.to_thread(cli, "append", address, *keyed, stdin=b"x\n")).code == 0
        eu = await asyncio.to_thread(cli, "dump", address, "--stream", "eu")
        assert [(row["key"], row["value"]) for row in eu.rows] == [("k", "x")]


async def test_a_log_of_a_store_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        WalStore.open(tmp_path / "store") as store,
        Server.open(store, tcp="127.0.0.1:0", token="secret") as server,
    ):
        address = f"{server.addresses[0]}?log=orders"
        refused = await asyncio.to_thread(cli, "tail", address)
        assert (refused.code, "refused the token" in refused.error) == (1, True)
        assert "WALSTORE_TOKEN" in refused.error
        monkeypatch.setenv("WALSTORE_TOKEN", "secret")
        assert (await asyncio.to_thread(cli, "append", address, stdin=b"v\n")).code == 0
        assert (await asyncio.to_thread(cli, "tail", address)).out == b"v\n"
        nameless = await asyncio.to_thread(cli, "tail", str(server.addresses[0]))
        assert "name one" in nameless.error


def test_nobody_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "connect", partial(connect, connect_seconds=RUNS_OUT_SECONDS))
    for verb in ("tail", "dump", "append"):
        done = cli(verb, f"unix://{tmp_path}/none.sock", stdin=b"v\n")
        assert (done.code, "no server at" in done.err) == (1, True)


@pytest.mark.parametrize("option", ["--durability=disk", "--tier=file:///x", "--layout=swap"])
def test_options_of_owners(cli: Cli, option: str) -> None:
    done = cli("append", "unix:///s.sock", option, stdin=b"v\n")
    assert (done.code, "for the owner of a log" in done.error) == (1, True)
