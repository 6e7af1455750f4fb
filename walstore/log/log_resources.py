"""LogResources: threads, budgets and descriptors of an open log: its own, or shared with the logs of a
store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from walstore.core.append.budgets import CacheBudget, ChannelBudget
from walstore.core.append.disk_watch import DiskWatch
from walstore.core.files.locks import lock_log
from walstore.core.files.open_files import OpenFiles
from walstore.core.ports import FileSystem, Lock
from walstore.core.runtime.threads import Lane, Pool, Worker

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResources:
    """Everything that a log shares with others, or has of its own."""

    writing: Lane
    """Lane that writes the log's files, one call at a time."""
    reading: Lane
    """Lane that reads its files."""
    make_spilling: Callable[[], Lane]
    """Makes the lane for files of large transactions, on first use."""
    freeing: Lane | None = None
    """Lane that frees the blocks of deleted files in parts; None in a store, whose open files are bounded."""
    take_lock: Callable[[FileSystem, Path, str], Lock] = lock_log
    defers_epoch: bool = False
    """Whether a cleanly closed log is opened without writing; see :func:`recover_log`."""
    cache: CacheBudget | None = None
    channel: ChannelBudget | None = None
    disk_watch: DiskWatch | None = None
    """Watches the disk for all logs of a store; None for a log on its own, which makes one."""
    on_closed: Callable[[], None] = lambda: None
    """Called once the log is closed, on the event loop."""

    @classmethod
    def alone(cls) -> LogResources:
        """Return the resources of a log outside a store."""
        reading = Worker("reader", threads=2)
        return cls(
            writing=Worker("writer"),
            reading=reading,
            freeing=reading,
            make_spilling=lambda: Worker("spill"),
        )

    def adopt(self, park: Callable[[], None]) -> None:
        """Set ``park()``, which closes the log's files when others need the room. Called with the files
        held, on the writer's thread."""
        if isinstance(self.writing, FileLane):
            self.writing.slot.park = park

    def close(self) -> None:
        """Release the lanes; for a log that is closed or was not opened."""
        self.writing.close()
        self.reading.close()


class FileLane(Lane):
    """A lane whose calls hold the log's files while they run, so that they are not parked."""

    __slots__ = ("slot",)

    def __init__(self, pool: Pool, files: OpenFiles) -> None:
        super().__init__(pool)
        self.slot = files.slot(_nothing_to_park)

    def close(self) -> None:
        """Accept no more calls, and stop counting as open files."""
        super().close()
        self.slot.close()

    def begin_through(
        self,
        call: Callable[..., _T],
        *args: object,
        then: Callable[[_T], object] | None = None,
        make_future: Callable[..., asyncio.Future[_T]] | None = None,
    ) -> asyncio.Future[_T]:
        """As of every lane; the call holds the files."""
        return super().begin_through(
            self._hold_and_call, call, *args, then=then, make_future=make_future
        )

    def _hold_and_call(self, call: Callable[..., _T], *args: object) -> _T:
        with self.slot:
            return call(*args)


def _nothing_to_park() -> None:
    """Placeholder until a log is open."""
