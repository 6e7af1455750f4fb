"""Machines whose clocks are wrong: who leads does not depend on them, and times of records never go back."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from walstore import Record, Wal

pytestmark = pytest.mark.timeout(60)

HOUR = 3600


async def records(cluster: Machines) -> list[Record]:
    async with await cluster.connect() as remote, remote.reader(follow=False) as reader:
        return [record async for record in reader]


async def append(cluster: Machines, *values: bytes) -> None:
    async with await cluster.connect() as remote:
        for value in values:
            await remote.append(value)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of clocks."""
    found = [one for one in caplog.records if one.levelno >= logging.WARNING]
    return [one.getMessage() for one in found if "the clock of this machine" in one.getMessage()]


def wal_of(machine: Machine) -> Wal:
    wal = machine.led()
    assert wal is not None
    return wal


async def led_by_first(cluster: Machines, **fields: object) -> tuple[Machine, Machine]:
    """Make a log; return its leader and the machine that is to lead it next."""
    await cluster.apply(copies=tuple(one.address for one in cluster.all), **fields)
    first, second, _ = cluster.all
    return await cluster.led(by=first), second


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_times_do_not_go_back_after_a_takeover(
    tmp_path: Path, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The next leader says once that its clock is behind, by how much, and what to do."""
    async with Machines(tmp_path) as cluster:
        cluster.all[0].clock.shift_wall(seconds)
        first, second = await led_by_first(cluster)
        await append(cluster, b"one")
        await first.stop()
        await cluster.led(by=second)
        await append(cluster, b"two", b"three")
        found = await records(cluster)
        times = [record.timestamp_us for record in found]
        assert [record.value for record in found] == [b"one", b"two", b"three"]
        assert times == sorted(times)
        wal, one = wal_of(second), found[0]
        assert await wal.offset_at(one.timestamp_us) == one.offset
        assert await wal.offset_at(times[-1] + 1) == wal.tail
        said = lines(caplog)
        assert len(said) == (seconds > 0)
        assert all(re.search(r"orders is 3[56]\d\d seconds later", line) for line in said)
        assert all("let NTP keep them" in line for line in said)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_clock_that_jumps_while_its_machine_leads(tmp_path: Path, seconds: int) -> None:
    """It goes on leading, and the other machines see nothing of it."""
    async with Machines(tmp_path) as cluster:
        first, _ = await led_by_first(cluster)
        await append(cluster, b"one")
        wal = wal_of(first)
        epoch, lease = wal.statistics().epoch, first.member.session.lease if first.member else 0
        for jump in (seconds, -2 * seconds):
            first.clock.shift_wall(jump)
            await append(cluster, b"more")
        found = await records(cluster)
        times = [record.timestamp_us for record in found]
        assert times == sorted(times)
        assert wal_of(first) is wal
        assert wal.statistics().epoch == epoch
        assert first.member is not None
        assert first.member.session.lease == lease
        assert first.member.session.is_certain


async def test_records_of_a_clock_that_was_ahead_are_removed_by_their_times(tmp_path: Path) -> None:
    """The time of the newest record decides, so none is removed early; that of the next leader counts."""
    async with Machines(tmp_path) as cluster:
        cluster.all[0].clock.shift_wall(HOUR)
        first, second = await led_by_first(cluster, settings={"retention_seconds": HOUR / 2})
        await append(cluster, b"one")
        await first.stop()
        await cluster.led(by=second)
        await append(cluster, b"two")
        wal = wal_of(second)
        assert (wal.head, wal.tail) == (1, 3)
        second.clock.shift_wall(HOUR)  # as late as the records say
        await append(cluster, b"three")
        assert wal.head == 1
        second.clock.shift_wall(HOUR / 2 + 1)
        await until(lambda: wal.head == wal.tail)
