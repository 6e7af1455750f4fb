"""Appends while segments are deleted: with their blocks freed in parts, as a log does it, and at once.

    python -m bench.deletion [--rounds 5] [--segments 6] [--directory DIR]

A log of segments of 64 MiB; one after the other is trimmed away while groups of 256 x 1 KiB are appended.
Rounds are interleaved; figures are medians of the rounds. Needs 600 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final
from unittest.mock import patch

from bench.report.figures import percentile
from walstore import Settings, Wal
from walstore.core.files import unlinked_file
from walstore.core.settings import MIB

GROUP: Final = [bytes(1024)] * 256
SEGMENT_BYTES: Final = 64 * MIB
GROUPS_BETWEEN: Final = 60
"""Groups that are appended from one deletion to the next: fewer than a segment holds."""
WAYS: Final = {"in parts": unlinked_file.PART_BYTES, "at once": 1 << 62}
SHARES: Final = {"p50": 0.5, "p99": 0.99, "longest": 1.0}


async def appends(directory: Path, segments: int) -> list[float]:
    """Return how long each group took, in seconds, in order of length."""
    times = []
    async with Wal.open(directory / "log", settings=Settings(segment_bytes=SEGMENT_BYTES)) as wal:
        starts = [1]
        while len(starts) <= segments + 1:
            starts.append(wal.tail)
            while wal.tail - starts[-1] < SEGMENT_BYTES // 1024:
                await wal.append_many(GROUP)
        await wal.trim(before=starts[1] + 1)  # its file is kept for the next segment
        async with asyncio.TaskGroup() as tasks:
            for start in starts[2:]:
                tasks.create_task(wal.trim(before=start))
                for _ in range(GROUPS_BETWEEN):
                    begun = time.perf_counter()
                    await wal.append_many(GROUP)
                    times.append(time.perf_counter() - begun)
    return sorted(times)


def main(rounds: int, segments: int, parent: Path | None) -> None:
    """Measure and print a table."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            with (
                tempfile.TemporaryDirectory(dir=parent) as name,
                patch.object(unlinked_file, "PART_BYTES", WAYS[way]),
            ):
                found[way].append(asyncio.run(appends(Path(name), segments)))
    for way, runs in found.items():
        figures = [
            f"{name} {1e3 * statistics.median([percentile(times, share) for times in runs]):6.2f} ms"
            for name, share in SHARES.items()
        ]
        print(f"{way:<10} {'   '.join(figures)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segments", type=int, default=6)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    main(given.rounds, given.segments, given.directory)
