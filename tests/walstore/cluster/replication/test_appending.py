"""Appends to a replicated log: what copies are asked, when they get a transaction, and what callers await."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import SMALL, Cluster, values
from walstore import Wal
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)

SPILLING = SMALL.replace(transaction_memory_bytes=4 * KIB)
LARGE = [b"%02d" % number * 500 for number in range(40)]
"""Values of a transaction that is written to a file of its own."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def commit(wal: Wal, values: list[bytes]) -> range:
    """Append values in one transaction and return their offsets."""
    async with wal.transaction() as transaction:
        for value in values:
            await transaction.append(value)
    assert transaction.span is not None
    return transaction.span


async def caught_up(wal: Wal) -> None:
    """Wait until all copies have all records."""
    await until(lambda: all(copy.is_present and not copy.lag for copy in wal.statistics().copies))


async def test_an_append_asks_each_copy_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the primary and a copy agreed on when they met is not asked again for each append."""
    asked: list[Counter[Any]] = []
    wal = await cluster.primary(0)
    await wal.append(b"first")
    await caught_up(wal)
    for machine in cluster.machines[1:]:
        node, counted = machine.node, Counter[Any]()
        assert node is not None

        def call(
            payload: memoryview,
            verb: object,
            *arguments: Any,
            real: Any = node.call,
            counted: Counter[Any] = counted,
        ) -> Any:
            counted[verb] += 1
            return real(payload, verb, *arguments)

        monkeypatch.setattr(node, "call", call)
        asked.append(counted)
    for _ in range(50):
        await wal.append(b"v")
    await caught_up(wal)
    for counted in asked:
        assert counted["write"] == 50
        assert set(counted) <= {"write", "show", "keep_hint"}, counted
    await wal.aclose()


async def test_an_empty_transaction_waits_for_a_quorum(cluster: Cluster) -> None:
    """As a barrier: what was accepted before it, at whatever level, is replicated then."""
    wal = await cluster.primary(0, patience_seconds=20.0)
    for number in (1, 2):
        await cluster.machines[number].stop()
    wal.append_nowait(b"v")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(commit(wal, []))
        await until(lambda: wal.durable_limit == 2)
        assert not waiting.done()
        await cluster.machines[1].start()
    assert waiting.result() == range(2, 2)
    assert wal.replicated_limit == 2
    await wal.aclose()


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_copies_get_a_large_transaction_when_it_commits(cluster: Cluster, end: str) -> None:
    """Until then it is at the primary only, and holds nobody up; rolled back it never was at a copy."""
    wal = await cluster.primary(0, settings=SPILLING)
    with suppress(ZeroDivisionError):
        async with wal.transaction() as transaction:
            for value in LARGE:
                await transaction.append(value)
            assert await wal.append(b"meanwhile") == 1
            await caught_up(wal)
            for number in (1, 2):
                assert LARGE[0] not in b"".join(cluster.files(number).values())
            if end == "rollback":
                raise ZeroDivisionError
    await wal.append(b"behind")
    committed = LARGE if end == "commit" else []
    assert await values(wal) == [b"meanwhile", *committed, b"behind"]
    await caught_up(wal)
    for number in (1, 2):
        assert (LARGE[0] in b"".join(cluster.files(number).values())) is (end == "commit")
    await wal.aclose()


async def test_appends_behind_a_large_transaction_wait_until_the_copies_have_it(
    cluster: Cluster,
) -> None:
    """Its bytes go to the copies at the commit; what is accepted later is acknowledged later."""
    machine = cluster.machines[1]
    await machine.stop()
    disk = machine.fs = FaultyFileSystem()
    await machine.start()
    wal = await cluster.primary(0, settings=SPILLING, patience_seconds=20.0)
    await caught_up(wal)
    await cluster.machines[2].stop()
    done: list[str] = []
    with disk.hold("datasync") as hold:
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(commit(wal, LARGE))
            await hold.wait_entered()
            behind = group.create_task(wal.append(b"behind"))
            committing.add_done_callback(lambda _: done.append("transaction"))
            behind.add_done_callback(lambda _: done.append("append"))
            await until(lambda: wal.durable_limit == 42)
            assert (wal.replicated_limit, done) == (1, [])
            hold.release()
    assert (committing.result(), behind.result()) == (range(1, 41), 41)
    assert done == ["transaction", "append"]
    await wal.aclose()
