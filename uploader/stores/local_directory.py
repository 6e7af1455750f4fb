"""The blocking half of the local store: files, links, locks and syncs below one directory.

* Create: write a temporary file, fsync it, link(2) it to its name (which fails if the name is taken),
  fsync the directory.
* Swap: write and fsync a temporary file; under an exclusive flock, compare the hash of the content and
  rename the file over the old one; fsync the directory. A process that is stopped while it has the lock
  holds others up: after ten seconds they raise, with nothing written.
* A read returns only durable content: a writer may have been killed between its link and the fsync of
  the directory, so a read makes up for an fsync that this store has not seen. Without it an uploader
  could build on a fragment that is lost in a power cut.
* After a failed fsync the state of a directory is unknown, and a second fsync would hide that
  (the system reports such a failure once). So this directory then refuses all further calls.

Symbolic links below the root are not followed; the root itself may be one.

Temporary files and the lock are in ``.tmp`` below the root, which listings never show. Temporary files
older than an hour are left-overs of killed writers and are removed before the first write.
``tests/uploader/stores/test_local.py`` shows each of these. The only module of the cloud tier that
makes durable system calls.
"""

# ruff: noqa: TID251, PTH105, PTH108 - the owner of what is banned elsewhere

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from uploader.stores.port import (
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
    check_length,
)
from uploader.stores.probe import Proof, proof_of
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.errors import (
    DiskFullError,
    InvalidSettingsError,
    Outcome,
    StorageUnavailableError,
    WalError,
)

_TEMPORARY = ".tmp"
_STALE_US = 3_600_000_000
# A swap has the lock for a comparison and a rename: milliseconds on a busy disk.
_LOCK_SECONDS = 10.0
# Coarser than the time stamps of any file system with hard links.
_STAMP_GRAIN_NS = 2_000_000_000
_PIECE_BYTES = 1 << 20
_MOST_POSITION: Final = 1 << 62
"""No file is so long, and systems refuse reads not far behind."""
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

_T = TypeVar("_T")

Range: TypeAlias = tuple[str, int, int]
"""A key, and which bytes of the object: ``[start, limit)``."""


