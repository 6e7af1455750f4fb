"""Holder: the process that has a log open for writing, as the kernel's table of locks shows it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from walstore.core.files.directory import LOCK_NAME
from walstore.core.files.locks import STORE_NAME

_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a log open for writing."""

    pid: int | None
    """None if this machine cannot see it."""
    note: str
    """What it wrote into the lock file."""


def find_holder(directory: Path, *, locks: Path = _LOCKS) -> Holder | None:
    """Return the process that holds the lock of the log in ``directory`` or of its store, or None.

    Reads the kernel's table of locks; taking the lock to see whether it is free could make a writer
    that opens at that moment fail. Returns None without such a table.
    """
    for path in (directory / LOCK_NAME, directory / ".." / STORE_NAME):
        found = _find_exclusive(path, locks)
        if found is not None:
            return found
    return None


def _find_exclusive(path: Path, locks: Path) -> Holder | None:
    try:
        inode = path.stat().st_ino
        note = path.read_bytes()[:256].decode("utf-8", "replace").strip()
        table = locks.read_text()
    except OSError:
        return None
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK" or fields[3] != "WRITE" or "->" in fields:
            continue
        # Some file systems show another device number here than stat does, so the note, which names
        # the process, decides between files of the same number.
        if fields[5].rpartition(":")[2] == str(inode):
            pid = int(fields[4])
            if _same_device(path, fields[5]) or f"process {pid} " in note:
                return Holder(pid if pid > 0 else None, note)
    return None


def _same_device(path: Path, place: str) -> bool:
    device = path.stat().st_dev
    return place.startswith(f"{os.major(device):02x}:{os.minor(device):02x}:")
