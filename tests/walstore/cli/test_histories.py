"""What is decided by hand, in a cluster: each recipe of docs/cluster.md, followed to its end."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cli.conftest import Cli, Done
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, values
from tests.walstore.cluster.test_one_copy import with_copies
from walstore import Wal
from walstore.cli import cluster as verbs
from walstore.core.files.directory import PROMISE_NAME, SYNCED_NAME
from walstore.topology.documents import PREFIX, SYNCED
from walstore.topology.memory import MemoryClient

pytestmark = pytest.mark.timeout(60)

KEY = f"{PREFIX}{SYNCED}orders"
Verb = Callable[..., Awaitable[Done]]


class Forwarded:
    """The store of the machines, for a command line on another thread."""

    def __init__(self, client: MemoryClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            call = getattr(self._client, name)(*arguments, **options)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

        return call


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    async with Machines(tmp_path, replace_seconds=float("inf")) as machines:
        yield machines


@pytest.fixture
async def logs(cluster: Machines, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Return a function that runs ``walstore logs`` beside the machines."""
    store = Forwarded(cluster.store.client("a command line"), asyncio.get_running_loop())

    @asynccontextmanager
    async def open_keys(_: str) -> AsyncIterator[Forwarded]:
        yield store

    monkeypatch.setattr(verbs, "open_keys", open_keys)
    monkeypatch.setenv(verbs.CLUSTER_VARIABLE, "etcd://127.0.0.1:1")

    async def run(*arguments: object, stdin: bytes = b"") -> Done:
        done = await asyncio.to_thread(cli, "logs", *arguments, stdin=stdin)
        assert done.code == 0, done.err
        return done

    return run


def wal_of(machine: Machine) -> Wal:
    wal = machine.led()
    assert wal is not None
    return wal


def copy_of(machine: Machine) -> Path:
    return machine.path / "orders"


async def all_present(cluster: Machines) -> Wal:
    """Wait until a log is led, and all its copies count and have everything."""
    wal = wal_of(await cluster.led())
    await until(lambda: all(one.is_present and one.lag == 0 for one in wal.statistics().copies))
    return wal


async def stop(machines: Sequence[Machine]) -> None:
    for machine in machines:
        await machine.stop()


async def start(machines: Sequence[Machine], patience_seconds: float = PATIENCE_SECONDS) -> None:
    for machine in machines:
        machine.options["patience_seconds"] = patience_seconds
        await machine.start()


async def refused(
    machines: Sequence[Machine], caplog: pytest.LogCaptureFixture, *words: str
) -> None:
    """Start machines, wait until all words are in what one of them says of the log, and stop them."""
    caplog.clear()
    await start(machines, RUNS_OUT_SECONDS)
    await until(lambda: any(all(one in text for one in words) for text in caplog.messages))
    assert not any(machine.led() for machine in machines)
    await stop(machines)


async def backed_up(machine: Machine, cluster: Machines) -> Path:
    """Return a copy of a machine's directory, as of now."""
    await machine.stop()
    kept = shutil.copytree(copy_of(machine), machine.path / "backup")
    await machine.start()
    await all_present(cluster)
    return kept


