"""KeyValues: a port to a small store that several machines share, with swaps, leases and watches.

The store orders all changes: each gets a revision, higher than those before. Several keys may change at one
revision, when a lease ends. What is kept in it must be small and is rarely written: who is where, and who
leads. Keys are text, and are compared as their UTF-8 bytes.

Pure, but for what implements it: ``memory.py`` for tests, ``etcd.py`` for machines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple, Protocol

from walstore.core.validation.arguments import as_bytes, as_count, as_text
from walstore.errors import LimitExceededError, WalError

MOST_KEY_BYTES: Final = 4096
"""Length of the longest key."""
MOST_VALUE_BYTES: Final = 1 << 20
"""Length of the longest value. etcd takes requests of 1.5 MiB, unless it is configured otherwise."""
MOST_TTL_SECONDS: Final = 1_000_000_000
"""Longest time that a lease can be granted for."""
MOST_REVISION: Final = (1 << 63) - 1


class LeaseLostError(WalError):
    """The lease is unknown to the store: it ended, and its keys are gone. Nothing was done."""

    def __init__(self, message: str, *, lease: int) -> None:
        super().__init__(message)
        self.lease = lease


class HistoryCompactedError(WalError):
    """The store has forgotten changes that a watch would begin with. List the prefix, and watch after that.

    ``after`` is the revision that the watch had reached; ``compacted`` the first one that it could begin
    after, or 0 if that is not known.
    """

    def __init__(self, message: str, *, after: int, compacted: int = 0) -> None:
        super().__init__(f"{message} (after={after} compacted={compacted})")
        self.after = after
        self.compacted = compacted


class KeyValue(NamedTuple):
    """A key that is there."""

    key: str
    value: bytes
    revision: int
    """Of the store, when the value was written; more than 0."""
    lease: int = 0
    """The key is deleted when this lease ends; 0 for none."""


class Swap(NamedTuple):
    """What became of a compare-and-swap."""

    happened: bool
    found: KeyValue | None
    """What was written, None for a deletion. If it did not happen: what is there, None for nothing."""
    revision: int
    """The store's, after the swap."""


class Event(NamedTuple):
    """A change of one key."""

    key: str
    now: KeyValue | None
    """What was written; None if the key was deleted, or its lease ended."""
    revision: int
    """Of the change."""


Events = list[Event]
"""Changes, in order."""


class KeySnapshot(NamedTuple):
    """The keys with a prefix, all as of one revision."""

    items: dict[str, KeyValue]
    """By key, in the order of keys."""
    revision: int
    """The store's. A watch after it misses nothing."""


class KeyValues(Protocol):
    """A client of the store. Belongs to the event loop that made it.

    Every call may raise StorageUnavailableError if the store does not answer in time, which is retriable;
    AccessDeniedError if it refuses this client; WalClosedError after :meth:`aclose`. A key has 1 to
    ``MOST_KEY_BYTES`` bytes, a prefix 0 to as many; others raise ValueError or LimitExceededError. A
    cancelled call leaves no task and no connection in use behind.
    """

    async def get(self, key: str) -> KeyValue | None:
        """Return what is there now, None for nothing. Linearizable: it sees every write that has returned."""

    async def list(self, prefix: str) -> KeySnapshot:
        """Return all keys that begin with a prefix; linearizable as :meth:`get`. All keys for ``""``.

        LimitExceededError if they are too large for one answer.
        """

    async def swap(self, key: str, value: bytes | None, *, expected: int, lease: int = 0) -> Swap:
        """Write a key if its revision is still ``expected``; 0 stands for a key that is not there.

        ``value`` has 0 to ``MOST_VALUE_BYTES`` bytes; None deletes the key, which must then be expected to be
        there. The key is deleted when ``lease`` ends; 0 for none. Give every value something that no other
        has, such as a random number: only that distinguishes it from an equal one of another client.

        LeaseLostError if there is no such lease. StorageUnavailableError only if nothing was written and
        nothing will be. OutcomeUnknownError if the request was sent, no answer came, and the key does not
        show whether it was executed. It may still be executed later, but not once the key, expected to be
        there, has another revision: of several swaps with the same ``expected`` above 0 at most one is
        executed. So :meth:`get` the key, and swap again with the revision that is found.
        Cancelling leaves the outcome open in the same way.
        """

    async def grant(self, ttl_seconds: int) -> int:
        """Make a lease that ends after ``ttl_seconds``, 1 to ``MOST_TTL_SECONDS``, and return its id.

        The store may grant more time. If the call fails or is cancelled, it may leave a lease behind, which
        ends by itself.
        """

    async def keep_alive(self, lease: int) -> float:
        """Give a lease its whole time again, and return how many seconds that is.

        They count from some moment during the call: a holder that must stop in time counts from before it.
        LeaseLostError if it has ended; then its keys are deleted.
        """

    async def revoke(self, lease: int) -> None:
        """End a lease now, and delete its keys. No error if it has ended. May be repeated."""

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Events, None]:
        """Yield every change of keys with a prefix whose revision is more than ``after``, in order, once.

        ``after`` is 0 or more; 0 is the beginning. Changes come in groups that are never empty, and all that
        changed at one revision is in one group. It goes on by itself after lost connections, waits as long
        as the store does not answer, and may be closed at any time with ``aclose()``. Nothing is requested
        before the first ``anext()``. Cancelling an ``anext()`` ends it: watch again after the last revision.

        HistoryCompactedError if the store no longer has some of the changes, now or later.
        """

    async def aclose(self) -> None:
        """Release connections; twice is allowed. Leases stay. Calls and watches in progress fail."""


def check_key(key: str) -> str:
    """Return a key as plain text; TypeError, ValueError or LimitExceededError."""
    key = check_prefix(key, "a key")
    if not key:
        raise ValueError("a key is never empty")
    return key


def check_prefix(prefix: str, what: str = "a prefix") -> str:
    """Return a prefix as plain text; TypeError, ValueError or LimitExceededError."""
    text = as_text(prefix, what)
    if len(text.encode()) > MOST_KEY_BYTES:
        raise LimitExceededError(
            f"{what} has at most {MOST_KEY_BYTES} bytes, unlike {text[:80]!r}…",
            limit=MOST_KEY_BYTES,
        )
    return text


def check_swap(
    key: str, value: bytes | None, expected: int, lease: int
) -> tuple[str, bytes | None]:
    """Return the key and value of a swap as plain values; TypeError, ValueError or LimitExceededError."""
    key = check_key(key)
    as_count(expected, "expected", low=0, high=MOST_REVISION)
    check_lease(lease, low=0)
    if value is None:
        if not expected or lease:
            raise ValueError("a deletion expects a revision above 0, and has no lease")
        return key, None
    value = as_bytes(value, "a value")
    if len(value) > MOST_VALUE_BYTES:
        raise LimitExceededError(
            f"the value of {key!r} has {len(value)} bytes; at most {MOST_VALUE_BYTES} are allowed",
            limit=MOST_VALUE_BYTES,
        )
    return key, value


def check_lease(lease: int, *, low: int = 1) -> int:
    """Return the id of a lease; TypeError or InvalidSettingsError."""
    return as_count(lease, "lease", low=low, high=MOST_REVISION)


def check_ttl(ttl_seconds: int) -> int:
    """Return the time of a lease; TypeError or InvalidSettingsError."""
    return as_count(ttl_seconds, "ttl_seconds", high=MOST_TTL_SECONDS)


def check_after(after: int) -> int:
    """Return the revision that a watch begins after; TypeError or InvalidSettingsError."""
    return as_count(after, "after", low=0, high=MOST_REVISION)
