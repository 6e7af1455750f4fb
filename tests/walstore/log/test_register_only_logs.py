"""Logs that change registers and hardly append: they stay small, and remember."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.local import SMALL, UnsyncedFileSystem, read_values, segments
from walstore import Wal, WalError
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, PowerLossFileSystem

pytestmark = pytest.mark.slow

VALUE = "x" * 500


async def beat(wal: Wal, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        async with wal.transaction(update={"beat": f"{number} {VALUE}"}, durability="memory"):
            pass
    await wal.flush()


@pytest.mark.parametrize("has_records", [False, True])
async def test_a_segment_without_records_is_begun_anew_when_it_is_full(
    log_directory: Path, *, has_records: bool
) -> None:
    before = [b"record"] if has_records else []
    async with Wal.open(log_directory, settings=SMALL) as wal:
        if has_records:
            await wal.append(b"record")
            await wal.rotate()
        await beat(wal, 1000)
        assert sum(p.stat().st_size for p in segments(log_directory)) < 256 * KIB
        assert wal.registers["beat"].startswith("999 ")
    for name in ("", "CHECKPOINT"):
        if name:
            (log_directory / name).unlink()
        async with Wal.open(log_directory, settings=SMALL) as wal:
            assert wal.registers["beat"].startswith("999 ")
            assert await read_values(wal) == before
            assert wal.tail == 1 + len(before)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        await beat(wal, 300, 1000)
        await wal.append(b"later")
        assert await read_values(wal) == [*before, b"later"]
        await beat(wal, 300, 1300)
        assert await read_values(wal) == [*before, b"later"]


async def test_a_ledger_larger_than_a_segment(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for number in range(40):
            async with wal.transaction(update={str(number): "y" * 4000}):
                pass
        for number in range(30):
            await wal.append(b"%d" % number * 1000)
        assert len(await read_values(wal)) == 30
    (log_directory / "CHECKPOINT").unlink()
    async with Wal.open(log_directory, settings=SMALL) as wal:
        assert len(wal.registers) == 40
        assert len(await read_values(wal)) == 30


@pytest.mark.parametrize("seed", range(4))
async def test_the_power_may_go_while_it_is_begun_anew(tmp_path: Path, seed: int) -> None:
    for nth in range(1, 40):
        root = tmp_path / str(nth)
        root.mkdir()
        power = PowerLossFileSystem(root, UnsyncedFileSystem())
        fs = FaultyFileSystem(power)
        acknowledged = -1
        try:
            async with Wal.open(root / "log", settings=SMALL, fs=fs) as wal:
                await wal.append(b"record")
                await wal.rotate()
                await beat(wal, 100)
                acknowledged = 99
                calls = fs.count("*")
                fs.before_each(
                    lambda _, fs=fs, power=power, last=calls + nth: (
                        fs.count("*") >= last and power.cut()
                    )
                )
                for number in range(100, 140):
                    await beat(wal, 1, number)
                    acknowledged = number
        except WalError:
            pass
        power.crash(
            first_seed("registers") + seed if seed > 1 else seed, tmp_path / f"crashed-{nth}"
        )
        crashed = tmp_path / f"crashed-{nth}/log"
        async with Wal.open(crashed, settings=SMALL, fs=UnsyncedFileSystem()) as wal:
            assert int(wal.registers["beat"].split()[0]) >= acknowledged >= 99
            assert await read_values(wal) == [b"record"]
