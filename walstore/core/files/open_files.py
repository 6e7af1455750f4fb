"""The open files of open logs: ActiveFile, ActiveCell, and OpenFiles, which bounds how many a store has.

The first two are blocking and owned by the log's writer thread. They handle bytes and positions. Offsets,
the ledger and other segments are left to :mod:`walstore.core.append.tail`. OpenFiles belongs to all threads.

When its limit is reached and a log needs its files, those of the least recently used log are closed. No
timer is involved: an idle log keeps its files until another one needs the room. The bound may be exceeded
only by the logs that are in use at this moment, hence by the number of threads.

A log's files are used only by the holder of its :class:`FileSlot`: its own writer thread, or another log's
while it parks them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from walstore.core.files import spare_segment
from walstore.core.format import segment
from walstore.core.ports import Buffer, Cell, File, FileSystem

logger = logging.getLogger("walstore.log")

_LEAST_STEP_BYTES: Final = 1 << 20
_MOST_STEP_BYTES: Final = 1 << 24
_NEVER: Final = 1 << 62


class ActiveFile:
    """A segment file that grows at its end.

    Between two calls it can be *parked*: its descriptor is closed, and opened again by the next call
    that needs it.
    """

    def __init__(
        self, fs: FileSystem, path: Path, file: File, position: int, segment_bytes: int
    ) -> None:
        """Go on behind ``position`` of an open file; all before it is durable."""
        self._fs = fs
        self._path = path
        self._open: File | None = file
        self._parking_error: OSError | None = None
        self._is_closed = False
        self._segment_bytes = segment_bytes
        self._reserved = position
        self.durable_position = position
        """End of the frames that are synced."""
        self.position = position
        """End of the frames."""
        self.is_dirty = False
        """Whether a write failed and may have left bytes behind :attr:`position`."""

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: Path,
        pieces: Sequence[Buffer],
        segment_bytes: int,
        recycled: File | None = None,
    ) -> ActiveFile:
        """Make a file that begins with ``pieces``: under a temporary name, synced, then renamed.

        A file of that name is replaced. ``recycled`` is what :meth:`SpareSegment.take` returned just now; it
        belongs to the active file, also if this fails.
        """
        spare = path.parent / spare_segment.NAME
        file = recycled
        if file is None:
            with contextlib.suppress(FileNotFoundError):
                fs.remove(spare)
            file = fs.open(spare, "x")
        try:
            reserved = file.size() if recycled is not None else 0
            file.pwrite(pieces, 0)
            file.datasync()
            fs.replace(spare, path)
            fs.sync_directory(path.parent)
        except BaseException:
            file.close()
            raise
        made = cls(fs, path, file, sum(map(len, pieces)), segment_bytes)
        made._reserved = max(made._reserved, reserved)
        return made

    @property
    def previous_crc(self) -> int:
        """CRC of the last frame of the segment before, as the file's header has it."""
        return segment.decode_header(self._file.pread(segment.HEADER_BYTES, 0), "").previous_crc

    def pread(self, size: int, position: int) -> bytes:
        """Return bytes of the file."""
        return self._file.pread(size, position)

    @property
    def has_unsynced(self) -> bool:
        """Whether frames were written since the last sync."""
        return self.position > self.durable_position

    def write(self, frames: Sequence[Buffer]) -> int:
        """Write frames at the end and return their size.

        A write that fails is taken back, so that none of it survives; :attr:`is_dirty` says if it was not.
        """
        size = sum(map(len, frames))
        if not size:
            return 0
        file = self._open or self._reopen()
        if self.position + size > self._reserved:
            self._reserve(self.position + size)
        try:
            file.pwrite(frames, self.position)
        except OSError:
            self.is_dirty = True
            self._reserved = self.position
            file.truncate(self.position)
            file.datasync()
            self.is_dirty = False
            raise
        self.position += size
        return size

    def sync(self) -> None:
        """Make the frames written so far durable.

        If that fails they are cut off as well as can be: the system may keep them in memory only, and
        the next opening would take them for durable.
        """
        try:
            (self._open or self._reopen()).datasync()
        except OSError:
            self._cut(self.durable_position)
            raise
        self.durable_position = self.position

    def seal(self, footer: bytes) -> None:
        """Write the footer behind the frames, cut what is reserved off, sync and close."""
        try:
            self._file.pwrite([footer], self.position)
            self._file.truncate(self.position + len(footer))
            self._file.datasync()
        except OSError:
            self._cut(self.position)  # else the next opening would take it for durable
            raise
        self.close()

    def trim(self) -> None:
        """Cut what is reserved off, durably; an idle log has nothing reserved."""
        if self.position < self._reserved:
            self._file.truncate(self.position)
            self._file.datasync()
            self._reserved = self.position

    def close(self) -> None:
        """Release the descriptor for good; twice is allowed."""
        self._is_closed = True
        file, self._open = self._open, None
        if file is not None:
            file.close()

    def park(self) -> None:
        """Release the descriptor, and the space that is reserved, until the next call.

        Never raises. Unsynced writes are synced first, since a later descriptor would not report their
        failure; if the sync fails, the next call fails.
        """
        file, self._open = self._open, None
        if file is None:
            return
        try:
            if self.has_unsynced:
                file.datasync()
            if self.position < self._reserved < _NEVER:
                file.truncate(self.position)
                self._reserved = self.position
        except OSError as error:
            self._parking_error = error
        finally:
            with contextlib.suppress(OSError):
                file.close()

    @property
    def _file(self) -> File:
        """The file, opened again if it was parked."""
        return self._open or self._reopen()

    def _reopen(self) -> File:
        if self._is_closed:
            raise ValueError("the file is closed")
        if self._parking_error is not None:
            raise self._parking_error
        file = self._fs.open(self._path, "r+")
        try:
            if file.size() < self.position:
                raise OSError(errno.EIO, "the active segment was cut while the log was idle")
        except BaseException:
            file.close()
            raise
        self._open = file
        return file

    def _cut(self, position: int) -> None:
        """Cut off, as well as can be, what the system may keep in memory only."""
        with contextlib.suppress(OSError):
            self._file.truncate(position)

    def _reserve(self, needed_bytes: int) -> None:
        """Reserve blocks ahead in growing steps, so that syncs need not write the file's size.

        Idle logs reserve nothing. A full disk is met by the write itself, when it is really full.
        """
        step = min(max(self._reserved, _LEAST_STEP_BYTES), _MOST_STEP_BYTES)
        goal = max(needed_bytes, min(self._reserved + step, self._segment_bytes))
        try:
            self._file.allocate(goal)
            self._reserved = goal
        except OSError:
            self._file.truncate(self.position)
            self._reserved = _NEVER


