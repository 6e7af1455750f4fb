"""What syncs take on blocks of three kinds: those of a growing file, reserved ones, and zeros written ahead.

    python -m bench.blocks DIRECTORY [--rounds 5]

Reserved space and zeros come in steps, as a log's do: 1 MiB for lone values of 1 KiB, 16 MiB for groups of
256 KiB. The step is part of the append that needs it, so the mean and the longest show what it costs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

BEGIN_BYTES: Final = 4096
PAUSE_SECONDS: Final = 0.0005
LOADS: Final = (
    ("lone values of 1 KiB", 1 << 10, 1 << 20, 400),
    ("groups of 256 KiB", 1 << 18, 1 << 24, 80),
)


def seconds_of(path: Path, kind: str, value_bytes: int, step_bytes: int, count: int) -> list[float]:
    """Return how long each write and sync took, in order of length."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.pwrite(file, bytes(BEGIN_BYTES), 0)
    os.fdatasync(file)
    position = limit = BEGIN_BYTES
    value, taken = os.urandom(value_bytes), []
    for _ in range(count):
        began = time.perf_counter()
        if kind != "growing" and position + value_bytes > limit:
            os.posix_fallocate(file, limit, step_bytes)
            if kind == "zeros":
                os.pwrite(file, bytes(step_bytes), limit)
            limit += step_bytes
        os.pwrite(file, value, position)
        os.fdatasync(file)
        position += value_bytes
        taken.append(time.perf_counter() - began)
        time.sleep(PAUSE_SECONDS)
    os.close(file)
    path.unlink()
    return sorted(taken)


def main() -> None:
    """Measure interleaved rounds and print each."""
    parser = argparse.ArgumentParser(prog="python -m bench.blocks", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for title, value_bytes, step_bytes, count in LOADS:
            print(f"{title}: p50, mean, longest in µs")
            for _ in range(options.rounds):
                for kind in ("growing", "reserved", "zeros"):
                    found = seconds_of(Path(name) / "file", kind, value_bytes, step_bytes, count)
                    mean = sum(found) / count
                    figures = (found[count // 2], mean, found[-1])
                    print(f"  {kind:9}" + "".join(f"{1e6 * one:10.0f}" for one in figures))


if __name__ == "__main__":
    main()
