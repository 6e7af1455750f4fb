"""KeptAnswer: the answer to a question that outlives the call that asked it.

A call may be cancelled while the answer is under way. The question is not withdrawn then: the next call that
asks the same gets that answer. So a caller whose time-out is shorter than a round trip makes progress, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from walstore.net.remote.client import Answer, Client, PendingRequest


class KeptAnswer:
    """One question of one reader at a time. Belongs to the event loop of its client."""

    def __init__(self, client: Client) -> None:
        """Ask nothing yet."""
        self._client = client
        self._key: Hashable = None
        self._request: PendingRequest | None = None

    async def get(self, key: Hashable, send: Callable[[], PendingRequest]) -> Answer:
        """Return the answer to the question ``key``, which ``send()`` asks unless it is asked already."""
        request = self._request
        if request is not None and (key != self._key or _has_failed(request)):
            self._client.forget(request)
            request = None
        if request is None:
            request = send()
            self._key, self._request = key, request
        await asyncio.wait((request.future,))  # which leaves the future alone if it is cancelled
        if self._request is request:
            self._request = None
        return request.future.result()

    def __del__(self) -> None:
        if self._request is not None:
            self._client.forget_soon(self._request)


def _has_failed(request: PendingRequest) -> bool:
    """Whether asking again may do better."""
    future = request.future
    return future.done() and (future.cancelled() or future.exception() is not None)
