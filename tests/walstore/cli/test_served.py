"""append, tail and dump at the address of a server."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.cli.conftest import Cli
from walstore import Wal, WalStore, connect
from walstore.cli import location
from walstore.serve import Server


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
