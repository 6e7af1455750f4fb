"""A log is not made where a machine has records of one of that name: etcd may have lost what it knew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machines
from walstore import InvalidSettingsError
from walstore.cluster.member import ClusterMember
from walstore.topology.documents import PREFIX, Member

pytestmark = pytest.mark.timeout(60)


async def keep_records(path: Path) -> None:
    """Leave three machines with copies of a log."""
    async with Machines(path) as machines:
        await machines.apply()
        wal = (await machines.led()).led()
        assert wal is not None
        await wal.append_many([b"v"] * 3)
        await until(lambda: all(one.is_present and not one.lag for one in wal.statistics().copies))


def first_of(machines: Machines) -> ClusterMember:
    member = machines.all[0].member
    assert member is not None
    return member


async def all_know_each_other(machines: Machines) -> None:
    await until(lambda: len(first_of(machines).view.members) == len(machines.all))


async def test_a_log_is_not_made_over_records(tmp_path: Path) -> None:
    await keep_records(tmp_path)
    async with Machines(tmp_path) as machines:  # with an etcd that knows nothing
        await all_know_each_other(machines)
        member = first_of(machines)
        for make in (member.make_log, member.make_log_here):
            with pytest.raises(InvalidSettingsError, match="has records") as raised:
                await make("orders")
            assert any(one.address in str(raised.value) for one in machines.all)
            assert "offsets 1 to 3, epoch 1" in str(raised.value)
            assert "walstore logs apply --from FILE --adopt" in str(raised.value)
        assert machines.store.get(f"{PREFIX}logs/orders") is None
        assert await member.make_log("others")
        assert await member.make_log_here("more")


async def test_records_at_a_machine_that_is_not_to_have_a_copy_count(tmp_path: Path) -> None:
    await keep_records(tmp_path)
    for number in (0, 1):
        (tmp_path / f"m{number}" / "orders").rename(tmp_path / f"old{number}")
    async with Machines(tmp_path) as machines:
        await all_know_each_other(machines)
        with pytest.raises(InvalidSettingsError, match=r"m2/s\.sock has log"):
            await first_of(machines).make_log("orders", replicas=1)


async def test_a_machine_that_does_not_answer_has_no_records_as_far_as_is_known(
    tmp_path: Path,
) -> None:
    gone = f"unix://{tmp_path}/gone.sock"
    async with Machines(tmp_path) as machines:
        machines.store.swap(f"{PREFIX}members/{gone}", Member(gone, "00").encode(), 0, 0)
        await until(lambda: gone in first_of(machines).view.members)
        assert await first_of(machines).make_log("orders", replicas=1)


async def test_a_log_that_is_there_is_not_asked_for(tmp_path: Path) -> None:
    """It has records, too."""
    async with Machines(tmp_path) as machines:
        await machines.apply()
        wal = (await machines.led()).led()
        assert wal is not None
        await wal.append(b"v")
        assert not await first_of(machines).make_log("orders")
        assert not await first_of(machines).make_log_here("orders")
