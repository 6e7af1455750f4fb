"""Samples of this machine from /proc: CPU, memory, disk, network, processes. Blocking reads.

Each sample is a msgpack map of plain numbers and names as the kernel gives them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack

PROC: Final = Path("/proc")
MAX_PROCESSES: Final = 8


def is_available() -> bool:
    """Return whether this machine has what the samples are read from."""
    return (PROC / "stat").exists() and (PROC / "meminfo").exists()


def cpu() -> dict[str, Any]:
    """Return the ticks that each core has spent in each mode since boot, and the load."""
    cores = {}
    for line in (PROC / "stat").read_text().splitlines():
        if line.startswith("cpu"):
            name, *ticks = line.split()
            cores[name] = [int(tick) for tick in ticks]
    return {"cores": cores, "load": (PROC / "loadavg").read_text().split()[:3]}


def memory() -> dict[str, Any]:
    """Return the kernel's account of memory, in KiB."""
    found = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0])
    return found


def disk() -> dict[str, Any]:
    """Return reads, writes and times of each block device since boot."""
    found = {}
    for line in (PROC / "diskstats").read_text().splitlines():
        _, _, name, *counters = line.split()
        found[name] = [int(counter) for counter in counters]
    return found


def network() -> dict[str, Any]:
    """Return bytes and packets of each interface since boot."""
    found = {}
    for line in (PROC / "net" / "dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        found[name.strip()] = [int(counter) for counter in counters.split()]
    return found


def processes() -> dict[str, Any]:
    """Return name, state, ticks and resident pages of some processes: the youngest ones."""
    names = [path.name for path in PROC.iterdir()]
    numbers = sorted((int(name) for name in names if name.isdigit()), reverse=True)
    found: dict[str, Any] = {}
    for number in numbers[:MAX_PROCESSES]:
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            head, _, tail = (PROC / str(number) / "stat").read_text().rpartition(")")
            fields = tail.split()
            ticks = int(fields[11]) + int(fields[12])
            found[str(number)] = [head.partition("(")[2], fields[0], ticks, int(fields[21])]
    return found


READERS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "cpu": cpu,
    "memory": memory,
    "disk": disk,
    "network": network,
    "processes": processes,
}


def take(stream: str, at_ns: int) -> bytes:
    """Read one sample and return it packed, with the time ``at_ns`` of the machine's own clock."""
    sample: bytes = msgpack.packb({"at_ns": at_ns, stream: READERS[stream]()})
    return sample
