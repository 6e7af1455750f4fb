"""How often a request to a store is repeated, and with which waits; and a store that repeats.

``RetryPolicy`` owns the waiting; callers decide what may be repeated (``s3.py`` for reads and deletes,
``cas.py`` for conditional puts, ``probe.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from secrets import SystemRandom
from typing import Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from uploader.stores.port import ListedObject, ListingOrder, ObjectStore
from uploader.stores.wrapper import Request, StoreWrapper
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.clock import SystemClock
from walstore.core.validation.fields import check_fields, described, seconds, whole
from walstore.errors import InvalidSettingsError, StorageUnavailableError

_T = TypeVar("_T")


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounded attempts with exponential waits, each shortened at random by up to a half."""

    attempts: int = whole(5, "Requests made in all, the first one included.", low=1)

    first_wait_seconds: float = seconds(
        0.05, "Longest wait before the second attempt; it doubles with every further one."
    )

    longest_wait_seconds: float = seconds(
        2.0, "The doubling ends here. At least first_wait_seconds."
    )

    clock: Clock = field(default_factory=SystemClock)
    """Sleeps between the attempts."""

    jitter: Callable[[], float] = field(default_factory=lambda: SystemRandom().random)
    """Returns a number in ``[0, 1)`` for each wait."""

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)
        if self.first_wait_seconds > self.longest_wait_seconds:
            raise InvalidSettingsError(
                "longest_wait_seconds must be at least first_wait_seconds, which is "
                f"{self.first_wait_seconds}, not {self.longest_wait_seconds}"
            )

    def wait_seconds(self, attempt: int) -> float:
        """Return how long to wait after the given attempt, counted from 1."""
        return Backoff(
            self.first_wait_seconds, self.longest_wait_seconds, jitter=lambda: 1 - self.jitter() / 2
        ).after(attempt)

    def retrying(self, **options: Any) -> AsyncRetrying:
        """Return a tenacity loop that repeats retriable faults of a store and re-raises the last.

        ``options`` are tenacity's; ``retry`` replaces what is repeated.
        """

        def wait(state: RetryCallState) -> float:
            return self.wait_seconds(state.attempt_number)

        options = {"retry": retry_if_exception(is_transient), "reraise": True, **options}
        return AsyncRetrying(
            stop=stop_after_attempt(self.attempts), wait=wait, sleep=self.clock.sleep, **options
        )

    async def call(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Await ``request()`` until it succeeds, fails for good, or the attempts are used up."""

        async def attempt() -> _T:
            return await request()

        return await self.retrying()(attempt)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later without a change."""
    return isinstance(error, StorageUnavailableError) and error.retriable


_ONCE = ("put_if_absent", "put_if_match")


class RetryingStore(StoreWrapper):
    """The port over another store; repeats reads, listings and deletes within the policy's bounds.

    Conditional puts pass through once: whether one may be repeated depends on its outcome, which
    ``root/cas.py`` determines. The S3 store repeats by itself; wrap it only if another wrapper in between
    has to see each request (then give it ``RetryPolicy(attempts=1)``).
    """

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
