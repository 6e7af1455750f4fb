"""Pins: the parts of a log that are still needed, and the order of reading pins and acting on them.

Two kinds of pins hold retention back: named cursors, which are files that other processes may change,
and readers of this process that request it. Retention must see a pin made while it decides, or the pin
must get the new head. For cursors the lock of ``cursors/directory.py`` ensures that, held until the new
head is durable; for readers a lock in memory does, held only for the decision, since the event loop
takes it.

Deletes nothing and decides nothing; see ``retention_plan.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from walstore.cursors import directory as cursor_directory
from walstore.errors import WalLockedError
from walstore.log.retention_plan import Pin, RetentionPlan
from walstore.ports import FileSystem
from walstore.runtime.error_mapping import describe_read, describe_upkeep, is_full


class ReaderPins:
    """The pins of one open log's readers. Any thread may call; nothing blocks."""

    def __init__(self, head: int) -> None:
        """Begin without pins, at the log's head."""
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._pins: dict[int, Pin] = {}
        self._floor = head
        self._numbers = count()

    def add(self, offset: int, holder: str = "a reader") -> ReaderPin:
        """Pin ``offset`` and everything after it, until the pin is moved or released.

        Records already given up stay given up: then the pin's ``offset`` is the new head.
        """
        with self._lock:
            number = next(self._numbers)
            self._pins[number] = pin = Pin(max(offset, self._floor), holder)
            return ReaderPin(self, number, pin.offset)

    def settle(
        self, cursors: Sequence[Pin], decide: Callable[[Sequence[Pin]], RetentionPlan]
    ) -> RetentionPlan:
        """Return the plan that ``decide`` makes of all pins. From then on no pin can be below its head."""
        with self._lock:
            plan = decide([*cursors, *self._pins.values()])
            self._floor = max(self._floor, plan.head)
            return plan

    def _move(self, number: int, offset: int) -> int:
        with self._lock:
            found = self._pins[number]
            moved = found._replace(offset=max(offset, self._floor))
            self._pins[number] = moved
            return moved.offset

    def _remove(self, number: int) -> None:
        with self._lock:
            self._pins.pop(number, None)


class ReaderPin:
    """One reader's pin. Use as ``with pins.add(offset) as pin:``, or release it."""

    def __init__(self, pins: ReaderPins, number: int, offset: int) -> None:
        """Not for callers; see :meth:`ReaderPins.add`."""
        self._pins = pins
        self._number = number
        self.offset = offset
        """The offset that is pinned."""

    def move(self, offset: int) -> None:
        """Pin another offset instead. If that was given up already, pin the head."""
        self.offset = self._pins._move(self._number, offset)  # noqa: SLF001

    def release(self) -> None:
        """End the pin; twice is allowed."""
        self._pins._remove(self._number)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class LogPins:
    """All pins of one open log. Blocking, but for ``readers``; for the writer's thread."""

    def __init__(self, fs: FileSystem, directory: Path, readers: ReaderPins) -> None:
        self._fs = fs
        self._directory = directory
        self.readers = readers
        """Pins of this process; any thread may add one."""

    @contextlib.contextmanager
    def hold(self, now_us: int) -> Iterator[HeldPins]:
        """Keep all cursors in place, and yield the pins to decide on.

        Make the decision durable before leaving. Raises WalLockedError if another holder has the
        cursors, for some milliseconds, and StorageUnavailableError if they cannot be read.
        """
        with contextlib.ExitStack() as stack:
            refusal: OSError | None = None
            cursors: Sequence[Pin] = ()
            try:
                try:
                    stack.enter_context(cursor_directory.hold_cursors(self._fs, self._directory))
                    cursors = cursor_pins(self._fs, self._directory, now_us)
                except OSError as error:
                    if not is_full(error) or self._has_cursors():
                        raise
                    refusal = error
            except OSError as error:
                if is_full(error):
                    raise describe_upkeep(error, "the head cannot be moved") from error
                raise describe_read(error, self._directory) from error
            yield HeldPins(self.readers, cursors, refusal, self._has_cursors)

    def _has_cursors(self) -> bool:
        """Return whether a cursor was ever made; OSError."""
        return cursor_directory.DIRECTORY_NAME in self._fs.list(self._directory)


class HeldPins:
    """All pins of a log while a head is decided on. Blocking; made by :meth:`LogPins.hold`."""

    def __init__(
        self,
        readers: ReaderPins,
        cursors: Sequence[Pin],
        refusal: OSError | None,
        has_cursors: Callable[[], bool],
    ) -> None:
        self._readers = readers
        self._cursors = cursors
        self._has_cursors = has_cursors
        self.refusal = refusal
        """Why the cursors are not locked: there are none, and a full disk has no room for their directory.
        Without this a full disk could not be trimmed. None if they are locked."""

    def settle(self, decide: Callable[[Sequence[Pin]], RetentionPlan]) -> RetentionPlan:
        """Return the plan that ``decide`` makes of all pins; see :meth:`ReaderPins.settle`."""
        return self._readers.settle(self._cursors, decide)

    def confirm(self) -> None:
        """Check that no cursor was made meanwhile, if they are not locked. WalLockedError if there may
        be one.

        Show the head first: the process that makes the first cursor makes the directory, then reads the
        head. So a cursor that this check misses is made at or above that head, or not at all.
        """
        try:
            is_new = self.refusal is not None and self._has_cursors()
        except OSError as error:
            raise describe_upkeep(error, "the head cannot be moved") from error
        if is_new:
            raise WalLockedError("the log's first cursor is being made", path="cursors")


def cursor_pins(fs: FileSystem, directory: Path, now_us: int) -> list[Pin]:
    """Return the pins of the cursors that have not expired. Blocking; only under their lock.

    One whose file cannot be read pins everything. Raises OSError.
    """
    found = []
    for cursor in cursor_directory.pins(fs, directory, now_us):
        if cursor.is_expired:
            continue
        deadline_us = cursor.state.deadline_us if cursor.state else 0
        what = (
            f"cursor {cursor.name}"
            if cursor.problem is None
            else f"cursor {cursor.name}, unreadable"
        )
        found.append(Pin(cursor.position, what, deadline_us or None))
    return found