async def test_two_copies_that_were_put_back(
    cluster: Machines, logs: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = cluster.all
    await cluster.apply(copies=tuple(one.address for one in cluster.all))
    wal = wal_of(await cluster.led(by=first))
    await wal.append_many([b"old"] * 10)
    await all_present(cluster)
    kept = [await backed_up(one, cluster) for one in others]
    await wal.append_many([b"new"] * 50)
    await all_present(cluster)
    await stop(cluster.all)
    for machine, path in zip(others, kept, strict=True):
        shutil.rmtree(copy_of(machine))
        path.rename(copy_of(machine))
    await refused(
        cluster.all,
        caplog,
        "all 3 copies of 'orders' answer, and 1 count",
        f"{first.address} ends at offset 61 and counts",
        f"To let the copy at {first.address} be the log",
    )
    done = await logs("reset-head", copy_of(first), "--confirm", "--json")
    assert (done.json["limit"], done.json["marks"]) == (61, KEY)
    for machine in others:
        await logs("give-up", copy_of(machine), "--confirm")
    await start(cluster.all)
    wal = await all_present(cluster)
    assert await values(wal) == [b"old"] * 10 + [b"new"] * 50


async def test_the_machines_of_two_copies_are_lost_for_good(
    tmp_path: Path, cluster: Machines, logs: Verb
) -> None:
    """Two new machines come; the list has to be one that the machine with the best copy can lead."""
    first, *lost = cluster.all
    await cluster.apply(copies=tuple(one.address for one in cluster.all))
    wal = wal_of(await cluster.led(by=first))
    await wal.append_many([b"v"] * 10)
    await all_present(cluster)
    await stop(cluster.all)
    new = [Machine(tmp_path / f"n{at}", cluster.store.client(f"new {at}")) for at in range(2)]
    done = await logs("reset-head", copy_of(first), "--confirm", "--json")
    assert done.json["limit"] == 11
    (line,) = (await logs("list", "--json")).json["logs"]
    line |= {"replicas": 1, "copies": [first.address], "generation": line["generation"] + 1}
    adopt = ("apply", "--from", "-", "--adopt", "--give-up-records", "--confirm")  # nobody answers
    await logs(*adopt, stdin=json.dumps(line).encode())
    cluster.all[1:] = new
    await start(cluster.all)
    try:
        await cluster.led(by=first)
        await logs("apply", "orders", "--replicas", "3")
        await with_copies(cluster, 3)
        assert set(cluster.spec().copies) == {one.address for one in cluster.all}
        async with await cluster.connect() as remote:
            assert await remote.append(b"goes on") == 11
            async with remote.reader(follow=False) as reader:
                assert [record.value async for record in reader] == [b"v"] * 10 + [b"goes on"]
    finally:
        await stop(cluster.all)
        cluster.all[1:] = lost


async def test_the_directories_of_all_copies_are_empty(
    cluster: Machines, logs: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody begins again in silence; who decides so may do it on any machine."""
    await cluster.apply()
    wal = wal_of(await cluster.led())
    await wal.append_many([b"v"] * 10)
    await all_present(cluster)
    await stop(cluster.all)
    for machine in cluster.all:
        shutil.rmtree(copy_of(machine))
    words = "offsets 1 to 10 of 'orders' were acknowledged", "walstore logs reset-head --cluster"
    await refused(cluster.all, caplog, *words)
    place = copy_of(cluster.all[0])
    dry = await logs("reset-head", place)
    assert "disks of all machines mounted" in dry.err
    await refused(cluster.all, caplog, *words)
    done = await logs("reset-head", place, "--confirm", "--json")
    assert (done.json["limit"], done.json["marks"]) == (None, KEY)
    await start(cluster.all)
    wal = await all_present(cluster)
    assert await wal.append(b"anew") == 1


@pytest.mark.parametrize("is_led", [True, False])
async def test_a_log_that_was_taken_out_may_begin_anew(
    cluster: Machines, logs: Verb, is_led: bool
) -> None:
    """Its leader writes once more what the copies have, as it closes the log."""
    await cluster.apply()
    wal = wal_of(await cluster.led())
    await wal.append_many([b"v"] * 10)
    await all_present(cluster)
    if not is_led:
        await stop(cluster.all)
    await logs("remove", "orders", "--confirm")
    assert cluster.store.get(KEY) is None
    await stop(cluster.all)
    assert cluster.store.get(KEY) is None
    for machine in cluster.all:
        shutil.rmtree(copy_of(machine))
    await start(cluster.all)
    await logs("apply", "orders")
    wal = await all_present(cluster)
    assert await wal.append(b"anew") == 1


async def alone(cluster: Machines) -> Machine:
    """Make a log of one copy with ten records, and stop the machines; return the one that has it."""
    await cluster.apply(replicas=1)
    leader = await cluster.led()
    await wal_of(leader).append_many([b"v"] * 10)
    await stop(cluster.all)
    return leader


async def test_the_note_of_the_only_copy_is_damaged(
    cluster: Machines, logs: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    machine = await alone(cluster)
    note = copy_of(machine) / SYNCED_NAME
    data = bytearray(note.read_bytes())
    data[50] ^= 1
    note.write_bytes(data)
    await refused(cluster.all, caplog, "what was noted of this copy is damaged", str(note))
    dry = await logs("reset-head", copy_of(machine), "--json")
    assert (dry.json["damaged"], dry.json["limit"]) == (str(note), None)
    assert "--confirm removes it" in dry.err
    assert note.read_bytes() == data
    await logs("reset-head", copy_of(machine), "--confirm")
    assert not note.exists()
    await start(cluster.all)
    wal = wal_of(await cluster.led(by=machine))
    assert await values(wal) == [b"v"] * 10


async def test_the_promise_of_the_only_copy_is_damaged(
    cluster: Machines, logs: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    machine = await alone(cluster)
    (copy_of(machine) / PROMISE_NAME).write_bytes(b"garbage")
    await refused(cluster.all, caplog, "the promise of this copy is damaged", "reset-head")
    done = await logs("reset-head", copy_of(machine), "--confirm", "--json")
    assert (done.json["damaged"], done.json["limit"]) == (None, 11)
    await start(cluster.all)
    wal = wal_of(await cluster.led(by=machine))
    assert await values(wal) == [b"v"] * 10


async def test_the_directory_of_the_only_copy_is_put_back(
    cluster: Machines, logs: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    machine = await alone(cluster)
    kept = shutil.copytree(copy_of(machine), machine.path / "backup")
    await start(cluster.all)
    await wal_of(await cluster.led(by=machine)).append_many([b"w"] * 10)
    await stop(cluster.all)
    shutil.rmtree(copy_of(machine))
    kept.rename(copy_of(machine))
    await refused(cluster.all, caplog, "offsets 11 to 20 of 'orders' were acknowledged")
    await logs("reset-head", copy_of(machine), "--confirm")
    await start(cluster.all)
    wal = wal_of(await cluster.led(by=machine))
    assert await values(wal) == [b"v"] * 10


@pytest.mark.parametrize(("mask", "kept"), [(1, 20), (0xFF, 10)], ids=["bit", "byte"])
async def test_the_only_copy_is_damaged_behind_its_checkpoint(
    mask: int,
    kept: int,
    cluster: Machines,
    logs: Verb,
    cli: Cli,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not led, as there is no other copy to mend it from. A repair puts a flipped bit right."""
    await cluster.apply(replicas=1)
    machine = await cluster.led()
    await wal_of(machine).append_many([b"v"] * 10)
    await wal_of(machine).append_many([b"w"] * 10)
    killed = shutil.copytree(copy_of(machine), machine.path / "killed")
    await stop(cluster.all)
    shutil.rmtree(copy_of(machine))
    killed.rename(copy_of(machine))
    (segment,) = copy_of(machine).glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"w")] ^= mask
    segment.write_bytes(data)
    told = "were synced here, and are damaged or gone"
    await refused(cluster.all, caplog, told, str(segment), "walstore repair")
    repaired = await asyncio.to_thread(cli, "repair", copy_of(machine), "--confirm")
    assert (repaired.code, f"offsets then  [1, {kept + 1})" in repaired.lines) == (0, True)
    if kept < 20:
        await refused(cluster.all, caplog, "offsets 11 to 20 of 'orders' were acknowledged")
        await logs("reset-head", copy_of(machine), "--confirm")
    await start(cluster.all)
    wal = wal_of(await cluster.led(by=machine))
    assert await values(wal) == [b"v"] * 10 + [b"w"] * (kept - 10)
