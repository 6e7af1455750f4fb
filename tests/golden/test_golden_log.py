"""Logs of every version stay readable, by every way in. See regenerate_log.py for what they contain."""

from __future__ import annotations

import asyncio
import shutil
from itertools import chain
from pathlib import Path

import pytest

from tests.frames import build, values_only
from tests.golden.regenerate_log import CURSORS, DIRECTORIES, REGISTERS, TIME_US, expected
from tests.local import copy_log, segments, stored_batches
from tests.version_1 import make_version_1, seal, versions_of
from tests.walstore.cli.conftest import Cli, cli  # noqa: F401 - a fixture
from walstore import ReadonlyWal, Record, StreamClosedError, Wal
from walstore.care.repair.repairing import apply_repair, plan_repair
from walstore.care.verify.verifying import verify_directory
from walstore.core.files.log_files import LogSnapshot
from walstore.core.format.checkpoint import CELL_FILE_NAME, FILE_NAME

HINTS = [(), (FILE_NAME,), (CELL_FILE_NAME,), (FILE_NAME, CELL_FILE_NAME)]
LIMITS = {1: 8, 2: 14}
EPOCH = 2


@pytest.fixture(params=DIRECTORIES)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=HINTS, ids=lambda names: "-".join(names) or "none")
def missing(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


def copy(version: int, tmp_path: Path, missing: tuple[str, ...] = ()) -> Path:
    """Return a copy that may be opened for writing, without some of its hints."""
    path = Path(shutil.copytree(DIRECTORIES[version], tmp_path / "log"))
    for name in missing:
        (path / name).unlink()
    return path


async def _read_beside(path: Path) -> list[Record]:
    async with ReadonlyWal.open(path) as log, log.reader("earliest", follow=False) as reader:
        return [record async for record in reader]


def check_readable(path: Path, records: list[Record]) -> None:
    """Check that these records are found without the lock, and nothing wrong.

    If both hints are missing the head is in the ledger only, and records below it may be found, too.
    """
    view = LogSnapshot.open(path)
    for found in (list(chain.from_iterable(stored_batches(view))), asyncio.run(_read_beside(path))):
        assert [record for record in found if record.offset >= records[0].offset] == records
    assert not verify_directory(path).problems


def test_the_files_are_there() -> None:
    for version, starts in {1: (1, 5, 7), 2: (1, 5, 7, 10, 13)}.items():
        names = sorted(path.name for path in DIRECTORIES[version].iterdir() if path.is_file())
        assert names == [*(f"{start:020}.wal" for start in starts), FILE_NAME, CELL_FILE_NAME]
        assert versions_of(DIRECTORIES[version]) == [version] * len(starts)


def test_it_reads_without_its_lock(version: int) -> None:
    view = LogSnapshot.open(DIRECTORIES[version])
    head = expected(version)[0].offset
    assert (view.head, view.durable_limit, view.epoch) == (head, LIMITS[version], EPOCH)
    assert [record for batch in stored_batches(view) for record in batch] == expected(version)


def test_it_reads_without_its_hints(version: int, missing: tuple[str, ...], tmp_path: Path) -> None:
    check_readable(copy(version, tmp_path, missing), expected(version))


def test_there_is_nothing_to_repair(version: int, tmp_path: Path) -> None:
    plan = plan_repair(copy(version, tmp_path))
    assert (plan.steps, plan.limit) == ((), LIMITS[version])


def test_its_dump(version: int, cli: Cli) -> None:  # noqa: F811
    done = cli("dump", str(DIRECTORIES[version]))
    assert (done.code, done.err) == (0, "")
    assert [row["offset"] for row in done.rows] == [one.offset for one in expected(version)]
    assert done.rows[-1]["value"] == expected(version)[-1].value.decode()


async def _check_memory(path: Path) -> None:
    """Check registers, streams, producers and cursors of the log of version 2."""
    async with ReadonlyWal.open(path) as log:
        assert await log.registers() == REGISTERS
        assert list(await log.streams()) == ["eu", "us", "asia"]
    async with Wal.open(path) as wal:
        assert dict(wal.registers) == REGISTERS
        found = wal.streams()
        assert [(name, one.is_open) for name, one in found.items()] == [
            ("eu", True),
            ("us", False),
            ("asia", True),
        ]
        assert dict(found["asia"].metadata) == {"zone": "9"}
        with pytest.raises(StreamClosedError):
            await wal.append(b"", stream="us")
        assert await wal.producer("p").append(b"repeated", sequence=1) == 8
        assert {one.name: one.position for one in await wal.cursors()} == CURSORS


def test_what_it_remembers(missing: tuple[str, ...], tmp_path: Path) -> None:
    asyncio.run(_check_memory(copy(2, tmp_path, missing)))


async def _append(path: Path, record: Record, records: list[Record]) -> None:
    async with Wal.open(path) as wal:
        assert [one async for one in wal.reader("earliest", follow=False)] == records
        assert wal.recovery.missing_from is None
        assert await wal.append(record.value, timestamp_us=record.timestamp_us) == record.offset


def check_goes_on(path: Path, old: int, limit: int, records: list[Record]) -> None:
    """Check that a log of so many segments is continued in one of version 2, by two openings."""
    sealed = [one.read_bytes() for one in segments(path)[: old - 1]]
    for offset in (limit, limit + 1):
        record = Record(offset, b"new", timestamp_us=TIME_US + 10**9)
        asyncio.run(_append(path, record, records))
        records = [*records, record]
        check_readable(path, records)
        assert versions_of(path)[old:] == [2]
    assert [one.read_bytes() for one in segments(path)[: old - 1]] == sealed


def test_version_1_goes_on_in_a_segment_of_version_2(
    missing: tuple[str, ...], tmp_path: Path
) -> None:
    check_goes_on(copy(1, tmp_path, missing), 3, 8, expected(1))


def test_version_1_with_a_sealed_end_goes_on(missing: tuple[str, ...], tmp_path: Path) -> None:
    path = copy(1, tmp_path, missing)
    seal(segments(path)[-1])
    check_readable(path, expected(1))
    check_goes_on(path, 3, 8, expected(1))


@pytest.mark.parametrize("cut", [1, 79, 88, 100])
def test_version_1_with_a_torn_end_goes_on(
    missing: tuple[str, ...], cut: int, tmp_path: Path
) -> None:
    path = copy(1, tmp_path, missing)
    last = segments(path)[-1]
    view = memoryview(last.read_bytes())
    torn = build(values_only(b"x" * 100, start=8), epoch=2, previous_crc=0, synced_limit=8)[:cut]
    last.write_bytes(bytes(view) + torn)
    check_readable(path, expected(1))
    check_goes_on(path, 3, 8, expected(1))
    assert path.joinpath(last.stem + ".broken").read_bytes() == torn.rstrip(b"\0")


def test_version_1_with_damage_is_repaired(missing: tuple[str, ...], tmp_path: Path) -> None:
    """A batch in the midst is lost: one flipped bit of a value with its CRC."""
    path = copy(1, tmp_path, missing)
    first = segments(path)[0]
    data = bytearray(first.read_bytes())
    data[data.index(b"atomic 1")] ^= 3
    first.write_bytes(data)
    assert verify_directory(path).problems
    plan = plan_repair(path, keep="after")
    assert [str(one) for one in plan.unreadable] == ["[3, 5)"]
    apply_repair(plan)
    check_goes_on(path, len(segments(path)), 8, expected(1)[4:])


def test_a_log_of_version_1_with_all_that_it_can_contain(
    missing: tuple[str, ...], tmp_path: Path
) -> None:
    """The log of version 2, taken back: marks, a compressed batch, a large transaction, cursors."""
    path = copy_log(DIRECTORIES[2], tmp_path / "log")
    make_version_1(path)
    for name in missing:
        (path / name).unlink()
    assert versions_of(path) == [1] * 5
    check_readable(path, expected(2))
    check_goes_on(path, 5, 14, expected(2))
    asyncio.run(_check_memory(path))
