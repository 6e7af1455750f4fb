"""The objects of a directory in the order an object store lists them. Reads names and sizes only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from uploader.stores.port import ListedObject


def walk(root: Path, prefix: str, after: str | None) -> Iterator[ListedObject]:
    """Yield the files below ``root`` whose path from there begins with ``prefix``, sorted as keys.

    A directory counts as its name with a slash, which puts ``a-b`` before ``a/b`` as in a listing of
    keys. Names that begin with a dot or are not UTF-8, and anything but regular files, are not objects.
    Directories that cannot hold a match are not opened; files and directories that vanish meanwhile
    are left out.
    """
    yield from _walk(root, "", prefix, after or "")


def _walk(directory: Path, base: str, prefix: str, after: str) -> Iterator[ListedObject]:
    for name, is_directory in _entries(directory):
        key = base + name
        if is_directory:
            above = prefix.startswith(key)
            behind = after >= key and not after.startswith(key)
            if (above or key.startswith(prefix)) and not behind:
                yield from _walk(directory / name, key, prefix, after)
        elif key.startswith(prefix) and key > after:
            try:
                size_bytes = (directory / name).stat().st_size
            except FileNotFoundError:
                continue
            yield ListedObject(key, size_bytes)


def _entries(directory: Path) -> list[tuple[str, bool]]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if _is_object_name(entry.name) and (
                    is_directory or entry.is_file(follow_symlinks=False)
                ):
                    found.append((f"{entry.name}/" if is_directory else entry.name, is_directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def _is_object_name(name: str) -> bool:
    return not name.startswith(".") and name.isprintable()