class Directory:
    """A root directory. Every method blocks and may run on any thread, several at once."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._preparing = threading.Lock()
        self._is_prepared = False
        self._settled: dict[Path, int] = {}
        self._failure: str | None = None

    def read(self, key: str, max_bytes: int | None = None) -> StoredObject:
        """Return content and ETag; CorruptionError if it has more than ``max_bytes``."""
        with self._reading(key) as raw, BufferedReader(raw) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            check_length(key, size_bytes, max_bytes)
            data = file.read(size_bytes)
            # An object never grows. A longer file is not ours.
            while piece := file.read(_PIECE_BYTES):
                data += piece
                check_length(key, len(data), max_bytes)
        self._settle((self._root / key).parent)
        return StoredObject(data, _hash(data).hexdigest())

    def read_ranges(self, wanted: Sequence[Range]) -> list[bytes | Exception]:
        """Return for each range its content, or its error. Settles each directory once, after the reads."""
        found = [_attempt(self._read_range, *one) for one in wanted]
        folders = [key.rpartition("/")[0] for key, _, _ in wanted]
        read = {folder for folder, one in zip(folders, found, strict=True) if type(one) is bytes}
        failed = {folder: _attempt(self._settle, self._root / folder) for folder in read}
        return [
            (failed[folder] or one) if type(one) is bytes else one
            for folder, one in zip(folders, found, strict=True)
        ]

    def _read_range(self, key: str, start: int, limit: int) -> bytes:
        with self._reading(key, _open_at_once) as raw:
            if start > _MOST_POSITION:
                return b""
            if limit - start <= _PIECE_BYTES:
                return _pread(raw.fileno(), limit - start, start)
            # A read allocates all that it is asked for, whatever the length of the file.
            limit = min(limit, os.fstat(raw.fileno()).st_size)
            with BufferedReader(raw) as file:
                file.seek(start)
                return file.read(max(limit - start, 0))

    def inspect(self, key: str) -> ObjectInfo | None:
        """Return size and ETag without holding the content in memory, or None."""
        try:
            with self._reading(key) as file:
                etag = hashlib.file_digest(file, _hash).hexdigest()
                found = ObjectInfo(key, file.tell(), etag)
        except ObjectNotFoundError:
            return None
        self._settle((self._root / key).parent)
        return found

    def proof(self) -> Proof:
        """Return what the file system that contains the root, or will contain it, has proven."""
        for directory in (self._root, *self._root.parents):
            with contextlib.suppress(OSError):
                # On a disk the probe costs little more than a mark.
                return proof_of("file", directory.stat().st_dev, wants_mark=False)
        return Proof(wants_mark=False)

    def walk(self, prefix: str, after: str | None) -> Iterator[ListedObject]:
        """Return an iterator for :meth:`take`; nothing is read yet."""
        return walk(self._root, prefix, after)

    def take(self, found: Iterator[ListedObject], count: int) -> list[ListedObject]:
        """Return the next objects of a walk; none at its end."""
        with self._translated(self._root, "not_written"):
            return list(islice(found, count))

    def create(self, key: str, data: bytes) -> str:
        """Put if absent. The object is durable, also when it was there already."""
        target = self._target(key)
        with self._translated(target, "not_written"), self._temporary(data) as temporary:
            target.parent.mkdir(parents=True, exist_ok=True)
            is_taken = _is_taken(temporary, target)
        self._settle(target.parent)
        if is_taken:
            raise PreconditionFailedError(f"the object exists already in {self._root}", key=key)
        return _hash(data).hexdigest()

    def swap(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if its content still has this hash."""
        target = self._target(key)
        with (
            self._translated(target, "not_written"),
            self._temporary(data) as temporary,
            self._locked("not_written"),
        ):
            if _etag(target) != etag:
                raise PreconditionFailedError(f"the object was changed in {self._root}", key=key)
            os.replace(temporary, target)
        self._settle(target.parent)
        return _hash(data).hexdigest()

    def remove(self, keys: list[str]) -> None:
        """Delete the objects that exist."""
        changed = set()
        for key in keys:
            target = self._target(key)
            with self._translated(target, "unknown"), contextlib.suppress(FileNotFoundError):
                # The lock keeps a swap from bringing back what was deleted under it.
                with self._locked("unknown"):
                    os.unlink(target)
                changed.add(target.parent)
        for directory in changed:
            self._settle(directory)

    @contextlib.contextmanager
    def _reading(
        self, key: str, opener: Callable[[str, int], int] | None = None
    ) -> Iterator[FileIO]:
        """Open an object. What is read of it may be returned once its directory is settled."""
        path = self._root / key
        try:
            with (
                self._translated(path, "not_written"),
                FileIO(path, opener=opener or _open_no_link) as file,
            ):
                yield file
        except WalError as error:
            self._target(key)  # a symbolic link is named before all else
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _MISSING:
                raise ObjectNotFoundError(
                    f"there is no such object in {self._root}", key=key
                ) from None
            raise

    def _target(self, key: str) -> Path:
        """Return an object's path; InvalidSettingsError if a symbolic link below the root is on it.

        Listings do not follow links either: a file reached through one would be an object to some calls but
        not to others, and might be shared with another store.
        """
        path = self._root
        with self._translated(path / key, "not_written"):
            for part in key.split("/"):
                path = path / part
                _refuse_link(path)
        return path

    @contextlib.contextmanager
    def _temporary(self, data: bytes) -> Iterator[Path]:
        """Write durable content under a temporary name, which is removed afterwards."""
        self._prepare()
        path = self._root / _TEMPORARY / secrets.token_hex(8)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield path
        finally:
            # Gone after a rename; anything else is left for the next opener to remove.
            with contextlib.suppress(OSError):
                os.unlink(path)

    @contextlib.contextmanager
    def _locked(self, outcome: Outcome) -> Iterator[None]:
        self._prepare()
        path = self._root / _TEMPORARY / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            self._lock(descriptor, outcome)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int, outcome: Outcome) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        backoff = Backoff(first_seconds=0.001, longest_seconds=0.02)
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StorageUnavailableError(
                        f"another process has had the lock of {self._root} for {_LOCK_SECONDS:g} seconds,"
                        " as one does that is stopped: continue or end it",
                        outcome=outcome,
                    ) from None
            time.sleep(backoff.next_seconds())

    def _prepare(self) -> None:
        """Create the directories and remove left-overs, once."""
        with self._preparing:
            if self._is_prepared:
                return
            temporary = self._root / _TEMPORARY
            _refuse_link(temporary)
            PosixFileSystem().make_directory(temporary)
            # The process that made a directory above may have been killed before it was durable.
            for directory in self._root.parents:
                _sync_directory(directory)
            limit = self._clock.now_us() - _STALE_US
            for path in temporary.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.name != "lock" and path.stat().st_mtime_ns // 1000 < limit:
                        path.unlink()
            self._is_prepared = True

    def _settle(self, directory: Path) -> None:
        """Make the entries of a directory, and of those above it up to the root, durable.

        InvalidSettingsError if one of them is a symbolic link. A directory that has not changed since its
        last sync is skipped. Its time stamp shows this, but only when it is so old that any further change
        must show in it.
        """
        chain = [directory, *directory.parents]
        for each in chain[: chain.index(self._root) + 1]:
            with self._translated(each, "unknown"):
                if each != self._root:
                    _refuse_link(each)
                stamp = each.stat().st_ctime_ns
                now = self._clock.now_us() * 1000
                if self._settled.get(each) == stamp:
                    continue
                try:
                    _sync_directory(each)
                except OSError as error:
                    self._failure = (
                        f"{each} could not be synced ({error.strerror}), so what was last written"
                        " there may be lost; check the disk, then open the store again"
                    )
                    raise _failed(self._failure, "unknown") from error
                if now - stamp > _STAMP_GRAIN_NS:
                    self._settled[each] = stamp

    @contextlib.contextmanager
    def _translated(self, path: Path, outcome: Outcome) -> Iterator[None]:
        if self._failure is not None:
            raise _failed(self._failure, "not_written")
        try:
            yield
        except OSError as error:
            raise _translate(error, path, outcome) from error


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InvalidSettingsError(
            f"a local store follows no symbolic links: {path}; move what it points to there, or name that "
            "directory as the store"
        )


