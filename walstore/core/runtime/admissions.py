"""Admissions: callers that wait for room in a bounded queue, admitted in the order in which they asked.

Everything here belongs to one event loop. Nobody overtakes a caller that waits, not even with a smaller
request, so a large one is not starved.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import WalError

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Admissions(Generic[Request, Answer]):
    """The callers that wait. Its owner accepts a request at once if it has room and nobody waits."""

    __slots__ = ("_accept", "_has_room", "_loop", "_settled", "waiting")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        has_room: Callable[[Request], bool],
        accept: Callable[[Request], Answer],
        settled: Callable[[], None] | None = None,
    ) -> None:
        """Name what decides.

        Args:
            loop: The event loop of the callers.
            has_room: Whether a request may be accepted now.
            accept: Accepts it, and returns the answer; a WalError is the answer of that caller alone.
            settled: Called after some were admitted, refused or given up.
        """
        self._loop = loop
        self._has_room = has_room
        self._accept = accept
        self._settled = settled
        self.waiting: OrderedDict[asyncio.Future[Answer], Request] = OrderedDict()
        """Those not admitted yet, in order. A caller that was cancelled may be among them for a moment."""

    async def wait(self, request: Request) -> Answer:
        """Return the answer once the request was accepted.

        If cancelled while it waits, nothing was accepted; if cancelled while it is being accepted, it counts
        although the caller sees the cancellation.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.waiting[future] = request
        self.admit()
        try:
            return await future
        except asyncio.CancelledError:
            self.waiting.pop(future, None)
            self.admit()  # later ones may be smaller
            raise

    def admit(self) -> None:
        """Accept requests as long as there is room for the first."""
        while self.waiting:
            future, request = next(iter(self.waiting.items()))
            if not future.done():
                if not self._has_room(request):
                    break
                try:
                    future.set_result(self._accept(request))
                except WalError as error:
                    _refuse(future, error)
            del self.waiting[future]
        if self._settled is not None:
            self._settled()

    def fail(self, error: WalError) -> None:
        """Refuse all who wait, each with a copy of ``error``."""
        for future in self.waiting:
            _refuse(future, copy_error(error))
        self.waiting.clear()
        if self._settled is not None:
            self._settled()


def _refuse(future: asyncio.Future[Answer], error: WalError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller cancelled at this moment never retrieves it
