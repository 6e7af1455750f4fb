"""What a log needs of a cloud tier, and a tier of the log that it ships."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from walstore.core.batches.batch import Batch
from walstore.core.format.claims import Claims
from walstore.core.runtime.ready_answer import ReadyAnswer
from walstore.core.runtime.statistics import UploadStatistics
from walstore.errors import WalError


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


class _Extents(NamedTuple):
    segments: Sequence[Extent]
    """The files on this disk, oldest first; the last is the one that is written."""
    stored: Sequence[Extent]
    """What the tier's manifest names, oldest first; empty without a tier, or one that does not report it."""
    retention: Sequence[str]
    """What retention last found that should be deleted, and why it was kept if it was."""
    tier_url: str | None = None
    """Where the stored objects are: their names are keys below it. None without a tier."""


class LogExtents(ReadyAnswer["LogExtents"], _Extents):
    """Where the records of a log are. May be awaited, as that of a served log is."""

    __slots__ = ()


@runtime_checkable
class DescribedTier(Protocol):
    """A tier that also says what was shipped, and what holds it."""

    @property
    def uploads(self) -> UploadStatistics | None:
        """What was shipped since it was opened; None before. Read on any thread."""

    @property
    def extents(self) -> Sequence[Extent]:
        """The objects that hold the records, oldest first, as far as that is known without a request."""
