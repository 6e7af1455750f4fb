"""Statistics: a snapshot of a log's counters, how they are counted, and the interface to metrics.

Metrics read the statistics. Only what cannot be read afterwards is reported to them: the duration and
size of each commit or sync, and never anything per record. ``walstore.metrics`` contains the adapter for
Prometheus.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from walstore.core.runtime.ready_answer import ReadyAnswer
from walstore.errors import WalClosedError, WalError, WouldBlock

_NOT_COUNTED: Final = (WalClosedError, WouldBlock)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """A group at one moment."""

    name: str
    floor: int
    """Offset of the first record that is not settled."""
    pending: int
    """Records that are leased to a member."""
    unsettled: int
    """Records that the group has read and nobody has settled, leased ones included."""
    lag: int
    """Records of the log that the group has not read yet, whatever their stream."""
    delivered: int
    """Deliveries since the log was opened."""
    redelivered: int
    """Those of them that were not the first of their record."""
    dead: int
    """Dead letters since the log was opened."""


class GroupInfo(NamedTuple):
    """A group of a log, whether it is in use or not."""

    name: str
    floor: int | None
    """Offset of the first record that is not settled, or a lower one if the group is not in use; None if its
    cursor was removed."""
    behind: int | None
    """Records from there to the last one."""
    statistics: GroupStatistics | None
    """The group at this moment; None if it is not in use."""
    problem: WalError | None = None
    """Why the group cannot be read: CorruptionError or FormatVersionError. ``delete_group`` removes a damaged
    one."""


@dataclass(frozen=True, slots=True)
class UploadStatistics:
    """What was shipped since the log was opened."""

    fragments: int
    """Fragments put."""
    fragment_bytes: int
    """Their length as stored."""
    adopted_fragments: int
    """Fragments that had been put before and never published, and were published instead."""
    retries: int
    """Requests repeated after a fault of the store."""
    conflicts: int
    """Fragments made again because another program had taken their place."""
    put_seconds: float
    """Recent time to build and put a fragment: the median of a few; 0 before the first."""
    publish_seconds: float
    """Recent time to name fragments in the manifest; 0 before the first."""


@dataclass(frozen=True, slots=True)
class CopyStatistics:
    """A copy of a replicated log on another machine, as the primary sees it."""

    address: str
    """Of the node."""
    is_present: bool
    """Whether it is connected and has caught up, but for what is on its way."""
    limit: int
    """Every offset below it is on its disk, as far as is known."""
    lag: int
    """Records on the primary's disk from there on."""
    trouble: str | None = None
    """Why it is not present, as the last error said; None while it is, and of a server that does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyScrub:
    """What a round of the scrub found at one copy of a replicated log."""

    address: str
    """Of the node; empty for the primary's own copy."""
    checked_bytes: int
    """Bytes of its files that were read and are as they were written, replaced ones included."""
    damaged_segments: int
    """Segments in which damage was found."""
    mended_bytes: int
    """Bytes that were replaced from a whole copy since the round began, by whoever met the damage."""
    left: Mapping[str, str]
    """Segments that stay damaged, by the name of their file, and why."""
    trouble: str | None
    """Why some segments were not checked, as the last of them said; None if all were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRound:
    """One round of the scrub of a replicated log: all segments of all copies, each read once."""

    number: int
    """Rounds begun since the log was opened, this one included."""
    is_asked: bool
    """Whether somebody asked for it: then it reads as fast as it can, else slowly."""
    checked_bytes: int
    """Bytes of the log's segments that it has passed, counted once, not for each copy."""
    total_bytes: int
    """Bytes of all of them."""
    ended_us: int | None
    """When it ended, in microseconds since 1970 UTC; None while it runs."""
    copies: tuple[CopyScrub, ...]
    """What it found so far; the primary's own copy comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(ReadyAnswer["Statistics"]):
    """A snapshot of a log. Counters count since it was opened.

    If taken on another thread than the log's event loop, each value is correct, but two of them may be
    from slightly different moments.
    """

    __hash__ = ReadyAnswer.__hash__

    head: int
    """First offset that can be read from any tier."""
    local_head: int
    """First offset on local disk."""
    tail: int
    """Next offset to be assigned."""
    durable_limit: int
    """Every offset below is on disk."""
    uploaded_limit: int
    """Every offset below is named by the cloud tier's manifest."""
    epoch: int
    """How often the log has been opened for writing."""
    segments: int
    """Segment files on local disk, the active one included."""
    recovery_truncated_bytes: int = 0
    """Bytes of an unfinished batch, or seal, that were cut off when the log was opened."""
    waiting_bytes: int
    """Bytes accepted and not yet written, with what Python needs for them."""
    waiting_records: int
    """Records accepted and not yet written."""
    durable_lag_seconds: float = 0.0
    """Time since the oldest unsynced record was accepted; 0 if there is none."""
    blocked_appends: int = 0
    """Callers that wait for room in the channel; their records are not accepted yet."""
    appended_records: int
    """Records written by commits."""
    appended_bytes: int
    """Bytes of their frames."""
    commits: int
    """Commits: writes, each with a sync unless the log's policy syncs later."""
    rotations: int
    """Segments sealed."""
    transactions_committed: int = 0
    """Transactions that committed, those without records included."""
    transactions_rolled_back: int = 0
    """Transactions that ended without a commit: by an exception, a cancellation or a failed check."""
    spilled_bytes: int = 0
    """Bytes that transactions wrote to files of their own because they exceeded their memory."""
    cache_bytes: int
    """Bytes of batches in memory."""
    cache_hits: int
    """Reads served from memory."""
    cache_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    cache_evictions: int
    """Batches that left memory."""
    file_reads: int
    """Reads served from segment files."""
    file_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    tier_reads: int
    """Reads served from the cloud tier."""
    tier_read_bytes: int = 0
    """Bytes of batches that these reads returned."""
    healed_reads: int = 0
    """Reads and searches for a time that were served from the cloud tier because a segment file is
    damaged, missing or unreadable. Above 0: run ``walstore verify``, then ``walstore repair --from-tier``."""
    readers: int = 0
    """Live readers that follow the log; those of clients while they wait for records."""
    reader_lag_records: int = 0
    """Durable records that the slowest of them has not delivered yet. A client that is behind asks for
    records when it likes, so the server does not know where its readers are: cursors and consumers tell."""
    cursor_lag_records: Mapping[str, int] = field(default_factory=dict)
    """For each cursor in use, by name: visible records that it has not passed. In use is one with a handle in
    this process, and one that a client of this process's server has opened, until its lease ends or it is
    deleted."""
    groups: Mapping[str, GroupStatistics] = field(default_factory=dict)
    """The groups that are in use in this process, by name."""
    replicated_limit: int | None = None
    """Every offset below is on enough machines; None for a log that is not replicated."""
    copies: tuple[CopyStatistics, ...] = ()
    """The other copies of a replicated log."""
    replication_trouble: str | None = None
    """Why nothing can be acknowledged at level ``replicated`` now: too few copies are there."""
    mended_bytes: int = 0
    """Bytes of a replicated log's files that were damaged, here or at another copy, and were replaced from a
    whole copy. Above 0: look at that machine's disk."""
    scrub: ScrubRound | None = None
    """The round of the scrub that runs; None if none does."""
    last_scrub: ScrubRound | None = None
    """The last round that ended since the log was opened."""
    upload: UploadStatistics | None = None
    """What was shipped; None for a log without a tier, and for a tier that does not tell."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors by the name of their type; see :class:`ErrorCounts` for which."""
    failure: str | None = None
    """Why the log failed and must be opened again; None while it has not failed."""
    tier_failure: str | None
    """Why shipping to the cloud ended before the log was closed, or why it waits for an operator before it
    resumes by itself (refused credentials, for example); None while it works."""


