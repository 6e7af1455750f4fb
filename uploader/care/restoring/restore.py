"""restore: rebuilds a log directory from object storage.

Call again to continue a restore that was killed anywhere, or that the store or its caller stopped; one that
failed for another reason leaves nothing behind.

Owns the order of things: where it ends, under which identity, and what becomes of the directory if something
fails. Fragments are fetched several at a time, each is checked against its setsum, and one thread makes
segments of them (``log_builder.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.stream_table import closings_in, finished_closings
from uploader.fragments.fragment import FragmentBatch
from uploader.layouts.log_session import LogSession
from uploader.read.cloud_log import CloudLog
from uploader.root.ownership import check_shippable, owner
from uploader.root.stream_file import StreamFile
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import check_unsealed
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.write.cloud_tier import CloudTier
from walstore.care.building.log_builder import LogBuilder, RestoreMarker
from walstore.core.files.locks import this_process
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.ledger import StreamInfo
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.error_mapping import describe_open
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.threads import Worker
from walstore.core.settings import Settings
from walstore.core.validation.arguments import as_count, as_settings
from walstore.errors import (
    ContentionError,
    CorruptionError,
    LogSealedError,
    StorageUnavailableError,
)
from walstore.records import to_timestamp_us


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Progress of a restore."""

    position: int
    """Every offset below it is in the directory."""
    head: int
    """First offset to be restored."""
    limit: int
    """Offset after the last one to be restored."""
    fragment_bytes: int
    """Bytes fetched so far, by this call."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has made."""

    path: Path
    url: str
    """Where from, without credentials."""
    log_id: str
    """Identity of the log in the directory, in hex."""
    owns_prefix: bool
    """Whether it is the log at ``url``: opened with ``tier=CloudTier(url)`` it continues to ship there.
    Otherwise it is a separate log, which may be shipped to another place."""
    head: int
    limit: int
    """The records of ``[head, limit)`` were restored."""
    resumed_at: int
    """An earlier call that was interrupted restored the records below; normally the head."""
    fragments: int
    """Fragments read by this call."""
    fragment_bytes: int
    """Their length."""
    segments: int
    size_bytes: int
    """Bytes of the segments."""
    adopted_fragments: int
    """Fragments that no manifest had named, and that were published first."""
    streams: int
    """Streams that were restored, from the log's records and from its table of streams."""


__all__ = ["RestoreProgress", "Restored", "restore"]


