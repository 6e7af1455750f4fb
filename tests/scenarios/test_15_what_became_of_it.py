"""S11, S13: what callers are told is what a new opening finds; upkeep may fail and is tried again."""

from __future__ import annotations

import asyncio
import errno
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.effort import every
from tests.local import (
    SMALL,
    UnsyncedFileSystem,
    check_contiguous,
    gather_outcomes,
    open_descriptors,
    read_all,
    read_values,
    segments,
)
from tests.waiting import until
from walstore import OutcomeUnknownError, Settings, Wal, WalError
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

FS = UnsyncedFileSystem()
SETTINGS = SMALL.replace(transaction_memory_bytes=16 * KIB, checkpoint_bytes=1 << 30)
ACTIVE = "next.tmp"
"""The name under which a segment was opened; its calls keep it."""


@dataclass
class Told:
    """What callers were told of each record and register: an error, or None for success."""

    records: dict[bytes, WalError | None] = field(default_factory=dict)
    registers: dict[str, WalError | None] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)
    """Where records were accepted; those below the head are gone."""

    async def append(self, wal: Wal, value: bytes) -> None:
        self.offsets[value] = wal.tail
        self.records[value] = await failure_of(wal.append(value))

    async def accept(self, wal: Wal, value: bytes) -> int | None:
        """Append at level ``memory``; the answer is that of :meth:`ask`."""
        try:
            self.offsets[value] = await wal.append(value, durability="memory")
        except WalError as error:
            self.records[value] = error
            return None
        return self.offsets[value]

    async def ask(self, wal: Wal, value: bytes, offset: int | None) -> None:
        if offset is not None:
            self.records[value] = await failure_of(wal.wait_durable(offset))

    async def change(self, wal: Wal, name: str) -> None:
        async def commit() -> None:
            async with wal.transaction(update={name: "new"}):
                pass

        self.registers[name] = await failure_of(commit())

    async def spill(self, wal: Wal, name: str) -> None:
        """Commit a transaction that is too large for memory, with a register."""
        values = [b"%s %d " % (name.encode(), number) * 900 for number in range(6)]

        async def commit() -> None:
            async with wal.transaction(update={name: "new"}) as transaction:
                for value in values:
                    await transaction.append(value)

        error = await failure_of(commit())
        self.registers[name] = error
        self.records.update(dict.fromkeys(values, error))

    async def check(self, directory: Path) -> None:
        """Compare with the log, and append to it."""
        assert open_descriptors(directory) == []
        async with Wal.open(directory, settings=SETTINGS, fs=FS) as wal:
            records = await read_all(wal)
            check_contiguous(records, wal.head)
            values = [record.value for record in records]
            assert len(set(values)) == len(values), "nothing is there twice"
            for value, error in self.records.items():
                if error is None and self.offsets.get(value, wal.head) < wal.head:
                    continue
                check_outcome(error, is_there=value in values)
            for name, error in self.registers.items():
                check_outcome(error, is_there=name in wal.registers)
            after = await wal.append(b"after")
        async with Wal.open(directory, settings=SETTINGS, fs=FS) as wal:
            assert [record.value for record in await read_all(wal, after)] == [b"after"]


def check_outcome(error: WalError | None, *, is_there: bool) -> None:
    outcome = "durable" if error is None else error.outcome
    assert outcome == "unknown" or is_there == (outcome == "durable"), repr(error)


async def failure_of(call: Any) -> WalError | None:
    """Return the error of a call; anything but a WalError is a defect."""
    try:
        await call
    except WalError as error:
        return error
    return None


# -- S11: every call of a commit fails, at every place ---------------------------------------------


async def run_mixed(wal: Wal, told: Told) -> None:
    """Records and changes of registers that come together in commits, with rotations between."""
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(told.change(wal, f"before {number}"))
            group.create_task(told.append(wal, b"%d " % number * 7000))
            group.create_task(told.change(wal, f"behind {number}"))
    await told.append(wal, b"last")


async def run_spill(wal: Wal, told: Told) -> None:
    await told.append(wal, b"first")
    async with asyncio.TaskGroup() as group:
        group.create_task(told.spill(wal, "large"))
        group.create_task(told.change(wal, "small"))
        group.create_task(told.append(wal, b"meanwhile"))
    await told.spill(wal, "first of its segment")


async def run_upkeep(wal: Wal, told: Told) -> None:
    """Records that are accepted but perhaps not synced when the log is trimmed and rotated."""
    for action in (lambda: wal.trim(2), wal.rotate, lambda: wal.trim(wal.durable_limit)):
        values = [b"%d %d" % (wal.tail, number) for number in range(3)]
        offsets = [await told.accept(wal, value) for value in values]
        await failure_of(action())
        for value, offset in zip(values, offsets, strict=True):
            await told.ask(wal, value, offset)


