"""LogHandler: a handler of :mod:`logging` that appends to a log, opened here or served.

``logging.getLogger().addHandler(LogHandler("unix:///run/events.sock"))``, or
``"class": "walstore.log_handler.LogHandler"`` with ``"target"`` in a configuration of :mod:`logging.config`.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from walstore import sync
from walstore.core.batches.conditions import check_name
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import Opening
from walstore.core.settings import parse_durability
from walstore.core.validation.arguments import as_count, as_seconds
from walstore.errors import LimitExceededError, RecordTooLargeError, WalClosedError, WalError
from walstore.log.wal import Wal
from walstore.net.remote.remote_wal import connect
from walstore.records import AnyDurability

_GROUP_RECORDS: Final = 500
_GROUP_BYTES: Final = 1 << 20
_RETRY_SECONDS: Final = 1.0
_LAST: Final = -1000
"""Priority of what multiprocessing calls at the end of a process: below 0 it has waited for its children."""
_LONGEST_BITS: Final = 4096
"""Python writes no longer numbers in decimal without being told to."""
_DEEPEST: Final = 20
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; anything else was passed as ``extra``."""


class LogHandler(logging.Handler):
    """Appends each record of :mod:`logging` to a log, from a thread of its own.

    Logging never waits and never raises: beyond ``capacity`` records that the log has not taken, further
    ones are dropped, and the next that is written says how many. While the log cannot be reached or opened
    it is tried again every second, and what went wrong is written to stderr once. A record is in the log
    once, also if the connection is lost meanwhile.

    A record is a JSON object with ``time``, ``level``, ``logger``, ``message``, ``exception`` if there was
    one and what was passed as ``extra``, with ``extra_`` before a name that is one of these. What JSON does
    not have is text, NaN included. With a formatter it is the formatter's text. Records of walstore
    itself are left out. After a fork the child connects by itself; a log that the parent has opened in a
    directory stays the parent's, so serve it instead. What is waiting is written when the program ends, and
    when a process of :mod:`multiprocessing` does; whoever calls :func:`os._exit` calls :meth:`flush` before.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        level: int | str = logging.NOTSET,
        stream: str | None = None,
        durability: AnyDurability | None = None,
        capacity: int = 10_000,
        flush_seconds: float = 5.0,
        **options: Any,
    ) -> None:
        """``target`` is an address such as ``unix:///run/events.sock``, or the directory of a log to open.

        ``options`` are those of :func:`walstore.connect` or :meth:`walstore.Wal.open`. ``flush_seconds`` is
        how long :meth:`flush` and :meth:`close` wait, 0 or more; interpreters that end call both. Nothing is
        opened before the first record. ValueError or TypeError for bad arguments.
        """
        self._capacity = as_count(capacity, "capacity", high=1 << 24)
        self.flush_seconds = as_seconds(flush_seconds, "flush_seconds")
        """As given."""
        self._target = os.fspath(target)
        self._open: Callable[[], Opening[Any]] = partial(
            _opening_of(self._target), self._target, **options
        )
        self._open()  # it raises for what it cannot mean, and opens nothing yet
        self._stream = None if stream is None else check_name(stream, "stream")
        self._durability = None if durability is None else parse_durability(durability)
        self.dropped = 0
        """How many of the records that were logged were dropped."""
        self._reset()
        super().__init__(level)
        _handlers.add(self)

    def _reset(self) -> None:
        """Begin with nothing, as in a child process."""
        self._process = os.getpid()
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._in_progress = 0
        self._dropped_since = 0
        self._is_closing = False
        self._has_complained = False
        self._thread: threading.Thread | None = None
        # The thread's own.
        self._log: sync.BlockingLog | None = None
        self._begin_to_count()

    def _begin_to_count(self) -> None:
        """Number what is appended from 1, as a producer of another name."""
        self._producer = f"logging-{secrets.token_hex(8)}"
        self._sequence = 0

    # -- logging -----------------------------------------------------------------------------

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out the records of walstore, before the lock that :meth:`flush` may be called with."""
        return record.name.partition(".")[0] != "walstore" and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the thread that appends; drop it if there are too many."""
        try:
            value = self._render(record)
        except Exception:  # noqa: BLE001 - as every handler: logging fails no program
            self.handleError(record)
            return
        if self._process != os.getpid():
            self._reset()
        with self._changed:
            if self._is_closing or len(self._waiting) >= self._capacity:
                self.dropped += 1
                self._dropped_since += 1
                return
            self._waiting.append((value, int(record.created * 1e6)))
            if self._thread is None:
                _close_at_the_end_of_a_child()
                self._thread = threading.Thread(
                    target=self._run, name="walstore logging", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything logged so far is in the log, up to ``flush_seconds``."""
        if self._process == os.getpid():
            with self._changed:
                self._changed.wait_for(self._is_idle, self.flush_seconds)

    def close(self) -> None:
        """Write what is waiting and close the log, up to ``flush_seconds`` for both. Twice is allowed."""
        now = SystemClock().monotonic
        deadline = now() + self.flush_seconds
        self.flush()
        if self._process == os.getpid():
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            if self._thread is not None:
                self._thread.join(max(0.0, deadline - now()))
        super().close()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._in_progress

    def _render(self, record: logging.LogRecord) -> bytes:
        if self.formatter is not None:
            return self.format(record).encode(errors="replace")
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _PLAIN:
                while name in fields:
                    name = f"extra_{name}"
                fields[name] = value
        try:
            text = json.dumps(fields, default=str, allow_nan=False)
        except Exception:  # noqa: BLE001 - also what an extra's own methods raise
            text = json.dumps(_plain(fields, ()))
        return text.encode(errors="replace")

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while group := self._take():
            self._append(group)
            with self._changed:
                self._in_progress = 0
                self._changed.notify_all()
        self._discard()

    def _append(self, group: list[tuple[bytes, int]], *, tells: bool = True) -> None:
        """Append records, however often it takes; drop those that the log refuses.

        ``tells``: before them a record that says how many were dropped, if there are any.
        """
        values = [value for value, _ in group]
        with self._changed:
            dropped = self._dropped_since if tells else 0
        if dropped:
            text = f"{dropped} records were dropped before this one"
            note = {"level": "WARNING", "logger": "walstore", "message": text}
            values.insert(0, json.dumps(note).encode())
        while True:
            try:
                if self._log is None:
                    self._log = sync.BlockingLog(self._open())
                self._log.append_once(
                    self._producer, self._sequence + 1, values,
                    stream=self._stream, timestamp_us=group[0][1], durability=self._durability,
                )  # fmt: skip
            except (RecordTooLargeError, LimitExceededError, ValueError, TypeError) as error:
                if len(values) == 1:
                    self._give_up(group, error)
                for one in group if len(values) > 1 else ():
                    self._append([one], tells=False)
                return
            except WalError as error:
                if isinstance(error, WalClosedError):
                    self._discard()
                if not self._complain(error):
                    self._give_up(group, error)
                    self._begin_to_count()  # it may be in the log, and what follows must not have its number
                    return
            else:
                self._sequence += 1
                with self._changed:
                    self._dropped_since -= dropped
                return

    def _discard(self) -> None:
        """Close the log; the next append opens it again."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except WalError as error:
                self._say(error)

    def _take(self) -> list[tuple[bytes, int]]:
        """Return the next records to append together; none when the handler is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            group: list[tuple[bytes, int]] = []
            size = 0
            while self._waiting and len(group) < _GROUP_RECORDS and size < _GROUP_BYTES:
                group.append(self._waiting.popleft())
                size += len(group[-1][0])
            self._in_progress = len(group)
            return group

    def _give_up(self, group: list[tuple[bytes, int]], error: Exception) -> None:
        with self._changed:
            self.dropped += len(group)
            self._dropped_since += len(group)
        self._say(error)

    def _complain(self, error: WalError) -> bool:
        """Wait before another attempt; False if the handler is closed meanwhile."""
        self._say(error)
        with self._changed:
            return not self._changed.wait_for(lambda: self._is_closing, _RETRY_SECONDS)

    def _say(self, error: Exception) -> None:
        """Write what is wrong to stderr, once: logging it would come back here."""
        if not self._has_complained and logging.raiseExceptions:
            self._has_complained = True
            sys.stderr.write(f"walstore.log_handler: {self._target}: {error}\n")


def _plain(value: object, around: tuple[int, ...]) -> Any:
    """Return what JSON has for a value that :mod:`json` refuses: text in place of what is the reason.

    ``around`` are the identities of what it is in, of which it may be one.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < _LONGEST_BITS else hex(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if id(value) not in around and len(around) < _DEEPEST:
        inside = (*around, id(value))
        if isinstance(value, dict):
            return {_text(name): _plain(item, inside) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(item, inside) for item in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - what raises is not ours, and the record is not to be lost for it
        return f"<{type(value).__name__}>"


_handlers: Final[WeakSet[LogHandler]] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close before the threads of logs end, which is before logging closes its handlers."""
    for handler in list(_handlers):
        handler.close()
        handler.flush_seconds = 0.0  # logging closes it again


def _close_at_the_end_of_a_child() -> None:
    """Close the handlers when this process ends, if it is one of multiprocessing: those call no atexit.

    Whatever else such a process does at its end comes before, and so does what that logs.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=_LAST)


def _opening_of(target: str) -> Callable[..., Opening[Any]]:
    return connect if "://" in target else Wal.open
