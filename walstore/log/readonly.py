"""ReadonlyWal: a log that another process writes, followed through its files without its lock.

Sees only durable records (``log_bounds.py`` and ``log_watch.py`` find their limit). Reads records from
the files (``log_files.py``) and caches nothing. The writer may rotate, delete, crash and restart
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from walstore.core.batches.batch import Batch
from walstore.core.batches.conditions import users_registers
from walstore.core.faces.readable_log import OneLimitLog
from walstore.core.files.anchor import absolute
from walstore.core.files.directory import anchor_log
from walstore.core.files.locks import this_process
from walstore.core.files.log_bounds import LedgerView
from walstore.core.files.log_files import LogFiles
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.ledger import StreamInfo
from walstore.core.offset_range import OffsetRange
from walstore.core.ports import CellView, Clock, FileSystem
from walstore.core.read.log_watch import (
    LONGEST_POLL_SECONDS,
    SHORTEST_POLL_SECONDS,
    LogLook,
    LogWatch,
    look_at,
)
from walstore.core.read.reader import ReadGuard
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.error_mapping import copy_error, describe_read
from walstore.core.runtime.resource import MustClose, Opening, Unclosed, abandon_in_children
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_directory
from walstore.errors import InvalidSettingsError, OffsetTrimmedError, WalClosedError
from walstore.positions.cursors.cursor_mixin import CursorMixin
from walstore.positions.cursors.store import CursorStore

_T = TypeVar("_T")


class ReadonlyWal(CursorMixin, OneLimitLog, MustClose):
    """A log in a directory of this machine, open for reading, with or without a running writer.

    Make one with :meth:`open`. All methods and the offsets belong to the event loop that opened it:
    from another thread or event loop they raise WrongLoopError, in a forked child WalClosedError.
    ``head``, ``limit`` and ``tail`` are looked up in the writer's files at each access; none of them
    ever goes back. Only records on local disk are read, not those that the writer has shipped to a
    cloud tier and deleted here. Readers continue through rotations and restarts of the writer, and raise
    OffsetTrimmedError once it has deleted the next record to read. Holds one thread, two descriptors and no
    lock. It follows a directory that is moved, and never reads another one that takes its place.
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        shortest_poll_seconds: float = SHORTEST_POLL_SECONDS,
        longest_poll_seconds: float = LONGEST_POLL_SECONDS,
    ) -> Opening[ReadonlyWal]:
        """Open the log in directory ``path`` for reading; see :meth:`walstore.Wal.open_readonly`."""
        given = as_directory(path, "Wal.open_readonly()")
        if not 0 < shortest_poll_seconds <= longest_poll_seconds:
            raise InvalidSettingsError(
                "shortest_poll_seconds must be more than 0 and at most longest_poll_seconds, not "
                f"{shortest_poll_seconds!r} and {longest_poll_seconds!r}"
            )

        async def open_it() -> ReadonlyWal:
            worker = Worker("readonly")
            try:
                directory = await absolute(given, worker)
                anchored, look = await worker.run_owned(
                    lambda: _look_first(fs or PosixFileSystem(), directory), _discard
                )
            except BaseException as error:
                worker.close()
                if isinstance(error, OSError):
                    raise describe_read(error, given) from error
                raise
            return cls(
                path=directory,
                fs=anchored,
                clock=clock or SystemClock(),
                worker=worker,
                look=look,
                poll_seconds=(shortest_poll_seconds, longest_poll_seconds),
            )

        return Opening(open_it)

    def __init__(
        self,
        *,
        path: Path,
        fs: FileSystem,
        clock: Clock,
        worker: Worker,
        look: LogLook,
        poll_seconds: tuple[float, float],
    ) -> None:
        """Not for callers; see :meth:`open`."""
        # Set once at open.
        self.path = path
        """The log's directory."""
        self.log_id = look.extent.log_id.hex()
        """Identity of the log; 32 hex digits."""
        self._fs = fs
        self._clock = clock
        self._worker = worker
        self._cursors: CursorStore | None = None  # made on first use
        self._watch = LogWatch(path=path, clock=clock, look=look, poll_seconds=poll_seconds)
        # Used on the thread only.
        self._files = LogFiles(fs, path, look.extent)
        self._ledger = LedgerView(fs, path)
        self._abandoned: WalClosedError | None = None
        self._is_closed = False
        self._read_guard = ReadGuard(self._check_readable, self._check_home)
        abandon_in_children(self)

    # -- looking -----------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """First retained offset on local disk."""
        self._watch.observe()
        return self._watch.head

    @property
    def limit(self) -> int:
        """Offset after the last record that can be read: the writer's durable limit, or with
        ``sync="os"`` the limit of what is written."""
        self._watch.observe()
        return self._watch.limit

    async def wait_durable(self, offset: int) -> None:
        """Return when the record at ``offset`` can be read, which means that it is durable.

        Not if the writer leaves syncing to the system: only the writer can sync, so a crash of the
        machine may lose the record and leave a cursor beyond the log's end.
        """
        await self.wait_limit(offset + 1)

    @property
    def tail(self) -> int:
        """Next offset to be assigned, as far as another process can see: :attr:`limit`, unless the last
        :meth:`refresh` (or opening) found whole batches after it that are not known to be durable."""
        return max(self.limit, self._watch.written_limit)

    @property
    def epoch(self) -> int:
        """How often the log has been opened for writing."""
        self._watch.observe()
        return self._watch.epoch

    @property
    def is_polling(self) -> bool:
        """Whether the poller runs, because a caller waits."""
        return self._watch.poller is not None

    async def refresh(self) -> None:
        """Read the directory again: cell, checkpoint, segments, and the frames after the limit.

        Following a log does not need this. It finds a cell that was missing or replaced at once,
        instead of within a second of waiting. Raises LogNotFoundError if the log was removed,
        CorruptionError, StorageUnavailableError, WalClosedError.
        """
        watch = self._watch
        watch.check()
        opened = watch.view

        def look() -> LogLook:
            found = look_at(self._fs, self.path, opened)
            self._files.update(found.extent)
            return found

        try:
            found = await self._worker.run_owned(look, LogLook.discard)
        except OSError as error:
            watch.check()  # closed meanwhile, together with the directory
            raise describe_read(error, self.path) from error
        if watch.failure is not None:
            found.discard()
        else:
            watch.take(found)
        watch.check()

    # -- reading -----------------------------------------------------------------------------

    async def wait_limit(self, limit: int) -> None:
        """Return when records below ``limit`` can be read.

        Raises WalClosedError when this object is closed, LogNotFoundError when the directory is gone,
        CorruptionError when it contains another log or lost records, StorageUnavailableError.
        Cancelling has no effect on other waiters.
        """
        await self._watch.wait(limit, self._check_cell)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record.

        The caller ensures ``position < limit <= self.limit``. Raises OffsetTrimmedError if the position
        was removed, CorruptionError, StorageUnavailableError.
        """
        watch = self._watch
        watch.check()
        place, end_place = watch.place_of(position), watch.end_place
        try:
            return await self._run(
                self._files.read, position, limit, max_bytes, watch.tail_start, place, end_place
            )
        except OffsetTrimmedError as error:
            if error.head > watch.limit:  # the writer got on without a cell that would show it
                await self.refresh()
            watch.head = max(watch.head, error.head)
            raise OffsetRange(watch.head, watch.limit).trimmed(position) from error

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        """Return an offset in ``[position, limit]`` with no record of the stream between ``position``
        and it, according to the footers of sealed segments. Raises as :meth:`read`."""
        watch = self._watch
        watch.check()
        if position >= watch.tail_start:
            return position
        return await self._run(self._files.skip_stream, name, position, limit, watch.tail_start)

    # -- time --------------------------------------------------------------------------------

    async def _find_offset(self, time_us: int) -> int:
        watch = self._watch
        watch.check()
        limit = self.limit
        found = await self._run(self._files.find_offset, time_us, limit, watch.tail_start)
        return max(limit if found is None else found, self.head)

    # -- registers and streams ---------------------------------------------------------------

    async def registers(self) -> dict[str, str]:
        """Return the log's registers as they are durable now.

        Reads what was added to the active segment since the last call. Raises as :meth:`refresh`.
        """
        self._watch.check()
        return await self._run(lambda: dict(users_registers(self._ledger.look().registers)))

    async def _find_streams(self) -> dict[str, StreamInfo]:
        self._watch.check()
        return await self._run(lambda: dict(self._ledger.look().streams))

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Release the thread and the descriptors; twice is allowed. Readers end with WalClosedError."""
        self._check_home()
        self._is_closed = True
        self._read_guard.thread = 0
        if not isinstance(self._watch.failure, WalClosedError):
            self._watch.fail(WalClosedError(f"the log at {self.path} is closed"))
        try:
            if self._cursors is not None:
                await self._cursors.aclose()
            await self._watch.aclose()
        finally:
            self._worker.close()
            self._fs.close()

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process; see :mod:`walstore.core.runtime.resource`."""
        self._abandoned = self._watch.failure = error

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._check_home()

    def _check_readable(self) -> None:
        """Refuse records buffered by readers to a wrong thread, and to every caller after closing."""
        self._check_home()
        if self._is_closed:
            self._watch.check()

    def _check_home(self) -> None:
        if self._abandoned is not None:
            raise copy_error(self._abandoned)
        self._watch.guard.check()

    def _cursor_store(self) -> tuple[CursorStore, Clock]:
        self._check_home()
        if self._cursors is None:
            self._cursors = CursorStore(
                self,
                fs=self._fs,
                clock=self._clock,
                owner=this_process(),
                check_home=self._check_home,
                is_guest=True,
            )
        return self._cursors, self._clock

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_is_closed", True) or self._abandoned is not None:
            return None
        return Unclosed(f"the reader of the log at {self.path}")

    def __repr__(self) -> str:
        watch = self._watch
        return (
            f"<ReadonlyWal {self.path} [{watch.head}, {watch.limit}) epoch={watch.epoch}"
            f" waiting={watch.waiting}>"
        )

    # -- inside ------------------------------------------------------------------------------

    async def _check_cell(self, view: CellView | None) -> None:
        """Check that the open cell is the log's; without a cell, look at the files."""
        if view is None or not await self._run(view.is_current):
            await self.refresh()

    async def _run(self, call: Callable[..., _T], *args: object) -> _T:
        try:
            return await self._worker.run(call, *args)
        except OSError as error:
            self._watch.check()
            raise describe_read(error, self.path) from error


def _look_first(fs: FileSystem, directory: Path) -> tuple[FileSystem, LogLook]:
    """Anchor the file system to the directory and look at it."""
    anchored = anchor_log(fs, directory)
    try:
        return anchored, look_at(anchored, directory)
    except BaseException:
        anchored.close()
        raise


def _discard(found: tuple[FileSystem, LogLook]) -> None:
    found[1].discard()
    found[0].close()
