"""Sample: a log at one moment, as anybody may see it: beside its writer, in a store, or at a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from walstore import CursorInfo
from walstore.cli.cluster_scrub import scrub_notes
from walstore.cli.errors import explain
from walstore.cli.holder import find_holder
from walstore.cli.location import connect_to, to_directory
from walstore.core.files.locks import STORE_NAME
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import Segment, peek_frame
from walstore.core.format import segment
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.statistics import CopyStatistics, GroupStatistics
from walstore.errors import StorageUnavailableError, WalError
from walstore.location import is_address, is_url
from walstore.positions.cursors.kept import list_all_cursors
from walstore.store.directory import directory_of, list_logs


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a log."""

    name: str
    head: int
    """First offset that can be read here."""
    limit: int
    """Offset after the last record that can be read."""
    size_bytes: int
    """What is written of the segment files, or of the fragments; of a served log what was appended since it
    was opened."""
    files: dict[str, int] = field(default_factory=dict)
    """What is written of each segment file."""
    segments: int = 0
    uploaded_limit: int | None = None
    """Every offset below is in the store; None if it is shipped nowhere."""
    tier_url: str | None = None
    writer: str | None = None
    """Who has it open for writing."""
    free_bytes: int | None = None
    newest_us: int | None = None
    """When the newest sealed segment ended, roughly the age of the log."""
    cursors: tuple[tuple[str, int | None, bool], ...] = ()
    """Name, position (None if it cannot be read), and whether it holds retention back."""
    groups: tuple[GroupStatistics, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """What else there is to say."""

    @property
    def records(self) -> int:
        """How many can be read."""
        return self.limit - self.head

    @property
    def lag(self) -> int | None:
        """How far the slowest cursor is behind; None without cursors."""
        return max((self.limit - at for _, at, _ in self.cursors if at is not None), default=None)

    @property
    def not_shipped(self) -> int | None:
        """How many records are on this disk only; None if it is shipped nowhere."""
        return None if self.uploaded_limit is None else max(0, self.limit - self.uploaded_limit)


Look = Callable[[], Awaitable[list[Sample]]]
"""Returns a sample of each log of a location."""


@asynccontextmanager
async def open_samples(location: str, verb: str) -> AsyncIterator[Look]:
    """Yield what looks at a log directory, a directory of logs, a stored log, or a served one."""
    if is_address(location):
        async with _open_served(location) as look:
            yield look
    elif is_url(location):
        async with _open_stored(location) as look:
            yield look
    else:
        path = to_directory(location, verb)

        async def look_at_directory() -> list[Sample]:
            return await asyncio.to_thread(look_at, path)

        yield look_at_directory


def look_at(path: Path) -> list[Sample]:
    """Return a sample of the log in a directory, or of each log below it. Blocking.

    LogNotFoundError if it is neither.
    """
    found = find_logs(path)
    if found is None:
        return [_sample(path, path.name or str(path))]
    samples = []
    for name, directory in found:
        try:
            samples.append(_sample(directory, name))
        except (WalError, OSError) as error:
            samples.append(Sample(name, 0, 0, 0, notes=(("problem", explain(error)),)))
    return samples


def find_logs(path: Path) -> list[tuple[str, Path]] | None:
    """Return name and directory of each log in a store, or in a directory that holds logs. Blocking.

    None for anything else, such as a log. What cannot be read may be a log, too; OSError if that is ``path``.
    """
    if (path / STORE_NAME).exists():
        return [(name, path / directory_of(name)) for name in list_logs(PosixFileSystem(), path)]
    if not path.is_dir() or is_log_directory(path):
        return None
    return sorted((one.name, one) for one in path.iterdir() if _may_be_log(one)) or None


def _may_be_log(path: Path) -> bool:
    try:
        return is_log_directory(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def is_log_directory(path: Path) -> bool:
    """Return whether a directory has a segment; OSError if it cannot be read. Blocking."""
    return any(one.name.endswith(segment.SUFFIX) for one in path.iterdir())


def _sample(path: Path, name: str) -> Sample:
    view = LogSnapshot.open(path)
    try:
        holder = find_holder(path)
        disk = os.statvfs(path)
        files: dict[str, int] = {}
        for one in view.segments:
            try:
                files[one.path.name] = _written_bytes(view, one)
            except FileNotFoundError:
                continue  # deleted by retention just now
        times = [one.summary.max_timestamp_us for one in view.segments if one.summary is not None]
        return Sample(
            name,
            view.head,
            view.durable_limit,
            sum(files.values()),
            files=files,
            segments=len(files),
            uploaded_limit=None if view.tier_url is None else view.uploaded_limit,
            tier_url=view.tier_url,
            writer=None if holder is None else holder.note,
            free_bytes=disk.f_bavail * disk.f_frsize,
            newest_us=times[-1] if times else None,
            cursors=_cursors(list_all_cursors(view.fs, path, SystemClock().now_us())),
        )
    finally:
        view.close()


def _written_bytes(view: LogSnapshot, source: Segment) -> int:
    """Return what is written of a segment: of the active one less than its file has, which is reserved."""
    with contextlib.closing(view.fs.open(source.path, "r")) as file:
        if source.summary is not None or source.index is None:
            return file.size()
        at = source.index.locate(max(view.durable_limit - 1, source.start))
        following: int | None = None
        while (header := peek_frame(file, at)) is not None:
            if header.start >= view.durable_limit or following not in (None, header.start):
                break  # what an earlier file left there
            at, following = at + header.length, header.limit
        return at


def _cursors(found: list[CursorInfo]) -> tuple[tuple[str, int | None, bool], ...]:
    return tuple(
        (one.name, None if one.problem else one.position, not one.is_expired) for one in found
    )


@asynccontextmanager
async def _open_served(address: str) -> AsyncIterator[Look]:
    async with await connect_to(address) as wal:

        async def look() -> list[Sample]:
            now = await wal.statistics()
            cursors: list[CursorInfo] = []
            unconfirmed: str | None = None
            try:
                cursors = await wal.cursors()
            except StorageUnavailableError as error:  # too few copies: notes name them
                unconfirmed = str(error)
            upload = now.upload
            notes = [
                (
                    "waiting",
                    f"{now.waiting_records} records, {now.blocked_appends} callers blocked",
                ),
                ("not synced", f"{now.durable_lag_seconds * 1e3:.1f} ms"),
                ("readers", f"{now.readers}, the slowest {now.reader_lag_records} behind"),
            ]
            notes += [(f"copy at {copy.address}", _state_of(copy)) for copy in now.copies]
            notes += scrub_notes(now)
            for name, text in (
                ("failure", now.failure),
                ("replication", now.replication_trouble),
                ("shipping", now.tier_failure),
                ("cursors", unconfirmed),
            ):
                if text is not None:
                    notes.append((name, text))
            return [
                Sample(
                    wal.path.name or str(wal.path),
                    now.head,
                    now.durable_limit,
                    now.appended_bytes,
                    segments=now.segments,
                    uploaded_limit=None if upload is None else now.uploaded_limit,
                    writer=address,
                    cursors=_cursors(cursors),
                    groups=tuple(now.groups.values()),
                    notes=tuple(notes),
                )
            ]

        yield look


def _state_of(copy: CopyStatistics) -> str:
    behind = f"{'there' if copy.is_present else 'not there'}, {copy.lag} records behind"
    return behind if copy.trouble is None else f"{behind}: {copy.trouble}"


@asynccontextmanager
async def _open_stored(url: str) -> AsyncIterator[Look]:
    from uploader.layouts.log_session import open_session
    from uploader.positions.cursors.cloud_cursors import CloudCursors

    async with open_session(url) as session:
        session.check_found()
        cursors = CloudCursors(
            session.store,
            newest=session.newest,
            retry=session.retry,
            clock=session.clock,
            writer="walstore top",
        )

        async def look() -> list[Sample]:
            await session.root.load()
            manifest, now_us = session.root.manifest, session.clock.now_us()
            found = await cursors.list()
            return [
                Sample(
                    session.store.url.rpartition("/")[2],
                    manifest.oldest_offset,
                    manifest.next_offset,
                    manifest.live_bytes,
                    segments=len(manifest.fragments),
                    writer=manifest.writer or None,
                    cursors=tuple(
                        (one.name, one.position, not one.is_expired(now_us)) for one in found
                    ),
                    notes=(("snapshots", str(len(manifest.snapshots))),),
                )
            ]

        yield look
