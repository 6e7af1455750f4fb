"""UnlinkedFile: a file whose name is gone, and whose blocks are freed a few at a time.

To delete 64 MiB at once takes 13 ms on ext4, and a sync that comes meanwhile waits for it, on whatever thread
the file is deleted: both need the journal. In parts of 2 MiB, with pauses, syncs take little longer than
without (docs/performance.md, "Deletion"). Blocking, except :func:`free_blocks` and :func:`free_at_once`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from walstore.core.ports import File, FileSystem
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Lane
from walstore.errors import WalError

PART_BYTES: Final = 2 << 20
"""How much is freed at a time; a smaller file is deleted at once."""
_PAUSE_SECONDS: Final = 0.002
OPEN_AT_ONCE: Final = 8
"""How many such files of a log there are at most, and how many files are deleted between two commits."""
_CLOCK: Final = SystemClock()


class UnlinkedFile:
    """A file that nobody else has. If this process dies, the system frees what is left. For any thread."""

    def __init__(self, file: File, size: int) -> None:
        """Take an open file; see :func:`unlink`."""
        self._guard = threading.Lock()
        # Guarded by the lock: a descriptor that is closed while it is cut may be another file's by then.
        self._file: File | None = file
        self._size = size

    @property
    def is_freed(self) -> bool:
        """Whether nothing is left of it."""
        return self._file is None

    def free_parts(self, count: int = 1) -> None:
        """Free so many parts; never raises. If that fails, all are freed at once."""
        with self._guard:
            self._size -= count * PART_BYTES
            if self._file is None or self._size <= 0:
                self._close()
                return
            try:
                self._file.truncate(self._size)
            except OSError:
                self._close()

    def close(self) -> None:
        """Free what is left; never raises. Twice is allowed."""
        with self._guard:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def unlink(fs: FileSystem, path: Path) -> UnlinkedFile | None:
    """Delete a file; return it if blocks are left to be freed. OSError.

    None if it is small, or if somebody else has it, open or by another name: then it keeps its content.
    """
    try:
        file = fs.open(path, "r+")
    except FileNotFoundError:
        raise
    except OSError:  # for example too many open files
        fs.remove(path)
        return None
    try:
        fs.remove(path)
    except BaseException:
        file.close()
        raise
    with contextlib.suppress(OSError):
        size = file.size()
        if size > PART_BYTES and file.is_alone(names=0):
            return UnlinkedFile(file, size)
    with contextlib.suppress(OSError):
        file.close()
    return None


async def free_blocks(file: UnlinkedFile, lane: Lane) -> None:
    """Free all blocks of a file, in parts, on the threads of ``lane``.

    It takes no longer if the event loop is busy: then more parts are freed at a time, else a log could grow
    faster than it is deleted. If the caller is cancelled, the file is whole but for the parts that were
    freed; close it, or go on.
    """
    last = _CLOCK.monotonic()
    while not file.is_freed:
        await _CLOCK.sleep(_PAUSE_SECONDS)
        now = _CLOCK.monotonic()
        await lane.begin_through(file.free_parts, max(1, int((now - last) / _PAUSE_SECONDS)))
        last = now


def free_at_once(files: Iterable[UnlinkedFile], *lanes: Lane) -> None:
    """Begin to free what is left of files, without pauses, on the first of the lanes that takes it.

    A lane does not if it is closed, or if no thread can be started; then the files stay as they are.
    """
    for file in files:
        for lane in lanes:
            with contextlib.suppress(WalError):
                lane.begin_through(file.close)
                break
