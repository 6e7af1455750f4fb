"""CloudLog: a log read from its prefix in object storage alone, without the local directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.stream_table import closings_in, finished_closings
from uploader.fragments.fragment import FragmentBatch, check_fragment
from uploader.layouts.log_session import LogSession
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.positions.groups.cloud_groups import CloudGroups
from uploader.positions.groups.group_place import GroupPlace
from uploader.read.fragment_cache import FragmentCache
from uploader.read.fragment_reader import FragmentReader, pieces
from uploader.read.log_file import LogFile, file_prefix
from uploader.read.read_ahead import ReadAhead
from uploader.read.scan_limits import check_limits, check_max_wait, in_time, within_limits
from uploader.root.stream_file import StreamFile
from uploader.root.write_guard import missing
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.batches.batch import Batch
from walstore.core.faces.readable_log import OneLimitLog
from walstore.core.format.ledger import StreamInfo
from walstore.core.ports import Clock
from walstore.core.read.reader import Reader, ReadGuard
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed
from walstore.core.validation.arguments import as_bool, as_count, as_int
from walstore.errors import CorruptionError, WalClosedError
from walstore.positions.cursor import Cursor
from walstore.records import Start

__all__ = ["CloudLog", "Verified"]

_SAME_TIME_SECONDS = 0.001

PREFETCH_BYTES = 32 << 20
"""Default memory limit for the fragments fetched ahead for a reader."""


class CloudLog(CloudGroups, OneLimitLog, MustClose):
    """View of a log in object storage: its records, cursors and groups. Make one with :meth:`open`.

    Of a log that :class:`uploader.CloudWriter` writes, the table of streams answers :meth:`streams`: two
    requests. Streams of records appended before there was a table, and those of a log that a local one ships,
    are found in the footers of the fragments, one request each; they count as open, and have no metadata. A
    stream that is being closed is open until the closing has taken effect for every writer.
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        cache_bytes: int = 64 << 20,
        disk_cache: FragmentCache | None = None,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[CloudLog]:
        """Open the log under ``url``; needs read access only.

        Raises LogNotFoundError if there is no manifest, CorruptionError if it is damaged, and the
        store's errors.

        Args:
            url: The log's location; as for :class:`uploader.CloudTier`.
            cache_bytes: Bounds the decoded fragments that are kept in memory.
            disk_cache: Also keeps fragments on local disk. Several logs may share one.
            store: Replaces the store that the URL names; also closed with the log.
            retry: How requests beyond a plain read are repeated: of the manifest, cursors and streams.
            clock: Sleeps between polls.
        """

        async def open_it() -> CloudLog:
            most = as_count(cache_bytes, "cache_bytes", low=0)
            session = LogSession(url, store=store, retry=retry, clock=clock)
            async with session.closed_on_error():
                await session.find_root()
                session.check_found()
                return cls(session, cache_bytes=most, disk_cache=disk_cache)

        return Opening(open_it)

    def __init__(
        self,
        session: LogSession,
        *,
        cache_bytes: int,
        disk_cache: FragmentCache | None,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        store, clock, worker = session.store, session.clock, session.worker
        self._home = LoopGuard(f"log at {store.url}")
        self._session = session
        self._store = store
        self._clock = clock
        self._worker = worker
        self._root = session.root
        self._fragments = FragmentReader(
            store=store,
            worker=worker,
            cache_bytes=cache_bytes,
            newest=self._newest,
            disk_cache=disk_cache,
        )
        self._cursors = CloudCursors.of_store(
            store,
            retry=session.retry,
            clock=clock,
            worker=worker,
            check_home=self.check_owner,
            known=lambda: self.tail,
        )
        self._streams = StreamFile(store, retry=session.retry, worker=worker)
        # One request for the manifest at a time, so that no older answer overtakes a newer one.
        self._refreshing = asyncio.Lock()
        self._refreshed_at = clock.monotonic()
        self._closed = False
        self._read_guard = ReadGuard(self._check_readable, self.check_owner)

    @property
    def url(self) -> str:
        """The log's location, without credentials."""
        return self._store.url

    @property
    def cursors(self) -> CloudCursors:
        """Named positions that protect the records from them on from collection; need write access."""
        return self._cursors

    async def cursor(
        self,
        name: str,
        *,
        start: Start | str | int | datetime = Start.EARLIEST,
        lease_seconds: float | None = None,
    ) -> Cursor:
        """Return a handle on the named cursor, as :meth:`walstore.Wal.cursor`; see :meth:`CloudCursors.open`.

        ``start`` may also be a time.
        """
        self.check_open()
        first = await self.offset_at(start) if isinstance(start, datetime) else start
        return await self._cursors.open(name, start=first, lease_seconds=lease_seconds)

    @property
    def manifest(self) -> Manifest:
        """The manifest as it was read last."""
        return self._root.manifest

    @property
    def head(self) -> int:
        """First retained offset."""
        return self.manifest.oldest_offset

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest: everything that it names is visible."""
        return self.manifest.next_offset

    @property
    def is_sealed(self) -> bool:
        """Whether the log takes no more records; see :func:`uploader.seal`."""
        return self.manifest.is_sealed

    async def refresh(self) -> None:
        """Read the manifest again.

        LogNotFoundError if there is none, CorruptionError if it is damaged or does not continue the one read
        before: it went back, or names other records where both can be compared.
        """
        async with self._refreshing:
            await self._refresh()

    async def put_inline(self) -> None:
        """Put the objects of fragments that only manifests hold so far, if there are any.

        For programs that look for objects by themselves, such as Spark's JVM; readers of this package find
        such fragments without it (docs/chain.md). Needs write access if there are any, which is rare: their
        writer has died, or is just putting them. Does nothing in the layout ``swap``.
        """
        await self._root.put_inline()

    @renamed(prefetch="prefetch_bytes")
    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        verify: bool = False,
    ) -> Reader:
        """Return a reader; options as :meth:`walstore.Wal.reader`. ``stop=log.limit`` reads what was there.

        Where the manifest ends it is read again, so that the reader ends where the log does by then.

        The next fragments are fetched and decoded while one is read: as many as fit into ``prefetch_bytes``
        of memory (estimated), and at most 16. 0 fetches each fragment on demand. With ``verify``
        every record is hashed and the sum compared with the manifest's, at about the speed of SHA3-256;
        otherwise page checksums, lengths and offsets are checked. With ``stream``, fragments whose footer
        rules out the stream are not fetched.

        ``follow=True`` makes it a reader as of :meth:`follow`, for programs that choose at run time.
        """
        follows = follow is not None and as_bool(follow, "follow")
        return self._read(
            start, stop, stream, follow=follows, prefetch_bytes=prefetch_bytes, verify=verify
        )

    def follow(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        verify: bool = False,
    ) -> Reader:
        """Return a reader that waits for new records at the end; options as :meth:`reader`.

        It reads the manifest again, first after 0.1 s, then less and less often, down to every 2 s, while
        nothing new appears. Readers that wait at the same time share the result. Of a sealed log it ends.
        """
        return self._read(
            start, stop, stream, follow=True, prefetch_bytes=prefetch_bytes, verify=verify
        )

    def _read(
        self,
        start: Start | str | int | datetime,
        stop: int | None,
        stream: str | None,
        *,
        follow: bool,
        prefetch_bytes: int = PREFETCH_BYTES,
        verify: bool = False,
    ) -> Reader:
        if prefetch_bytes < 0:
            raise ValueError(f"prefetch_bytes must not be negative, not {prefetch_bytes}")
        ahead = ReadAhead(self._fragments, max_bytes=prefetch_bytes, stream=stream, verify=verify)
        source = CloudSource(self, self._fragments, ahead)
        return Reader(
            source, start=start, stop=stop, stream=stream, follow=follow, guard=self._read_guard
        )

    async def _find_streams(self) -> dict[str, StreamInfo]:
        self.check_open()
        told = closings_in(self.manifest.writer)
        table = (await self._streams.load()).checked(told)
        await self.refresh()
        manifest = self.manifest
        listed = table.infos(finished_closings(manifest))
        since = table.since if table.revision else manifest.next_offset
        if since <= manifest.oldest_offset:
            return listed
        found = await self._fragments.streams(manifest, manifest.oldest_offset, since)
        older = {
            name: StreamInfo(is_open=True, metadata={}, opened_at=start)
            for name, start in found.items()
        }
        return {**older, **listed}

    @renamed(max_wait="max_wait_seconds")
    async def scan(
        self,
        start: int,
        *,
        max_fragments: int | None = None,
        max_bytes: int | None = None,
        max_records: int | None = None,
        max_wait_seconds: float | None = None,
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the entries of the fragments, from the one that contains ``start``, within limits.

        Fragments are whole: the first may contain records before ``start``, which are not counted, and
        the last more than ``max_records`` asks for. There is always one, whatever its size, unless
        ``start`` is the tail. ``max_bytes`` counts objects. See :meth:`read_fragment`.

        ``max_wait_seconds`` bounds the scan from its first step, including the caller's own time: it
        then ends as at any other limit, and cancels the request in progress. What arrived in time was
        yielded; that may be nothing. Continue at the ``limit`` of the last one, or at ``start``.
        The first one is yielded however short the time, if it needs no request.

        Raises OffsetTrimmedError if ``start`` was removed from the log, OffsetNotWrittenError if it is
        beyond the tail, InvalidSettingsError for a limit below 1, or a negative ``max_wait_seconds``.
        """
        self.check_open()
        check_limits(max_fragments=max_fragments, max_bytes=max_bytes, max_records=max_records)
        if max_wait_seconds is not None:
            max_wait_seconds = check_max_wait(max_wait_seconds)
        manifest = self.manifest
        manifest.offsets.check_position(start)
        fragments = self._fragments.tree.fragments(manifest, start)
        limits = {
            "max_fragments": max_fragments,
            "max_bytes": max_bytes,
            "max_records": max_records,
        }
        found = within_limits(fragments, start, **limits)
        timed = found if max_wait_seconds is None else in_time(found, max_wait_seconds, self._clock)
        async with aclosing(fragments), aclosing(found), aclosing(timed) as scanned:
            async for fragment in scanned:
                yield fragment

    @renamed(limit="stop")
    async def fragments(self, start: int = 0, stop: int | None = None) -> list[Fragment]:
        """Return the manifest's entries that overlap ``[start, stop)``, snapshots resolved.

        Returns all at once; :meth:`scan` takes little memory however long the log is.
        """
        self.check_open()
        return await self._fragments.tree.entries(self.manifest, start, stop)

    async def files(
        self, start: Start | str | int | datetime = Start.EARLIEST, stop: int | None = None
    ) -> list[LogFile]:
        """Return the published fragments that have records of ``[start, stop)``, as files for other engines.

        A listing of the folder has more: fragments that no manifest names yet, or never will, and collected
        ones. Files are whole: the first and the last may have records outside the interval. The manifest is
        read again first, unless ``stop`` is at most :attr:`limit`. Fragments of a chain that are not objects
        yet are put, as by :meth:`put_inline`.

        A file may be collected after this call; then an engine finds it missing. A cursor at ``start`` or
        before prevents that: make it first, and delete it after the query (docs/query.md).

        Args:
            start: As of :meth:`reader`.
            stop: Offset before which the interval ends; None for the end of the log.

        Raises:
            InvalidSettingsError: The log is in memory, or its path has a sign that engines read otherwise.
            OffsetTrimmedError: ``start`` was removed from the log.
            OffsetNotWrittenError: ``start`` is beyond its end.
        """
        self.check_open()
        prefix = file_prefix(self.url)
        if stop is None or as_int(stop, "stop") > self.limit:
            await self.refresh()
        async with self.reader(start, stop=stop, prefetch_bytes=0) as reader:
            first = reader.position
        manifest = self.manifest
        manifest.offsets.check_position(first)
        await self.put_inline()
        entries = await self._fragments.tree.entries(manifest, first, stop)
        return [
            LogFile(f"{prefix}/{entry.path}", entry.start, entry.limit, entry.num_bytes)
            for entry in entries
        ]

    async def read_fragment(self, entry: Fragment, *, verify: bool = False) -> FragmentBatch:
        """Return a fragment's records; checks length and offsets against its entry, optionally the setsum."""
        self.check_open()
        return await self._fragments.read(entry, verify=verify)

    async def verify(self) -> Verified:
        """Read every fragment, one at a time, and check it against its entry and the manifest.

        Checks offsets, contiguity, setsum, times and streams of each, and that the setsums add up, also to
        those of older manifests. Warns of a fragment whose length differs from its entry.
        Raises CorruptionError naming the object.
        """
        self.check_open()
        manifest, fragments = self.manifest, self._fragments
        await self._worker.run(manifest.scrub)
        total = manifest.collected
        records = size = count = 0
        async with aclosing(fragments.tree.fragments(manifest)) as entries:
            async for entry in entries:
                data = await fragments.fetch(entry)
                await self._worker.run(_verify, data, entry)
                fragments.note_length(entry, data)
                total += entry.setsum
                records += entry.limit - entry.start
                size += len(data)
                count += 1
        if total != manifest.setsum:
            raise CorruptionError(
                "the fragments' setsums do not add up to the manifest's",
                path=self.url,
                expected=manifest.setsum.hexdigest(),
                found=total.hexdigest(),
            )
        return Verified(count, records, size, total.hexdigest())

    async def wait_limit(self, limit: int) -> None:
        """Poll the manifest until it names all offsets below ``limit``.

        Also returns when the log is sealed, since it then never will.
        """
        backoff = Backoff(first_seconds=0.1, longest_seconds=2.0, growth=1.5)
        while self.tail < limit and not self.is_sealed:
            pause = backoff.next_seconds()
            await self._clock.sleep(pause)
            async with self._refreshing:
                # Another reader may have asked meanwhile.
                if self._clock.monotonic() - self._refreshed_at > pause - _SAME_TIME_SECONDS:
                    await self._refresh()

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that contains ``position``, up to ``limit``.

        In batches of about ``max_bytes``, which share the fragment's memory.
        """
        self.check_open()
        return await self._fragments.read_from(self.manifest, position, limit, max_bytes)

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` before which there is no record of a stream.

        Skips the fragments whose footers rule out the stream; fetches nothing else of them.
        """
        self.check_open()
        return await self._fragments.skip_stream(self.manifest, name, position, limit)

    async def _find_offset(self, time_us: int) -> int:
        self.check_open()
        found = await self._fragments.offset_at(self.manifest, time_us)
        return self.tail if found is None else found

    async def aclose(self) -> None:
        """Release connections and threads; may be called twice. Readers end with WalClosedError."""
        await self._close_groups()
        await self._cursors.settle()
        self._closed = True
        self._read_guard.thread = 0
        await self._fragments.aclose()
        await self._session.aclose()

    def check_open(self) -> None:
        """Raise WalClosedError if the log is closed."""
        if self._closed:
            raise WalClosedError(f"the log at {self.url} is closed")

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`. A closed log is nobody's."""
        if not self._closed:
            self._home.check()

    # -- inside ------------------------------------------------------------------------------

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_closed", True) or self._home.is_inherited:
            return None
        return Unclosed(f"the log at {self.url}")

    def _check_readable(self) -> None:
        self.check_open()
        self.check_owner()

    def _group_place(self) -> GroupPlace:
        self.check_open()
        session = self._session
        return GroupPlace(self, self._store, self._cursors, session.retry, self._clock)

    async def _newest(self) -> Manifest:
        await self.refresh()
        return self.manifest

    async def _refresh(self) -> None:
        self.check_open()
        before = self.manifest
        if await self._root.may_have_changed() and not await self._root.load():
            raise missing(self.url)
        end, now = before.next_offset, self.manifest
        if now is not before and end > now.oldest_offset and end not in now.bounds:
            self._fragments.tree.expect(end, before.setsum)
        self._refreshed_at = self._clock.monotonic()


@dataclass(frozen=True, slots=True)
class Verified:
    """What :meth:`uploader.CloudLog.verify` has checked."""

    fragments: int
    records: int
    fragment_bytes: int
    setsum: str
    """Sum over everything ever appended, as 64 hex digits."""


def _verify(data: bytes, entry: Fragment) -> None:
    """Check a fragment as a scrub does; CorruptionError for the first fault."""
    check_fragment(data, entry).require_sound()


class CloudSource:
    """Implements :class:`walstore.core.read.read_source.ReadSource` and ``StreamIndex`` for one reader."""

    def __init__(self, log: CloudLog, fragments: FragmentReader, ahead: ReadAhead) -> None:
        """Read ``log`` through ``ahead``, which this reader alone uses."""
        self._log = log
        self._fragments = fragments
        self._ahead = ahead

    @property
    def head(self) -> int:
        """First retained offset."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest."""
        return self._log.limit

    @property
    def tail(self) -> int:
        """Same as :attr:`limit`."""
        return self._log.tail

    async def refresh(self) -> None:
        """Read the manifest again, unless it is the last one."""
        if not self._log.is_sealed:
            await self._log.refresh()

    async def wait_limit(self, limit: int) -> None:
        """Return when the manifest names all offsets below ``limit``."""
        await self._log.wait_limit(limit)

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first offset at or after a time, or the tail if all records are older."""
        return await self._log.offset_at(timestamp_us)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return the rest of the fragment that holds ``position``, up to ``limit``."""
        self._log.check_open()
        batch = await self._ahead.read(self._log.manifest, position, limit)
        return pieces(batch, position, limit, max_bytes)

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` before which there is no record of a stream."""
        self._log.check_open()
        manifest = self._log.manifest
        found = await self._fragments.skip_stream(manifest, name, position, limit)
        if found > position:
            self._ahead.pass_over(position, found)
        return found
