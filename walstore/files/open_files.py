"""OpenFiles: how many logs of a store have their files open. Belongs to all threads.

When the limit is reached and a log needs its files, those of the least recently used log are closed. No
timer is involved: an idle log keeps its files until another one needs the room. The bound may be exceeded
only by the logs that are in use at this moment, hence by the number of threads.

A log's files are used only by the holder of its :class:`FileSlot`: its own writer thread, or another log's
while it parks them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType


class FileSlot:
    """One log's right to touch its files; a context manager. Not reentrant."""

    __slots__ = ("_files", "_lock", "park")

    def __init__(self, files: OpenFiles, park: Callable[[], None]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.park = park
        """Closes the log's files; never raises. Called with the slot held, on any thread."""

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._files.make_room(self)
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def close(self) -> None:
        """Note that the log closed its files for good. The slot is not used any more."""
        self._files.forget(self)

    def try_hold(self) -> bool:
        """Hold the slot if it is free."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release a slot that was held by :meth:`try_hold`."""
        self._lock.release()


class OpenFiles:
    """At most ``limit`` logs with open files, plus those in use; the rest are parked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        # Logs whose files are open, the least recently used first.
        self._open: OrderedDict[FileSlot, None] = OrderedDict()
        self.parkings = 0
        """Number of times a log was parked."""

    def __len__(self) -> int:
        return len(self._open)

    def slot(self, park: Callable[[], None]) -> FileSlot:
        """Return the slot of one more log, parked for now."""
        return FileSlot(self, park)

    def make_room(self, slot: FileSlot) -> None:
        """Note that a log is used now, and park others if there are too many."""
        with self._guard:
            self._open[slot] = None
            self._open.move_to_end(slot)
            parked = self._pick(len(self._open) - self._limit, slot)
        for victim in parked:
            try:
                victim.park()
            finally:
                victim.release()

    def forget(self, slot: FileSlot) -> None:
        """Note that a log has no files open any more."""
        with self._guard:
            self._open.pop(slot, None)

    def _pick(self, count: int, user: FileSlot) -> list[FileSlot]:
        """Remove and hold up to ``count`` unused logs, the least recently used first."""
        picked: list[FileSlot] = []
        if count <= 0:
            return picked
        for candidate in self._open:
            if candidate is not user and candidate.try_hold():
                picked.append(candidate)
                if len(picked) == count:
                    break
        for victim in picked:
            del self._open[victim]
        self.parkings += len(picked)
        return picked
