"""What a log needs of replication, and replication of a log. Only Protocols live here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from walstore.core.ports import Buffer, Clock, FileSystem
from walstore.core.runtime.statistics import ScrubRound
from walstore.core.runtime.threads import Lane
from walstore.errors import WalError


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
        """Check frames of a segment, as :func:`walstore.core.files.frame_stream.check_segment`; OSError."""

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