PROGRAMS = {"mixed": run_mixed, "spill": run_spill, "upkeep": run_upkeep}
KINDS = ["pwrite", "datasync", "truncate", "open", "replace", "sync_directory", "allocate", "store"]
HOW: dict[str, dict[str, Any]] = {
    "refused": {"error": errno.EMFILE},
    "full": {"error": errno.ENOSPC, "times": None},
    "half done": {"error": errno.EIO, "written_bytes": 100},
    "done and reported failed": {"error": errno.EIO, "happened": True},
    "dead": {"error": errno.EIO, "times": None},
}
SYNCS = ["batch", "os", 3600.0]


async def live(directory: Path, fs: FaultyFileSystem, program: str, sync: Any, fault: Any) -> Told:
    """Run a program on a log whose file system gets a fault once the log is open."""
    told = Told()
    wal = await Wal.open(directory, settings=SETTINGS.replace(sync=sync), fs=fs)
    await told.append(wal, b"kept")
    if fault is not None:
        kind, nth, how = fault
        fs.fail(kind, nth=nth, **how)
    async with asyncio.timeout(60):
        await PROGRAMS[program](wal, told)
        await failure_of(wal.aclose())
    return told


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_S11_every_call_of_a_commit_fails_and_every_outcome_is_true(
    scratch: Path, program: str, sync: Any
) -> None:
    numbers = itertools.count()
    sound = FaultyFileSystem(FS)
    told = await live(scratch / "sound", sound, program, sync, None)
    assert {*told.records.values(), *told.registers.values()} == {None}
    tries = [
        (kind, nth, how)
        for kind in KINDS
        for nth in range(1, sound.count(kind) + 1)
        for how in HOW.values()
    ]
    assert len(tries) > 50
    for fault in tries[:: every()]:
        directory = scratch / str(next(numbers))
        told = await live(directory, FaultyFileSystem(FS), program, sync, fault)
        await told.check(directory)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
async def test_S11_durable_is_still_there_when_the_power_goes_and_not_written_never_is(
    scratch: Path, program: str
) -> None:
    """A call fails, and then the disk loses all that was not synced, or keeps all of it."""
    numbers = itertools.count()
    sound = FaultyFileSystem(FS)
    await live(scratch / "sound", sound, program, "batch", None)
    tries = [
        (kind, nth, how)
        for kind in KINDS
        for nth in range(1, sound.count(kind) + 1)
        for how in HOW.values()
    ]
    for fault in tries[1 :: 3 * every()]:
        root = scratch / str(next(numbers))
        root.mkdir()
        power = PowerLossFileSystem(root, FS)
        told = await live(root / "log", FaultyFileSystem(power), program, "batch", fault)
        for seed in (LOSE_ALL, KEEP_ALL, 7):
            crashed = root.with_name(f"{root.name} {seed}")
            await asyncio.to_thread(power.crash, seed, crashed)
            await told.check(crashed / "log")


# -- S11: the cases that were found ----------------------------------------------------------------


@pytest.mark.parametrize("sync", ["os", 3600.0])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["pwrite", "datasync", "open"])
async def test_S11_what_was_written_unsynced_is_not_called_unwritten_by_a_trim_that_fails(
    log_directory: Path, faulty: FaultyFileSystem, kind: str, error: int, sync: Any
) -> None:
    told = Told()
    wal = await Wal.open(log_directory, settings=SETTINGS.replace(sync=sync), fs=faulty)
    await told.append(wal, b"kept")
    offsets = {value: await told.accept(wal, value) for value in (b"a", b"b")}
    before = faulty.count("pwrite", name=ACTIVE)
    await until(lambda: faulty.count("pwrite", name=ACTIVE) > before)
    faulty.fail(kind, error, times=None)
    await failure_of(wal.trim(2))
    for value, offset in offsets.items():
        await told.ask(wal, value, offset)
        found = told.records[value]
        assert found is None or found.outcome != "not_written"
    await failure_of(wal.aclose())
    await told.check(log_directory)


async def in_one_commit(wal: Wal, faulty: FaultyFileSystem, *calls: Any) -> list[asyncio.Task]:
    """Start calls while a commit syncs, so that the next one takes all of them."""
    with faulty.hold("datasync", name=ACTIVE) as hold:
        first = asyncio.create_task(wal.append(b"first"))
        await hold.wait_entered()
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        faulty.fail("open", errno.EMFILE, name=ACTIVE)
    await first
    return tasks


