"""What walstore asks of the outside: files, time, and an optional cloud tier.

Only Protocols live here. The real ones are ``posix.py`` and ``clock.py``; fakes that inject faults are
in ``walstore.testing``. Methods of :class:`FileSystem` and :class:`File` block and are only ever called
on executor threads, never on the event loop. They raise OSError; the callers translate it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, Self

from walstore.batches.batch import Batch
from walstore.errors import WalError
from walstore.format.claims import Claims

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file, addressed by position."""

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces back to back; returns only when every byte was taken by the system."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""

    def datasync(self) -> None:
        """Make the content (and the size, if it changed) durable: fdatasync."""

    def allocate(self, size: int) -> None:
        """Reserve blocks up to ``size`` bytes and make the file that long: posix_fallocate."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to ``size`` bytes."""

    def size(self) -> int:
        """Return the length in bytes."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Cell(Protocol):
    """A few bytes in a file that other processes look at."""

    def store(self, data: bytes) -> None:
        """Replace the content. Not durable, but seen by others at once."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class CellView(Protocol):
    """A :class:`Cell` of another process. Changes nothing."""

    def load(self) -> bytes:
        """Return the content now, maybe caught half-way through an update, and less of it if the file
        was cut short. Never waits for the disk, so it may be called on the event loop; what is in
        memory is one system call away. Empty once it is closed. Raises OSError."""

    def is_current(self) -> bool:
        """Return whether the file still has its name: not if it was removed or replaced. Blocks."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Lock(Protocol):
    """An exclusive lock that the system drops when the process dies."""

    def release(self) -> None:
        """Give the lock back; twice is allowed."""


class FileSystem(Protocol):
    """The calls a log makes on directories and files."""

    def anchor(self, directory: Path) -> Self:
        """Return this file system bound to a directory that is there; :meth:`close` it later.

        The paths that it takes begin with ``directory``, and lead to the directory that was found there
        now, wherever that is moved and whatever takes its place. Anchored once more, to a directory
        below, it holds nothing more open, and calls raise OSError (ESTALE) once the path leads elsewhere.
        """

    def close(self) -> None:
        """Let go of the directory it is anchored to, if any; twice is allowed. Calls raise OSError then."""

    def open(self, path: Path, mode: str) -> File:
        """Open ``"r"`` for reading, ``"r+"`` to write an existing file, ``"x"`` to create a new one.

        Nothing that may be written, locks and cells included, is opened through a symbolic link: OSError
        (ELOOP)."""

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory, in no particular order."""

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents durably; return whether it was not there already."""

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it, one after the other; no error if it is gone."""

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target, atomically. Not durable before :meth:`sync_directory`."""

    def remove(self, path: Path) -> None:
        """Delete a file."""

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable: fsync of the directory."""

    def lock(self, path: Path, owner: str) -> Lock:
        """Take an exclusive lock and note ``owner`` in the file; WalLockedError if it is taken."""

    def lock_shared(self, path: Path) -> Lock | None:
        """Take a lock that excludes exclusive ones only; None if there is no such file.

        WalLockedError if somebody has the exclusive one."""

    def cell(self, path: Path, size: int) -> Cell:
        """Open a small file of ``size`` bytes for :class:`Cell`, creating it if needed."""

    def view_cell(self, path: Path, size: int) -> CellView:
        """Open a cell for reading; FileNotFoundError if there is none of that size yet."""

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes an ordinary user may still write on that file system."""


class Clock(Protocol):
    """Time, injected so that tests and simulations own it."""

    def now_us(self) -> int:
        """Return wall-clock microseconds since 1970 UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""


class LocalRecords(Protocol):
    """What a directory holds, for a tier to compare with what it holds. Belongs to the event loop."""

    @property
    def head(self) -> int:
        """First offset still on local disk."""

    @property
    def durable_limit(self) -> int:
        """Every offset below is on disk; only those may be shipped."""

    @property
    def uploaded_limit(self) -> int:
        """Every offset below is known to be named by a manifest: this directory shipped it, or was
        told by :meth:`TierSource.advance_uploaded`."""

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``, from cache or files only."""


class TierSource(LocalRecords, Protocol):
    """What a cloud tier sees of the local log it ships. All of it belongs to the event loop."""

    @property
    def log_id(self) -> str:
        """Hex identity of the log, made once when it was created."""

    @property
    def wants_cloud(self) -> bool:
        """Whether some caller waits for a record to reach the cloud: ship without delay."""

    @property
    def is_draining(self) -> bool:
        """Whether the log is closing: ship what is durable, then return."""

    @property
    def appended_bytes(self) -> int:
        """Bytes of frames that became durable since the log was opened; only grows."""

    async def wait_durable_limit(self, limit: int) -> None:
        """Return when the durable limit has reached ``limit``, or when the log is draining."""

    async def wait_draining(self) -> None:
        """Return when the log is closing."""

    async def wait_shipping_due(self, appended_bytes: int) -> None:
        """Return when shipping is due: ``appended_bytes`` reached that value, a segment was sealed
        since the last call, a caller waits for the cloud, or the log is draining."""

    def advance_uploaded(self, limit: int) -> None:
        """Tell the log that a manifest now names every offset below ``limit``."""

    def refuse_cloud(self, error: WalError) -> None:
        """Tell callers that wait for the cloud why they should not: somebody has to act first.

        Shipping is tried again all the same; callers that come later wait until it succeeds, or until the
        next time that this is called.
        """


class Tier(Protocol):
    """A second home for the log, beyond this disk. ``uploader.CloudTier`` is one."""

    @property
    def url(self) -> str:
        """Where the tier lies, without credentials; recorded in the log's checkpoint."""

    @property
    def head(self) -> int:
        """First offset the tier holds (its ``limit`` if it holds none)."""

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read from the tier."""

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log that ships to the tier, or None if nobody has yet."""

    async def open(self, log_id: bytes | None) -> None:
        """Connect, check that the store is fit, and learn ``head``, ``limit`` and ``log_id``.

        ``log_id`` is the local log's identity, or None if there is no local log yet. Raises
        ContentionError if the tier belongs to another log, and the store's typed errors."""

    async def claim(
        self,
        log_id: bytes,
        claims: Claims | None,
        remember: Callable[[Claims], Awaitable[None]],
        *,
        local: LocalRecords | None = None,
    ) -> None:
        """Make the tier the directory's own, once it is open: whoever shipped there before is fenced.

        Called with the directory locked, before anything is appended. ``claims`` is what the directory
        knows of its claims and ``local`` its records; both None if there is no log in it yet.
        ``remember`` makes durable what the directory is to know from now on; awaited before the tier is
        asked. Where others may have gone another way, the records are compared before that. Afterwards
        ``head`` and ``limit`` are those of the claimed tier, and ``run`` raises FencedError once another
        directory has claimed it. Raises FencedError if another directory has it or this one holds other
        records, ContentionError if it belongs to another log or holds more than this one, and the store's
        typed errors; after these it may have been claimed all the same."""

    async def run(self, source: TierSource) -> None:
        """Ship durable records until the source drains; owned by the log's task group. Returns after
        the last record is shipped; raises when it cannot go on. Transient faults are its own affair."""

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""

    async def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older."""

    async def aclose(self) -> None:
        """Release connections; twice is allowed."""
