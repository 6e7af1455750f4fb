"""walstore logs apply --adopt: the machines are asked what they have before a list of copies is taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.cli.conftest import Cli, Done
from tests.walstore.cli.test_cluster import put, spec
from tests.walstore.cluster.machines import Machines
from tests.walstore.cluster.replication.cluster import Cluster
from walstore import Wal
from walstore.topology.documents import Leader, LogSpec, Member, Synced
from walstore.topology.memory import MemoryKeyValues

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("impatient")]
LOGS = "walstore/logs/orders"
MARKS = "walstore/synced/orders"


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three machines with copies of a log, of which the last one lacks the offsets 4 and 5."""
    async with Cluster(tmp_path) as made:
        wal = await made.primary(0)
        await wal.append_many([b"v"] * 3)
        await until(lambda: all(copy.is_present and not copy.lag for copy in copies(wal)))
        await made.machines[2].stop()
        await wal.append_many([b"w"] * 2)
        await wal.aclose()
        await made.machines[0].start()
        await made.machines[2].start()
        yield made


def copies(wal: Wal) -> Any:
    return wal.statistics().copies


def addresses(machines: Cluster) -> list[str]:
    return [one.address for one in machines.machines]


async def adopt(cli: Cli, places: list[str], *options: str, **fields: Any) -> Done:
    line = {"name": "orders", "copies": places, "generation": 9, "joined": {}, **fields}
    arguments = ("logs", "apply", "--from", "-", "--adopt", *options)
    return await asyncio.to_thread(cli, *arguments, stdin=json.dumps(line).encode())


async def log_id(cli: Cli, places: list[str]) -> str:
    """Return the identity of the log at a machine."""
    machines = (await adopt(cli, places, "--json")).json["machines"]
    return str(machines[0]["copy"]["log_id"])


async def test_a_dry_run_shows_what_each_machine_has(
    cli: Cli, store: MemoryKeyValues, machines: Cluster, tmp_path: Path
) -> None:
    a, b, c = addresses(machines)
    gone = f"unix://{tmp_path}/gone.sock"
    old = LogSpec(copies=(a, gone, c), generation=2)
    put(store, LOGS, old.encode())
    dry = await adopt(cli, [a, b])
    assert (dry.code, spec(store)) == (0, old), dry.err
    rows = {line.split()[1]: line for line in dry.lines if line.startswith("orders  ")}
    assert " in " in rows[a]
    assert "offsets 1 to 5, epoch 1" in rows[a]
    assert " in " in rows[b]
    assert "offsets 1 to 5, epoch 1" in rows[b]
    assert "left out" in rows[c]
    assert "offsets 1 to 3, epoch 1" in rows[c]
    assert "not known: no server at" in rows[gone]
    told = dry.err.splitlines()
    assert f"{gone}, which is left out, does not answer" in told[0]
    assert "nothing was changed; give --confirm" in told[1]
    found = await adopt(cli, [a, b], "--json")
    assert found.json["adopted"] is False
    assert [one["listed"] for one in found.json["machines"]] == [True, True, False, False]
    assert found.json["machines"][3]["copy"]["limit"] == 4
    done = await adopt(cli, [a, b], "--confirm", "--json")
    assert (done.code, done.json["adopted"]) == (0, True), done.err
    assert (spec(store).copies, spec(store).generation) == ((a, b), 9)


async def test_a_list_without_the_machines_that_have_more_is_refused(
    cli: Cli, store: MemoryKeyValues, machines: Cluster
) -> None:
    a, b, c = addresses(machines)
    old = LogSpec(copies=(a, b, c), generation=2)
    put(store, LOGS, old.encode())
    refused = await adopt(cli, [c], "--confirm", replicas=1)
    assert (refused.code, spec(store)) == (1, old)
    assert f"{a}, which is left out, has 'orders' up to offset 5" in refused.error
    assert "and the list up to 3" in refused.error
    assert "--give-up-records" in refused.error
    done = await adopt(cli, [c], "--confirm", "--give-up-records", replicas=1)
    assert (done.code, spec(store).copies) == (0, (c,)), done.err


