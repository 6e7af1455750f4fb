"""Two machines that were started with one copied command line, one directory, or a copy of a directory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.cluster.machines import Machine, Machines
from walstore import InvalidSettingsError, StorageUnavailableError, WalLockedError
from walstore.cluster.joining import FILE_NAME, LastMachine
from walstore.cluster.member import ClusterMember
from walstore.core.files.posix import PosixFileSystem, PosixLock
from walstore.topology.documents import PREFIX, Member

pytestmark = pytest.mark.timeout(60)


class LocklessFileSystem(PosixFileSystem):
    """A disk of which two machines know nothing of each other's locks."""

    def lock(self, path: Path, owner: str) -> PosixLock:
        return super().lock(path.with_name(f"{path.name} of {id(self)}"), owner)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    """Three machines, and a fourth one, which the test starts."""
    machines = Machines(tmp_path)
    async with machines:
        await machines.apply()
        await machines.led()
        async with await machines.connect() as remote:
            await remote.append(b"one")
        yield machines


@pytest.fixture
async def fourth(tmp_path: Path, cluster: Machines) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path / "m3", cluster.store.client("machine 3"))
    yield machine
    await machine.stop()


async def values(cluster: Machines) -> list[bytes]:
    async with await cluster.connect() as remote, remote.reader(follow=False) as reader:
        return [record.value async for record in reader]


async def start_in_vain(machine: Machine, caplog: pytest.LogCaptureFixture) -> str:
    """Start a machine and let it wait in vain for the end of another one; return how it is refused."""
    caplog.clear()
    starting = asyncio.create_task(machine.start())
    await until(lambda: "waits for its end" in caplog.text or starting.done())
    machine.clock.skip(RUNS_OUT_SECONDS + 10_000)
    with pytest.raises(WalLockedError) as caught:
        await starting
    return str(caught.value)


def check_says_what_to_do(said: str, old: Machine, new: Machine) -> None:
    assert f"the directory of the machine at {old.address}, on " in said
    assert f"this machine, {new.member.home if new.member else ''} for {new.address}" in said
    assert "give each a directory of its own" in said
    assert FILE_NAME in said


def check_untouched(cluster: Machines) -> None:
    assert [one.address for one in cluster.all if one.member and one.member.is_closing] == []
    keys = {one.partition("members/")[2] for one in cluster.store.list(f"{PREFIX}members/").items}
    assert keys == {one.address for one in cluster.all}


async def test_a_copied_directory_is_not_used_beside_the_original(
    cluster: Machines, fourth: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    old = cluster.all[0]
    shutil.copytree(
        old.path, fourth.path, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True
    )
    check_says_what_to_do(await start_in_vain(fourth, caplog), old, fourth)
    check_untouched(cluster)
    await fourth.stop()
    check_says_what_to_do(await start_in_vain(fourth, caplog), old, fourth)  # as a supervisor does
    await fourth.stop()

    (fourth.path / FILE_NAME).unlink()  # as it is told: it is a machine of its own then
    await fourth.start()
    copies = cluster.spec().copies
    leader = await cluster.led()
    other = next(one for one in cluster.all if one not in (old, leader))
    kept = tuple(one for one in copies if one != other.address)
    spec = cluster.spec().with_copies((*kept, fourth.address))
    await cluster.apply(**spec._asdict())
    await until(lambda: fourth.address in _present(cluster))
    async with await cluster.connect() as remote:
        await remote.append(b"two")
    assert await values(cluster) == [b"one", b"two"]


async def test_a_copied_directory_of_a_machine_that_is_gone(
    cluster: Machines, fourth: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another machine, and says how to be the old one."""
    old = cluster.all[0]
    await old.stop()
    shutil.copytree(old.path, fourth.path, dirs_exist_ok=True)
    await fourth.start()
    assert f"{old.address}, which is away" in caplog.text
    assert f"--advertise {old.address}" in caplog.text
    last = await asyncio.to_thread(LastMachine.load, PosixFileSystem(), fourth.path)
    assert last.address == fourth.address
    await old.start()
    assert await values(cluster) == [b"one"]


async def test_one_directory_whose_locks_do_not_hold(
    cluster: Machines, fourth: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a disk that two machines see. The second one opens no file of a log."""
    old = cluster.all[0]
    fourth.directory, fourth.options["fs"] = old.path, LocklessFileSystem()
    starting = asyncio.create_task(start_in_vain(fourth, caplog))
    await until(lambda: "waits for its end" in caplog.text)
    assert fourth.member is not None
    with pytest.raises(StorageUnavailableError, match="opens no copies yet"):
        await fourth.member.node.log("orders")
    check_says_what_to_do(await starting, old, fourth)
    check_untouched(cluster)
    assert await values(cluster) == [b"one"]


async def test_an_address_that_all_machines_have(fourth: Machine) -> None:
    """Nobody finds a machine where it listens for all that come."""
    await fourth.start()
    assert fourth.member is not None
    other = await ClusterMember.open(fourth.path / "x", fourth.keys)
    async with other:
        for host in ("0.0.0.0", "[::]"):
            with pytest.raises(InvalidSettingsError, match="its own address"):
                await other.join(f"tls://{host}:7430")


async def test_one_address_that_leads_each_machine_to_itself(
    cluster: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one takes the place and says whose; the first one leaves and says who has it."""
    old = cluster.all[0]
    new = Machine(tmp_path / "m3", cluster.store.client("machine 3"))
    (old.path / "s.sock").rename(old.path / "old.sock")
    (old.path / "s.sock").symlink_to(new.path / "s.sock")
    address = old.address
    try:
        await new.start(address)
        assert old.member is not None
        assert new.member is not None
        await asyncio.wait_for(old.member.wait_closing(), 60)
        said = f"{new.member.home} serves a cluster at {address} now, and this machine, {old.member.home}"
        assert said in old.member.replaced_by
        assert "(--advertise) and a directory of its own" in old.member.replaced_by
        assert old.member.replaced_by in caplog.text
        assert (
            f"this machine, {new.member.home}, takes the place of {old.member.home}" in caplog.text
        )
        found = cluster.store.get(f"{PREFIX}members/{address}")
        assert found is not None
        entry = Member.decode(found.value, found.key)
        assert (entry.home, entry.replaced) == (new.member.home, old.member.home)
        assert not new.member.is_closing
        await old.stop()
        async with await cluster.connect() as remote:
            await remote.append(b"two")
        assert await values(cluster) == [b"one", b"two"]
    finally:
        await new.stop()


def _present(cluster: Machines) -> tuple[str, ...]:
    leader = cluster.leader()
    if leader is None or leader.member is None:
        return ()
    found = leader.member.view.leaders.get("orders")
    return () if found is None else found.present
