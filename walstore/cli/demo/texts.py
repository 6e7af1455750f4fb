"""Bulk text: the source files of the installed Python packages, in lines. Blocking reads."""

from __future__ import annotations

import os
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path


class Texts:
    """Lines of all source files there are, shared by those who ask for some. Safe for many threads."""

    def __init__(self) -> None:
        self._files = _files_for_ever()
        self._lock = threading.Lock()

    def next_lines(self, count: int) -> list[bytes]:
        """Return at least ``count`` lines, without their newlines, that nobody was given before.

        After the last file it begins again. FileNotFoundError if there are none at all.
        """
        lines: list[bytes] = []
        while len(lines) < count:
            with self._lock:
                path = next(self._files)
            try:
                lines += Path(path).read_bytes().splitlines()
            except OSError:  # removed, or not for us to read
                continue
        return lines


def _files_for_ever() -> Iterator[str]:
    roots = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
    while True:
        count = 0
        for path in _walk(roots):
            count += 1
            yield path
        if not count:
            raise FileNotFoundError(f"no Python source files below {', '.join(roots)}")


def _walk(roots: dict[str, None]) -> Iterator[str]:
    """Yield the source files that hold something, a directory after the other."""
    waiting = list(roots)
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith(".py") and entry.stat().st_size:
                    yield entry.path
