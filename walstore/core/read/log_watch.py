"""LogWatch: the limits of a log that another process writes, and waiting for them to advance.

The writer stores its durable limit in a few bytes of a small file (the durable cell). Reading them is
one system call that never waits for the disk. One poller serves all waiters. It runs only while there
are any, and polls less often the longer nothing arrives. An event for each store would cost more, and a
busy log commits more often than readers need to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from walstore.core.files.log_bounds import LogBounds, read_bounds
from walstore.core.files.log_files import BatchPlace
from walstore.core.format.checkpoint import CELL_BYTES, CELL_FILE_NAME, DurableCell, decode_cell
from walstore.core.ports import CellView, Clock, FileSystem
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import LoopGuard
from walstore.core.runtime.tasks import start_task
from walstore.core.runtime.watermark import Watermark
from walstore.errors import CorruptionError, StorageUnavailableError, WalError

SHORTEST_POLL_SECONDS: Final = 0.0005
LONGEST_POLL_SECONDS: Final = 0.05
_IDLE_SHARE: Final = 0.125
"""Maximum delay until a record is noticed, as a fraction of the time for which none had arrived."""
_CHECK_SECONDS: Final = 1.0
"""How often the poller checks that the open cell is still the log's."""
_CHECK_SHARE: Final = 20
"""Without a cell the poller walks the active segment, at intervals of at least this many times the walk's
duration."""


@dataclass(frozen=True, slots=True)
class LogLook:
    """What a look at the directory found. The cell belongs to the caller that takes it."""

    extent: LogBounds
    cell: CellView | None
    """The log's cell, newly opened; None if there is none, or if it is open already."""
    keeps_cell: bool
    """Whether the cell that was open before is still the log's."""

    def discard(self) -> None:
        """Release a cell that is not taken."""
        if self.cell is not None:
            self.cell.close()


