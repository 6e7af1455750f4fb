"""What walstore needs from its environment: files, time, and an optional cloud tier.

Only Protocols live here. The real ones are ``posix.py`` and ``clock.py``; fakes that inject faults are
in ``walstore.testing``. Methods of :class:`FileSystem` and :class:`File` block and are only ever called
on executor threads, never on the event loop. They raise OSError; the callers translate it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self, runtime_checkable

from walstore.batches.batch import Batch
from walstore.errors import WalError
from walstore.format.claims import Claims
from walstore.runtime.statistics import ScrubRound, UploadStatistics
from walstore.runtime.threads import Lane

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file, addressed by position."""

    def pwrite(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces back to back; returns only when the system has accepted every byte."""

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

    def is_alone(self, *, names: int = 1) -> bool:
        """Return whether the file has so many names and nobody else has it open; False if that is not
        known."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Cell(Protocol):
    """A few bytes in a file that other processes read."""

    def store(self, data: bytes) -> None:
        """Replace the content. Not durable, but visible to other processes at once."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class CellView(Protocol):
    """A :class:`Cell` of another process. Changes nothing."""

    def load(self) -> bytes:
        """Return the current content: possibly half updated, and shorter if the file was cut. Never
        waits for the disk, so it may be called on the event loop: one system call that reads memory.
        Empty once it is closed. Raises OSError."""

    def is_current(self) -> bool:
        """Return whether the file still has its name: not if it was removed or replaced. Blocks."""

    def close(self) -> None:
        """Release the descriptor; twice is allowed."""


class Lock(Protocol):
    """An exclusive lock that the system drops when the process dies."""

    def describe(self, owner: str) -> None:
        """Replace the note that others find when the lock is taken; OSError."""

    def release(self) -> None:
        """Give the lock back; twice is allowed."""


class FileSystem(Protocol):
    """The calls a log makes on directories and files."""

    def anchor(self, directory: Path) -> Self:
        """Return this file system bound to an existing directory; :meth:`close` it later.

        Its paths begin with ``directory`` and refer to the directory found there at this call, even if
        that is moved and another takes its place. Anchored again, to a directory below, it opens no
        further descriptor, and calls raise OSError (ESTALE) once the path leads elsewhere.
        """

    def close(self) -> None:
        """Release the directory it is anchored to, if any; twice is allowed. Later calls raise OSError."""

    def open(self, path: Path, mode: str) -> File:
        """Open ``"r"`` for reading, ``"r+"`` to write an existing file, ``"x"`` to create a new one.

        Files that may be written, including locks and cells, are never opened through a symbolic link:
        OSError (ELOOP).
        """

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def list_directories(self, directory: Path) -> Sequence[str]:
        """Return the names of the directories in a directory, in no particular order."""

    def make_directory(self, path: Path) -> bool:
        """Create a directory and its parents durably; return whether it is new."""

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and its contents, one entry at a time; no error if it does not exist."""

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target, atomically. Not durable before :meth:`sync_directory`."""

    def remove(self, path: Path) -> None:
        """Delete a file."""

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in a directory durable: fsync of the directory."""

    def lock(self, path: Path, owner: str) -> Lock:
        """Take an exclusive lock and write ``owner`` to the file; WalLockedError if it is held."""

    def lock_shared(self, path: Path) -> Lock | None:
        """Take a lock that excludes only exclusive locks; None if there is no such file.

        WalLockedError if the exclusive lock is held."""

    def cell(self, path: Path, size: int) -> Cell:
        """Open a small file of ``size`` bytes for :class:`Cell`, creating it if needed."""

    def view_cell(self, path: Path, size: int) -> CellView:
        """Open a cell for reading; FileNotFoundError if there is none of that size yet."""

    def free_bytes(self, path: Path) -> int:
        """Return how many bytes an unprivileged user can still write on that file system."""


class Clock(Protocol):
    """Time, injected so that tests and simulations control it."""

    def now_us(self) -> int:
        """Return wall-clock microseconds since 1970 UTC."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""


class SegmentTee(Protocol):
    """Is told what is written to a log's segments. Called on the writer's thread, in order."""

    def wrote(
        self, start: int, created_us: int, position: int, pieces: Sequence[Buffer], limit: int
    ) -> None:
        """Bytes were written at a place of a segment, up to the offset ``limit``. They do not change."""

    def sealed(self, start: int, created_us: int, size: int, limit: int) -> None:
        """A segment is complete and durable, its footer included."""

    def synced(self) -> None:
        """All that was written is durable."""

    def removed(self, head: int) -> None:
        """The segments wholly below an offset are removed."""

    def checkpointed(self, start: int, created_us: int, position: int, data: bytes) -> None:
        """A checkpoint was written, of the log up to that byte of a segment, which is durable."""


class ReplicatedLog(Protocol):
    """A log that is open, for what replicates it. Belongs to the event loop, but for :meth:`mark`."""

    @property
    def extents(self) -> Sequence[tuple[int, int, int, int, bool]]:
        """Its segments when it was opened: start, salt, time of making, size, whether it is sealed."""

    async def read(self, start: int, created_us: int, position: int, size: int) -> bytes:
        """Return bytes of a segment; OSError, also if it was begun anew after that time.

        CorruptionError if a frame that one of them belongs to is not whole. Less where the file ends.
        """

    async def frames(self, start: int, begin: int) -> Sequence[Sequence[int]]:
        """Return the ends of a segment's frames from byte ``begin`` on, and their CRCs; OSError."""

    async def check(
        self, extent: tuple[int, int, int, int, bool], begin: int, most_bytes: int | None
    ) -> int:
        """Check frames of a segment, as :func:`walstore.files.frame_stream.check_segment`; OSError."""

    async def mend(self, start: int, created_us: int, position: int, data: bytes) -> int:
        """Put bytes where a segment is damaged, durably; return how many bytes changed. OSError."""

    def on_replicated(self, limit: int) -> None:
        """Every offset below ``limit`` is on enough machines."""

    async def note_replicated(self, limit: int) -> None:
        """Remember the same in the log's directory; OSError."""

    def on_too_few(self, error: WalError) -> None:
        """There have been too few copies for too long: callers need not wait any more."""

    def on_failed(self, error: Exception) -> None:
        """Another primary has taken over (FencedError), or the copying ended by a defect."""


class Replicator(Protocol):
    """Keeps copies of a log on other machines. :class:`walstore.Replication` makes one."""

    @property
    def trouble(self) -> WalError | None:
        """Why nothing can be acknowledged now; None if it can."""

    @property
    def tee(self) -> SegmentTee:
        """Is told what is written."""

    def copies(self) -> Sequence[tuple[str, str | None, int]]:
        """Return of each other copy where it is, why it is missing, and below which offset it has all.

        May be called on any thread.
        """

    async def reach(self) -> None:
        """Return once another copy's machine answers, or if there is no other copy; nothing is asked of it.

        StorageUnavailableError if none does in time.
        """

    async def take_over(self, fs: FileSystem, directory: Path, lane: Lane) -> int:
        """Become the primary of the log in a locked directory, and return its epoch.

        The directory then has all that any copy may have acknowledged. FencedError if another one is quicker,
        StorageUnavailableError if too few copies answer.
        """

    def start(self, log: ReplicatedLog, log_id: bytes) -> None:
        """Begin to copy."""

    async def heal(self, start: int) -> bool:
        """Put frames of other copies where a segment here is damaged; return whether it is whole then."""

    @property
    def mended_bytes(self) -> int:
        """Bytes that were replaced, here and at the copies."""

    @property
    def scrubs(self) -> tuple[ScrubRound | None, ScrubRound | None]:
        """The round of the scrub that runs, and the last one that ended. May be called on any thread."""

    def begin_scrub(self) -> int:
        """Let a round of the scrub begin now, unless one that was asked for runs; return its number."""

    async def wait_all(self) -> None:
        """Return when all that was written until now is on enough machines."""

    async def check_current(self) -> None:
        """Return once it is certain that no other machine acknowledged anything before this call.

        StorageUnavailableError if that cannot be found out: then another one may lead the log.
        """

    async def drain(self) -> None:
        """As :meth:`wait_all`, but return also if there are too few, or it takes too long."""

    async def aclose(self) -> None:
        """Stop copying; twice is allowed."""


class ReplicationPlan(Protocol):
    """What a log is opened with to be replicated: :class:`walstore.Replication`."""

    def begin(self, path: Path, clock: Clock) -> Replicator:
        """Return what replicates one opening of the log at ``path``; ValueError for its name."""


class LocalRecords(Protocol):
    """The records of a directory, for a tier to compare with its own. Belongs to the event loop."""

    @property
    def head(self) -> int:
        """First offset still on local disk."""

    @property
    def durable_limit(self) -> int:
        """Every offset below is on disk, and of a replicated log on enough machines; only those may be
        shipped."""

    @property
    def uploaded_limit(self) -> int:
        """Every offset below is known to be named by a manifest: this directory shipped it, or
        :meth:`TierSource.advance_uploaded` reported it."""

    async def read_local(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``, from cache or files only."""


class TierSource(LocalRecords, Protocol):
    """A cloud tier's view of the local log it ships. All of it belongs to the event loop."""

    @property
    def log_id(self) -> str:
        """Hex identity of the log, made once when it was created."""

    @property
    def wants_cloud(self) -> bool:
        """Whether a caller is waiting for a record to reach the cloud: ship without delay."""

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
        """Record that a manifest now names every offset below ``limit``."""

    def refuse_cloud(self, error: WalError) -> None:
        """Fail the callers that wait for the cloud with ``error``: an operator has to act first.

        Shipping is still retried; later callers wait until it succeeds or until the next call of this.
        """


class Tier(Protocol):
    """A second home for the log, beyond this disk. ``uploader.CloudTier`` is one."""

    @property
    def url(self) -> str:
        """Location of the tier, without credentials; recorded in the log's checkpoint."""

    @property
    def head(self) -> int:
        """First offset the tier holds (its ``limit`` if it holds none)."""

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read from the tier."""

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log that ships to the tier, or None if none has yet."""

    async def open(self, log_id: bytes | None, *, is_replicated: bool = False) -> None:
        """Connect, check that the store is suitable, and read ``head``, ``limit`` and ``log_id``.

        ``log_id`` is the local log's identity, or None if there is no local log yet. Raises
        ContentionError if the tier belongs to another log, and the store's typed errors.

        ``is_replicated``: the copies of the log have not decided yet whether this directory leads it, and
        what is in it. So the tier only looks, and does nothing that could disturb the program which leads it
        now."""

    async def claim(
        self,
        log_id: bytes,
        claims: Claims | None,
        remember: Callable[[Claims], Awaitable[None]],
        *,
        local: LocalRecords | None = None,
        is_replicated: bool = False,
    ) -> None:
        """Claim the open tier for the directory, and fence the directory that shipped there before.

        Called with the directory locked, before anything is appended. ``claims`` is what the directory
        knows of its claims and ``local`` its records; both None if it contains no log yet. ``remember``
        makes the new claims durable in the directory; it is awaited before the tier is claimed. Where
        histories may have diverged, the records are compared before that. Afterwards ``head`` and
        ``limit`` are those of the claimed tier, and ``run`` raises FencedError once another directory
        has claimed it. Raises FencedError if another directory has it or this one has other records,
        ContentionError if it belongs to another log or has more records than this one, and the store's
        typed errors; after these the claim may have been made nevertheless.

        ``is_replicated``: the copies of the log have made this directory its primary, and enough of them have
        what it has. ``claims`` are those that any primary of the log asked for, and ``remember`` makes them
        durable on enough machines. A new log (None) is refused where another log ships, ContentionError,
        unless the tier was made with ``take_over``.
        """

    async def run(self, source: TierSource) -> None:
        """Ship durable records until the source drains; owned by the log's task group. Returns after
        the last record is shipped; raises when it cannot continue. It handles transient faults itself."""

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""

    async def offset_at(self, timestamp_us: int) -> int | None:
        """Return the first offset at or after a time, or None if all records are older."""

    async def aclose(self) -> None:
        """Release connections; twice is allowed."""


class Extent(NamedTuple):
    """Records ``[start, limit)`` and what holds them."""

    start: int
    limit: int
    size_bytes: int | None
    """Its size; None if it still grows."""
    kind: str
    """``sealed`` or ``active``, a segment; ``fragment``; ``snapshot``, a list of older fragments."""
    name: str = ""
    """Of a segment, its file in the log's directory; else the object's key below the tier's URL."""


class LogExtents(NamedTuple):
    """Where the records of a log are."""

    segments: Sequence[Extent]
    """The files on this disk, oldest first; the last is the one that is written."""
    stored: Sequence[Extent]
    """What the tier's manifest names, oldest first; empty without a tier, or one that does not report it."""
    retention: Sequence[str]
    """What retention last found that should be deleted, and why it was kept if it was."""
    tier_url: str | None = None
    """Where the stored objects are: their names are keys below it. None without a tier."""


@runtime_checkable
class DescribedTier(Protocol):
    """A tier that also says what was shipped, and what holds it."""

    @property
    def uploads(self) -> UploadStatistics | None:
        """What was shipped since it was opened; None before. Read on any thread."""

    @property
    def extents(self) -> Sequence[Extent]:
        """The objects that hold the records, oldest first, as far as that is known without a request."""