@renamed(max_in_flight="concurrency")
async def restore(
    url: str,
    directory: Path | str,
    *,
    stop: int | datetime | None = None,
    settings: Settings | None = None,
    concurrency: int = 4,
    progress: Callable[[RestoreProgress], None] | None = None,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
) -> Restored:
    """Rebuild the log under ``url`` in ``directory``, which must be empty or not there.

    Args:
        url: The log's location; see :class:`uploader.CloudTier`.
        directory: Where to make it.
        stop: None: all of it, and the directory becomes the log's own: fragments that a crash left
            unpublished are published first, as opening a new directory would do, and the log continues
            shipping to ``url``. An offset: the records before it; a datetime: those older than the first
            one that is not older. Then the store is only read, and the log in the directory is another
            one, with its own identity. The same always applies if the log is sealed, or written directly to
            the store: no local log may ship there.
        settings: ``segment_bytes``, ``batch_bytes`` and ``compression`` of what is written.
        concurrency: Fragments held in memory at the same time. 1 to 64.
        progress: Called on the event loop after each fragment.
        store: Replaces the one that the URL names; it is also closed at the end.
        retry: How conditional puts are repeated, if unpublished fragments are published.
        clock: Creation times of the segments.
        fs: The file system of the directory.

    Offsets, values, keys, streams, headers and times are those of the log; a time that went back, as
    other programs' may, is raised to the one before. The log begins at the oldest offset in the store.
    Streams of a log that :class:`uploader.CloudWriter` wrote are as they are now, except those opened
    after ``stop``; those of any other log are open again, without metadata. Registers, producers' windows
    and cursors were never in the store and are not restored.

    Raises LogNotFoundError if there is no log; InvalidSettingsError if the directory is not empty, or a file;
    WalLockedError if it is in use; OffsetTrimmedError or OffsetNotWrittenError for a ``stop`` outside the
    log, and the former if records are collected meanwhile; CorruptionError if a fragment is not what was
    put; ContentionError if unpublished fragments cannot be published, because records before them are
    missing; DiskFullError; StorageUnavailableError. After StorageUnavailableError, or when it is
    cancelled or killed, the directory does not open as a log, and the same call continues where this one
    stopped. After any other error nothing is left in the directory but its lock file; only if the very last
    sync failed the log is there, whole.
    """
    as_count(concurrency, "concurrency", high=64)
    stop_at = to_timestamp_us(stop) if isinstance(stop, datetime) else None
    session = LogSession(
        url, store=store, retry=retry, clock=clock, worker=Worker("restore-read", threads=2)
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(session)
        work = Restoring(
            session=session,
            url=url,
            path=Path(directory),
            stop=None if isinstance(stop, datetime) else stop,
            stop_at_us=stop_at,
            settings=as_settings(settings, Settings),
            concurrency=concurrency,
            progress=progress,
            fs=fs or PosixFileSystem(),
            stack=stack,
        )
        stack.callback(work.close)
        log = await stack.enter_async_context(
            CloudLog.open(url, cache_bytes=0, store=session.store, clock=session.clock)
        )
        return await work.run(log)


_T = TypeVar("_T")
_ID_BYTES: Final = 16


@dataclass(slots=True, kw_only=True)
class Restoring:
    """One call of :func:`restore`."""

    session: LogSession
    url: str
    path: Path
    stop: int | None
    stop_at_us: int | None
    settings: Settings
    concurrency: int
    progress: Callable[[RestoreProgress], None] | None
    fs: FileSystem
    stack: AsyncExitStack
    _writing: Worker = field(default_factory=partial(Worker, "restore-write"))
    _fragments: int = 0
    _fragment_bytes: int = 0
    _adopted: int = 0

    def close(self) -> None:
        """End the thread that writes."""
        self._writing.close()

    async def run(self, log: CloudLog) -> Restored:
        """Restore, and leave the directory as :func:`restore` promises."""
        limit = await self._find_limit(log)  # before the directory is touched
        try:
            builder = await self._writing.run_owned(self._take_directory, LogBuilder.close)
            try:
                return await self._restore(log, builder, limit)
            except StorageUnavailableError:
                raise
            except Exception:
                with contextlib.suppress(OSError):  # the marker is still there then
                    await self._writing.run(builder.discard)
                raise
            finally:
                # On the thread it runs after whatever a cancelled call still does there, and is awaited
                # even when cancelled: the caller may open the log at once.
                await self._writing.run_owned(builder.close, lambda _: None)
        except OSError as error:
            raise describe_open(error, self.path) from error

    def _take_directory(self) -> LogBuilder:
        return LogBuilder(self.fs, self.session.clock, self.path, self.settings, this_process())

    async def _find_limit(self, log: CloudLog) -> int | None:
        """Return where to stop; None for all there is."""
        if self.stop_at_us is not None:
            return max(log.head, await log.offset_at(self.stop_at_us))
        stop = self.stop
        if stop is None:
            return None
        if isinstance(stop, bool) or not isinstance(stop, int):
            raise TypeError(f"stop must be an offset, a datetime or None, not {stop!r}")
        log.manifest.offsets.check_position(
            stop, not_written="the offset has not reached the store"
        )
        return stop

    async def _restore(self, log: CloudLog, builder: LogBuilder, stop: int | None) -> Restored:
        owns_prefix = stop is None and _can_go_on(log.manifest, self.session.store.url)
        if owns_prefix:
            await self._adopt(log)
        manifest = log.manifest
        limit = manifest.next_offset if stop is None else stop
        make_marker = partial(
            RestoreMarker, url=self.session.store.url, head=manifest.oldest_offset, stop=stop
        )
        identify = partial(_identify, builder, make_marker, owner(manifest))
        marker = await self._writing.run(partial(identify, owns_prefix=owns_prefix))
        streams = await self._streams(log, limit)
        await self._writing.run(builder.begin, marker, streams)
        resumed_at = builder.position
        await self._fill(log, builder, limit)
        finish = partial(
            builder.finish,
            uploaded_limit=limit if owns_prefix else 0,
            tier_url=self.session.store.url if owns_prefix else None,
            succeeds=manifest.writer if owns_prefix else None,
        )
        await self._writing.run(finish)
        return Restored(
            path=self.path,
            url=self.session.store.url,
            log_id=marker.log_id,
            owns_prefix=owns_prefix,
            head=marker.head,
            limit=limit,
            resumed_at=resumed_at,
            fragments=self._fragments,
            fragment_bytes=self._fragment_bytes,
            segments=builder.segments,
            size_bytes=builder.size_bytes,
            adopted_fragments=self._adopted,
            streams=builder.streams,
        )

    async def _streams(self, log: CloudLog, limit: int) -> dict[str, StreamInfo]:
        """Return what the log's table says of the streams that were opened up to ``limit``."""
        session = self.session
        file = StreamFile(session.store, retry=session.retry, worker=session.worker)
        known = closings_in(log.manifest.writer)
        found = (await file.load()).checked(known).infos(finished_closings(log.manifest))
        return {name: info for name, info in found.items() if info.opened_at <= limit}

    async def _adopt(self, log: CloudLog) -> None:
        """Publish what a crash left unpublished, as opening a new directory would."""
        root = await self.session.find_root()
        async with aclosing(root), aclosing(_closeable(root.unpublished())) as found:
            if await anext(found, None) is None:
                return
        session = self.session
        tier = CloudTier(self.url, store=session.store, retry=session.retry, clock=session.clock)
        self.stack.push_async_callback(tier.aclose)  # not before the end: it closes the store
        await tier.open(None)
        self._adopted = tier.uploader.adopted_fragments
        await log.refresh()

    async def _fill(self, log: CloudLog, builder: LogBuilder, limit: int) -> None:
        """Add the records up to ``limit``: fragments are fetched in parallel, added in order."""

        async def newest() -> Manifest:
            await log.refresh()
            return log.manifest

        tree = ManifestTree(self.session.store, self.session.worker, newest=newest)
        found = tree.fragments(log.manifest, builder.position, limit)
        fetching: deque[asyncio.Task[FragmentBatch]] = deque()
        async with task_group() as group, aclosing(_closeable(found)) as entries:
            async for entry in entries:
                fetching.append(group.create_task(self._fetch(log, entry)))
                if len(fetching) == self.concurrency:
                    await self._add(builder, await fetching.popleft(), limit)
            while fetching:
                await self._add(builder, await fetching.popleft(), limit)
        if builder.position != limit:
            raise CorruptionError(
                "records are missing",
                path=self.session.store.url,
                expected=limit,
                found=builder.position,
            )

    async def _fetch(self, log: CloudLog, entry: Fragment) -> FragmentBatch:
        batch = await log.read_fragment(entry, verify=True)
        self._fragments += 1
        self._fragment_bytes += entry.num_bytes
        return batch

    async def _add(self, builder: LogBuilder, batch: FragmentBatch, limit: int) -> None:
        position = builder.position
        if batch.start > position:
            raise CorruptionError(
                "records are missing",
                path=self.session.store.url,
                expected=position,
                found=batch.start,
            )
        part = batch.slice(position, min(batch.limit, limit))
        await self._writing.run(builder.add, part.to_arrow_batches())
        if self.progress is not None:
            at = RestoreProgress(builder.position, builder.head, limit, self._fragment_bytes)
            self.progress(at)


def _identify(
    builder: LogBuilder,
    make_marker: Callable[..., RestoreMarker],
    owner_id: bytes | None,
    *,
    owns_prefix: bool,
) -> RestoreMarker:
    """Return the marker of the log to be made: the one that ships to the prefix, or another.

    If the identity is free to choose, the choice of an interrupted restore of the same log is kept.
    """
    if owns_prefix and owner_id is not None:
        return make_marker(log_id=owner_id.hex())
    known = builder.interrupted()
    is_same = known is not None and make_marker(log_id=known.log_id) == known
    if known is not None and is_same and known.log_id != (owner_id or b"").hex():
        return known
    return make_marker(log_id=os.urandom(_ID_BYTES).hex())


def _can_go_on(manifest: Manifest, url: str) -> bool:
    """Return whether a local log may ship to the manifest's location."""
    try:
        check_shippable(manifest, url=url)
        check_unsealed(manifest, url=url)
    except (ContentionError, LogSealedError):
        return False
    return True


def _closeable(found: AsyncIterator[_T]) -> AsyncGenerator[_T, None]:
    """Return an iterator as what it is: an async generator, which must be closed."""
    return cast(AsyncGenerator[_T, None], found)
