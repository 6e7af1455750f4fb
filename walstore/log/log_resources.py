"""LogResources: what an open log gets from where it lives. By itself it has threads of its own; in a store it
shares threads, budgets and descriptors with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from walstore.append.budgets import CacheBudget, ChannelBudget
from walstore.append.disk_watch import DiskWatch
from walstore.files.locks import lock_log
from walstore.files.open_files import OpenFiles
from walstore.ports import FileSystem, Lock
from walstore.runtime.threads import Lane, Pool, Worker

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResources:
    """Everything a log shares, or has for itself."""

    writing: Lane
    """Where the log's files are written, one call at a time."""
    reading: Lane
    """Where its files are read."""
    make_spilling: Callable[[], Lane]
    """Makes the lane for files of large transactions, when there is the first."""
    take_lock: Callable[[FileSystem, Path, str], Lock] = lock_log
    defers_epoch: bool = False
    """Whether a log that was closed cleanly is opened without writing; see :func:`open_log`."""
    cache: CacheBudget | None = None
    channel: ChannelBudget | None = None
    disk_watch: DiskWatch | None = None
    """Watches the disk for all logs of a store; a log by itself has its own."""
    on_closed: Callable[[], None] = lambda: None
    """Called once the log is closed, on the event loop."""

    @classmethod
    def alone(cls) -> LogResources:
        """Return the host of a log that lives by itself."""
        return cls(
            writing=Worker("writer"),
            reading=Worker("reader", threads=2),
            make_spilling=lambda: Worker("spill"),
        )

    def adopt(self, park: Callable[[], None]) -> None:
        """Let the log's files be closed by ``park()`` when others need the room. Called with the files
        held, on the writer's thread."""
        if isinstance(self.writing, FileLane):
            self.writing.slot.park = park

    def close(self) -> None:
        """Let go of the lanes; for a log that is closed or was not opened."""
        self.writing.close()
        self.reading.close()


class FileLane(Lane):
    """A lane whose calls hold the log's files while they run, so that nobody parks them."""

    __slots__ = ("slot",)

    def __init__(self, pool: Pool, files: OpenFiles) -> None:
        super().__init__(pool)
        self.slot = files.slot(_nothing_to_park)

    def close(self) -> None:
        """Accept no more calls, and take no room among the open files."""
        super().close()
        self.slot.close()

    def _start(
        self,
        call: Callable[..., _T],
        args: tuple[object, ...],
        then: Callable[[_T], object] | None = None,
        make_future: Callable[..., asyncio.Future[_T]] = asyncio.Future,
    ) -> asyncio.Future[_T]:
        return super()._start(self._hold_and_call, (call, *args), then, make_future)

    def _hold_and_call(self, call: Callable[..., _T], *args: object) -> _T:
        with self.slot:
            return call(*args)


def _nothing_to_park() -> None:
    """Until a log is open."""
