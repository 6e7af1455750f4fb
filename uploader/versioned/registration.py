"""Registration: a reader's place in the head, which holds what it may read, kept alive by a lease.

Compaction distinguishes all updates after its frontier, and no object of its version or a later one is
removed. The hold follows what is being read: the version whose objects are read now, the slowest listener.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self, TypeVar

from uploader.runtime.task_groups import BackgroundTask
from uploader.stores.port import ObjectNotFoundError
from uploader.versioned import transitions
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.head import Head, ReaderHold
from uploader.versioned.names import HEAD, new_id
from uploader.versioned.pending_batch import StaleSchemaError
from walstore.core.validation.arguments import as_seconds
from walstore.core.validation.fields import CENTURY_SECONDS
from walstore.errors import (
    CollectionNotFoundError,
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LeaseExpiredError,
    OutcomeUnknownError,
    SinceViolationError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)

logger = logging.getLogger("walstore.collections")

_RENEWALS_PER_LEASE: Final = 4
_REREADS: Final = 5

_T = TypeVar("_T")


class Registration:
    """One reader's registration. Methods raise LeaseExpiredError once it is lost."""

    def __init__(
        self, session: CollectionSession, name: str, handle: str, *, lease_seconds: float | None
    ) -> None:
        self.name = name
        """Its name in the head."""
        self._session = session
        self._handle = handle
        self.lease_seconds = lease_seconds
        """Length of its lease; None for a critical reader."""
        self._is_critical = lease_seconds is None and handle != transitions.SHARED
        # The lease may have ended before the answer came.
        self.hold = self._find_hold(session.head.seen.head)
        """What the head says of it, as far as is known."""
        self.frontier = self.hold.frontier
        """The earliest time that it holds. May be ahead of what the head says."""
        self._renewing = BackgroundTask[None]()
        self._lost: LeaseExpiredError | None = None
        self._is_closed = False
        self.listeners: dict[object, int] = {}
        """The frontier of each."""
        self._versions: Counter[int] = Counter()  # those whose objects are being read
        session.closing.add(self.aclose)
        if lease_seconds is not None:
            self._renewing.start(self._renew_forever(lease_seconds), f"collection reader {name}")

    @classmethod
    async def register(
        cls,
        session: CollectionSession,
        name: str,
        *,
        lease_seconds: float | None,
        since: int | None = None,
    ) -> Self:
        """Register a reader, or continue one of that name; see ``Collection.reader``."""
        handle = new_id()
        await session.head.change(
            lambda head: transitions.register(
                transitions.make_room(head, now_us=session.clock.now_us()),
                name,
                handle=handle,
                expires_us=_expires_us(session, lease_seconds),
                since=since,
            )
        )
        return cls(session, name, handle, lease_seconds=lease_seconds)

    @classmethod
    async def share(cls, session: CollectionSession, *, hold_seconds: float, as_of: int) -> Self:
        """Hold the newest version together with others; see ``Collection.planned_scan``. Not released."""
        head = await session.head.change(
            lambda head: transitions.share(
                head,
                now_us=session.clock.now_us(),
                hold_us=round(hold_seconds * 1_000_000),
            )
        )
        found = cls(session, transitions.shared_name(head), transitions.SHARED, lease_seconds=None)
        found.frontier = as_of  # it holds no times; the scan checks
        return found

    async def clone(self, name: str, *, lease_seconds: float) -> Registration:
        """Register a second, leased reader with the same version and frontier."""
        self.check()
        session, handle = self._session, new_id()
        await session.head.change(
            lambda head: transitions.clone(
                transitions.make_room(head, now_us=session.clock.now_us()),
                self.name,
                name,
                handle=self._handle,
                new_handle=handle,
                expires_us=session.after_us(lease_seconds),
                is_critical=self._is_critical,
            )
        )
        return Registration(session, name, handle, lease_seconds=lease_seconds)

    async def compare_and_downgrade(self, expected: str, token: str, since: int) -> None:
        """Replace the token, and give up all times before ``since``, in one change; ExpectationError."""
        head = await self._session.head.change(
            lambda head: transitions.compare_and_downgrade(
                head, self.name, handle=self._handle, expected=expected, token=token, frontier=since
            )
        )
        self.note(head)

    async def release(self) -> None:
        """Remove it, also that of a critical reader, and close. Nothing is left of a deleted collection."""
        self._session.check_home()
        await self.close()
        with suppress(CollectionNotFoundError):
            await self._session.head.change(
                lambda head: transitions.release(head, self.name, handle=self._handle)
            )

    async def aclose(self) -> None:
        """Close: a leased reader is released, a critical one keeps its hold. Idempotent."""
        self._session.check_loop()
        if self._is_closed:
            return
        if self.lease_seconds is None or self._lost is not None:
            await self.close()
        else:
            await self.release()

    async def close(self) -> None:
        """Stop renewing; the hold stays as it is in the head."""
        self._is_closed = True
        self._session.closing.discard(self.aclose)
        await self._renewing.aclose()

    async def reread(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Return what ``read`` returns; repeat it if a newer version replaced an object meanwhile."""
        rounds = 0
        while True:
            before, rounds = self._session.head.seen, rounds + 1
            try:
                return await read()
            except (ObjectNotFoundError, StaleSchemaError) as error:
                await self.load()  # raises if the registration is lost
                if rounds < _REREADS and self._session.head.seen.etag != before.etag:
                    continue
                if isinstance(error, StaleSchemaError):
                    raise CorruptionError(
                        "a batch has a schema that its collection never had", path=HEAD
                    ) from error
                raise CorruptionError(
                    "an object of the collection is missing", path=error.key
                ) from error

    def not_held(self, after: int) -> SinceViolationError:
        """Return the error for a reader of times that it has given up."""
        return SinceViolationError(
            "the reader does not hold the times after this one", as_of=after, since=self.frontier
        )

    @contextmanager
    def reading(self, version: int) -> Iterator[None]:
        """Hold a version while its objects are read: a renewal must not move past it."""
        self._versions[version] += 1
        try:
            yield
        finally:
            self._versions[version] -= 1
            if not self._versions[version]:
                del self._versions[version]

    async def load(self) -> Head:
        """Read the head, and check that this reader is still registered."""
        self.check()
        head = await self._session.head.load()
        self.note(head)
        return head

    def note(self, head: Head) -> None:
        """Take over what a head says; LeaseExpiredError if this is not registered there any more."""
        try:
            self.hold = self._find_hold(head)
        except LeaseExpiredError as error:
            self._lost = error
            raise
        self.frontier = max(self.frontier, self.hold.frontier)

    def _find_hold(self, head: Head) -> ReaderHold:
        return transitions.find_hold(head, self.name, self._handle, is_critical=self._is_critical)

    async def renew(self) -> None:
        """Write down what this reader needs from now on, and extend its lease."""
        self.check()
        if self.listeners:
            self.frontier = max(self.frontier, min(self.listeners.values()) - 1)
        lease = self.lease_seconds
        try:
            head = await self._session.head.change(
                lambda head: transitions.renew(
                    head,
                    self.name,
                    handle=self._handle,
                    frontier=self.frontier,
                    version=min(self._versions, default=head.version.n),
                    expires_us=None if lease is None else self._session.after_us(lease),
                )
            )
        except LeaseExpiredError as error:
            self._lost = error
            raise
        self.note(head)

    async def _renew_forever(self, lease_seconds: float) -> None:
        while True:
            await self._session.clock.sleep(lease_seconds / _RENEWALS_PER_LEASE)
            try:
                await self.renew()
            except (StorageUnavailableError, OutcomeUnknownError, ContentionError) as error:
                logger.warning(
                    "the lease of the collection reader %s was not renewed: %s", self.name, error
                )
            except WalError:
                return  # the next read reports it

    def check(self) -> None:
        """Raise what every use of a reader raises that is closed, or no longer registered."""
        self._session.check_home()
        if self._is_closed:
            raise WalClosedError(f"the collection reader {self.name} is closed")
        if self._lost is not None:
            raise LeaseExpiredError(str(self._lost), reader=self.name) from self._lost


def check_lease(seconds: object) -> float:
    """Return the length of a lease; InvalidSettingsError unless it is 1 second to 100 years."""
    lease = as_seconds(seconds, "lease_seconds")
    if not 1 <= lease <= CENTURY_SECONDS:
        raise InvalidSettingsError(f"lease_seconds must be 1 second to 100 years, not {lease:g}")
    return lease


def _expires_us(session: CollectionSession, lease_seconds: float | None) -> int | None:
    return None if lease_seconds is None else session.after_us(lease_seconds)