def _pread(file: int, size_bytes: int, position: int) -> bytes:
    """Return all bytes up to the end of the file; a network file system may return some of them first."""
    data = os.pread(file, size_bytes, position)
    while len(data) < size_bytes:
        more = os.pread(file, size_bytes - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _open_at_once(path: str, flags: int) -> int:
    # A named pipe has no ranges: its writer is not waited for, nor do others' reads of this turn.
    return _open_no_link(path, flags | os.O_NONBLOCK)


def _attempt(call: Callable[..., _T], *given: Any) -> _T | Exception:
    try:
        return call(*given)
    except Exception as error:  # noqa: BLE001 - the caller of one of several reads gets it
        return error


def _failed(message: str, outcome: Outcome) -> WalError:
    return StorageUnavailableError(message, retriable=False, outcome=outcome)


def _hash(data: bytes = b"") -> hashlib._Hash:
    # SHA-256, since processors have instructions for it: a third of BLAKE2's time.
    return hashlib.sha256(data)


def _etag(path: Path) -> str | None:
    try:
        return _hash(path.read_bytes()).hexdigest()
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise


def _is_taken(temporary: Path, target: Path) -> bool:
    """Link the temporary file to its name; return whether that name was taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        if target.is_dir():
            raise InvalidSettingsError(
                f"a local store cannot hold an object with others below it: {target}"
            ) from None
        return True
    return False


def _sync_directory(path: Path) -> None:
    """Call fsync on a directory; one that this user may not open is left to its owner."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translate(error: OSError, path: Path, outcome: Outcome) -> WalError:
    reason = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return DiskFullError(f"no space is left for {path}; free some", outcome=outcome)
    if error.errno in _FORBIDDEN:
        return StorageUnavailableError(
            f"no permission for {path} ({reason}); grant it to this user",
            retriable=False,
            outcome=outcome,
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidSettingsError(f"a part of the key is too long for a file name: {path}")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return InvalidSettingsError(f"an object is where a directory is needed: {path}")
    return StorageUnavailableError(f"cannot use {path}: {reason}", outcome=outcome)


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
