"""Wal: the public interface of one log. Holds the append fast path; ``engine.py`` does the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from threading import get_ident
from types import MappingProxyType
from typing import Final, Literal, Self

from walstore.core.batches.append_request import make_record
from walstore.core.batches.batch_builder import RECORD_ROOM_BYTES
from walstore.core.batches.conditions import users_registers
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock, FileSystem
from walstore.core.read.log_watch import LONGEST_POLL_SECONDS, SHORTEST_POLL_SECONDS
from walstore.core.read.read_source import ReadSource
from walstore.core.read.reader import Reader
from walstore.core.read.uncommitted import AcceptedSource
from walstore.core.replication_port import ReplicationPlan, Replicator
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.owned import checks_itself
from walstore.core.runtime.resource import Opening
from walstore.core.runtime.statistics import (
    CopyStatistics,
    Followers,
    Metrics,
    Statistics,
    UploadStatistics,
)
from walstore.core.settings import Settings
from walstore.core.tier_port import DescribedTier, LogExtents, Tier
from walstore.core.validation.arguments import as_directory
from walstore.errors import (
    InvalidSettingsError,
    StreamClosedError,
    WalClosedError,
    WouldBlock,
)
from walstore.log.engine import Engine
from walstore.log.engine_start import open_engine
from walstore.log.extents import look_at_extents
from walstore.log.local_appends import LocalAppends
from walstore.log.log import Log, StreamsOfLog
from walstore.log.log_end import Recovery
from walstore.log.log_resources import LogResources
from walstore.log.readonly import ReadonlyWal
from walstore.positions.cursor import Cursor
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.kept_queue import KeptQueue
from walstore.positions.cursors.store import CursorStore
from walstore.positions.groups.group_mixin import GroupParts, OwnedGroups
from walstore.records import AnyDurability, Durability

# Python 3.11 takes 0.1 µs to find a member of an enumeration, a tenth of what an append takes on the loop.
_DISK: Final = Durability.DISK
_REPLICATED: Final = Durability.REPLICATED
_CLOUD: Final = Durability.CLOUD


class Wal(OwnedGroups, Log):
    """A write-ahead log in one directory, for one writing process.

    Make one with :meth:`open`. All methods belong to the event loop that opened it: from another thread
    or event loop they raise WrongLoopError, in a forked child WalClosedError. Only what needs no
    waiting may be read on any thread: the offsets and limits, ``registers``, :meth:`streams` and
    :meth:`statistics`. Appends from any number of tasks are committed together; they are never
    reordered, split or interleaved.
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        tier: Tier | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        replication: ReplicationPlan | None = None,
    ) -> Opening[Wal]:
        """Open the log in directory ``path``, creating it if there is none, and recover it.

        Use as ``async with Wal.open(p) as wal`` or ``wal = await Wal.open(p)`` with a later ``await
        wal.aclose()``. ``tier`` ships the log to object storage (``uploader.CloudTier``). ``metrics``
        exports its counters to a monitoring system (``walstore.metrics.PrometheusMetrics``).
        ``replication`` keeps copies on other machines (:class:`walstore.Replication`), and makes this
        program the log's primary: what any copy may have acknowledged is in the log then, and no other
        program's appends are acknowledged any more.

        Raises TypeError or InvalidSettingsError at once for an invalid path, such as a URL, ``""`` or
        ``"~/x"``. Opening raises InvalidSettingsError if the path is that of a file, WalLockedError if the
        log is open elsewhere, CorruptionError if synced records are damaged (then nothing is changed),
        FormatVersionError for files of a newer version, DiskFullError, StorageUnavailableError for a
        directory that cannot be written, or with too few copies, and what the tier raises: FencedError if
        another directory took it over, or another program this log.
        """
        directory = as_directory(path, "Wal.open()")
        checked = _check_settings(settings)
        _check_tier(tier)

        async def open_it() -> Wal:
            wal = cls(
                await open_engine(
                    directory,
                    checked,
                    tier,
                    fs or PosixFileSystem(),
                    clock or SystemClock(),
                    replication=replication,
                )
            )
            return await wal._observed_by(metrics, wal.path.name or str(wal.path))

        return Opening(open_it)

    @classmethod
    def open_readonly(
        cls,
        path: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        shortest_poll_seconds: float = SHORTEST_POLL_SECONDS,
        longest_poll_seconds: float = LONGEST_POLL_SECONDS,
    ) -> Opening[ReadonlyWal]:
        """Open the log in directory ``path`` for reading, next to its writer and without its lock.

        For other processes on the machine: sees durable records, follows the log through rotation,
        trim, and crash and restart of its writer, and changes nothing but cursors. While a caller waits
        for records it polls every ``shortest_poll_seconds`` at first, slowing down to every
        ``longest_poll_seconds`` while none arrive; otherwise nothing runs. See docs/readonly.md.

        Raises LogNotFoundError if there is no log, CorruptionError, FormatVersionError,
        StorageUnavailableError, InvalidSettingsError.
        """
        return ReadonlyWal.open(
            path,
            fs=fs,
            clock=clock,
            shortest_poll_seconds=shortest_poll_seconds,
            longest_poll_seconds=longest_poll_seconds,
        )

    @classmethod
    async def open_in(
        cls,
        path: Path,
        *,
        settings: Settings,
        tier: Tier | None,
        fs: FileSystem,
        clock: Clock,
        resources: LogResources,
        metrics: Metrics | None = None,
        name: str = "",
    ) -> Wal:
        """Open a log of a store; for :class:`walstore.WalStore`."""
        wal = cls(await open_engine(path, settings, tier, fs, clock, resources))
        return await wal._observed_by(metrics, name)

    async def _observed_by(self, metrics: Metrics | None, name: str) -> Self:
        """Attach metrics to this log; close it again if that fails."""
        if metrics is not None:
            try:
                self._engine.writer.observer = metrics.attach(self, name)
            except BaseException:
                await self.aclose()
                raise
        return self

    def __init__(self, engine: Engine) -> None:
        """Not for callers; see :meth:`open`."""
        # Set once at open.
        self.path = engine.path
        """The log's directory as an absolute path. The log follows a directory that is moved; this path
        stays."""
        self.settings = engine.settings
        """As given to :meth:`open`."""
        self.recovery: Recovery = engine.opened.recovery
        """What opening found and repaired."""
        self.log_id = engine.opened.log_id.hex()
        """Identity of the log, made once when it was created; 32 hex digits."""
        self._engine = engine
        self.appends = LocalAppends(engine)
        self._read_bytes = engine.settings.read_ahead_bytes
        self._guard = engine.source.guard
        # Looked up by every append.
        self._state = engine.state
        self._channel = engine.channel
        self._loop = engine.channel.loop
        self._durability = engine.default_level
        self._followers: Followers[Reader] = Followers()
        self._is_leaving = False
        """Whether closing has begun, of which the engine does not know until its groups are closed."""
        # The registers, and those of them that users see: all, unless the log keeps cursors there.
        self._shown: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})

    # -- appending ---------------------------------------------------------------------------

    @checks_itself
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        durability: AnyDurability | None = None,
    ) -> int:
        """Append one record and return its offset once it is as safe as ``durability`` says.

        ``value`` may be empty. ``timestamp_us`` is an aware datetime or microseconds since 1970 UTC, by
        default the time of the commit; one older than the log's last record is raised to that record's.
        ``durability`` defaults to the log's.

        Waits, in turn with other callers, while the channel is full. If cancelled before that wait
        ends, nothing was appended; if cancelled later, the record is appended nevertheless: cancelled
        does not mean "not written". Raises TypeError or ValueError for bad arguments,
        RecordTooLargeError (no offset was assigned), WalClosedError, DiskFullError,
        StorageUnavailableError and OutcomeUnknownError; their ``outcome`` is the fate of the record.
        """
        level = self._durability if durability is None else self._engine.level(durability)
        if level is _REPLICATED or level is _CLOUD:
            self._engine.check_copies()
        # The channel checks the loop of the first record of a batch, and append_nowait() detects another
        # thread; in this one no other loop runs while the log's does. Getting the running loop takes 180 ns.
        if not self._channel.is_alert and not self._loop.is_running():
            self._channel.check_loop()
        try:
            offset = self.append_nowait(value, key, stream, headers, timestamp_us)
        except WouldBlock:
            times = None if timestamp_us is None else self._engine.timestamp(timestamp_us)
            request = make_record(value, key, stream, headers, times)
            offset = (await self._engine.submit(request, Durability.MEMORY)).start
        except StreamClosedError:
            await self._engine.settle_refusal()
            raise
        if level is _DISK and self._engine.syncs_always:
            await self._state.durable.waiter(offset + 1)
        elif level is _REPLICATED and self._engine.syncs_always:
            await self._state.visible.waiter(offset + 1)
        elif level is not Durability.MEMORY:
            await self._engine.wait(offset + 1, level)
        return offset

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> int:
        """Accept one record at level ``memory`` and return its offset; WouldBlock if there is no room.

        Await :meth:`wait_durable` or :meth:`flush` to know that it is safe. Otherwise as
        :meth:`append`.
        """
        # Options are not keyword-only here and in append(): CPython 3.11 looks up every omitted
        # keyword-only argument in a dict, which cost a third of this call.
        if (
            type(value) is bytes
            and key is None
            and stream is None
            and headers is None
            and timestamp_us is None
        ):
            channel = self._channel
            if channel.is_alert or get_ident() != channel.thread:
                return channel.put_alert(value)
            room = channel.room - len(value) - RECORD_ROOM_BYTES
            if room < 0:
                return channel.put(make_record(value, None, None, None, None))
            channel.room = room
            channel.append_value(value)
            offset = channel.tail
            channel.tail = offset + 1
            return offset
        times = None if timestamp_us is None else self._engine.timestamp(timestamp_us)
        return self._channel.put(make_record(value, key, stream, headers, times))

    # -- streams -----------------------------------------------------------------------------

    def streams(self) -> StreamsOfLog:
        """Return every stream that was opened or appended to, by name, in the order of opening.

        Includes streams whose first record is accepted and not yet durable. The dict may be used at
        once, or as the coroutine that it is of a served log: awaited, or given to ``asyncio.gather`` or
        ``create_task``. May be called on any thread, also after closing.
        """
        return StreamsOfLog(self._channel.ledger.streams)

    def level(self, durability: AnyDurability | None) -> Durability:
        """Return the level that an append with this ``durability`` gets: the log's own for None.

        InvalidSettingsError for a level that this log cannot reach, such as ``"cloud"`` without a tier.
        """
        return self._engine.level(durability)

    async def refresh(self) -> None:
        """Return once what this handle knows was the present at some time since the call.

        That is so at once, unless the log is replicated: then enough copies confirm that no other machine
        leads it, or its claim in the topology lasts for certain; StorageUnavailableError if another one may.
        Conditions that fail, listings of cursors and groups, refresh() of cursors, and last_sequence() are
        confirmed in the same way. Cancelling has no effect.
        """
        await self._engine.check_current()

    # -- reading -----------------------------------------------------------------------------

    def _source_of(self, visibility: Literal["durable", "accepted"]) -> ReadSource:
        engine = self._engine
        if visibility == "accepted":
            return AcceptedSource(engine.source, engine.channel, engine.clock)
        return engine.source

    def _note_follower(self, reader: Reader) -> None:
        self._followers.add(reader)

    async def _find_offset(self, time_us: int) -> int:
        return await self._engine.source.offset_at(time_us)

    async def _find_timestamp(self, offset: int) -> int:
        return await self._engine.source.timestamp_at(offset)

    # -- looking -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often the log has been opened for writing."""
        return self._engine.opened.tail.epoch

    @property
    def head(self) -> int:
        """First retained offset, in any tier; equals ``tail`` for an empty log."""
        return self._engine.source.head

    @property
    def tail(self) -> int:
        """Next offset to be assigned."""
        return self._channel.tail

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk."""
        return self._state.durable.value

    @property
    def durability(self) -> Durability:
        """Level of an append that names none; of a replicated log ``replicated`` instead of ``disk``."""
        return self._durability

    @property
    def replicated_limit(self) -> int | None:
        """Every offset below it is on enough machines; None if the log is not replicated."""
        replicated = self._state.replicated
        return None if replicated is None else replicated.value

    @property
    def uploaded_limit(self) -> int:
        """Every offset below it is named by the cloud tier's manifest; 1 without a tier."""
        return self._state.uploaded.value

    @property
    def registers(self) -> Mapping[str, str]:
        """The durable state of the registers; a snapshot that does not change."""
        registers = self._state.registers
        if self._shown[0] is not registers:
            shown = users_registers(registers)
            self._shown = registers, shown if shown is registers else MappingProxyType(shown)
        return self._shown[1]

    @property
    def limit(self) -> int:
        """Where readers stop: the durable limit, or the end of what is written if ``sync`` is ``"os"``."""
        return self._state.visible.value

    @property
    def tier_head(self) -> int | None:
        """First offset that can be read from the cloud tier below the local head; None if none can."""
        head = self._engine.source.head
        return head if head < self._state.head else None

    def statistics(self) -> Statistics:
        """Return a snapshot of the log's counters, to be used at once, or as a coroutine, as :meth:`streams`.

        May be called on any thread, also after closing.
        """
        engine = self._engine
        source, failure = engine.source, engine.writer.failure
        trouble = engine.tier_failure or self._state.tier_trouble
        readers, reader_lag = self._followers.look(self.visible_limit)
        state, cache = self._state, self._state.cache
        waiting_bytes, waiting = self._channel.waiting
        scrub, last_scrub = (None, None) if engine.replicator is None else engine.replicator.scrubs
        return Statistics(
            head=self.head,
            local_head=state.head,
            tail=self.tail,
            durable_limit=self.durable_limit,
            uploaded_limit=self.uploaded_limit,
            epoch=engine.opened.tail.epoch,
            segments=len(state.segments),
            waiting_bytes=waiting_bytes,
            waiting_records=waiting,
            appended_records=state.appended_records,
            appended_bytes=state.appended_bytes,
            commits=engine.writer.commits,
            rotations=engine.writer.rotations,
            recovery_truncated_bytes=self.recovery.truncated_bytes,
            durable_lag_seconds=engine.durable_lag_seconds,
            blocked_appends=self._channel.blocked,
            cache_read_bytes=source.cache_read_bytes,
            file_read_bytes=source.file_read_bytes,
            tier_read_bytes=source.tier_read_bytes,
            healed_reads=source.healed_reads,
            readers=readers,
            reader_lag_records=reader_lag,
            cursor_lag_records=(
                engine.cursors.lags(self.visible_limit) if engine.cursors is not None else {}
            ),
            groups=self._group_statistics(),
            replicated_limit=self.replicated_limit,
            copies=_copies(engine.replicator, self.durable_limit),
            replication_trouble=_trouble(engine.replicator),
            mended_bytes=0 if engine.replicator is None else engine.replicator.mended_bytes,
            scrub=scrub,
            last_scrub=last_scrub,
            upload=_uploads(engine.tier),
            errors=state.errors.snapshot(),
            failure=str(failure) if failure else None,
            cache_bytes=cache.size_bytes,
            cache_hits=cache.hits,
            cache_evictions=cache.evictions,
            file_reads=source.file_reads,
            tier_reads=source.tier_reads,
            transactions_committed=engine.transactions_committed,
            transactions_rolled_back=engine.transactions_rolled_back,
            spilled_bytes=engine.spilled_bytes,
            tier_failure=str(trouble) if trouble else None,
        )

    def extents(self) -> LogExtents:
        """Return which file or object holds which records, and what keeps the oldest from deletion.

        To be used at once, or as a coroutine, as :meth:`streams`.
        """
        engine = self._engine
        url = None if engine.tier is None else engine.tier.url
        return look_at_extents(self._state, engine.tier, url, engine.retention.plan)

    # -- closing -----------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether the log is closed, has failed, or is about to close: appends are refused."""
        return self._is_leaving or self._engine.is_closing

    async def wait_closing(self) -> None:
        """Return when the log begins to close: by :meth:`aclose`, or because it failed or was fenced.

        At once if it has begun. A program that does nothing but keep a log open waits for this;
        :meth:`aclose` then raises why it failed. Cancelling is harmless.
        """
        await self._engine.wait_closing()

    async def aclose(self) -> None:
        """Drain and close: accepted records are written and synced, then shipped if there is a tier.

        Twice is allowed. Cancelling the wait does not stop the closing. Raises WalClosedError with the
        cause chained if the log had failed, since then accepted records may be lost. Open transactions
        can no longer commit.
        """
        self._is_leaving = True  # before members are told that the log is closed
        try:
            await self._close_groups()
        finally:
            await self._engine.close()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._engine.check_home()

    def _group_parts(self) -> GroupParts:
        engine = self._engine
        engine.check_home()
        if self.is_closing:
            raise copy_error(engine.writer.failure or WalClosedError("the log is closed"))
        keeping = None if engine.replicator is None else engine
        return GroupParts(engine.fs, engine.clock, lambda: engine.spilling, keeping)

    def _cursor_store(self) -> tuple[CursorStore, Clock]:
        engine = self._engine
        engine.check_home()
        if engine.cursors is None:
            if engine.is_closing:
                raise copy_error(engine.writer.failure or WalClosedError("the log is closed"))
            kept = engine.pins.kept
            engine.cursors = CursorStore(
                self,
                fs=engine.fs,
                clock=engine.clock,
                owner=engine.owner,
                check_home=engine.check_home,
                make_worker=engine.resources.make_spilling,
                kept=None if kept is None else KeptQueue(engine, kept, self.path),
            )
        return engine.cursors, engine.clock

    async def announce(self, where: str | None) -> None:
        """Not for callers: let a WalLockedError of others say where the log is served, or no longer."""
        engine = self._engine
        owner = engine.owner if where is None else f"{engine.owner}, which serves it at {where}"
        await engine.worker.run(engine.opened.lock.describe, owner)

    def begin_scrub(self) -> int:
        """Not for callers: let all copies be read now, and return the number of that round.

        InvalidSettingsError for a log that is not replicated.
        """
        self._engine.check_home()
        if self.is_closing:
            raise copy_error(self._engine.writer.failure or WalClosedError("the log is closed"))
        if self._engine.replicator is None:
            raise InvalidSettingsError("the log has no other copies: 'walstore verify' reads it")
        return self._engine.replicator.begin_scrub()

    def resume_cursor(self, name: str, state: CursorState, writer: bytes) -> Cursor:
        """Not for callers: return the handle of a client of a served log again."""
        cursors, _ = self._cursor_store()
        return cursors.resume(name, state, writer)

    def watch_cursor(self, cursor: Cursor) -> None:
        """Not for callers: count a client's cursor in the statistics, as it is after a call."""
        cursors, _ = self._cursor_store()
        cursors.watch(cursor)

    def __repr__(self) -> str:
        return f"<Wal {self.path} [{self.head}, {self.tail})>"


_DEFAULTS: Final = Settings()


def _check_settings(settings: object) -> Settings:
    if settings is None:
        return _DEFAULTS
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must be walstore.Settings, not {type(settings).__name__}")
    return settings


def _copies(replicator: Replicator | None, durable_limit: int) -> tuple[CopyStatistics, ...]:
    found = () if replicator is None else replicator.copies()
    return tuple(
        CopyStatistics(address, trouble is None, limit, max(0, durable_limit - limit), trouble)
        for address, trouble, limit in found
    )


def _trouble(replicator: Replicator | None) -> str | None:
    trouble = None if replicator is None else replicator.trouble
    return None if trouble is None else str(trouble)


def _uploads(tier: object) -> UploadStatistics | None:
    return tier.uploads if isinstance(tier, DescribedTier) else None


def _check_tier(tier: object) -> None:
    if isinstance(tier, str):
        raise TypeError(f"tier is an object, not a str: tier=uploader.CloudTier({tier!r})")
