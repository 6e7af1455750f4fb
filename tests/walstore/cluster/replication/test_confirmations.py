"""Rounds of questions that are shared; the end of the log ends them with the error for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS, SMALL, Cluster
from tests.walstore.serve.served import Proxy
from walstore import Replication, StorageUnavailableError, Wal, WalClosedError
from walstore.cluster.replication.confirmations import Confirmations
from walstore.core.runtime.tasks import start_task

pytestmark = pytest.mark.timeout(60)


async def test_a_log_that_closes_while_no_copy_answers_is_closed_for_who_waits(
    tmp_path: Path,
) -> None:
    """Nobody cancelled the caller, so it is not told that somebody did."""
    async with Cluster(tmp_path) as cluster:
        first, *others = cluster.machines
        await first.stop()
        async with Proxy(others[0].address) as one, Proxy(others[1].address) as other:
            wal = await Wal.open(
                first.path / "orders",
                settings=SMALL,
                replication=Replication(
                    nodes=[one.address, other.address], patience_seconds=PATIENCE_SECONDS
                ),
                clock=cluster.clock,
            )
            await wal.append(b"v")
            one.holds_answers = other.holds_answers = True
            asked = [start_task(wal.refresh()) for _ in range(3)]
            await one.held.wait()
            await other.held.wait()
            asked.append(start_task(wal.refresh()))  # it waits for the next round
            await asyncio.sleep(0)
            await wal.aclose()
            for found in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(found, WalClosedError), found
                assert found.outcome == "not_written"


class _Asked:
    """A question that is answered when the test says."""

    def __init__(self) -> None:
        self.rounds: list[asyncio.Future[None]] = []

    async def __call__(self) -> None:
        self.rounds.append(asyncio.get_running_loop().create_future())
        await self.rounds[-1]


async def waiting(confirmations: Confirmations) -> asyncio.Task[None]:
    """Return a task that waits for the next round."""
    task = start_task(confirmations.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_the_end_ends_the_round_that_runs_and_the_next_one() -> None:
    confirmations = Confirmations(asked := _Asked())
    tasks = [await waiting(confirmations) for _ in range(3)]
    assert len(asked.rounds) == 1
    await confirmations.aclose()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(found, WalClosedError), found
    with pytest.raises(WalClosedError):
        await confirmations.wait()
    assert len(asked.rounds) == 1


async def test_the_end_before_a_round_has_begun() -> None:
    confirmations = Confirmations(asked := _Asked())
    task = start_task(confirmations.wait())
    await asyncio.sleep(0)  # it waits, and its round has not run
    await confirmations.aclose()
    with pytest.raises(WalClosedError):
        await task
    assert not asked.rounds


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    confirmations = Confirmations(asked := _Asked())
    one, other = await waiting(confirmations), await waiting(confirmations)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    asked.rounds[0].set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    asked.rounds[1].set_exception(StorageUnavailableError("nobody answers"))
    with pytest.raises(StorageUnavailableError):
        await other
    await confirmations.aclose()
