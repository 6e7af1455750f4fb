"""A copy whose directory is put back from an older state: what was acknowledged is kept, and named."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, Cluster, values
from walstore import CorruptionError, FormatVersionError, StorageUnavailableError, Wal
from walstore.core.files.floor import load_note
from walstore.core.files.posix import PosixFileSystem
from walstore.testing import ManualClock
from walstore.topology.documents import Synced
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)

KEY = "walstore/synced/orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as machines:
        yield machines


def copy_of(cluster: Cluster, number: int) -> Path:
    return cluster.machines[number].path / "orders"


def back_up(cluster: Cluster, number: int) -> Path:
    """Copy the directory of a machine's copy, as a backup does."""
    kept = cluster.machines[number].path / "backup"
    shutil.copytree(copy_of(cluster, number), kept)
    return kept


def put_back(cluster: Cluster, number: int, kept: Path) -> None:
    shutil.rmtree(copy_of(cluster, number))
    shutil.copytree(kept, copy_of(cluster, number))


def contents(cluster: Cluster, number: int) -> dict[str, bytes]:
    """Return the segments of a copy, but for blocks that are reserved."""
    return {name: data.rstrip(b"\0") for name, data in cluster.files(number).items()}


def trouble(wal: Wal, cluster: Cluster, number: int) -> str:
    """Return why a leader does not count a copy."""
    address = cluster.machines[number].address
    found = next(one for one in wal.statistics().copies if one.address == address)
    return found.trouble or ""


async def fifty_that_one_has(cluster: Cluster) -> Path:
    """Let machines 0 and 1 acknowledge 50 records while 2 is away, and return an old backup of 1."""
    wal = await cluster.primary(0)
    await wal.append_many([b"old"] * 10)
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    await cluster.machines[1].stop()
    kept = back_up(cluster, 1)
    await cluster.machines[1].start()
    await until(lambda: trouble(wal, cluster, 1) == "")
    await cluster.machines[2].stop()
    await wal.append_many([b"%d" % number for number in range(50)])
    await wal.aclose()
    await cluster.machines[1].stop()
    return kept