def unpack_statistics(fields: Mapping[str, Any]) -> Statistics:
    """Return statistics from their fields, as ``dataclasses.asdict`` made them, maybe in a later version."""
    known = _known(Statistics, fields)
    groups = known.get("groups") or {}
    copies = known.get("copies") or ()
    known["copies"] = tuple(CopyStatistics(**_known(CopyStatistics, copy)) for copy in copies)
    for name in ("scrub", "last_scrub"):
        known[name] = _unpack_round(known.get(name))
    upload = known.get("upload")
    known["groups"] = {
        name: GroupStatistics(**_known(GroupStatistics, group)) for name, group in groups.items()
    }
    known["upload"] = (
        None if upload is None else UploadStatistics(**_known(UploadStatistics, upload))
    )
    return Statistics(**known)


def _unpack_round(fields: Mapping[str, Any] | None) -> ScrubRound | None:
    if fields is None:
        return None
    copies = tuple(CopyScrub(**_known(CopyScrub, copy)) for copy in fields["copies"])
    return ScrubRound(**{**_known(ScrubRound, fields), "copies": copies})


def _known(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: fields[one.name] for one in dataclasses.fields(kind) if one.name in fields}


class ErrorCounts:
    """Counts a log's errors by type.

    It counts failures of the log and of its tier, refused records and transactions, and failed reads.
    It does not count :class:`WouldBlock`, which makes the caller wait, :class:`WalClosedError`, whose
    cause was counted before, and errors of arguments.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, error: BaseException) -> None:
        """Count an error. Called on the log's event loop."""
        if not isinstance(error, _NOT_COUNTED):
            name = type(error).__name__
            self._counts[name] = self._counts.get(name, 0) + 1

    def snapshot(self) -> dict[str, int]:
        """Return the counts by type name. May be called on any thread."""
        return self._counts.copy()


