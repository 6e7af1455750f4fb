"""Replacing a small file so that a crash leaves either the old or the new content. Blocking."""

from __future__ import annotations

import contextlib
from pathlib import Path

from walstore.ports import FileSystem
from walstore.runtime.error_mapping import is_full


def sync_entry(fs: FileSystem, directory: Path) -> None:
    """Make the entry of a directory in its parent durable: its creator may not have done so.

    A parent that may not be read is skipped; it existed before, for example as a mounted volume.
    """
    with contextlib.suppress(PermissionError):
        fs.sync_directory(directory / "..")


def write_durably(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old or the new content."""
    spare = path.with_name(path.name + ".tmp")
    try:
        file = fs.open(spare, "x")
    except FileExistsError:  # a crash left it
        fs.remove(spare)
        file = fs.open(spare, "x")
    try:
        file.pwrite([data], 0)
        file.datasync()
    finally:
        file.close()
    fs.replace(spare, path)
    fs.sync_directory(path.parent)


def write_hint(fs: FileSystem, path: Path, data: bytes) -> None:
    """Replace a small file that opening the log can do without; on a full disk, overwrite it in place.

    Overwriting needs no more space than the file has. A crash in the middle leaves a damaged file.
    """
    try:
        write_durably(fs, path, data)
    except OSError as error:
        if not is_full(error) or not _overwrite(fs, path, data):
            raise


def _overwrite(fs: FileSystem, path: Path, data: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError):
        fs.remove(path.with_name(path.name + ".tmp"))
    try:
        file = fs.open(path, "r+")
    except FileNotFoundError:
        return False
    try:
        if len(data) > file.size():
            return False
        file.pwrite([data], 0)
        file.truncate(len(data))
        file.datasync()
    except OSError:
        with contextlib.suppress(OSError):  # none is better than half of one
            fs.remove(path)
        raise
    finally:
        file.close()
    return True