class ActiveCell:
    """The durable cell of an open log: open from the first store until it is parked.

    It reports to other processes how far the log reaches; nothing else depends on it. So a store that
    fails, for example on a full disk, does not fail the log: the file is removed and the next store tries
    again. A stale cell would delay its readers; without a cell they read the log itself.
    """

    def __init__(self, fs: FileSystem, path: Path, size: int) -> None:
        """Take the file at ``path``, which the first store creates if needed."""
        self._fs = fs
        self._path = path
        self._size = size
        self._cell: Cell | None = None
        self._has_failed = False
        self._has_durable_name = False
        self._is_closed = False

    def store(self, data: bytes) -> bool:
        """Replace the content and return whether others see it; never raises. Not once it is closed."""
        if self._is_closed:
            return False
        error: OSError | None = None
        for _ in range(2):
            try:
                if self._cell is None:
                    self._cell = self._fs.cell(self._path, self._size)
                self._cell.store(data)
            except OSError as raised:
                error = raised
                self._remove()
            else:
                self._has_failed = False
                return True
        if not self._has_failed:
            logger.warning("%s cannot be stored to, the log continues: %s", self._path, error)
        self._has_failed = True
        return False

    def settle(self, data: bytes) -> None:
        """Replace the content so that a power failure brings no older one back; OSError.

        Afterwards it finds this content, a later one, or no file.
        """
        self.park()  # the file may have been replaced; what counts is the one with its name
        self.store(data)
        if self._has_failed:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(self._path)
        else:
            with contextlib.closing(self._fs.open(self._path, "r+")) as file:
                file.datasync()
        if not self._has_durable_name:
            self._fs.sync_directory(self._path.parent)
            self._has_durable_name = not self._has_failed

    def park(self) -> None:
        """Close it until the next store."""
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.close()

    def close(self) -> None:
        """Close it for good; twice is allowed."""
        self._is_closed = True
        self.park()

    def _remove(self) -> None:
        """Remove what cannot be stored to."""
        with contextlib.suppress(OSError):
            self.park()
        self._has_durable_name = False
        with contextlib.suppress(OSError):
            self._fs.remove(self._path)


class FileSlot:
    """One log's right to touch its files; a context manager. Not reentrant."""

    __slots__ = ("_files", "_lock", "park")

    def __init__(self, files: OpenFiles, park: Callable[[], None]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.park = park
        """Closes the log's files; never raises. Called with the slot held, on any thread."""

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._files.make_room(self)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def close(self) -> None:
        """Note that the log closed its files for good. The slot is not used any more."""
        self._files.forget(self)

    def try_hold(self) -> bool:
        """Hold the slot if it is free."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release a slot that was held by :meth:`try_hold`."""
        self._lock.release()


class OpenFiles:
    """At most ``limit`` logs with open files, plus those in use; the rest are parked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        # Logs whose files are open, the least recently used first.
        self._open: OrderedDict[FileSlot, None] = OrderedDict()
        self.parkings = 0
        """Number of times a log was parked."""

    def __len__(self) -> int:
        return len(self._open)

    def slot(self, park: Callable[[], None]) -> FileSlot:
        """Return the slot of one more log, parked for now."""
        return FileSlot(self, park)

    def make_room(self, slot: FileSlot) -> None:
        """Note that a log is used now, and park others if there are too many."""
        with self._guard:
            self._open[slot] = None
            self._open.move_to_end(slot)
            parked = self._pick(len(self._open) - self._limit, slot)
        for victim in parked:
            try:
                victim.park()
            finally:
                victim.release()

    def forget(self, slot: FileSlot) -> None:
        """Note that a log has no files open any more."""
        with self._guard:
            self._open.pop(slot, None)

    def _pick(self, count: int, user: FileSlot) -> list[FileSlot]:
        """Remove and hold up to ``count`` unused logs, the least recently used first."""
        picked: list[FileSlot] = []
        if count <= 0:
            return picked
        for candidate in self._open:
            if candidate is not user and candidate.try_hold():
                picked.append(candidate)
                if len(picked) == count:
                    break
        for victim in picked:
            del self._open[victim]
        self.parkings += len(picked)
        return picked
