"""Who leads next: a copy that is known to be damaged comes last, and leads if no other one can."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.cluster.replication.cluster import values
from tests.walstore.cluster.replication.test_damage import fill
from tests.walstore.cluster.replication.test_healing import flip
from walstore.testing import FaultyFileSystem
from walstore.testing.calls import Call, failure

pytestmark = pytest.mark.timeout(60)


async def damaged_at_the_second(
    cluster: Machines, disk: FaultyFileSystem, is_bad: Callable[[], bool]
) -> tuple[list[bytes], Path, bytes]:
    """Make a log; the next machine in the order of candidates knows of damage that it cannot write over."""
    first, second, _ = cluster.all
    await cluster.apply(copies=tuple(one.address for one in cluster.all))
    await cluster.led(by=first)
    wal = first.led()
    assert wal is not None
    before = await fill(wal)
    await until(lambda: all(copy.lag == 0 for copy in wal.statistics().copies))
    damaged = sorted((second.path / "orders").glob("*.wal"))[1]
    whole = damaged.read_bytes()

    def look(call: Call) -> None:
        if call.matches("pwrite", damaged.name) and is_bad():
            raise failure(errno.EIO, call.path)

    disk.before_each(look)
    flip(damaged)
    await until(lambda: knows(second))
    return before, damaged, whole


def knows(machine: Machine) -> bool:
    assert machine.member is not None
    return bool(machine.member.node.damaged("orders"))


async def test_a_whole_copy_comes_first(tmp_path: Path) -> None:
    async with Machines(tmp_path) as cluster:
        first, second, third = cluster.all
        disk = await with_disk(second)
        before, *_ = await damaged_at_the_second(cluster, disk, lambda: True)
        await first.stop()
        await cluster.led(by=third)
        wal = third.led()
        assert wal is not None
        assert await values(wal) == before
        disk.heal()


async def test_the_only_one_leads_with_damage_and_repairs_it(tmp_path: Path) -> None:
    async with Machines(tmp_path) as cluster:
        first, second, third = cluster.all
        disk = await with_disk(second)
        before, damaged, whole = await damaged_at_the_second(
            cluster, disk, lambda: first.member is not None
        )
        third.keys.cut_off = True  # its copy answers, and it is no candidate
        cluster.end_lease(third)
        await first.stop()
        await cluster.led(by=second)
        wal = second.led()
        assert wal is not None
        await until(lambda: damaged.read_bytes() == whole)
        assert await values(wal) == before
        await until(lambda: not knows(second))


async def test_a_copy_that_lacks_a_segment_comes_last(tmp_path: Path) -> None:
    """Its machine finds that out when it opens the copy; the disk does not take the segment back yet."""
    async with Machines(tmp_path) as cluster:
        first, second, third = cluster.all
        disk = await with_disk(second)
        await cluster.apply(copies=tuple(one.address for one in cluster.all))
        await cluster.led(by=first)
        wal = first.led()
        assert wal is not None
        before = await fill(wal)
        await until(lambda: all(copy.lag == 0 for copy in wal.statistics().copies))
        lost = sorted((second.path / "orders").glob("*.wal"))[1]
        await second.stop()
        lost.unlink()
        disk.fail("open", name="mended.tmp", times=None)
        await second.start()
        await until(lambda: knows(second))
        await first.stop()
        await cluster.led(by=third)
        wal = third.led()
        assert wal is not None
        assert await values(wal) == before
        disk.heal()


async def with_disk(machine: Machine) -> FaultyFileSystem:
    """Start a machine again, with a disk that fails on request."""
    await machine.stop()
    disk = machine.options["fs"] = FaultyFileSystem()
    await machine.start()
    return disk