class Positioned(Protocol):
    """A reader or cursor with a lag."""

    @property
    def position(self) -> int:
        """Offset of the next record to be read."""


_F = TypeVar("_F", bound=Positioned)


class Followers(Generic[_F]):
    """Weak references to readers or cursors, which disappear with their last user.

    They are added on the log's event loop; reading is allowed on any thread. Only readers that follow
    the log without end belong here: the lag of a reader with a stop means nothing.
    """

    __slots__ = ("_forget", "_references")

    def __init__(self) -> None:
        # Keyed by identity of the reference: a dict is copied in one step, a WeakSet is not.
        self._references: dict[int, weakref.ref[_F]] = {}
        references = self._references
        self._forget = lambda reference: references.pop(id(reference), None)

    def add(self, follower: _F) -> None:
        """Track a follower while it is alive."""
        reference = weakref.ref(follower, self._forget)
        self._references[id(reference)] = reference

    def alive(self) -> list[_F]:
        """Return those that are alive."""
        return [found for ref in self._references.copy().values() if (found := ref()) is not None]

    def look(self, limit: int) -> tuple[int, int]:
        """Return how many are alive, and the largest distance from one of them to ``limit``."""
        alive = self.alive()
        lag = max((limit - follower.position for follower in alive), default=0)
        return len(alive), max(lag, 0)


class ObservedLog(Protocol):
    """The part of a log that metrics use."""

    def statistics(self) -> Statistics:
        """Return the log's counters now. May be called on any thread, also after closing."""


class LogObserver(Protocol):
    """Observes one log. All calls come on the log's event loop; they must not block or raise."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """A batch of accepted records was written, and synced unless the log's policy syncs later.

        Called once per commit, positionally. ``size_bytes`` counts the frames. ``append_seconds`` is
        the time since the oldest of the records was accepted, ``commit_seconds`` that of framing,
        writing and syncing, including the round trip to the writer thread.
        """

    def on_sync(self, seconds: float) -> None:
        """Duration of a sync: that of the commit reported just before, or of a separate one."""

    def close(self) -> None:
        """The log is closed; it makes no further calls but may call this twice."""


class Metrics(Protocol):
    """Makes an observer for each log; what ``Wal.open(..., metrics=...)`` takes."""

    def attach(self, log: ObservedLog, name: str) -> LogObserver:
        """Begin to observe a log that was just opened, and return its observer.

        ``name`` is the last part of the log's directory, or its name in its store. Called on the log's
        event loop; must not block. If it raises, the log is closed again.
        """


class Unobserved:
    """The observer of a log without metrics."""

    def on_commit(
        self, records: int, size_bytes: int, append_seconds: float, commit_seconds: float
    ) -> None:
        """Do nothing."""

    def on_sync(self, seconds: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


UNOBSERVED: Final[LogObserver] = Unobserved()
"""Shared by all logs without metrics."""
