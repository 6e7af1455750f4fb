"""RetryingStore: repeats reads, listings and deletes of a store that does not do so itself.

Conditional puts pass through once: whether one may be repeated depends on its outcome, which
``root/cas.py`` determines. The S3 store repeats by itself; wrap it only if another wrapper in between
has to see each request (then give it ``RetryPolicy(attempts=1)``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from uploader.stores.port import ListedObject, ListingOrder, ObjectStore
from uploader.stores.retry import RetryPolicy, is_transient
from uploader.stores.wrapper import Request, StoreWrapper
from walstore.errors import StorageUnavailableError

_T = TypeVar("_T")

_ONCE = ("put_if_absent", "put_if_match")


class RetryingStore(StoreWrapper):
    """The port over another store. Waits out transient faults, within the policy's bounds."""

    def __init__(self, inner: ObjectStore, retry: RetryPolicy | None = None) -> None:
        """Wrap ``inner``; ``retry`` bounds the attempts and waits. Default: 5 attempts in all."""
        super().__init__(inner)
        self._retry = retry or RetryPolicy()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects; after a fault continue behind the last one, with all attempts again.

        If the listing has not proven its order by its end, a second pass finds the objects that
        came before that one.
        """
        begin, failures, was_cut = after, 0, False
        order = ListingOrder()
        yielded: set[str] = set()  # as long as the order is not proven
        while True:
            try:
                async for listed in self.inner.list(prefix, after=after):
                    if listed.key in yielded:
                        continue
                    after, failures = listed.key, 0
                    order.note(after)
                    if order.is_proven:
                        yielded.clear()
                    else:
                        yielded.add(after)
                    yield listed
                if not was_cut or order.is_proven:
                    return
                after, was_cut = begin, False
                continue
            except StorageUnavailableError as error:
                was_cut |= after != begin
                failures += 1
                if not is_transient(error) or failures >= self._retry.attempts:
                    raise
            await self._retry.clock.sleep(self._retry.wait_seconds(failures))

    async def _call(self, request: Request[_T]) -> _T:
        if request.kind in _ONCE:
            return await request()
        return await self._retry.call(request)
