"""Repair from a copy: every record that the copy holds is back in its place, bit for bit where possible."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.effort import first_seed
from tests.local import UnsyncedFileSystem, close_opened, open_blocking, read_opened
from tests.walstore.care.repair.test_repairing import (
    FIRST,
    SECOND,
    THIRD,
    batch_at,
    cut,
    data_bytes,
    files,
    flip,
    forget_hints,
    records,
)
from walstore import Record, Settings, Wal
from walstore.care.repair.plan import STAGED_NAME, Interval, RepairKind, RepairPlan
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.batches.batch import Batch
from walstore.core.format import checkpoint
from walstore.errors import InvalidSettingsError, WalError

FS = UnsyncedFileSystem()
Damaging = Callable[[Path], object]


class LogCopy:
    """The records of another directory, as a copy."""

    url = "memory://copy"

    def __init__(self, path: Path, head: int = 1, limit: int = 1 << 62) -> None:
        opened = open_blocking(path, fs=FS)
        try:
            self.records = {record.offset: record for record in read_opened(opened)}
            self.log_id: bytes | None = opened.log_id
        finally:
            close_opened(opened)
        self.head = head
        self.limit = min(limit, max(self.records) + 1)

    def read(self, start: int, limit: int) -> Iterator[Batch]:
        assert self.head <= start < limit <= self.limit
        for offset in range(start, limit):
            yield OneRecord(self.records[offset])


class OneRecord(Batch):
    """A batch of one record."""

    def __init__(self, record: Record) -> None:
        self.start, self.limit = record.offset, record.offset + 1
        self._record = record

    values = property(lambda self: [self._record.value])
    keys = property(lambda self: [self._record.key])
    streams = property(lambda self: [self._record.stream])
    headers = property(lambda self: [self._record.headers])
    timestamps_us = property(lambda self: [self._record.timestamp_us])
    nbytes = property(lambda self: len(self._record.value))

    def slice(self, start: int, limit: int) -> Batch:
        raise AssertionError("a copy of one record is not sliced")

    to_arrow = may_hold_stream = select_stream = None  # type: ignore[assignment]


async def _make(path: Path) -> None:
    """As for the tests of repair, with all that records and batches can have."""
    async with Wal.open(path) as wal:
        await wal.append_many([b"first"], update={"owner": "a"})
        for number in range(2, 16):
            if number % 4 == 0:
                await wal.append(b"value %d " % number * 3, stream=f"stream-{number}")
            elif number % 4 == 1:
                await wal.append(b"value %d " % number * 3, key=b"key", headers={"a": b"1"})
            else:
                await wal.append(b"value %d " % number * 3)
            if number in (5, 10):
                await wal.rotate()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "log"
    asyncio.run(_make(path))
    return path


@pytest.fixture(scope="module")
def everything(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> LogCopy:
    path = tmp_path_factory.mktemp("copy") / "log"
    shutil.copytree(pristine, path)
    return LogCopy(path)


@pytest.fixture
def log(pristine: Path, log_directory: Path) -> Path:
    shutil.copytree(pristine, log_directory)
    return log_directory


def healed(path: Path, copy: LogCopy) -> RepairPlan:
    """Plan and apply; check what every repair must keep to."""
    before = files(path)
    plan = plan_repair(path, copy=copy, fs=FS)
    assert files(path) == before, "planning changes nothing"
    apply_repair(plan, copy=copy, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    assert not (path / STAGED_NAME).exists()
    after = list(files(path).values())
    assert all(data in after for data in before.values()), "every byte is kept"
    report = verify_directory(path)
    assert report.problems == ()
    return plan


def check(path: Path, pristine: Path) -> None:
    """Assert that all records are as they were, and appends go on."""
    twin = path.with_name("twin")
    shutil.copytree(pristine, twin)
    assert records(path) == records(twin)


# Damage after which every segment is what it was, byte for byte.
EXACT: dict[str, Damaging] = {
    "a value": lambda log: flip(log / SECOND, batch_at(log / SECOND, 2) + 130),
    "each batch of a segment": lambda log: [
        flip(log / SECOND, batch_at(log / SECOND, number) + 110) for number in range(6)
    ],
    "the CRC of a batch": lambda log: flip(log / SECOND, batch_at(log / SECOND, 3) + 4),
    "the magic of a batch": lambda log: flip(log / SECOND, batch_at(log / SECOND, 3)),
    "the length of a batch": lambda log: flip(log / SECOND, batch_at(log / SECOND, 3) + 9),
    "the count of a batch": lambda log: flip(log / SECOND, batch_at(log / SECOND, 3) + 24),
    "a whole header": lambda log: wipe(log / SECOND, batch_at(log / SECOND, 3), 80),
    "a whole batch": lambda log: wipe(
        log / SECOND, batch_at(log / SECOND, 3), batch_at(log / SECOND, 4)
    ),
    "the footer and a value": lambda log: [
        flip(log / SECOND, batch_at(log / SECOND, 2) + 130),
        flip(log / SECOND, data_bytes(log / SECOND) + 9),
    ],
    "a value of the active segment": lambda log: flip(log / THIRD, batch_at(log / THIRD, 2) + 130),
    "the last batch of the log": lambda log: flip(log / THIRD, batch_at(log / THIRD, 5) + 130),
    "the last value of a sealed segment": lambda log: flip(
        log / SECOND, batch_at(log / SECOND, 5) + 130
    ),
    "the first batch, a ledger": lambda log: flip(log / SECOND, batch_at(log / SECOND, 0) + 99),
    "two segments": lambda log: [
        flip(log / FIRST, batch_at(log / FIRST, 1) + 110),
        flip(log / SECOND, batch_at(log / SECOND, 3) + 110),
    ],
}


def wipe(path: Path, begin: int, size_or_end: int) -> None:
    data = bytearray(path.read_bytes())
    end = size_or_end if size_or_end > begin else begin + size_or_end
    data[begin:end] = b"\xee" * (end - begin)
    path.write_bytes(data)


@pytest.mark.parametrize("name", EXACT)
def test_a_segment_is_rebuilt_bit_for_bit(
    name: str, log: Path, pristine: Path, everything: LogCopy
) -> None:
    EXACT[name](log)
    plan = healed(log, everything)
    assert RepairKind.RESTORE in {step.kind for step in plan.steps}
    assert all("bit for bit" in s.message for s in plan.steps if s.kind is RepairKind.RESTORE)
    assert (plan.lost, plan.reassigned, plan.source) == ((), None, "memory://copy")
    for segment_name in (FIRST, SECOND, THIRD):
        written = (log / segment_name).read_bytes().rstrip(b"\0")
        assert written == (pristine / segment_name).read_bytes().rstrip(b"\0")
    check(log, pristine)


# Damage after which a segment holds the same records in other batches.
ANEW: dict[str, Damaging] = {
    "a missing segment": lambda log: (log / SECOND).unlink(),
    "the first segment is missing": lambda log: (log / FIRST).unlink(),
    "the last segment is missing": lambda log: (log / THIRD).unlink(),
    "all segments are missing": lambda log: [
        (log / name).unlink() for name in (FIRST, SECOND, THIRD)
    ],
    "a segment is something else": lambda log: (log / SECOND).write_bytes(b"something else" * 99),
    "a segment is empty": lambda log: (log / SECOND).write_bytes(b""),
    "a segment was cut short": lambda log: cut(log / SECOND, batch_at(log / SECOND, 2) + 30),
    "the active segment was cut short": lambda log: cut(log / THIRD, batch_at(log / THIRD, 2) + 30),
    "two batches as a whole": lambda log: wipe(
        log / SECOND, batch_at(log / SECOND, 2), batch_at(log / SECOND, 4)
    ),
    "the batches of the active segment": lambda log: wipe(
        log / THIRD, batch_at(log / THIRD, 1), batch_at(log / THIRD, 5) + 90
    ),
    "a header and what is behind it": lambda log: wipe(log / SECOND, 0, 300),
    "no hints and a missing segment": lambda log: [forget_hints(log), (log / SECOND).unlink()],
}


@pytest.mark.parametrize("name", ANEW)
def test_records_are_put_into_new_batches(
    name: str, log: Path, pristine: Path, everything: LogCopy
) -> None:
    ANEW[name](log)
    following = (log / THIRD).read_bytes() if (log / THIRD).exists() else b""
    plan = healed(log, everything)
    assert plan.lost == ()
    assert plan.restored
    check(log, pristine)
    if following and THIRD not in {Path(step.path).name for step in plan.steps}:
        assert (log / THIRD).read_bytes().startswith(following.rstrip(b"\0"))


def test_what_the_copy_does_not_hold_is_lost(
    log: Path, pristine: Path, everything: LogCopy
) -> None:
    """A gap in the middle is filled as a whole or not at all; one at the end as far as it goes."""
    part = LogCopy(_copied(pristine, log), limit=9)
    (log / SECOND).unlink()
    plan = plan_repair(log, copy=part, fs=FS)
    assert plan.needs_choice
    plan = plan_repair(log, keep="before", copy=part, fs=FS)
    assert plan.head == 1
    assert plan.lost == (Interval(plan.limit, 16),)


def _copied(pristine: Path, log: Path) -> Path:
    path = log.with_name("copied")
    shutil.copytree(pristine, path)
    return path


def test_another_log_is_refused(log: Path, tmp_path: Path) -> None:
    asyncio.run(_make(tmp_path / "other"))
    other = LogCopy(tmp_path / "other")
    flip(log / SECOND, batch_at(log / SECOND, 2) + 130)
    with pytest.raises(WalError, match="holds another log"):
        plan_repair(log, copy=other, fs=FS)


def test_applying_needs_the_copy(log: Path, everything: LogCopy) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 2) + 130)
    plan = plan_repair(log, copy=everything, fs=FS)
    with pytest.raises(InvalidSettingsError, match="memory://copy"):
        apply_repair(plan, fs=FS)


def test_nothing_to_heal(log: Path, everything: LogCopy) -> None:
    assert not plan_repair(log, copy=everything, fs=FS).is_needed


def test_registers_survive(log: Path, everything: LogCopy) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 0) + 99)
    (log / THIRD).unlink()
    healed(log, everything)
    (log / checkpoint.FILE_NAME).unlink()

    async def registers() -> dict[str, str]:
        async with Wal.open(log) as wal:
            return dict(wal.registers)

    assert asyncio.run(registers()) == {"owner": "a"}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_large_and_compressed_batches(compression: str | None, log_directory: Path) -> None:
    async def make() -> None:
        small = Settings(segment_bytes=256 << 10, compression=compression)
        async with Wal.open(log_directory, settings=small) as wal:
            for number in range(40):
                await wal.append_many([b"%d " % (number * at) * 100 for at in range(50)])

    asyncio.run(make())
    copied = log_directory.with_name("copied")
    shutil.copytree(log_directory, copied)
    copy = LogCopy(copied)
    paths = sorted(log_directory.glob("*.wal"))
    pristine = [path.read_bytes() for path in paths]
    for path in paths[:-1]:
        wipe(path, batch_at(path, 3) + 300, 2000)
    plan = healed(log_directory, copy)
    assert plan.lost == ()
    assert [path.read_bytes() for path in paths[:-1]] == pristine[:-1]


def test_no_file_says_whose_the_log_is(log: Path, everything: LogCopy) -> None:
    """The copy does, and whole segments are made of it."""
    wipe(log / FIRST, 24, 324)
    flip(log / "CHECKPOINT", 873, 1)
    for name in (SECOND, THIRD):
        (log / name).unlink()
    plan = healed(log, everything)
    assert (plan.lost, bytes.fromhex(plan.log_id)) == ((), everything.log_id)
    assert records(log) == everything.records


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_damage(seed: int, pristine: Path, everything: LogCopy, tmp_path: Path) -> None:
    """Whatever is flipped, wiped, cut off or deleted, hints included: all records are back."""
    random = Random(seed + first_seed("repair from a copy"))
    for attempt in range(15):
        log = tmp_path / str(attempt) / "log"
        shutil.copytree(pristine, log)
        for _ in range(random.choice((1, 1, 2, 5))):
            path = log / random.choice((FIRST, SECOND, THIRD, FIRST, SECOND, THIRD, "CHECKPOINT"))
            if not path.exists() or not path.stat().st_size:
                continue
            at = random.randrange(min(path.stat().st_size, 1200))
            kind = random.choice(("flip", "flip", "wipe", "cut", "delete"))
            if kind == "flip":
                flip(path, at, random.randrange(1, 256))
            elif kind == "wipe":
                wipe(path, at, min(at + random.choice((8, 80, 300)), path.stat().st_size))
            elif kind == "cut":
                cut(path, at)
            else:
                path.unlink()
        if not list(log.glob("*.wal")):
            continue
        if not plan_repair(log, fs=FS).is_needed:
            continue  # nobody can tell that something is missing
        plan = healed(log, everything)
        assert plan.lost == (), attempt
        assert records(log) == everything.records, attempt