async def test_what_was_replicated_is_not_cut(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Machine 1 was put back and leads with 2; then 0 comes back, which has all."""
    kept = await fifty_that_one_has(cluster)
    put_back(cluster, 1, kept)
    await cluster.machines[2].start()
    before = cluster.files(0)

    wal = await cluster.primary(1)
    assert await wal.append(b"another") == 11
    await cluster.machines[0].start()
    await until(lambda: "two histories" in trouble(wal, cluster, 0))
    told = trouble(wal, cluster, 0)
    assert re.search(r"offsets 11 to 60 in \S+/m0/orders", told)
    assert "give-up" in told
    assert "reset-head" in told
    assert f"the copy of orders here does not count: {told[:60]}" in caplog.text
    assert f"the copy at {cluster.machines[0].address} does not count: {told[:60]}" in caplog.text
    assert cluster.files(0) == before
    note = await asyncio.to_thread(load_note, PosixFileSystem(), copy_of(cluster, 0))
    assert (note.visible_limit, note.durable_limit) == (61, 11)  # for 'walstore logs give-up'
    await wal.append(b"goes on")
    await wal.aclose()


async def test_a_machine_that_would_cut_itself_does_not_lead(cluster: Cluster) -> None:
    kept = await fifty_that_one_has(cluster)
    put_back(cluster, 1, kept)
    await cluster.machines[2].start()
    wal = await cluster.primary(1)
    await wal.append(b"another")
    await wal.aclose()
    await cluster.machines[1].start()
    before = cluster.files(0)
    with pytest.raises(CorruptionError, match="two histories"):
        await cluster.primary(0)
    assert cluster.files(0) == before


@pytest.fixture
def store() -> MemoryKeyValues:
    """No lease ends by itself."""
    return MemoryKeyValues(ManualClock())


def marks(store: MemoryKeyValues) -> Synced | None:
    found = store.get(KEY)
    return None if found is None else Synced.decode(found.value, KEY)


async def test_the_store_of_the_machines_knows_what_copies_had(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    nodes = [machine.address for machine in cluster.machines]
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    await wal.append_many([b"v"] * 10)
    await cluster.machines[2].stop()
    await wal.append_many([b"v"] * 5)
    log_id, epoch = wal.log_id, wal.statistics().epoch
    await wal.aclose()
    found = marks(store)
    assert found is not None
    assert (found.log_id, found.epoch) == (log_id, epoch)
    assert [found.limits[one] for one in nodes[:2]] == [16, 16]
    assert 1 <= found.limits[nodes[2]] <= 11


async def test_marks_are_written_while_the_log_is_used(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    client = store.client()
    wal = await cluster.primary(0, topology=client, address=cluster.machines[0].address)
    await wal.append(b"v")
    await until(lambda: (found := marks(store)) is not None and min(found.limits.values()) == 2)
    client.cut_off = True
    await wal.append(b"w")  # needs no store
    client.cut_off = False
    await wal.append(b"x")
    cluster.clock.skip(60)
    await wal.aclose()
    found = marks(store)
    assert found is not None
    assert max(found.limits.values()) == 4


async def put_back_with_a_store(cluster: Cluster, store: MemoryKeyValues) -> list[str]:
    """As :func:`fifty_that_one_has`, with machine 1 put back, and what the machines share."""
    nodes = [machine.address for machine in cluster.machines]
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    await wal.append_many([b"old"] * 10)
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    await cluster.machines[1].stop()
    kept = back_up(cluster, 1)
    await cluster.machines[1].start()
    await until(lambda: trouble(wal, cluster, 1) == "")
    await cluster.machines[2].stop()
    await wal.append_many([b"%d" % number for number in range(50)])
    await wal.aclose()
    await cluster.machines[1].stop()
    put_back(cluster, 1, kept)
    await cluster.machines[2].start()
    return nodes


async def test_a_copy_that_was_put_back_does_not_vote(
    cluster: Cluster, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = await put_back_with_a_store(cluster, store)
    with pytest.raises(StorageUnavailableError, match="of 3 copies"):
        await cluster.primary(
            1, topology=store.client(), address=nodes[1], patience_seconds=RUNS_OUT_SECONDS
        )
    assert f"the copy at {nodes[1]} was put back from an older state" in caplog.text
    assert "it ends at offset 11, and had 61" in caplog.text
    await cluster.machines[1].start()
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    assert await values(wal) == [b"old"] * 10 + [b"%d" % number for number in range(50)]
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    await wal.aclose()
    assert contents(cluster, 0) == contents(cluster, 1) == contents(cluster, 2)


async def test_a_copy_that_was_put_back_is_asked_and_does_not_vote(
    cluster: Cluster, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = await put_back_with_a_store(cluster, store)
    await cluster.machines[1].start()
    opening = asyncio.ensure_future(cluster.primary(2, topology=store.client(), address=nodes[2]))
    await until(lambda: f"the copy at {nodes[1]} was put back" in caplog.text)
    await until(lambda: "m1/orders was put back" in caplog.text)  # there, too
    await cluster.machines[0].start()
    wal = await opening
    assert len(await values(wal)) == 60
    await wal.aclose()


async def test_nobody_leads_without_what_was_acknowledged(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    """Two copies were put back, and do not know their addresses' marks; the store knows the greatest."""
    await put_back_with_a_store(cluster, store)
    found = store.get(KEY)
    assert found is not None
    known = Synced.decode(found.value, KEY)
    keep_marks(store, known._replace(limits={"tls://lost.example:7430": 61}).encode())
    with pytest.raises(
        StorageUnavailableError,
        match=r"offsets 11 to 60 of 'orders' .* tls://lost\.example:7430 had.*reset-head",
    ):
        await cluster.primary(1, topology=store.client(), patience_seconds=RUNS_OUT_SECONDS)
    await cluster.machines[1].start()


def keep_marks(store: MemoryKeyValues, value: bytes) -> None:
    found = store.get(KEY)
    assert store.swap(KEY, value, 0 if found is None else found.revision, 0).happened


@pytest.mark.parametrize(
    "value",
    [b"garbage", b'{"version": 1, "limits": [1]}', Synced("ab" * 16, 9, 1, {"": 1}).encode()],
    ids=["no-json", "no-numbers", "no-records"],
)
async def test_marks_that_say_nothing_are_written_again(
    cluster: Cluster, store: MemoryKeyValues, value: bytes
) -> None:
    """Garbage, and marks of a log that never had a record."""
    keep_marks(store, value)
    wal = await cluster.primary(0, topology=store.client())
    await wal.append(b"v")
    log_id = wal.log_id
    await wal.aclose()
    known = marks(store)
    assert known is not None
    assert known.log_id == log_id


async def test_a_log_with_marks_of_another_one_is_not_led(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    """The records of the other one were acknowledged; the decision removes the marks."""
    wal = await cluster.primary(0)
    await wal.append(b"v")
    await wal.aclose()
    other = Synced("ab" * 16, 9, 1, {"tls://lost.example:7430": 99})
    keep_marks(store, other.encode())
    with pytest.raises(
        StorageUnavailableError,
        match=r"offsets 1 to 98 of 'orders' .* record of log (ab){16}: tls://lost\.example:7430 had",
    ):
        await cluster.primary(0, topology=store.client(), patience_seconds=RUNS_OUT_SECONDS)
    assert marks(store) == other


async def test_an_empty_log_does_not_begin_where_one_had_records(
    cluster: Cluster, store: MemoryKeyValues
) -> None:
    """The disks of all machines are not mounted at a start."""
    nodes = [machine.address for machine in cluster.machines]
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    await wal.append_many([b"v"] * 60)
    await until(lambda: all(copy.limit == 61 for copy in wal.statistics().copies))
    await wal.aclose()
    before = marks(store)
    for machine in cluster.machines:
        await machine.stop()
        (machine.path / "orders").rename(machine.path / "unmounted")
    for machine in cluster.machines:
        await machine.start()
    with pytest.raises(StorageUnavailableError) as told:
        await cluster.primary(
            0, topology=store.client(), address=nodes[0], patience_seconds=RUNS_OUT_SECONDS
        )
    assert "offsets 1 to 60 of 'orders' were acknowledged" in str(told.value)
    assert "walstore logs reset-head --cluster" in str(told.value)
    assert all(node in str(told.value) for node in nodes)
    assert marks(store) == before
    for machine in cluster.machines:
        await machine.stop()
        shutil.rmtree(machine.path / "orders")
        (machine.path / "unmounted").rename(machine.path / "orders")
    for machine in cluster.machines:
        await machine.start()
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    assert await values(wal) == [b"v"] * 60
    await wal.aclose()


async def test_too_few_count_though_all_answer(cluster: Cluster, store: MemoryKeyValues) -> None:
    """Two copies were put back: more nodes are no help, so the message says what is."""
    nodes = [machine.address for machine in cluster.machines]
    wal = await cluster.primary(0, topology=store.client(), address=nodes[0])
    await wal.append_many([b"old"] * 10)
    await until(lambda: all(copy.limit == 11 for copy in wal.statistics().copies))
    kept: dict[int, Path] = {}
    for number in (1, 2):
        await cluster.machines[number].stop()
        kept[number] = back_up(cluster, number)
        await cluster.machines[number].start()
        await until(lambda number=number: trouble(wal, cluster, number) == "")  # type: ignore[misc]
    await wal.append_many([b"new"] * 50)
    await until(lambda: all(copy.limit == 61 for copy in wal.statistics().copies))
    await wal.aclose()
    for number, path in kept.items():
        await cluster.machines[number].stop()
        put_back(cluster, number, path)
        await cluster.machines[number].start()
    servers = [machine.server for machine in cluster.machines[1:]]
    opening = asyncio.ensure_future(cluster.primary(0, topology=store.client(), address=nodes[0]))
    await until(lambda: all(one is not None and one.figures.connected >= 2 for one in servers))
    cluster.clock.skip(PATIENCE_SECONDS)  # both have answered once
    with pytest.raises(StorageUnavailableError) as told:
        await opening
    text = str(told.value)
    assert "more nodes" not in text
    assert f"{nodes[0]} ends at offset 61 and counts" in text
    for number in (1, 2):
        assert f"{nodes[number]} ends at offset 11 and is new or was put back" in text
    assert f"To let the copy at {nodes[0]} be the log" in text
    assert "'walstore logs reset-head --cluster' there" in text
    assert "'walstore logs give-up' on the others" in text


async def test_a_leader_notices_a_copy_that_is_put_back_meanwhile(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a store."""
    wal = await cluster.primary(0)
    await wal.append_many([b"old"] * 10)
    await until(lambda: all(copy.is_present for copy in wal.statistics().copies))
    await cluster.machines[1].stop()
    kept = back_up(cluster, 1)
    await cluster.machines[1].start()
    await until(lambda: trouble(wal, cluster, 1) == "")
    await wal.append_many([b"new"] * 10)
    await until(lambda: all(copy.limit == 21 for copy in wal.statistics().copies))
    await cluster.machines[1].stop()
    put_back(cluster, 1, kept)
    await cluster.machines[1].start()
    await until(lambda: "it was put back from an older state: it ends at offset 11" in caplog.text)
    await until(lambda: trouble(wal, cluster, 1) == "")
    assert "m1/orders was put back" in caplog.text
    await wal.aclose()
    assert contents(cluster, 0) == contents(cluster, 1)


async def test_marks_of_a_newer_version_are_refused_and_stay(
    cluster: Cluster, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that does not know what they say does not lead, and a leader does not write over them."""
    newer = b'{"version": 2, "copies": []}'
    client = store.client()
    wal = await cluster.primary(0, topology=client)
    await wal.append(b"v")
    await until(lambda: marks(store) is not None)
    keep_marks(store, newer)
    await wal.append(b"w")
    cluster.clock.skip(60)
    await wal.aclose()
    assert f"is not written to {KEY} yet: the cluster is used by a newer version" in caplog.text
    with pytest.raises(FormatVersionError, match=rf"newer version.*{KEY}"):
        await cluster.primary(0, topology=client)
    found = store.get(KEY)
    assert found is not None
    assert found.value == newer
