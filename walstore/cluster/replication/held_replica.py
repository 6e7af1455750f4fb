"""HeldReplica: a copy that a node has open, and whether its directory is still the one at its path."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple, Self

from walstore.cluster.replication.copies import LocalCopy
from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.replication.replica import Replica
from walstore.core.files.directory import LOCK_NAME
from walstore.core.ports import CellView, FileSystem
from walstore.core.runtime.error_mapping import describe_open
from walstore.core.runtime.tasks import run_to_end
from walstore.core.runtime.threads import Worker
from walstore.errors import StorageUnavailableError

LOOK_SECONDS: Final = 5.0
"""How often the directory of a copy in use is looked for at its path."""


class _OpenReplica(NamedTuple):
    """A copy with its lock file as the path leads to it, not as the copy holds it."""

    replica: Replica
    place: CellView

    @classmethod
    def open(cls, fs: FileSystem, path: Path) -> Self:
        replica = Replica.open(fs, path)
        try:
            return cls(replica, fs.view_cell(path / LOCK_NAME, 0))
        except BaseException:
            replica.release()
            raise

    def release(self) -> None:
        self.place.close()
        self.replica.release()


class HeldReplica:
    """One log of a node: its copy, and the thread that its calls run on. Made by :meth:`open`."""

    @classmethod
    async def open(cls, fs: FileSystem, path: Path, *, look_at: float) -> Self:
        """Lock and recover the copy in a directory, or make an empty one; raises as ``Replica.open``."""
        worker = Worker("replica")
        try:
            found = await worker.run_owned(
                lambda: _OpenReplica.open(fs, path), lambda made: made.release()
            )
        except OSError as error:
            worker.close()
            raise describe_open(error, path) from error
        except BaseException:
            worker.close()
            raise
        return cls(found, worker, CopyLog(fs, path, found.replica), look_at)

    def __init__(self, found: _OpenReplica, worker: Worker, log: CopyLog, look_at: float) -> None:
        """Not for callers; see :meth:`open`."""
        self.replica = found.replica
        self.copy = LocalCopy(found.replica, worker)
        self.log = log
        """For readers."""
        self.look_at = look_at
        """When its node looks for its directory next, by the node's clock."""
        self._found = found
        self._worker = worker

    async def is_in_place(self) -> bool:
        """Return whether its directory is at its path, with its lock; True if that cannot be found out.

        If not, what is written here is lost, or another program has a log at the path.
        """
        with contextlib.suppress(OSError):
            return await self._worker.run_through(self._found.place.is_current)
        return True

    async def aclose(self, *, is_lost: bool = False) -> None:
        """Make all durable and unlock the log. Its readers have to go elsewhere.

        ``is_lost``: its directory was not in its place any more.
        """
        self.log.fail(
            StorageUnavailableError("this machine keeps the copy no longer, or leads the log now")
        )
        await run_to_end(self._close(is_lost=is_lost))

    async def _close(self, *, is_lost: bool) -> None:
        try:
            await self.copy.aclose()
        finally:
            if is_lost:
                with contextlib.suppress(OSError):  # removed
                    await self._worker.run_through(self.replica.forget_if_emptied)
            await self._worker.run_through(self._found.release)
            self._worker.close()
