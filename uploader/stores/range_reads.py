"""RangeReads: short reads that are requested in one turn of the event loop share one call on a thread.

Each read has a result of its own. A call reads several objects one after the other, then looks at each of
their directories once. For many short files that look, with a sync of a directory that changed a moment ago,
takes more time than the reads, since the thread waits for the interpreter's lock after each system call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from uploader.stores.local_directory import Range
from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import WalError

_MOST_READS: Final = 16
"""Reads in one call: few enough that readers of many objects use several threads."""
_MOST_BYTES: Final = 1 << 20
"""Bytes requested in one call, unless it is a single read: all of them are held until it ends."""

_Waiting: TypeAlias = list[tuple[Range, asyncio.Future[bytes]]]


class RangeReads:
    """The reads of one store. Safe to use from several event loops, one after the other."""

    def __init__(
        self, begin: Callable[[list[Range]], asyncio.Future[list[bytes | Exception]]]
    ) -> None:
        """``begin`` starts a call on a thread, which returns content or error for each range."""
        self._begin = begin
        self._waiting: _Waiting = []

    def request(self, wanted: Range) -> asyncio.Future[bytes]:
        """Return the future content of a range; it is read in this turn's call. May be cancelled."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting or self._waiting[0][1].get_loop() is not loop:
            self._waiting = []
            loop.call_soon(self._end_turn, self._waiting)
        self._waiting.append((wanted, answer))
        return answer

    def _end_turn(self, waiting: _Waiting) -> None:
        if self._waiting is waiting:
            self._waiting = []
        for group in _groups([one for one in waiting if not one[1].done()]):
            answers = [answer for _, answer in group]
            try:
                running = self._begin([wanted for wanted, _ in group])
            except WalError as error:  # no thread can be started
                _settle(answers, [error] * len(answers))
            else:
                running.add_done_callback(partial(_pass_on, answers))


def _groups(waiting: _Waiting) -> Iterator[_Waiting]:
    group: _Waiting = []
    total = 0
    for one in waiting:
        _, start, limit = one[0]
        total += limit - start
        if group and (len(group) == _MOST_READS or total > _MOST_BYTES):
            yield group
            group, total = [], limit - start
        group.append(one)
    if group:
        yield group


def _pass_on(
    answers: Sequence[asyncio.Future[bytes]], running: asyncio.Future[list[bytes | Exception]]
) -> None:
    if running.cancelled():
        for answer in answers:
            answer.cancel()
        return
    error = running.exception()
    _settle(answers, running.result() if error is None else [error] * len(answers))


def _settle(
    answers: Sequence[asyncio.Future[bytes]], found: Sequence[bytes | BaseException]
) -> None:
    for answer, one in zip(answers, found, strict=True):
        if answer.done():
            continue  # it was cancelled
        if isinstance(one, bytes):
            answer.set_result(one)
        else:  # several may have the same one
            answer.set_exception(copy_error(one) if isinstance(one, WalError) else one)
