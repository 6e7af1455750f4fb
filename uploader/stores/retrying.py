"""RetryingStore: repeats reads, listings and deletes of a store that does not do so itself.

Conditional puts pass through once: whether one may be repeated depends on what became of it, which is
``uploader.cas``'s business. The S3 store repeats by itself; it needs this only if each of its requests is
to be seen by another wrapper in between (then give it ``RetryPolicy(attempts=1)``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.retry import RetryPolicy, is_transient
from uploader.stores.wrapper import Request, StoreWrapper
from walstore.errors import StorageUnavailableError

_T = TypeVar("_T")

_ONCE = ("put_if_absent", "put_if_match")


class RetryingStore(StoreWrapper):
    """The port over another store. Faults that may pass are waited out, within the policy's bounds."""

    def __init__(self, inner: ObjectStore, retry: RetryPolicy | None = None) -> None:
        """Wrap ``inner``; ``retry`` says how often and with what pauses. Default: 5 attempts in all."""
        super().__init__(inner)
        self._retry = retry or RetryPolicy()

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects; after a fault go on behind the last one, with all attempts anew."""
        failures = 0
        while True:
            try:
                async for listed in self.inner.list(prefix, after=after):
                    after, failures = listed.key, 0
                    yield listed
                return
            except StorageUnavailableError as error:
                failures += 1
                if not is_transient(error) or failures >= self._retry.attempts:
                    raise
            await self._retry.clock.sleep(self._retry.wait_seconds(failures))

    async def _call(self, request: Request[_T]) -> _T:
        if request.kind in _ONCE:
            return await request()
        return await self._retry.call(request)