def look_at(fs: FileSystem, directory: Path, opened: CellView | None = None) -> LogLook:
    """Look at a directory and open its cell, unless ``opened`` is already that cell. Blocking.

    Raises as :func:`walstore.core.files.log_bounds.read_bounds`, and OSError.
    """
    if opened is not None and opened.is_current():
        return LogLook(read_bounds(fs, directory), None, keeps_cell=True)
    cell: CellView | None = None
    try:
        cell = fs.view_cell(directory / CELL_FILE_NAME, CELL_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        cell = None
    try:
        return LogLook(read_bounds(fs, directory), cell, keeps_cell=False)
    except BaseException:
        if cell is not None:
            cell.close()
        raise


class LogWatch:
    """Limits of a log as seen by another process. Belongs to one event loop; no limit goes back."""

    def __init__(
        self, *, path: Path, clock: Clock, look: LogLook, poll_seconds: tuple[float, float]
    ) -> None:
        # Set once.
        self._path = path
        self._clock = clock
        self._log_id = look.extent.log_id
        self._shortest_seconds, self._longest_seconds = poll_seconds
        self._loop = asyncio.get_running_loop()
        self.guard = LoopGuard("log", self._loop)
        """Refuses other threads and event loops."""
        # The state seen so far.
        self.view: CellView | None = None
        """The open cell."""
        self.head = 0
        self.epoch = 0
        self.tail_start = 0
        """First offset of the last segment known."""
        self.written_limit = 0
        """End of the whole batches that the last look saw."""
        self.failure: WalError | None = None
        """Why watching ended permanently."""
        self._seen = b""
        self._is_torn = False
        self._cell: DurableCell | None = None
        self._outdated: DurableCell | None = None
        """What the cell reports about records lost in a crash of the machine."""
        self._next: tuple[int, BatchPlace | None] = (0, None)
        self._limit = Watermark(0, self._loop)
        self._moved_at = clock.monotonic()
        # The waiters and their poller.
        self.waiting = 0
        """How many callers wait."""
        self.poller: asyncio.Task[None] | None = None
        """Runs while there are waiters."""
        self.take(look)

    @property
    def limit(self) -> int:
        """Every offset below it can be read. As of the last :meth:`observe`."""
        return self._limit.value

    def observe(self) -> None:
        """Adopt the current content of the cell. A half-updated cell is ignored until the next poll."""
        if self.failure is not None:
            return
        self.guard.check()
        if self.view is None:
            return
        try:
            data = self.view.load()
        except OSError:
            self._is_torn = True
            return
        if data == self._seen:
            return
        cell = decode_cell(data)
        self._is_torn = cell is None
        if cell is None:
            return
        self._seen = data
        if cell == self._outdated:
            return
        if cell.epoch < self.epoch:
            return  # a file put back from an older copy
        if cell.epoch > self.epoch and cell.visible_limit < self.limit:
            self._lose(cell.visible_limit)
            return
        self._cell = cell
        self.epoch = cell.epoch
        self.head = max(self.head, cell.head)
        self.tail_start = max(self.tail_start, cell.tail_start)
        self._advance(cell.visible_limit)

    def take(self, look: LogLook) -> None:
        """Adopt what a look found."""
        extent = look.extent
        if not look.keeps_cell:
            if self.view is not None:
                self.view.close()
            self.view, self._seen, self._is_torn, self._cell = look.cell, b"", False, None
        if extent.log_id != self._log_id:
            self.fail(
                CorruptionError(
                    "another log has taken this one's place; open it again",
                    path=str(self._path),
                    expected=self._log_id.hex(),
                    found=extent.log_id.hex(),
                )
            )
            return
        if extent.epoch > self.epoch > 0 and extent.limit < self.limit:
            self._lose(extent.limit)
            return
        self.epoch = max(self.epoch, extent.epoch)
        self.head = max(self.head, extent.head)
        self.tail_start = max(self.tail_start, extent.starts[-1])
        self.written_limit = extent.written_limit
        if extent.cell is not None and extent.cell.visible_limit > extent.limit:
            self._outdated = extent.cell
        self._advance(extent.limit)
        self.observe()

    @property
    def end_place(self) -> BatchPlace | None:
        """Where the durable frames end, if that is at :attr:`limit`."""
        cell = self._cell
        if cell is None or not self.limit == cell.durable_limit == cell.visible_limit:
            return None
        return BatchPlace(cell.tail_start, cell.tail_position)

    def place_of(self, offset: int) -> BatchPlace | None:
        """Return the place of a record that a caller has waited for, if it is known."""
        waited, place = self._next
        return place if waited == offset else None

    async def wait(self, limit: int, check: Callable[[CellView | None], Awaitable[None]]) -> None:
        """Return when the limit has reached ``limit``; raises the error that ended the watching or the
        poller.

        ``check(cell)`` is awaited at intervals; it must look at the directory again if that cell is
        None or not the log's.
        """
        self.observe()
        self.check()
        if self.limit >= limit:
            return
        cell = self._cell
        if cell is not None and cell.durable_limit > cell.tail_start:
            # Place of the next record: its waiter continues to read there.
            self._next = (cell.durable_limit, BatchPlace(cell.tail_start, cell.tail_position))
        if self.poller is None:
            self.poller = start_task(self._poll(check), name=f"walstore poll {self._path}")
        self.waiting += 1
        try:
            await self._limit.wait(limit)
        finally:
            self.waiting -= 1
            if self.waiting == 0:
                self._stop_polling()

    def check(self) -> None:
        """Raise the error that ended the watching permanently, or WrongLoopError."""
        if self.failure is not None:
            raise copy_error(self.failure)
        self.guard.check()

    def fail(self, error: WalError) -> None:
        """End permanently: present and later waiters get a copy of the error."""
        self.failure = error
        self._fail_waiters(error)

    async def aclose(self) -> None:
        """End the poller, then close the cell. Call :meth:`fail` first. Twice is allowed."""
        poller = self.poller
        try:
            if poller is not None:
                self._stop_polling()
                await asyncio.wait((poller,))
        finally:
            if self.view is not None:
                self.view.close()

    # -- inside ------------------------------------------------------------------------------

    def _advance(self, limit: int) -> None:
        if limit > self.limit:
            self._moved_at = self._clock.monotonic()
            self._limit.advance(limit)

    def _lose(self, limit: int) -> None:
        """The writer has restarted with fewer records than had been durable."""
        self.fail(
            CorruptionError(
                f"the log ends at {limit} although offsets below {self.limit} had been durable; its "
                "disk lost records, or older files were put in their place",
                path=str(self._path),
                expected=self.limit,
                found=limit,
            )
        )

    async def _poll(self, check: Callable[[CellView | None], Awaitable[None]]) -> None:
        """Poll the cell until the last waiter cancels this task."""
        clock = self._clock
        due_at = clock.monotonic() + _CHECK_SECONDS
        try:
            while True:
                idle_seconds = clock.monotonic() - self._moved_at
                pause = max(idle_seconds * _IDLE_SHARE, self._shortest_seconds)
                await clock.sleep(min(pause, self._longest_seconds))
                self.observe()
                begun_at = clock.monotonic()
                if begun_at >= due_at:
                    await check(None if self._is_torn else self.view)
                    ended_at = clock.monotonic()
                    due_at = ended_at + max(_CHECK_SECONDS, _CHECK_SHARE * (ended_at - begun_at))
        except WalError as error:
            self.poller = None
            self._fail_waiters(error)
        except Exception as error:  # noqa: BLE001 - a defect here must not leave waiters hanging
            self.poller = None
            failure = StorageUnavailableError(f"{self._path} cannot be followed: {error!r}")
            failure.__cause__ = error
            self._fail_waiters(failure)

    def _stop_polling(self) -> None:
        poller, self.poller = self.poller, None
        if poller is not None:
            poller.cancel()

    def _fail_waiters(self, error: WalError) -> None:
        """Fail the present waiters; later ones start again."""
        failed, self._limit = self._limit, Watermark(self.limit, self._loop)
        failed.fail(lambda _: copy_error(error))
