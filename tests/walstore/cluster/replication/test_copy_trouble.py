"""Why a copy does not count is told at both ends, whenever it changes, and by ``walstore verify``."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster
from tests.walstore.cluster.replication.test_damage import DAMAGES, fill, segments, used
from tests.walstore.cluster.replication.test_replication import caught_up
from walstore import CopyStatistics, CorruptionError, Wal, connect
from walstore.care.verify import VerifyReport, verify_directory
from walstore.cli.samples import open_samples
from walstore.cluster.replication.copy_trouble import CopyTrouble
from walstore.cluster.replication.replica import Replica
from walstore.core.files.directory import PROMISE_NAME, SYNCED_NAME
from walstore.core.files.posix import PosixFileSystem
from walstore.core.runtime.statistics import unpack_statistics
from walstore.serve import Server
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


def spoil_the_promise(segment: Path) -> None:
    (segment.parent / PROMISE_NAME).write_bytes(b"garbage")


def spoil_the_note(segment: Path) -> None:
    """Flip a bit of what the copy noted as synced."""
    path = segment.parent / SYNCED_NAME
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


def copy_of(wal: Wal, number: int) -> CopyStatistics:
    return next(one for one in wal.statistics().copies if f"/m{number}/" in one.address)


def told(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Return the warnings with these words."""
    return [text for text in caplog.messages if all(word in text for word in words)]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (spoil_the_promise, "the promise of this copy is damaged"),
        (spoil_the_note, "what was noted of this copy is damaged"),
        (DAMAGES[1], "were synced here"),
    ],
)
async def test_why_a_copy_is_missing_is_told_at_both_ends(
    cluster: Cluster,
    damage: Callable[[Path], None],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The machine is away first: what is wrong later replaces that, and is said once."""
    wal = await cluster.primary(0)
    await fill(wal, 20)
    await caught_up(cluster, wal, 1, 2)
    await until(lambda: copy_of(wal, 1).trouble is None)
    machine = cluster.machines[1]
    await machine.stop()
    await until(lambda: not copy_of(wal, 1).is_present)
    assert copy_of(wal, 1).trouble
    (machine.path / "orders" / "CHECKPOINT").unlink(missing_ok=True)
    damage(segments(cluster, 1)[-1])
    await machine.start()
    await until(lambda: why in (copy_of(wal, 1).trouble or ""))
    assert not copy_of(wal, 1).is_present
    assert len(told(caplog, f"the copy at {machine.address} does not count: ", why)) == 1
    assert len(told(caplog, "the copy of orders here does not count: ", why)) == 1
    async with await Server.open(wal, unix=machine.path / "leader.sock") as server:
        place = str(server.addresses[0])
        async with await connect(place) as remote:
            there = {one.address: one.trouble for one in (await remote.statistics()).copies}
        async with open_samples(place, "top") as look:
            (sample,) = await look()
    assert why in (there[machine.address] or "")
    assert why in dict(sample.notes)[f"copy at {machine.address}"]
    fields = dataclasses.asdict(wal.statistics())
    for copy in fields["copies"]:
        del copy["trouble"]  # as a server of an earlier version answers
    assert {copy.trouble for copy in unpack_statistics(fields).copies} == {None}
    await machine.stop()
    shutil.rmtree(machine.path / "orders")  # as the error says
    await machine.start()
    await until(lambda: copy_of(wal, 1).is_present)
    assert copy_of(wal, 1).trouble is None
    assert len(told(caplog, f"the copy at {machine.address} counts again")) == 1
    await wal.aclose()


async def test_a_disk_that_fails_is_told_where_it_is(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again and again until a write succeeds, and says each reason once."""
    disk = cluster.machines[1].fs = FaultyFileSystem()
    await cluster.machines[1].stop()
    await cluster.machines[1].start()
    wal = await cluster.primary(0)
    await fill(wal, 5)
    await caught_up(cluster, wal, 1, 2)
    here = "the copy of orders here"
    disk.fail("pwrite", times=None)
    await wal.append(b"with machine 2")
    before = disk.count("pwrite")
    await until(lambda: disk.count("pwrite") > before + 3)
    await until(lambda: bool(told(caplog, f"{here} does not count", "cannot be read or written")))
    disk.heal()
    await until(lambda: bool(told(caplog, f"{here} counts again")))
    await until(lambda: copy_of(wal, 1).is_present)
    reasons = told(caplog, f"{here} does not count")
    assert len(reasons) == len(set(reasons))
    await wal.aclose()


def test_a_reason_is_told_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    trouble = CopyTrouble("the copy")
    trouble.end()
    for why in ("away", "away", "damaged", "damaged"):
        trouble.note(why)
    trouble.text = "being made again"  # no error
    trouble.note("damaged")
    assert trouble.text == "damaged"
    trouble.end()
    trouble.end()
    assert trouble.text is None
    trouble.note("damaged")
    assert caplog.messages == [
        "the copy does not count: away",
        "the copy does not count: damaged",
        "the copy counts again",
        "the copy does not count: damaged",
    ]


# -- walstore verify --------------------------------------------------------------------------


def look(directory: Path) -> tuple[VerifyReport, CorruptionError | None, int]:
    """Return what ``walstore verify`` says, what the copy says when it opens, and where it ends then."""
    report = verify_directory(directory)
    try:
        replica = Replica.open(PosixFileSystem(), directory)
    except CorruptionError as error:
        return report, error, 0
    replica.close()
    replica.release()
    return report, None, replica.end.place.position


async def closed_copy(cluster: Cluster) -> Path:
    """Return the directory of a copy that nobody has open."""
    wal = await cluster.primary(0)
    await fill(wal, 100)
    await caught_up(cluster, wal, 1, 2)
    await wal.aclose()
    await cluster.machines[1].stop()
    return cluster.machines[1].path / "orders"


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("damage", [*DAMAGES, spoil_the_promise, spoil_the_note])
async def test_verify_judges_a_copy_as_its_node_does(
    cluster: Cluster, damage: Callable[[Path], None], has_checkpoint: bool
) -> None:
    directory = await closed_copy(cluster)
    if not has_checkpoint:
        (directory / "CHECKPOINT").unlink(missing_ok=True)
    sound, refused, _ = await asyncio.to_thread(look, directory)
    assert (sound.problems, refused) == ((), None)
    damage(segments(cluster, 1)[-1])
    report, refused, _ = await asyncio.to_thread(look, directory)
    assert refused is not None
    assert refused.path in {problem.path for problem in report.problems}
    assert report.unfinished_bytes == 0


async def test_verify_takes_what_a_copy_did_not_sync_for_unfinished(cluster: Cluster) -> None:
    """As the copy does, which cuts it: what its frames say of syncs was so at another machine."""
    directory = await closed_copy(cluster)
    for name in ("CHECKPOINT", SYNCED_NAME):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    last = segments(cluster, 1)[-1]
    data = bytearray(used(last))
    data[len(data) // 2] ^= 1  # batches behind it say that it was synced
    last.write_bytes(data)
    report, refused, end = await asyncio.to_thread(look, directory)
    assert (report.problems, refused) == ((), None)
    assert report.unfinished_bytes == len(data) - end > 1000
