"""CopyLog: the records of a copy, for readers on its machine. They see what is replicated, and no more.

A copy may have records that a takeover cuts. So the primary says with each write up to which offset enough
copies have the log *and* this one has it durably; that limit stays true, whichever machine leads. A copy
that its primary does not reach stays where it was: what it shows is a prefix of the log, maybe an old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from walstore.cluster.replication.replica import Replica
from walstore.core.batches.batch import Batch
from walstore.core.faces.readable_log import OneLimitLog
from walstore.core.files.directory import list_segments
from walstore.core.files.log_bounds import LogBounds
from walstore.core.files.log_files import LogFiles
from walstore.core.files.segment_file import SEARCH_BYTES
from walstore.core.format.segment import SegmentIndex
from walstore.core.ports import FileSystem
from walstore.core.read.reader import ReadGuard
from walstore.core.runtime.error_mapping import copy_error, describe_read
from walstore.core.runtime.resource import LoopGuard
from walstore.core.runtime.threads import Worker
from walstore.core.runtime.watermark import Watermark
from walstore.errors import (
    CorruptionError,
    OffsetTrimmedError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)

_T = TypeVar("_T")


class CopyLog(OneLimitLog):
    """One copy for its readers. Belongs to the event loop of its node, which ends it.

    Reads have a thread of their own: acknowledgements do not wait for them. Readers raise
    StorageUnavailableError when the copy is made again, or its machine leads the log.
    """

    def __init__(self, fs: FileSystem, path: Path, replica: Replica) -> None:
        """Read the files of ``replica`` in ``path``."""
        self.path = path
        """The copy's directory."""
        self.is_watched = False
        """Whether somebody has asked for it: the primary then says at once what is replicated."""
        self._head = 1
        self._home = LoopGuard(f"copy at {path}")
        self._read_guard = ReadGuard(self.check_owner)
        self._fs = fs
        self._replica = replica
        self._visible = Watermark(0, asyncio.get_running_loop())
        self._files: LogFiles | None = None
        """Used on the thread only."""
        self._worker: Worker | None = None
        self._failure: WalError | None = None

    # -- for the node ------------------------------------------------------------------------

    def show(self, limit: int) -> None:
        """Let readers see what is below ``limit``: the primary says that enough copies have it, and this."""
        self._visible.advance(limit)

    def restart(self, head: int = 1) -> None:
        """Forget everything: the copy is made again. Waiting callers get StorageUnavailableError."""
        failed, self._visible = self._visible, Watermark(0, asyncio.get_running_loop())
        self._files, self._head = None, head
        error = StorageUnavailableError("the copy here is made again; ask another machine")
        failed.fail(lambda _: copy_error(error))

    def note_head(self, head: int) -> None:
        """Note that segments below an offset are gone."""
        self._head = max(self._head, head)

    def fail(self, error: WalError) -> None:
        """Refuse everything from now on, and end the waits."""
        if self._failure is None:
            self._failure = error
            self._visible.fail(lambda _: copy_error(error))
            if self._worker is not None:
                self._worker.close()

    # -- looking -----------------------------------------------------------------------------

    async def begin(self) -> None:
        """Look where it begins. StorageUnavailableError if there is nothing yet."""
        self.is_watched = True
        self.note_head(await self._run(self._first))

    async def refresh(self) -> None:
        """Check that the copy can be read: its limit is what the primary said last."""
        self._check()

    async def aclose(self) -> None:
        """Refuse everything from now on; the node does so when it ends, or leads the log."""
        self.fail(WalClosedError(f"the copy at {self.path} is closed"))

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._home.check()

    @property
    def head(self) -> int:
        """First offset that is here, once :meth:`begin` was called."""
        return self._head

    @property
    def log_id(self) -> str:
        """Identity of the log, 32 hex digits; empty while there is nothing of it."""
        return self._replica.end.log_id.hex()

    @property
    def epoch(self) -> int:
        """Of the primary that the copy obeys."""
        return self._replica.promise.epoch

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be read any more: this machine leads the log now, or has no copy."""
        return self._failure is not None

    @property
    def limit(self) -> int:
        """Offset after the last record that is known to be replicated and is here."""
        return max(self._visible.value, self.head)

    @property
    def replicated_limit(self) -> int:
        """Same as :attr:`limit`."""
        return self.limit

    @property
    def uploaded_limit(self) -> int:
        """0: the copy does not know."""
        return 0

    # -- reading -----------------------------------------------------------------------------

    async def wait_limit(self, limit: int) -> None:
        """Return when records below ``limit`` can be read."""
        self._check()
        await self._visible.wait(limit)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record.

        Raises OffsetTrimmedError, CorruptionError, StorageUnavailableError.
        """
        tail_start = self._replica.end.place.segment
        visible = self._visible

        def read() -> list[Batch]:
            return self._look().read(position, limit, max_bytes, tail_start)

        try:
            return await self._run(read)
        except OffsetTrimmedError as error:
            self.note_head(error.head)
            raise
        except CorruptionError:
            if self._visible is not visible:  # the files were replaced meanwhile
                raise StorageUnavailableError("the copy here is made again") from None
            raise

    async def _find_offset(self, time_us: int) -> int:
        limit, tail_start = self.limit, self._replica.end.place.segment
        found = await self._run(lambda: self._look().find_offset(time_us, limit, tail_start))
        found = max(limit if found is None else found, self.head)
        if found > self.head:  # not what comes behind a segment that is missing
            await self.read(found - 1, found, SEARCH_BYTES)
        return found

    # -- inside ------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise copy_error(self._failure)

    async def _run(self, call: Callable[[], _T]) -> _T:
        """Call on the thread of the reads."""
        self._check()
        if self._worker is None:
            self._worker = Worker("copy")
        try:
            return await self._worker.run(call)
        except OSError as error:
            self._check()
            raise describe_read(error, self.path) from error

    def _look(self) -> LogFiles:
        """Return the files. Blocking, on the thread of the reads."""
        files = self._files
        if files is None:
            starts = list_segments(self._fs, self.path)
            if not starts:
                raise StorageUnavailableError("the copy here has nothing of the log yet")
            files = self._files = LogFiles(self._fs, self.path, _bounds(starts))
        return files

    def _first(self) -> int:
        self._look()
        return list_segments(self._fs, self.path)[0]


def _bounds(starts: Sequence[int]) -> LogBounds:
    """Return what a look at the files begins with. How far they count is for the primary to say."""
    return LogBounds(
        log_id=b"",
        epoch=0,
        head=starts[0],
        limit=0,
        written_limit=0,
        starts=tuple(starts),
        tail_index=SegmentIndex(),
        cell=None,
        hint=None,
    )
