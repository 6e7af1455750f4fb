"""ClientSequence: the numbers that a client gives the appends of a producer, where its caller gives none."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Unpack

from walstore.core.batches.conditions import MAX_NAME_CHARS, AppendConditions
from walstore.core.faces.append_backend import AppendOptions, GroupAppend
from walstore.errors import SequenceMismatchError, WalError

TAG_BYTES: Final = 8
_NAME_CHARS: Final = MAX_NAME_CHARS - 1 - 2 * TAG_BYTES


class ClientSequence:
    """The appends of one :class:`walstore.Producer` to a served log. Belongs to the client's event loop."""

    def __init__(
        self,
        producer_id: str,
        append_group: GroupAppend,
        *,
        make_tag: Callable[[], bytes],
        window: int,
    ) -> None:
        """``window`` is how many appends of a producer the log remembers."""
        self._id = producer_id
        self._append_group = append_group
        self._make_tag = make_tag
        # An append that is sent again must not be older than what the log remembers, or nobody can say
        # at which offset it is.
        self._window = window
        self._room = asyncio.Semaphore(window)
        self._answered = asyncio.Event()
        self._begin_session()

    async def append(
        self,
        values: Iterable[bytes],
        conditions: AppendConditions,
        **options: Unpack[AppendOptions],
    ) -> range:
        """Append a group once, with the number of its conditions or the next."""
        append = functools.partial(self._append_group, list(values), **options)
        if conditions.sequence is None:
            return await self._append_next(append)
        async with self._room:
            return await append(conditions)

    # -- inside ------------------------------------------------------------------------------

    def _begin_session(self) -> None:
        self._name = f"{self._id[:_NAME_CHARS]}~{self._make_tag().hex()}"
        self._last = 0
        self._waited: dict[int, None] = {}
        """Numbers of this session that somebody waits for, in order. A cancelled call waits for none."""

    async def _append_next(self, append: Callable[[AppendConditions], Awaitable[range]]) -> range:
        """Append with a number that no other append of this session has, or ever had and got in with."""
        while True:
            while self._waited and self._last + 1 - next(iter(self._waited)) >= self._window:
                self._answered.clear()
                await self._answered.wait()
            name, waited = self._name, self._waited
            self._last = number = self._last + 1
            waited[number] = None
            try:
                return await append(AppendConditions(producer=name, sequence=number))
            except SequenceMismatchError as error:
                if error.outcome != "not_written":
                    raise
                # An append before this one was refused, or the log has forgotten the session for newer
                # producers. Its numbers are not given away again: an older append may still have one.
                if name == self._name:
                    self._begin_session()
            except WalError as error:
                if error.outcome == "not_written" and (name, number) == (self._name, self._last):
                    self._last = number - 1
                raise
            finally:
                del waited[number]
                self._answered.set()
