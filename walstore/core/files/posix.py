"""The real file system. The only module of the core that makes durable system calls."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref
from pathlib import Path
from typing import ClassVar, Final, Self, TypeVar

from walstore.core.files.anchor import Anchor, NoAnchor
from walstore.core.ports import Buffer
from walstore.core.runtime.owned import NotCopied
from walstore.core.runtime.resource import abandon_in_children
from walstore.errors import WalClosedError, WalLockedError

_T = TypeVar("_T")
_IOV_MAX = 1024
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_OPEN_FLAGS = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


_HAS_DATASYNC: Final = hasattr(os, "fdatasync")
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


def _sync_elsewhere(descriptor: int) -> None:
    """Sync where there is no fdatasync. On macOS an fsync alone leaves data in the disk's cache: fsync(2)."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in (*_NOT_SUPPORTED, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(descriptor)


class _Descriptor(NotCopied):
    """A descriptor that is closed once; in child processes immediately."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        abandon_in_children(self)

    @property
    def _fd(self) -> int:
        if self._descriptor is None:
            raise ValueError("the file is closed")
        return self._descriptor

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def abandon(self, error: WalClosedError) -> None:
        """Release the child's copy; that of the parent stays open."""
        _Descriptor.close(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An unclosed log warns by itself; a thread that uses this keeps a reference. When the interpreter
        # exits, the functions that close() calls may be gone first.
        if not is_finalizing():
            self.close()


class _Status(ctypes.Structure):
    """struct statx, of 256 bytes."""

    link_count: int
    _fields_ = (
        ("_mask_to_attributes", ctypes.c_uint64 * 2),
        ("link_count", ctypes.c_uint32),
        ("_rest", ctypes.c_uint32 * 59),
    )


# statx(2), which os has from Python 3.15 on. It keeps the interpreter's lock: it asks no disk, and to get the
# lock back takes longer than the call whenever the event loop has something to do.
_statx = getattr(ctypes.PyDLL(None), "statx", None)
_STATX_FLAGS: Final = 0x1000 | 0x4000  # AT_EMPTY_PATH, AT_STATX_DONT_SYNC
_STATX_NLINK: Final = 0x4


class _Writable(_Descriptor):
    """A descriptor whose file may have been removed meanwhile."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._status = _Status()
        self._status_at = byref(self._status)

    def _link_count(self, descriptor: int) -> int:
        """Return how many names the file of this descriptor has, as far as this machine knows.

        Does not read the file's times as fstat does: since Linux 6.13 reading them makes the next write store
        new ones, and then each sync of the log also writes an inode (235 instead of 170 µs on ext4).
        """
        if _statx is None or _statx(descriptor, b"", _STATX_FLAGS, _STATX_NLINK, self._status_at):
            return os.fstat(descriptor).st_nlink
        return self._status.link_count


class PosixFile(_Writable):
    """A descriptor, addressed by position."""

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces; short writes are continued, so only an error leaves some out."""
        descriptor = self._fd
        views = []
        for piece in pieces:
            if len(piece):
                views.append(memoryview(piece).cast("B"))
        while views:
            written = os.pwritev(descriptor, views[:_IOV_MAX], position)
            position += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing and data:
            data = os.pread(self._fd, missing, position + size - missing)
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def datasync(self) -> None:
        """Call fdatasync, or what the system has for it.

        A file that was removed has nothing that would last: FileNotFoundError.
        """
        descriptor = self._fd
        if _HAS_DATASYNC:
            os.fdatasync(descriptor)
        else:
            _sync_elsewhere(descriptor)
        if not self._link_count(descriptor):
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written")

    def allocate(self, size: int) -> None:
        """Reserve blocks; file systems without support get a sparse file of that length."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, size)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
            else:
                return
        if self.size() < size:
            os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self._fd).st_size

    def is_alone(self, *, names: int = 1) -> bool:
        """Return whether nobody else has the file, open or by a further name; by a write lease (fcntl(2)).

        False where there are no leases, and for a file of another user.
        """
        descriptor = self._fd
        if sys.platform != "linux":
            return False
        try:
            # A process that opens it at this moment waits until the lease is given back, and this process
            # gets a signal. This one is ignored unless somebody handles it; the usual one ends the process.
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
        return self._link_count(descriptor) == names


class PosixCell(_Writable):
    """A small file that other processes read. Never mapped: truncating a mapped file kills its users."""

    def store(self, data: bytes) -> None:
        """Replace the first ``len(data)`` bytes; nothing once it is closed.

        FileNotFoundError if the file was removed or replaced: then no reader sees the content."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        os.pwrite(descriptor, data, 0)
        if not self._link_count(descriptor):
            raise FileNotFoundError(errno.ENOENT, "the cell was removed or replaced")


class PosixCellView(_Descriptor):
    """A cell that another process stores to."""

    def __init__(self, descriptor: int, path: Path, size: int, anchor: Anchor) -> None:
        super().__init__(descriptor)
        self._path, self._anchor = path, anchor
        self._buffer = bytearray(size)
        self._flags = _NOWAIT
        self._seen = os.pread(descriptor, size, 0)
        if len(self._seen) < size:  # its writer is just making it
            self.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        found = os.fstat(descriptor)
        self._identity = (found.st_dev, found.st_ino)

    def load(self) -> bytes:
        """Return the content now, or the last one seen if the call would have to wait for the disk."""
        if self._descriptor is None:
            return b""
        try:
            size = os.preadv(self._descriptor, (self._buffer,), 0, self._flags)
            self._seen = bytes(memoryview(self._buffer)[:size])
        except BlockingIOError:
            pass  # not in memory, and whatever is stored is in memory: nothing was
        except OSError as error:
            if not self._flags or error.errno not in _NOT_SUPPORTED:
                raise
            self._flags = 0  # a file system in memory, as a rule
            return self.load()
        return self._seen

    def is_current(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            with self._anchor.at(self._path) as (parent, name):
                found = os.stat(name, dir_fd=parent)
        except FileNotFoundError:
            return False
        descriptor = self._descriptor
        if descriptor is None:
            return False
        os.pread(descriptor, len(self._buffer), 0)  # in memory for the next loads
        return (found.st_dev, found.st_ino) == self._identity


class PosixLock(_Descriptor):
    """flock on a file; gone with the process."""

    _held: ClassVar[dict[tuple[int, int], int]] = {}
    """The process that holds an exclusive lock, by the file: a child has those of its parent, too."""

    def __init__(self, descriptor: int, *, is_exclusive: bool = False) -> None:
        super().__init__(descriptor)
        self._process = os.getpid()
        self._file = _identity(descriptor) if is_exclusive else None
        if self._file is not None:
            self._held[self._file] = self._process

    @classmethod
    def is_held_here(cls, descriptor: int) -> bool:
        """Return whether this process has an exclusive lock on a file that is open."""
        return cls._held.get(_identity(descriptor)) == os.getpid()

    def describe(self, owner: str) -> None:
        """Replace the note that others find when the lock is taken."""
        if self._descriptor is not None:
            _note_owner(self._descriptor, owner)

    def release(self) -> None:
        """Give the lock back; the file stays, so that no two openers ever lock different files.

        Also if a copy of the descriptor has got into another process, which would keep the lock."""
        try:
            if self._descriptor is not None and self._process == os.getpid():
                if self._file is not None:
                    self._held.pop(self._file, None)
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.release()


class PosixFileSystem:
    """Files of the machine this process runs on."""

    __slots__ = ("__dict__", "__weakref__", "_anchor")

    _anchor: Anchor

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Begin without an anchor; subclasses have an ``__init__`` of their own."""
        made = super().__new__(cls)
        made._anchor = NoAnchor()
        return made

    def anchor(self, directory: Path) -> Self:
        """Return this file system bound to a directory; see :class:`walstore.core.ports.FileSystem`."""
        twin = object.__new__(type(self))
        twin.__dict__ = self.__dict__  # what a subclass keeps holds for both
        twin._anchor = self._anchor.below(directory)
        return twin

    def close(self) -> None:
        """Release the directory."""
        self._anchor.close()

    def open(self, path: Path, mode: str) -> PosixFile:
        """Open a file; see :class:`walstore.core.ports.FileSystem`."""
        descriptor = self._open(path, _OPEN_FLAGS[mode])
        if mode == "r":  # else the system refuses a directory, and names it
            _check_file(descriptor, path)
        return PosixFile(descriptor)

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory."""
        with self._opened_directory(directory) as descriptor:
            return os.listdir(descriptor)

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory."""
        with self._opened_directory(directory) as descriptor, os.scandir(descriptor) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents, each made durable in its own parent."""
        missing = []
        while not self._is_directory(path):
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with self._anchor.at(directory) as (parent, name):
                try:
                    os.mkdir(name, dir_fd=parent)
                except FileExistsError:
                    if not self._is_directory(directory):
                        raise
            self.sync_directory(directory.parent)
        return bool(missing)

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        descriptor = self._open(path, os.O_RDONLY)
        size = _check_file(descriptor, path).st_size + 1
        try:
            data = piece = os.read(descriptor, size)
            while len(piece) == size:  # it grew meanwhile
                piece = os.read(descriptor, size)
                data += piece
            return data
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target."""
        with self._anchor.at(source) as (old, name), self._anchor.at(target) as (new, new_name):
            os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)

    def remove(self, path: Path) -> None:
        """Delete a file."""
        with self._anchor.at(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it."""
        with self._anchor.at(path) as (parent, name):
            try:
                shutil.rmtree(name, dir_fd=parent)
            except FileNotFoundError:
                if self._is_directory(path):
                    raise

    def sync_directory(self, path: Path) -> None:
        """Make the directory's entries durable."""
        self._on_directory(path, os.fsync)

    def lock(self, path: Path, owner: str) -> PosixLock:
        """Take the lock or raise WalLockedError with the note its holder left."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _note_owner(descriptor, owner)
        except BlockingIOError:
            raise _locked(descriptor, path) from None
        except BaseException:
            os.close(descriptor)
            raise
        return PosixLock(descriptor, is_exclusive=True)

    def lock_shared(self, path: Path) -> PosixLock | None:
        """Take a shared lock if the file exists, or raise WalLockedError as :meth:`lock` does."""
        try:
            descriptor = self._open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked(descriptor, path) from None
        except BaseException:
            os.close(descriptor)
            raise
        return PosixLock(descriptor)

    def cell(self, path: Path, size: int) -> PosixCell:
        """Open a small file for stores, creating it if needed."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            found = os.fstat(descriptor).st_size
            if found < size:
                os.pwrite(descriptor, bytes(size - found), found)
        except BaseException:
            os.close(descriptor)
            raise
        return PosixCell(descriptor)

    def view_cell(self, path: Path, size: int) -> PosixCellView:
        """Open a cell for reading; FileNotFoundError if there is none of that size yet."""
        descriptor = self._open(path, os.O_RDONLY | os.O_NOFOLLOW)
        return PosixCellView(descriptor, path, size, self._anchor)

    def free_bytes(self, path: Path) -> int:
        """Return the space left for ordinary users."""
        found = self._on_directory(path, os.fstatvfs)
        return found.f_bavail * found.f_frsize

    def _open(self, path: Path, flags: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            flags |= os.O_NOFOLLOW
        flags |= os.O_CLOEXEC
        try:
            with self._anchor.at(path) as (parent, name):
                try:  # a pipe in the place of a file would wait for a writer
                    return os.open(name, flags | os.O_NONBLOCK, 0o644, dir_fd=parent)
                except BlockingIOError:  # a lease (see is_alone), which is given back at once
                    return os.open(name, flags, 0o644, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise OSError(
                errno.ELOOP, "a symbolic link, which is never written through; remove it", str(path)
            ) from None

    @contextlib.contextmanager
    def _opened_directory(self, path: Path) -> Iterator[int]:
        # A description of its own: listings of one that is shared would disturb each other.
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_there(descriptor, path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _on_directory(self, path: Path, call: Callable[[int], _T]) -> _T:
        """Call with a descriptor of a directory; the anchor's own is not opened once more."""
        with self._anchor.at(path) as (held, name):
            if held is not None and name == ".":
                _check_there(held, path)
                return call(held)
        with self._opened_directory(path) as descriptor:
            return call(descriptor)

    def _is_directory(self, path: Path) -> bool:
        try:
            with self._anchor.at(path) as (parent, name):
                return stat.S_ISDIR(os.stat(name, dir_fd=parent).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False


def _check_there(descriptor: int, path: Path) -> None:
    """Refuse a directory that was removed: its listing is empty, and nothing in it lasts."""
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _check_file(descriptor: int, path: Path) -> os.stat_result:
    """Return what a file is; a directory, or a pipe, is closed and refused: as IsADirectoryError."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        return found
    os.close(descriptor)
    text = os.strerror(errno.EISDIR) if stat.S_ISDIR(found.st_mode) else "Not a regular file"
    raise IsADirectoryError(errno.EISDIR, text, str(path))


_OWNER_BYTES: Final = 256


def _identity(descriptor: int) -> tuple[int, int]:
    """Return what tells one file from all others, under any name."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _note_owner(descriptor: int, owner: str) -> None:
    """Leave a note of the lock's holder; none on a full disk, which could not be trimmed otherwise."""
    note = owner.encode()[:_OWNER_BYTES].ljust(
        _OWNER_BYTES
    )  # one size: to cut a file takes a journal
    try:
        os.pwrite(descriptor, note, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _locked(descriptor: int, path: Path) -> WalLockedError:
    """Close a file that others have locked; return the error with the note its holder left."""
    holder = os.pread(descriptor, _OWNER_BYTES, 0).decode("utf-8", "replace").strip() or None
    where, then = "elsewhere", "close it there"
    if PosixLock.is_held_here(descriptor):
        where, then = "in this process already", "use that one, or close it first"
    os.close(descriptor)
    return WalLockedError(
        f"the log is open for writing {where} ({holder or 'unknown owner'}): "
        f"{path.parent}; {then}; 'walstore tail' and 'dump' read it meanwhile",
        path=str(path.parent),
        owner=holder,
    )
