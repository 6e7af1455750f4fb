"""Wal: the public face of one log. Composes the parts and owns their tasks; does no work itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Self

from walstore.channel import Channel
from walstore.clock import SystemClock
from walstore.directory import peek_log_id
from walstore.errors import (
    InvalidSettingsError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
    WouldBlock,
)
from walstore.faults import describe_open, fresh
from walstore.group import make_group, make_record
from walstore.opening import Opened, Recovery, close_log, open_log
from walstore.ports import Clock, FileSystem, Tier
from walstore.posix import PosixFileSystem
from walstore.reader import Reader
from walstore.records import Durability, Start
from walstore.resource import Opening
from walstore.retention import plan_drop
from walstore.settings import Settings, parse_durability
from walstore.shipping import Shipping
from walstore.state import LogState
from walstore.statistics import Statistics
from walstore.tail import Tail
from walstore.threads import Worker
from walstore.tiered import TieredSource
from walstore.writer import Writer

logger = logging.getLogger("walstore")


class Wal:
    """A write-ahead log in one directory, for one writing process.

    Make one with :meth:`open`. All methods belong to the event loop that opened it. Appends from any
    number of tasks are committed together; they are never reordered, split or interleaved.
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
    ) -> Opening[Wal]:
        """Open the log in directory ``path``, creating it if there is none, and recover it.

        Use as ``async with Wal.open(p) as wal`` or ``wal = await Wal.open(p)`` with a later
        ``await wal.aclose()``. ``tier`` ships the log to object storage (``uploader.CloudTier``).

        Raises WalLockedError if it is open elsewhere, CorruptionError if synced records are damaged
        (nothing is changed then), FormatVersionError for files of a newer version, DiskFullError,
        StorageUnavailableError for a directory that cannot be written, and what the tier raises.
        """

        async def open_it() -> Wal:
            return await _open(
                Path(path),
                settings or Settings(),
                tier,
                fs or PosixFileSystem(),
                clock or SystemClock(),
            )

        return Opening(open_it)

    def __init__(
        self,
        *,
        path: Path,
        settings: Settings,
        clock: Clock,
        opened: Opened,
        state: LogState,
        channel: Channel,
        source: TieredSource,
        writer: Writer,
        workers: tuple[Worker, Worker],
        tier: Tier | None,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        # Set once at open.
        self.path = path
        """The log's directory."""
        self.settings = settings
        """As given to :meth:`open`."""
        self.recovery: Recovery = opened.recovery
        """What opening found and repaired."""
        self.log_id = opened.log_id.hex()
        """Identity of the log, made once when it was created; 32 hex digits."""
        self._clock = clock
        self._opened = opened
        self._state = state
        self._channel = channel
        self._source = source
        self._writer = writer
        self._workers = workers
        self._tier = tier
        self._lead_us = int(settings.max_timestamp_lead_seconds * 1e6)
        self._durability = settings.durability
        self._put_value = channel.put_value
        # The root of this log's tasks; ended by aclose(), or by a failure and then aclose().
        self._close_requested = asyncio.Event()
        self._tier_failure: WalError | None = None
        self._supervisor = asyncio.get_running_loop().create_task(
            self._supervise(), name=f"walstore {path}"
        )

    # -- appending ---------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Append one record and return its offset once it is as safe as ``durability`` says.

        ``value`` may be empty. ``timestamp_us`` defaults to the time of the commit; one that is older
        than the log's last record is raised to that record's. ``durability`` defaults to the log's.

        Waits, in turn with others, while the channel is full. Cancelled before that wait ends,
        nothing was appended; cancelled later, the record is in the log all the same: cancelled is
        not "not written". Raises TypeError or ValueError for bad arguments, RecordTooLargeError
        (it took no offset), WalClosedError, DiskFullError, StorageUnavailableError and
        OutcomeUnknownError, whose ``outcome`` tells what became of the record.
        """
        level = self._durability if durability is None else self._level(durability)
        try:
            offset = self.append_nowait(value, key, stream, headers, timestamp_us)
        except WouldBlock:
            group = make_record(value, key, stream, headers, self._timestamp(timestamp_us))
            offset = await self._channel.put_wait(group)
        if level is Durability.DISK:
            await self._state.durable.waiter(offset + 1)
        elif level is not Durability.MEMORY:
            await self._wait(offset + 1, level)
        return offset

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        durability: Durability | str | None = None,
    ) -> range:
        """Append records as one atomic group and return their offsets.

        After a crash all of them are in the log or none. The options hold for each record. The group
        may have up to ``channel_bytes``; else as :meth:`append`. An empty group is a ValueError.
        """
        level = self._durability if durability is None else self._level(durability)
        group = make_group(values, key, stream, headers, self._timestamp(timestamp_us))
        start = await self._channel.put_wait(group)
        limit = start + len(group.values)
        await self._wait(limit, level)
        return range(start, limit)

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
    ) -> int:
        """Accept one record at level ``memory`` and return its offset; WouldBlock if there is no room.

        Follow with :meth:`wait_durable` or :meth:`flush` to learn that it is safe. Else as
        :meth:`append`.
        """
        # Options are not keyword-only here and in append(): CPython 3.11 looks every omitted
        # keyword-only argument up in a dict, which cost a third of this call.
        if (
            type(value) is bytes
            and key is None
            and stream is None
            and headers is None
            and timestamp_us is None
        ):
            return self._put_value(value)
        return self._channel.put(
            make_record(value, key, stream, headers, self._timestamp(timestamp_us))
        )

    async def wait_durable(self, offset: int, durability: Durability | str = "disk") -> None:
        """Return when the record at ``offset`` is as safe as ``durability`` says.

        Raises OffsetNotWrittenError for an offset not assigned yet, and the log's failure. Cancelling
        has no effect on the record.
        """
        self._channel.check_assigned(offset)
        await self._wait(offset + 1, self._level(durability))

    async def flush(self) -> None:
        """Return when all that was accepted before the call is on disk."""
        await self._state.durable.wait(self._channel.tail)

    async def rotate(self) -> None:
        """Seal the active segment now, if it holds records, and begin the next.

        Returns when the sealed one is durable; cancelling does not stop the rotation.
        """
        await self._writer.rotate()

    # -- reading -----------------------------------------------------------------------------

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        follow: bool = True,
    ) -> Reader:
        """Return a reader of durable records.

        ``start`` is ``"earliest"``, ``"latest"`` (the next record to become durable), an offset, or an
        aware datetime (the first record at or after it). ``stop`` is an exclusive last offset.
        ``follow`` waits for new records at the end; without it the iteration ends at the durable
        limit seen when it is reached.
        """
        return Reader(
            self._source,
            start=start,
            stop=stop,
            follow=follow,
            read_bytes=self.settings.read_ahead_bytes,
        )

    # -- looking -----------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """First retained offset, in whichever tier it lies; equals ``tail`` for an empty log."""
        return self._source.head

    @property
    def tail(self) -> int:
        """Next offset to be assigned."""
        return self._channel.tail

    @property
    def durable_limit(self) -> int:
        """Every offset below it is on disk."""
        return self._state.durable.value

    @property
    def uploaded_limit(self) -> int:
        """Every offset below it is named by the cloud tier's manifest; 1 without a tier."""
        return self._state.uploaded.value

    def statistics(self) -> Statistics:
        """Return a snapshot of the log's counters."""
        state, cache, (waiting_bytes, waiting) = (
            self._state,
            self._state.cache,
            self._channel.waiting,
        )
        return Statistics(
            head=self.head,
            local_head=state.head,
            tail=self.tail,
            durable_limit=self.durable_limit,
            uploaded_limit=self.uploaded_limit,
            epoch=self._opened.tail.epoch,
            segments=len(state.segments),
            waiting_bytes=waiting_bytes,
            waiting_records=waiting,
            appended_records=state.appended_records,
            appended_bytes=state.appended_bytes,
            commits=self._writer.commits,
            rotations=self._writer.rotations,
            cache_bytes=cache.size_bytes,
            cache_hits=cache.hits,
            cache_evictions=cache.evictions,
            file_reads=self._source.file_reads,
            tier_reads=self._source.tier_reads,
            tier_failure=str(self._tier_failure) if self._tier_failure else None,
        )

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Drain and close: what was accepted is written and synced, then shipped if there is a tier.

        Twice is allowed. Cancelling the wait does not stop the closing. Raises WalClosedError with
        the cause chained if the log had failed, since accepted records may be lost then.
        """
        self._close_requested.set()
        await asyncio.shield(self._supervisor)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Wal {self.path} [{self.head}, {self.tail})>"

    # -- inside ------------------------------------------------------------------------------

    async def _wait(self, limit: int, level: Durability) -> None:
        if level is Durability.MEMORY:
            return
        if level is Durability.CLOUD:
            # First the disk: what fails behind it leaves the record durable, and its error says so.
            await self._state.durable.wait(limit)
            if self._state.uploaded.value < limit:
                waiter = self._state.uploaded.waiter(limit)
                self._state.request_cloud()
                await waiter
            return
        await self._state.durable.wait(limit)

    def _level(self, durability: Durability | str) -> Durability:
        """Check a level before anything is accepted at it."""
        level = parse_durability(durability)
        if level is Durability.REPLICATED:
            raise InvalidSettingsError("durability 'replicated' is not available yet")
        if level is Durability.CLOUD and self._tier is None:
            raise InvalidSettingsError("durability 'cloud' needs a log opened with tier=")
        return level

    def _timestamp(self, timestamp_us: int | None) -> int | None:
        if timestamp_us is None:
            return None
        if isinstance(timestamp_us, bool) or not isinstance(timestamp_us, int):
            raise TypeError(f"timestamp_us must be an int, not {type(timestamp_us).__name__}")
        latest = self._clock.now_us() + self._lead_us
        if not 0 <= timestamp_us <= latest:
            raise ValueError(
                f"timestamp_us {timestamp_us} is not between 0 and {latest}, which is "
                "max_timestamp_lead_seconds from now; is it in microseconds?"
            )
        return timestamp_us

    async def _supervise(self) -> None:
        """Own every task of this log, from open until it is closed. Never cancelled by us."""
        writer = self._writer
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(writer.run())
                helpers = [group.create_task(self._run_retention())]
                if self.settings.segment_age_seconds is not None:
                    helpers.append(group.create_task(writer.run_age_limit()))
                shipping = group.create_task(self._run_tier()) if self._tier else None
                await self._close_requested.wait()
                self._channel.close(WalClosedError("the log is closed"))
                with contextlib.suppress(WalError):  # told to the appenders, and raised below
                    await self._state.durable.wait(self._channel.tail)
                self._state.drain()
                if shipping is not None:
                    await shipping
                for helper in helpers:
                    helper.cancel()
                writer.stop()
                await writing
        finally:
            self._source.closed = writer.failure or WalClosedError("the log is closed")
            self._channel.close(self._source.closed)  # if a defect ended the tasks
            self._state.end(self._source.closed)
            await self._release()
        if writer.failure is not None:
            raise writer.failure

    async def _release(self) -> None:
        try:
            await self._writer.close()
        except OSError as error:
            raise describe_open(error, self.path) from error
        finally:
            self._opened.lock.release()
            for worker in self._workers:
                worker.close()
            if self._tier is not None:
                await self._tier.aclose()

    async def _run_tier(self) -> None:
        """Ship until the log drains. A tier that fails for good does not stop the local log: callers
        that wait for the cloud are told, and the records stay on disk for the next opening."""
        assert self._tier is not None
        try:
            await self._tier.run(Shipping(self._state, self._source, self._writer, self.log_id))
        except WalError as error:
            logger.error("shipping to %s ended: %s", self._tier.url, error)
            self._fail_tier(error)
        except Exception as error:
            logger.exception("shipping to %s ended by a defect", self._tier.url)
            failure = StorageUnavailableError(f"the cloud tier failed: {error!r}", retriable=False)
            failure.__cause__ = error
            self._fail_tier(failure)

    def _fail_tier(self, error: WalError) -> None:
        """Tell those who wait for the cloud; what they wait for is on disk, see :meth:`_wait`."""
        self._tier_failure = error

        def make_error(_: int) -> WalError:
            twin = fresh(error)
            twin.outcome = "durable"
            return twin

        self._state.uploaded.fail(make_error)

    async def _run_retention(self) -> None:
        """Delete uploaded segments beyond the local budget; asleep while nothing changes."""
        keep = self.settings.retention_bytes
        if keep is None:
            return
        while True:
            await self._state.shrinkable.wait()
            self._state.shrinkable.clear()
            summaries = [s.summary for s in self._state.sealed_segments() if s.summary]
            limit = plan_drop(summaries, uploaded_limit=self.uploaded_limit, retention_bytes=keep)
            if limit:
                try:
                    await self._writer.drop_sealed(limit)
                except WalError:
                    return


def _uploaded_limit(tail: Tail, tier: Tier | None) -> int:
    """Return the limit of what this directory knows to have shipped, or no longer holds.

    A manifest may name more, and the tier says so once it has compared it with the local records.
    """
    if tier is None:
        return max(tail.uploaded_limit, 1)
    return min(tier.limit, max(tail.uploaded_limit, tail.head))


async def _open(
    path: Path, settings: Settings, tier: Tier | None, fs: FileSystem, clock: Clock
) -> Wal:
    if settings.durability is Durability.CLOUD and tier is None:
        raise InvalidSettingsError("durability 'cloud' needs a log opened with tier=")
    writing, reading = Worker("writer"), Worker("reader", threads=2)
    try:
        if tier is not None:
            await tier.open(await writing.run(peek_log_id, fs, path))
        opened = await writing.run_owned(
            lambda: open_log(
                path,
                fs=fs,
                clock=clock,
                settings=settings,
                owner=f"process {os.getpid()} on {socket.gethostname()}",
                make_log_id=lambda: (tier.log_id if tier else None) or os.urandom(16),
                tier_limit=tier.limit if tier else 1,
                tier_url=tier.url if tier else None,
            ),
            close_log,
        )
    except BaseException as error:
        writing.close()
        reading.close()
        if tier is not None:
            await tier.aclose()
        if isinstance(error, OSError):
            raise describe_open(error, path) from error
        raise
    loop = asyncio.get_running_loop()
    state = LogState(
        loop=loop,
        head=opened.tail.head,
        durable_limit=opened.tail.durable_limit,
        uploaded_limit=_uploaded_limit(opened.tail, tier),
        sealed=opened.sealed,
        active=opened.tail.active,
        cache_bytes=settings.cache_bytes,
    )
    channel = Channel(opened.tail.durable_limit, settings, loop)
    source = TieredSource(state=state, channel=channel, fs=fs, worker=reading, tier=tier)
    writer = Writer(
        tail=opened.tail,
        channel=channel,
        listener=state,
        settings=settings,
        clock=clock,
        worker=writing,
    )
    return Wal(
        path=path,
        settings=settings,
        clock=clock,
        opened=opened,
        state=state,
        channel=channel,
        source=source,
        writer=writer,
        workers=(writing, reading),
        tier=tier,
    )
