"""walstore logs scrub: copies are read now, and what they lack is replaced or named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cli.conftest import Cli, Done
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.test_damage import fill
from tests.walstore.cluster.replication.test_healing import flip
from walstore import Wal
from walstore.topology.documents import PREFIX, Leader, LogSpec
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)


def put(store: MemoryKeyValues, folder: str, value: bytes) -> None:
    assert store.swap(f"{PREFIX}{folder}/orders", value, 0, 0).happened


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path) as made:
        yield made


async def led(machines: Machines, store: MemoryKeyValues) -> tuple[Machine, Wal]:
    """Return the leader of a log with some segments, with all copies there, and that log."""
    await machines.apply()
    leader = await machines.led()
    wal = leader.led()
    assert wal is not None
    await fill(wal)
    await until(lambda: all(one.is_present and not one.lag for one in wal.statistics().copies))
    put(store, "logs", LogSpec(copies=tuple(one.address for one in machines.all)).encode())
    epoch, copies = wal.statistics().epoch, tuple(one.address for one in wal.statistics().copies)
    put(store, "leaders", Leader(leader.address, "a", epoch, copies).encode())
    return leader, wal


def segments(machine: Machine) -> list[Path]:
    return sorted((machine.path / "orders").glob("*.wal"))


async def scrub(cli: Cli, *options: str) -> Done:
    return await asyncio.to_thread(cli, "logs", "scrub", "orders", *options)


async def test_damage_is_replaced_at_all_copies(
    cli: Cli, machines: Machines, store: MemoryKeyValues
) -> None:
    leader, wal = await led(machines, store)
    (other, _) = (one for one in machines.all if one is not leader)
    whole = segments(other)[0].read_bytes()
    flip(segments(other)[0], 0.3)
    flip(segments(leader)[1], 0.6)
    done = await scrub(cli, "--json")
    assert done.code == 0, done.err
    # The clock of these machines hurries the rounds that nobody asked for, so one may have been first.
    assert wal.statistics().mended_bytes == 2
    assert {one["address"] for one in done.json["copies"]} == {one.address for one in machines.all}
    assert [one["left"] for one in done.json["copies"]] == [{}] * 3
    assert segments(other)[0].read_bytes() == whole
    assert done.json["leader"] == leader.address
    assert done.json["checked_bytes"] == done.json["total_bytes"]
    again = await scrub(cli)
    assert again.code == 0
    assert len(again.lines) == 4
    top = await asyncio.to_thread(cli, "top", f"{leader.address}?log=orders", "--count", "1")
    assert "last round ended" in top.out.decode()


async def test_damage_that_stays_has_a_code_of_its_own(
    cli: Cli, machines: Machines, store: MemoryKeyValues
) -> None:
    leader, _ = await led(machines, store)
    for machine in machines.all:
        flip(segments(machine)[0], 0.5)
    done = await scrub(cli)
    assert done.code == 2
    assert len([line for line in done.err.splitlines() if "stays damaged" in line]) >= 3
    assert segments(leader)[0].name in done.err
    top = await asyncio.to_thread(cli, "top", f"{leader.address}?log=orders", "--count", "1")
    assert "stays damaged" in top.out.decode()


async def test_a_copy_that_is_not_there_is_said(
    cli: Cli, machines: Machines, store: MemoryKeyValues
) -> None:
    leader, wal = await led(machines, store)
    (gone, _) = (one for one in machines.all if one is not leader)
    await gone.stop()
    await until(lambda: not all(one.is_present for one in wal.statistics().copies))
    done = await scrub(cli)
    assert done.code == 1
    assert f"{gone.address} was not checked" in done.err


@pytest.mark.parametrize(
    ("spec", "leader", "code", "said"),
    [
        (None, None, 3, "no log 'orders'"),
        (LogSpec(), None, 1, "nobody leads"),
        (LogSpec(), Leader("unix:///none/s", "a", 0, ()), 1, "nobody leads"),
        (LogSpec(suspended=True), None, 4, "suspended"),
        (LogSpec(source="s3://bucket/orders"), None, 1, "no copies"),
    ],
)
def test_what_has_no_leader_is_not_scrubbed(
    cli: Cli,
    store: MemoryKeyValues,
    spec: LogSpec | None,
    leader: Leader | None,
    code: int,
    said: str,
) -> None:
    for folder, document in (("logs", spec), ("leaders", leader)):
        if document is not None:
            put(store, folder, document.encode())
    done = cli("logs", "scrub", "orders")
    assert (done.code, said in done.error) == (code, True), done.error
