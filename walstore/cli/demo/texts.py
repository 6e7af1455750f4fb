"""Bulk text: the source files of the installed Python packages, in lines. Blocking reads."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def source_files(part: int, parts: int) -> Iterator[Path]:
    """Yield every ``parts``-th source file of the installed packages and the standard library.

    For ever: after the last one it begins again. FileNotFoundError if there is none at all.
    """
    roots = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
    while True:
        count = 0
        for number, path in enumerate(_walk(roots)):
            if number % parts == part:
                count += 1
                yield path
        if not count:
            raise FileNotFoundError(f"no Python source files below {', '.join(roots)}")


def read_lines(files: Iterator[Path]) -> list[bytes]:
    """Return the lines of the next file that can be read, without their newlines."""
    while True:
        try:
            lines = next(files).read_bytes().splitlines()
        except OSError:
            continue
        if lines:
            return lines


def _walk(roots: dict[str, None]) -> Iterator[Path]:
    for root in roots:
        for directory, names, files in os.walk(root):
            names.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    yield Path(directory, name)
