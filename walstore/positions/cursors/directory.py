"""Cursor directory: the files of a log's named cursors, and the lock that guards changes to them.

docs/consumers.md has the layout of a file. Owns every call on the directory ``cursors``. Knows no handles,
no event loop and no log. A caller that reads, compares and writes under :func:`hold_cursors` does so
atomically, also between processes. Blocking; only called on a worker's thread.

Invariants (tests/walstore/positions/cursors/test_directory.py)
  C1  A file with a cursor's name is whole: it gets that name only after its content was synced.
  C2  What :func:`pins` returns under the lock is durable, so retention never relies on a position
      that a crash could take back.
  C3  What was read under the lock is durable, whoever wrote it, before a caller gets it.
  C4  A file that cannot be read pins everything until it is removed.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from crc32c import crc32c

from walstore.core.files.directory import list_segments, load_checkpoint, read_cell
from walstore.core.ports import FileSystem
from walstore.core.runtime.error_mapping import is_full
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    Outcome,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.positions.cursor_state import NAME, CursorInfo, CursorState, is_possible

DIRECTORY_NAME: Final = "cursors"
LOCK_NAME: Final = ".lock"
SPARE_NAME: Final = ".next"
"""Names with a leading dot are reserved: no cursor can have one."""

MAGIC: Final = b"WALCUR\r\n"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIHHQQ8sQQQ")
MOST_OWNER_BYTES: Final = 256
_CRC_END: Final = 12


def encode_cursor(state: CursorState) -> bytes:
    """Return the content of a cursor's file; an owner of more than 256 bytes is cut."""
    owner = state.owner.encode()[:MOST_OWNER_BYTES]
    packed = HEADER.pack(
        MAGIC,
        0,
        VERSION,
        len(owner),
        state.position,
        state.revision,
        state.writer,
        state.updated_us,
        state.lease_us,
        state.deadline_us,
    )
    body = packed[_CRC_END:] + owner
    return MAGIC + struct.pack("<I", crc32c(body)) + body