async def test_S11_a_change_of_registers_is_durable_although_the_rotation_behind_it_failed(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """The change and the record are one commit; the segment for the record cannot be made."""
    told = Told()
    wal = await Wal.open(log_directory, settings=SETTINGS, fs=faulty)
    await told.append(wal, b"k" * 40 * KIB)
    calls = (told.change(wal, "register"), told.append(wal, b"l" * 40 * KIB))
    await gather_outcomes(await in_one_commit(wal, faulty, *calls))
    await failure_of(wal.aclose())
    check_outcome(told.registers["register"], is_there=True)
    lost = told.records[b"l" * 40 * KIB]
    assert lost is not None
    assert lost.outcome == "not_written"
    await told.check(log_directory)


async def test_S11_a_large_transaction_is_durable_although_the_next_segment_cannot_be_made(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    told = Told()
    wal = await Wal.open(log_directory, settings=SETTINGS, fs=faulty)
    await told.append(wal, b"kept")
    faulty.fail("open", errno.EMFILE, name=ACTIVE)
    await told.spill(wal, "large")
    await failure_of(wal.aclose())
    check_outcome(told.registers["large"], is_there=True)
    with pytest.raises(WalError):
        await wal.append(b"no")
    await told.check(log_directory)


# -- S13: what is not on the way of the data -------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EACCES, errno.EMFILE, errno.EIO])
async def test_S13_a_segment_that_cannot_be_unlinked_is_unlinked_later(
    log_directory: Path, faulty: FaultyFileSystem, error: int
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        for number in range(6):
            await wal.append(b"%d" % number * 30 * KIB)
        old = (await asyncio.to_thread(segments, log_directory))[0]
        faulty.fail("replace", error, name="next.tmp")  # nor does the next segment get its file
        faulty.fail("remove", error, name=old.name)
        assert await wal.trim(6) > 1
        assert await wal.append(b"goes on") == 7
        assert old.exists()
        await wal.trim(7)
        await wal.rotate()
        assert not old.exists()
        with pytest.raises(WalError):
            await wal.follow(1).fetch()
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        assert (await read_values(wal))[-1] == b"goes on"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["open", "pwrite", "datasync", "replace"])
async def test_S13_a_checkpoint_that_fails_is_written_later(
    log_directory: Path, faulty: FaultyFileSystem, kind: str, error: int
) -> None:
    settings = SETTINGS.replace(checkpoint_bytes=64 * KIB)
    async with Wal.open(log_directory, settings=settings, fs=faulty) as wal:
        faulty.fail(kind, error, name="CHECKPOINT*", times=20)
        for number in range(40):
            assert await wal.append(b"%d" % number * 4 * KIB) == number + 1
        before = faulty.count("replace", name="CHECKPOINT")
        faulty.heal()
        for number in range(40, 80):
            assert await wal.append(b"%d" % number * 4 * KIB) == number + 1
        assert faulty.count("replace", name="CHECKPOINT") > before
    async with Wal.open(log_directory, settings=settings) as wal:
        assert len(await read_values(wal)) == 80


@pytest.mark.parametrize("kind", ["cell", "store"])
async def test_S13_a_cell_that_cannot_be_stored_holds_nobody_up(
    log_directory: Path, faulty: FaultyFileSystem, kind: str
) -> None:
    async with Wal.open(log_directory, settings=SETTINGS, fs=faulty) as wal:
        faulty.fail(kind, errno.EIO, times=None)
        faulty.fail("store", errno.ENOSPC, times=3)
        for number in range(10):
            assert await wal.append(b"%d" % number * 20 * KIB) == number + 1
        async with Wal.open_readonly(log_directory) as beside:
            assert beside.limit >= 1
        faulty.heal()
        await wal.append(b"last")
        async with Wal.open_readonly(log_directory) as beside:
            assert beside.durable_limit == 12
    async with Wal.open(log_directory, settings=SETTINGS) as wal:
        assert len(await read_values(wal)) == 11


async def test_S13_a_sync_that_fails_is_never_tried_again(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """That one is on the way of the data: the log ends, and says what became of it."""
    wal = await Wal.open(log_directory, settings=Settings(), fs=faulty)
    faulty.fail("datasync", name=ACTIVE)
    with pytest.raises(OutcomeUnknownError):
        await wal.append(b"perhaps")
    with pytest.raises(WalError):
        await wal.append(b"no")
    with pytest.raises(WalError):
        await wal.aclose()
    async with Wal.open(log_directory) as wal:
        assert await read_values(wal) in ([], [b"perhaps"])