async def test_a_later_epoch_is_more_also_without_records(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    """Who led then may have cut what the others have."""
    async with Cluster(tmp_path) as machines:
        a, b, c = addresses(machines)
        for machine in (None, machines.machines[2]):
            if machine is not None:
                await machine.stop()
            wal = await machines.primary(0)
            if machine is None:
                await wal.append_many([b"v"] * 3)
                await until(lambda wal=wal: all(not copy.lag for copy in copies(wal)))  # type: ignore[misc]
            await wal.aclose()
            await machines.machines[0].start()
        await machines.machines[2].start()
        put(store, LOGS, LogSpec(copies=(a, b, c), generation=2).encode())
        for machine in machines.machines[:2]:  # else the frames do not have to tell
            for name in ("CHECKPOINT", "DURABLE"):
                (machine.path / "orders" / name).unlink(missing_ok=True)
        refused = await adopt(cli, [c], replicas=1)
        assert "up to offset 3 in epoch 2, and the list up to 3 in epoch 1" in refused.error


async def test_a_machine_that_no_list_has_is_asked_if_it_is_a_member(
    cli: Cli, store: MemoryKeyValues, machines: Cluster
) -> None:
    a, b, c = addresses(machines)
    old = LogSpec(copies=(b, c), generation=2)
    await machines.machines[1].stop()
    put(store, LOGS, old.encode())
    for key, value in (
        (f"walstore/members/{a}", Member(a, "00").encode()),
        ("walstore/leaders/orders", Leader(a, "00", 1).encode()),
    ):
        put(store, key, value)
        refused = await adopt(cli, [c], "--confirm", replicas=1)
        assert (refused.code, f"{a}, which is left out" in refused.error) == (1, True)
        put(store, key, None)
    assert spec(store) == old


async def test_what_etcd_knows_of_a_lost_machine_counts(
    cli: Cli, store: MemoryKeyValues, machines: Cluster
) -> None:
    a, b, c = addresses(machines)
    end = await log_id(cli, [a])
    old = LogSpec(copies=(a, b, c), generation=2)
    put(store, LOGS, old.encode())
    for number in (0, 1):
        await machines.machines[number].stop()
    put(store, MARKS, Synced(end, 1, 2, {a: 6, c: 4}).encode())
    refused = await adopt(cli, [c], "--confirm", replicas=1)
    assert (refused.code, spec(store)) == (1, old)
    assert f"{a} had 'orders' up to offset 5, as etcd knows, and the list has it up to 3" in (
        refused.error
    )
    put(store, MARKS, Synced("ab" * 16, 1, 2, {a: 6}).encode())
    refused = await adopt(cli, [c], "--confirm", replicas=1)
    assert (refused.code, "etcd knows another log" in refused.error) == (1, True)
    put(store, MARKS, Synced(end, 1, 2, {a: 4, c: 4}).encode())
    done = await adopt(cli, [c], "--confirm", replicas=1)
    assert (done.code, spec(store).copies) == (0, (c,))
    assert done.err.count("does not answer") == 2


async def test_a_copy_that_is_below_its_mark_does_not_count(
    cli: Cli, store: MemoryKeyValues, machines: Cluster
) -> None:
    """Its directory was put back."""
    a, b, c = addresses(machines)
    put(store, MARKS, Synced(await log_id(cli, [a]), 1, 2, {c: 6}).encode())
    put(store, LOGS, LogSpec(copies=(a, b, c), generation=2).encode())
    refused = await adopt(cli, [c], replicas=1)
    assert "no machine of the list has a copy of 'orders' that counts" in refused.error


async def test_machines_without_the_log_are_no_list_for_it(
    cli: Cli, store: MemoryKeyValues, machines: Cluster, tmp_path: Path
) -> None:
    a, b, c = addresses(machines)
    put(store, LOGS, LogSpec(copies=(a, b, c), generation=2).encode())
    (tmp_path / "o").mkdir()
    async with Cluster(tmp_path / "o") as others:
        d, e, _ = addresses(others)
        refused = await adopt(cli, [d, e], "--confirm")
        assert "no machine of the list has a copy of 'orders' that counts" in refused.error
        assert not (others.machines[0].path / "orders").exists()  # looking makes nothing
        wal = await others.primary(0)  # another log of that name
        await wal.append_many([b"v"] * 20)
        await wal.aclose()
        await others.machines[0].start()
        refused = await adopt(cli, [d, e], "--confirm")
        assert f"{a}, which is left out, has another log 'orders'" in refused.error
    assert spec(store).copies == (a, b, c)


async def test_a_log_that_never_had_a_record_is_adopted_anywhere(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    async with Cluster(tmp_path) as machines:
        a, b, c = addresses(machines)
        put(store, LOGS, LogSpec(copies=(a, b), generation=2).encode())
        assert (await adopt(cli, [b, c], "--confirm")).code == 0
        await machines.machines[0].stop()
        put(store, LOGS, LogSpec(copies=(a, b), generation=2).encode())
        refused = await adopt(cli, [b, c], "--confirm")  # nobody knows what it has
        assert (refused.code, spec(store).copies) == (1, (a, b))


async def test_machines_that_lead_are_asked_too(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    async with Machines(tmp_path) as machines:
        await machines.apply()
        leader = await machines.led()
        wal = leader.led()
        assert wal is not None
        await wal.append_many([b"v"] * 7)
        await until(lambda: all(one.is_present and not one.lag for one in copies(wal)))
        places = [one.address for one in machines.all]
        put(store, LOGS, LogSpec(copies=tuple(places[:2]), generation=2).encode())
        found = (await adopt(cli, places, "--json")).json["machines"]
        assert {one["copy"]["limit"] for one in found} == {8}
        assert {one["copy"]["is_whole"] for one in found} == {True}
        assert await wal.append(b"more") == 8  # nobody was disturbed


def test_options_that_go_together(cli: Cli, store: MemoryKeyValues) -> None:
    for option in ("--confirm", "--give-up-records"):
        assert "go with --adopt" in cli("logs", "apply", "orders", option).error


async def test_a_log_that_a_machine_has_is_not_made_over_it(
    cli: Cli, store: MemoryKeyValues, machines: Cluster
) -> None:
    """Etcd was set back to a state before the log."""
    a, b, c = addresses(machines)
    for one in (a, b, c):
        put(store, f"walstore/members/{one}", Member(one, "00").encode())
    refused = await asyncio.to_thread(cli, "logs", "apply", "orders")
    assert (refused.code, store.get(LOGS)) == (1, None)
    assert any(one in refused.error for one in (a, b))  # they have most
    assert "offsets 1 to 5, epoch 1" in refused.error
    assert "--adopt" in refused.error
    assert (await asyncio.to_thread(cli, "logs", "apply", "others")).code == 0
    line = json.dumps({"name": "orders", "replicas": 1, "copies": [c], "generation": 9})
    arguments = ("logs", "apply", "--from", "-")
    refused = await asyncio.to_thread(cli, *arguments, stdin=line.encode())
    assert (refused.code, store.get(LOGS)) == (1, None)
    assert f"{a}, which is left out, has 'orders' up to offset 5" in refused.error
    line = json.dumps({"name": "orders", "replicas": 2, "copies": [a, b], "generation": 9})
    done = await asyncio.to_thread(cli, *arguments, stdin=line.encode())
    assert (done.code, spec(store).copies) == (0, (a, b)), done.err


async def test_a_log_is_made_though_a_machine_does_not_answer(
    cli: Cli, store: MemoryKeyValues, tmp_path: Path
) -> None:
    gone = f"unix://{tmp_path}/gone.sock"
    put(store, f"walstore/members/{gone}", Member(gone, "00").encode())
    assert (await asyncio.to_thread(cli, "logs", "apply", "orders")).code == 0
    assert spec(store) == LogSpec()
