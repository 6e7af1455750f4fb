"""Opening after a crash: the time depends on what was appended since the last checkpoint, not on the log."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bench.conftest import Run
from walstore import Settings, Wal
from walstore.core.settings import MIB

VALUE = os.urandom(1024)
SETTINGS = Settings(durability="memory", channel_bytes=64 * MIB)


async def _fill(path: Path, size_bytes: int, image: Path) -> None:
    """Fill a log, and copy it as a killed process leaves it: open, with reserved blocks at its end."""
    async with Wal.open(path, settings=SETTINGS) as wal:
        for _ in range(size_bytes // (256 * len(VALUE))):
            await wal.append_many([VALUE] * 256)
        await wal.flush()
        await asyncio.to_thread(shutil.copytree, path, image)


@pytest.mark.parametrize("mebibytes", [64, 1024])  # and 32 more, since the last checkpoint
def test_recovery(benchmark, run: Run, log_path: Path, mebibytes: int) -> None:
    """Open a log of that size after a crash, and close it again."""
    benchmark.group = "recovery after a crash"
    image, crashed = log_path.with_name("image"), log_path.with_name("crashed")
    run(_fill(log_path, (mebibytes + 32) * MIB, image))

    def prepare() -> None:
        shutil.rmtree(crashed, ignore_errors=True)
        shutil.copytree(image, crashed)

    async def open_it() -> int:
        wal = await Wal.open(crashed)
        scanned = wal.recovery.scanned_bytes
        await wal.aclose()
        return scanned

    scanned = benchmark.pedantic(lambda: run(open_it()), setup=prepare, rounds=5)
    benchmark.extra_info["scanned_mib"] = round(scanned / MIB, 1)