def decode_cursor(data: bytes, path: str) -> CursorState:
    """Parse a cursor's file; CorruptionError if it is damaged, FormatVersionError if it is newer."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise CorruptionError("this is not a cursor; move it away or delete it", path=path)
    _, crc, version, owner_bytes, *fields = HEADER.unpack_from(data)
    found = crc32c(data[_CRC_END:])
    if found != crc:
        raise CorruptionError(
            "cursor is damaged; delete it and make it again",
            path=path,
            position=len(MAGIC),
            expected=crc,
            found=found,
        )
    if version > VERSION:
        raise FormatVersionError(
            "cursor was written by a newer version", path=path, found=version, supported=VERSION
        )
    owner = data[HEADER.size :]
    if len(owner) != owner_bytes or owner_bytes > MOST_OWNER_BYTES:
        raise CorruptionError(
            "cursor has a wrong length; delete it and make it again",
            path=path,
            position=HEADER.size,
            expected=owner_bytes,
            found=len(owner),
        )
    state = CursorState(*fields, owner.decode("utf-8", "replace"))  # type: ignore[call-arg]
    if not is_possible(state):
        raise CorruptionError(
            "cursor contains impossible values; delete it and make it again",
            path=path,
            position=HEADER.size - 40,
            found=state,
        )
    return state


class CursorTable(Protocol):
    """The cursors of a log while nothing else changes them: files, or what the log itself has."""

    def read(self, name: str) -> CursorState | None:
        """Return a cursor's state, or None if there is no such cursor.

        Raises CorruptionError and FormatVersionError.
        """

    def write(self, name: str, state: CursorState) -> None:
        """Make a cursor, or replace its state."""

    def remove(self, name: str) -> bool:
        """Remove a cursor; return whether there was one."""

    def head(self) -> int:
        """Return the first offset on local disk. It does not move meanwhile."""


class HeldCursors:
    """The cursors of a log while their lock is held. Made by :func:`hold_cursors`."""

    def __init__(self, fs: FileSystem, directory: Path, synced: dict[str, CursorState]) -> None:
        """``synced`` contains what this process knows to be durable, from one holding of the lock to the
        next."""
        self._fs = fs
        self._cursors = directory / DIRECTORY_NAME
        self._directory = directory
        self._dirty = False
        self._synced = synced
        # Content of the files that were read or written since the last sync; None for no file.
        self._found: dict[str, CursorState | None] = {}

    def read(self, name: str) -> CursorState | None:
        """Return the state in a cursor's file, or None if there is no such cursor.

        It is durable after :meth:`sync`: another process may have died before it was.
        """
        found = self._found[name] = read_cursor(self._fs, self._directory, name)
        self._dirty |= found is None or self._synced.get(name) != found
        return found

    def write(self, name: str, state: CursorState) -> None:
        """Replace a cursor's file. Durable after :meth:`sync`.

        Raises DiskFullError, StorageUnavailableError or OutcomeUnknownError; an ``outcome`` of
        ``"not_written"`` means that the old file is still there.
        """
        spare = self._cursors / SPARE_NAME
        try:
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(spare)
            file = self._fs.open(spare, "x")
            try:
                file.pwrite([encode_cursor(state)], 0)
                file.datasync()
            finally:
                file.close()
        except OSError as error:
            raise describe_cursor(error, self._cursors / name, "not_written") from error
        self._dirty = True
        try:
            self._fs.replace(spare, self._cursors / name)
        except OSError as error:
            raise describe_cursor(error, self._cursors / name, "unknown") from error
        self._found[name] = state

    def remove(self, name: str) -> bool:
        """Delete a cursor's file; return whether there was one. Durable after :meth:`sync`.

        Raises as :meth:`write`.
        """
        self._dirty = True
        self._found[name] = None
        try:
            self._fs.remove(self._cursors / name)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise describe_cursor(error, self._cursors / name, "unknown") from error
        return True

    def sync(self) -> None:
        """Make everything read, written and removed durable; raises as :meth:`write`."""
        if not self._dirty:
            return
        try:
            self._fs.sync_directory(self._cursors)
        except OSError as error:
            raise describe_cursor(error, self._cursors, "unknown") from error
        self._dirty = False
        for name, state in self._found.items():
            if state is None:
                self._synced.pop(name, None)
            else:
                self._synced[name] = state

    def head(self) -> int:
        """Return the first offset on local disk that is durable now.

        It does not move while the lock is held.
        """
        cell = read_cell(self._fs, self._directory)
        hint = load_checkpoint(self._fs, self._directory)
        known = max(cell.head if cell else 0, hint.head if hint else 0)
        return known or next(iter(list_segments(self._fs, self._directory)), 1)


@contextlib.contextmanager
def hold_cursors(
    fs: FileSystem,
    directory: Path,
    *,
    owner: str = "retention",
    synced: dict[str, CursorState] | None = None,
) -> Iterator[HeldCursors]:
    """Hold the lock of a log's cursors: meanwhile nothing else makes, moves or removes one.

    Retention holds it from before it reads the :func:`pins` until its new head is durable. The
    directory ``cursors``, which contains the lock, is made if there is none. A caller that holds the
    lock repeatedly passes the same ``synced``, a dict that is empty at first, which saves syncs.

    Raises WalLockedError at once if another holder has it. It is held for milliseconds, so try again
    (:func:`walstore.positions.cursors.queue.patiently`), but never on a thread that others wait for.
    """
    cursors = directory / DIRECTORY_NAME
    fs.make_directory(cursors)
    lock = fs.lock(cursors / LOCK_NAME, owner)
    try:
        yield HeldCursors(fs, directory, {} if synced is None else synced)
    finally:
        lock.release()


def pins(fs: FileSystem, directory: Path, now_us: int) -> list[CursorInfo]:
    """Return the cursors of a log by name, for retention. Only under the lock.

    First makes their content durable: the process that committed may have died before it was.
    """
    fs.sync_directory(directory / DIRECTORY_NAME)
    return list_cursors(fs, directory, now_us)


def lowest_pin(found: Sequence[CursorInfo]) -> int | None:
    """Return the offset at and above which everything must stay; None if nothing is pinned."""
    return min((info.position for info in found if not info.is_expired), default=None)


def list_cursors(fs: FileSystem, directory: Path, now_us: int) -> list[CursorInfo]:
    """Return the cursors of a log by name, without the lock. Each is whole, but they may be from different
    moments."""
    try:
        names = fs.list(directory / DIRECTORY_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in sorted(filter(NAME.fullmatch, names)):
        try:
            state = read_cursor(fs, directory, name)
        except (CorruptionError, FormatVersionError) as error:
            found.append(CursorInfo(name, 0, is_expired=False, state=None, problem=error))
            continue
        if state is not None:  # else deleted meanwhile
            found.append(CursorInfo(name, state.position, state.is_expired(now_us), state))
    return found


def read_cursor(fs: FileSystem, directory: Path, name: str) -> CursorState | None:
    """Return the state in a cursor's file, or None if there is no such cursor.

    Raises CorruptionError and FormatVersionError.
    """
    path = directory / DIRECTORY_NAME / name
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise CorruptionError(
            "this is a directory or a pipe, not a cursor; move it away", path=str(path)
        ) from None
    return decode_cursor(data, str(path))


def remove_cursors(fs: FileSystem, directory: Path) -> None:
    """Remove the files of all cursors, durably; OSError. Only under the lock, or where nobody heeds them."""
    cursors = directory / DIRECTORY_NAME
    try:
        names = fs.list(cursors)
    except (FileNotFoundError, NotADirectoryError):
        return
    doomed = list(filter(NAME.fullmatch, names))
    for name in doomed:
        with contextlib.suppress(FileNotFoundError):
            fs.remove(cursors / name)
    if doomed:
        fs.sync_directory(cursors)


def describe_cursor(cause: OSError, path: Path, outcome: Outcome) -> WalError:
    """Return the error for a failed call on a cursor's file.

    Unlike a log, a cursor does not stay failed: each commit writes a new file, so it may be retried.
    """
    error: WalError
    if outcome == "unknown":
        error = OutcomeUnknownError(
            f"cursor may or may not have moved; try the commit again: {path}: {cause}",
            retriable=True,
        )
    elif is_full(cause):
        error = DiskFullError(
            f"no space left for a cursor; free some and try again: {path}: {cause}", retriable=True
        )
    else:
        error = StorageUnavailableError(f"cursor cannot be read or written: {path}: {cause}")
    error.__cause__ = cause
    return error
