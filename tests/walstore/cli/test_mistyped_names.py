"""Every verb on a log, at a name that no log has, wherever logs may be: exit code 3, and nothing is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli, fill
from tests.walstore.cli.test_bad_locations import (
    AFTER,
    BEFORE,
    COLLECTION,
    DIRECTORY,
    EITHER,
    READERS,
    STORE,
)
from tests.walstore.cluster.machines import Machines
from tests.walstore.serve.served import Proxy, serving
from walstore import LogNotFoundError, WalStore, connect, connect_readonly
from walstore.cli import cluster
from walstore.cli.errors import FAILED, NOT_FOUND
from walstore.serve import Server

pytestmark = pytest.mark.timeout(60)

SERVED: Final = ("tail", "dump", "group", "top", "inspect", "cursors", "check", "trim", "rotate")
"""Verbs that a server does."""
MORE: Final = {
    "cursors": (("--set", "c", "1", "--confirm"), ("--delete", "c", "--confirm")),
    "destroy": (("--confirm",),),
    "gc": (("--confirm",),),
    "group": (("--delete", "g"), ("--delete", "g", "--confirm")),
    "rebuild": (("--confirm",),),
    "repair": (("--confirm",),),
    "seal": (("--confirm",),),
    "tail": (("-f",), ("--stream", "s")),
    "top": (("--json",),),
    "trim": (("--confirm",),),
}
"""Options that let a verb do something else."""
OF_A_CLUSTER: Final = (
    ("move", "tcp://127.0.0.1:1"),
    ("suspend",),
    ("resume",),
    ("scrub",),
    ("remove",),
    ("remove", "--confirm"),
)


def found(place: Path) -> dict[str, bytes | None]:
    """Return everything below a directory; files with what they contain."""
    return {
        str(one.relative_to(place)): one.read_bytes() if one.is_file() else None
        for one in place.rglob("*")
    }


def lines(verb: str, location: str) -> Iterator[tuple[str, ...]]:
    """Yield the command lines of a verb."""
    for more in ((), *MORE.get(verb, ())):
        yield (*verb.split(), *BEFORE.get(verb, ()), location, *AFTER.get(verb, ()), *more)


def check(cli: Cli, line: tuple[str, ...], place: Path, code: int = NOT_FOUND) -> None:
    before = found(place)
    with case(*line):
        done = cli(*line, stdin=b"")
        assert (done.code, done.out) == (code, b""), done
        assert len(done.err.splitlines()) == 1, done
        assert found(place) == before


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a log."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    asyncio.run(fill(place / "log", records=3))
    return place


def test_verbs_on_directories(cli: Cli, place: Path) -> None:
    (place / "empty").mkdir()
    for verb in (*DIRECTORY, *EITHER):
        for line in lines(verb, "missing"):
            check(cli, line, place)
        for line in lines(verb, "empty") if verb not in ("ls", "top") else ():
            check(cli, line, place)
    for verb in ("reset-head", "give-up"):
        check(cli, ("logs", verb, "missing", "--confirm"), place)


@pytest.mark.slow
def test_verbs_on_stores(cli: Cli, place: Path) -> None:
    for verb in (*STORE, *READERS, *COLLECTION):
        if verb != "collection create":
            for line in lines(verb, (place / "missing").as_uri()):
                check(cli, line, place)


@asynccontextmanager
async def one_log(path: Path) -> AsyncIterator[str]:
    async with serving(path / "log") as served:
        yield served.address


@asynccontextmanager
async def a_store(path: Path) -> AsyncIterator[str]:
    async with (
        WalStore.open(path / "store") as store,
        Server.open(store, unix=path / "s.sock") as server,
    ):
        await (await store.wal("orders")).append(b"1")
        yield str(server.addresses[0])


@asynccontextmanager
async def a_cluster(path: Path) -> AsyncIterator[str]:
    async with Machines(path, 1) as machines:
        await machines.apply(replicas=1)
        await machines.led()
        yield machines.all[0].address


SERVERS: Final[Any] = pytest.mark.parametrize("server", [one_log, a_store, a_cluster])


def logs_at(path: Path) -> set[str]:
    """Return the directories of a server; it may write to their files."""
    return {name for name, content in found(path).items() if content is None}


@SERVERS
async def test_verbs_at_a_server(cli: Cli, tmp_path: Path, server: Any) -> None:
    async with server(tmp_path) as address:
        before = logs_at(tmp_path)
        for verb in (*DIRECTORY, *STORE, *COLLECTION, *EITHER):
            for line in lines(verb, f"{address}?log=order"):
                with case(*line):
                    done = await asyncio.to_thread(cli, *line, stdin=b"")
                    code = NOT_FOUND if verb in SERVED else FAILED  # a wrong use of the others
                    assert (done.code, done.out) == (code, b""), done
                    assert logs_at(tmp_path) == before


@SERVERS
async def test_handles_that_shall_not_make_a_log(tmp_path: Path, server: Any) -> None:
    async with server(tmp_path) as address:
        before = logs_at(tmp_path)
        for _ in range(2):
            with pytest.raises(LogNotFoundError):
                await connect(address, log="order", create=False)
            with pytest.raises(LogNotFoundError):
                await connect_readonly(address, log="order")
        assert logs_at(tmp_path) == before


async def test_a_store_makes_a_log_for_who_appends(cli: Cli, tmp_path: Path) -> None:
    async with a_store(tmp_path) as address:
        made = await asyncio.to_thread(cli, "append", f"{address}?log=new", stdin=b"v\n")
        assert made.code == 0
        async with connect_readonly(address, log="new") as log, log.reader(follow=False) as reader:
            assert [record.value async for record in reader] == [b"v"]
        async with connect(address, log="other") as log:
            assert log.tail == 1


async def test_a_lost_connection_does_not_make_a_deleted_log_again(tmp_path: Path) -> None:
    """Whoever deleted it meant all of it, and who used it is told."""
    async with (
        WalStore.open(tmp_path / "store") as store,
        Server.open(store, unix=tmp_path / "s.sock") as server,
        Proxy(str(server.addresses[0])) as proxy,
    ):
        log = await connect(proxy.address, log="orders")
        await log.append(b"1")
        await store.delete("orders")
        proxy.lose()
        with pytest.raises(LogNotFoundError):
            await log.refresh()
        await log.aclose()
        assert await store.logs() == []


async def test_verbs_of_a_cluster(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Machines(tmp_path, 1) as machines:

        @asynccontextmanager
        async def open_keys(_: str) -> AsyncIterator[Any]:
            yield machines.store.client()

        monkeypatch.setattr(cluster, "open_keys", open_keys)
        monkeypatch.setenv(cluster.CLUSTER_VARIABLE, "etcd://127.0.0.1:1")
        for verb, *more in OF_A_CLUSTER:
            with case(verb, *more):
                done = await asyncio.to_thread(cli, "logs", verb, "order", *more)
                assert (done.code, done.out) == (NOT_FOUND, b""), done
                assert machines.store.get("walstore/logs/order") is None
