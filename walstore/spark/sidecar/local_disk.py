"""Making what Spark has written to this machine's disk durable. Spark itself never syncs a file.

A cursor that moves lets records be collected. On an object store or HDFS what Spark wrote is durable then; on
a local disk it is in the page cache, and a power loss would take the only copy.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from walstore.errors import StorageUnavailableError


def sync_file_systems(places: Iterable[str]) -> None:
    """Write out everything in the file systems that hold these directories. Blocking.

    StorageUnavailableError if a disk fails; then nothing says that the directories are durable.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    synced: set[int] = set()
    for place in places:
        path = _existing(Path(place))
        try:
            device = path.stat().st_dev
            if device in synced:
                continue
            descriptor = os.open(path, os.O_RDONLY)
            try:
                if libc.syncfs(descriptor):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), str(path))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageUnavailableError(f"cannot make {place} durable: {error}") from error
        synced.add(device)


def _existing(path: Path) -> Path:
    return next(found for found in (path, *path.parents) if found.exists())
