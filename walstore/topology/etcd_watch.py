"""EtcdWatch: the changes of keys with a prefix, each once, whatever becomes of nodes and connections."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Final

from walstore.topology import etcd_messages as messages
from walstore.topology.etcd_gateway import EtcdGateway, retry_backoff
from walstore.topology.etcd_messages import (
    DENIED,
    EtcdEndpointError,
    EtcdRefusalError,
    WatchMessage,
    watch_message_of,
)
from walstore.topology.etcd_stream import EtcdStream
from walstore.topology.key_values import Events, HistoryCompactedError

logger = logging.getLogger("walstore.cluster")

_RENEWED_AFTER: Final = 10
"""After so many silent periods it is begun again: only that shows that its connection carries deletions."""


class EtcdWatch:
    """One watch.

    It begins at the last revision that is known, not after it, and drops what is known: etcd may have
    forgotten a deletion at the very revision that it is compacted to, and begins there without an error.

    A node is asked for the newest key whenever it was silent for ``request_seconds``. It is left if it does
    not answer, and if it knows of a change that the watch does not report.
    """

    def __init__(self, gateway: EtcdGateway, prefix: str, after: int) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._seen = after
        self._held: Events = []
        """Of the revision after ``_seen``, which is not complete."""
        self._silent_periods = 0
        self._is_behind = False
        self._was_denied = False

    async def run(self) -> AsyncGenerator[Events, None]:
        """Yield the changes. Errors as of :meth:`walstore.topology.key_values.KeyValues.watch`."""
        gateway = self._gateway
        backoff = retry_backoff()
        while True:
            endpoint = gateway.endpoint
            self._held, self._silent_periods, self._is_behind = [], 0, False
            body = messages.watch_body(self._prefix, max(self._seen, 1))
            try:
                async with EtcdStream(gateway, endpoint, "/v3/watch", body) as stream:
                    while (events := await self._next(endpoint, stream)) is not None:
                        if events:
                            backoff.reset()
                            yield events
            except EtcdEndpointError as error:
                gateway.check_open()
                logger.info("a watch of etcd goes on elsewhere: %s", error)
                gateway.leave(endpoint)
                await gateway.sleep(backoff.next_seconds())
            except EtcdRefusalError as refusal:
                if self._was_denied or not (refusal.is_denied and gateway.has_user):
                    raise refusal.as_error() from None
                self._was_denied = True
                gateway.forget_token()

    async def _next(self, endpoint: str, stream: EtcdStream) -> Events | None:
        """Return the next changes, maybe none; None to begin again."""
        message = await stream.next(watch_message_of, self._gateway.request_seconds)
        if message is None:
            self._silent_periods += 1
            if self._silent_periods >= _RENEWED_AFTER:
                return None
            await self._check(endpoint)
            return []
        if message.is_ended:
            raise self._ended(endpoint, message)
        self._silent_periods, self._is_behind, self._was_denied = 0, False, False
        events = self._held + [event for event in message.events if event.revision > self._seen]
        self._held = []
        if message.is_partial and events:
            last = events[-1].revision
            self._held = [event for event in events if event.revision == last]
            events = [event for event in events if event.revision < last]
        if events:
            self._seen = events[-1].revision
        return events

    async def _check(self, endpoint: str) -> None:
        """Find out whether a silent node has nothing to report."""
        if self._is_behind:
            raise EtcdEndpointError(
                f"{endpoint}: its watch does not report everything", is_open=False
            )
        newest, revision = await self._gateway.ask_at(
            endpoint, "/v3/kv/range", messages.newest_body(self._prefix), messages.found_of
        )
        if revision < self._seen:
            raise HistoryCompactedError("the store has lost its newest changes", after=self._seen)
        # Its report may be on its way: look again after the next period.
        self._is_behind = newest is not None and newest.revision > self._seen

    def _ended(self, endpoint: str, message: WatchMessage) -> Exception:
        if message.compacted:
            return HistoryCompactedError(
                "etcd has forgotten these changes", after=self._seen, compacted=message.compacted
            )
        refusal = EtcdRefusalError(DENIED, message.reason)
        if refusal.is_about_token or "permission denied" in message.reason:
            return refusal
        return EtcdEndpointError(f"{endpoint}: it ended the watch: {message.reason}", is_open=False)
