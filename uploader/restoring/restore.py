"""restore: rebuilds a log directory from object storage.

Call again to continue a restore that was killed anywhere, or that the store or its caller stopped; one that
failed for another reason leaves nothing behind. The implementation is in ``restoring.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

from uploader.layouts.log_session import LogSession
from uploader.read.cloud_log import CloudLog
from uploader.restoring.restored import Restored, RestoreProgress
from uploader.restoring.restoring import Restoring
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.files.posix import PosixFileSystem
from walstore.ports import Clock, FileSystem
from walstore.records import to_timestamp_us
from walstore.runtime.threads import Worker
from walstore.settings import Settings
from walstore.validation.arguments import as_count, as_settings

__all__ = ["RestoreProgress", "Restored", "restore"]


async def restore(
    url: str,
    directory: Path | str,
    *,
    stop: int | datetime | None = None,
    settings: Settings | None = None,
    max_in_flight: int = 4,
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
            unpublished are published first, as opening a new directory would do, and the log goes on
            shipping to ``url``. An offset: the records before it; a datetime: those older than the first
            one that is not older. Then the store is only read, and the log in the directory is another
            one, with its own identity. The same always applies if the log is sealed, or written directly to
            the store: no local log may ship there.
        settings: ``segment_bytes``, ``batch_bytes`` and ``compression`` of what is written.
        max_in_flight: Fragments held in memory at the same time. 1 to 64.
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

    Raises LogNotFoundError if there is no log; InvalidSettingsError if the directory is not empty;
    WalLockedError if it is in use; OffsetTrimmedError or OffsetNotWrittenError for a ``stop`` outside the
    log, and the former if records are collected meanwhile; CorruptionError if a fragment is not what was
    put; ContentionError if unpublished fragments cannot be published, because records before them are
    missing; DiskFullError; StorageUnavailableError. After StorageUnavailableError, or when it is
    cancelled or killed, the directory does not open as a log, and the same call continues where this one
    stopped. After any other error nothing is left in the directory but its lock file; only if the very last
    sync failed the log is there, whole.
    """
    as_count(max_in_flight, "max_in_flight", high=64)
    stop_at = to_timestamp_us(stop) if isinstance(stop, datetime) else None
    session = LogSession(
        url, store=store, retry=retry, clock=clock, worker=Worker("restore-read", threads=2)
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(session)
        work = Restoring(
            session,
            url=url,
            path=Path(directory),
            stop=None if isinstance(stop, datetime) else stop,
            stop_at_us=stop_at,
            settings=as_settings(settings, Settings),
            max_in_flight=max_in_flight,
            progress=progress,
            fs=fs or PosixFileSystem(),
            stack=stack,
        )
        stack.callback(work.close)
        log = await stack.enter_async_context(
            CloudLog.open(url, cache_bytes=0, store=session.store, clock=session.clock)
        )
        return await work.run(log)
