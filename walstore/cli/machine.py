"""Machine: what the figures of a measurement depend on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import walstore


def describe_machine(directory: Path) -> dict[str, str]:
    """Return the processor, the system, the file system of a directory, and versions, by name."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "file system": file_system(directory),
        "Python": platform.python_version(),
        "walstore": walstore.__version__,
    }


def processor() -> str:
    """Return the model of the processor, or its architecture if the system does not name the model."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def file_system(directory: Path) -> str:
    """Return the type and the device of what is mounted where a directory is, or ``unknown``."""
    try:
        mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return "unknown"
    return find_mount(mounts, directory.resolve())


def find_mount(mounts: str, path: Path) -> str:
    """Return the same, of an absolute path, from the text of ``/proc/self/mountinfo``."""
    found, deepest = "unknown", -1
    for line in mounts.split("\n"):
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kinds) < 2:
            continue
        place = Path(_unescape(fields[4]))
        # Of two mounts at the same place the later one hides the earlier one.
        if path.is_relative_to(place) and len(place.parts) >= deepest:
            found, deepest = f"{kinds[0]} on {_unescape(kinds[1])}", len(place.parts)
    return found


def _unescape(text: str) -> str:
    """Return a field of mountinfo with its spaces and backslashes, which are octal there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
