"""CopyMarks: what the copies of a log had last, in the store that its machines share.

A directory that is put back from an older state has an older ``PROMISE`` and ``SYNCED``, too, so the copy
does not know that it lacks what it acknowledged. The store does: the leader keeps there, for each copy, below
which offset it has what is replicated. A mark may be late, never early. A copy of the log that ends below its
own mark does not count, and where nobody ends at the greatest mark, nobody leads. Nor does anybody begin
another log while there are marks of one that had records: its disks may only not be mounted.

Nothing waits for the store but a takeover: a mark that cannot be written is written later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from walstore.cluster.replication.copy_trouble import LoggedOnce
from walstore.cluster.replication.position import CopyEnd
from walstore.core.ports import Clock
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.topology.documents import Synced
from walstore.topology.key_values import KeyValue, KeyValues

logger = logging.getLogger("walstore.replication")

_PAUSE_SECONDS: Final = 3.0
"""Between two writes while there is always more."""
_RETRY_SECONDS: Final = 0.1
_ATTEMPTS: Final = 3


class CopyMarks:
    """Of one opening of a log. Belongs to the event loop."""

    def __init__(self, keys: KeyValues, key: str, *, address: str, clock: Clock) -> None:
        """At ``key``; ``address`` is where others reach the copy here, empty if they do not."""
        self.address = address
        """Of the copy here."""
        self._keys = keys
        self._key = key
        self._clock = clock
        self._known: Synced | None = None
        self._revision: int | None = None
        """Of the key, 0 if it is not there; None while that is not known."""
        self._changed = asyncio.Event()
        self._trouble = LoggedOnce()

    async def load(self, deadline: float) -> None:
        """Read the marks; StorageUnavailableError and the like if the store does not answer until then.

        FormatVersionError for those of a newer version, which stay: what they say is not known here.
        """
        while True:
            try:
                return self._take(await self._keys.get(self._key))
            except FormatVersionError:
                raise
            except WalError:
                if self._clock.monotonic() >= deadline:
                    raise
            await self._clock.sleep(_RETRY_SECONDS)

    def of(self, log_id: bytes) -> Mapping[str, int]:
        """Return the mark of each copy of a log, by its address."""
        known = self._known
        return known.limits if known is not None and known.log_id == log_id.hex() else {}

    def epoch_of(self, log_id: bytes) -> int:
        """Return the epoch in which the marks of a log were written, or 0."""
        known = self._known
        return known.epoch if known is not None and known.log_id == log_id.hex() else 0

    def trouble_of(self, address: str, end: CopyEnd) -> str | None:
        """Return why a copy that ends there does not count; None if it may."""
        mark = self.of(end.log_id).get(address, 0) if address else 0
        return put_back(f"the copy at {address}", end.limit, mark) if end.limit < mark else None

    def check(self, name: str, end: CopyEnd) -> None:
        """Raise StorageUnavailableError if the best copy of those that answer lacks what is replicated.

        A copy of another log, or an empty one, has nothing of it.
        """
        known = self._known
        if known is None:
            return
        is_same = known.log_id == end.log_id.hex()
        first = end.limit if is_same else 1
        more = {one: mark for one, mark in known.limits.items() if mark > first}
        if not more:
            return
        also = "" if is_same else f", nor any other record of log {known.log_id}"
        raise StorageUnavailableError(
            f"offsets {first} to {max(more.values()) - 1} of {name!r} were acknowledged, and no copy that "
            f"answers has them{also}: {_listed(more)} had. Start those machines, with their disks mounted; "
            "or, if the records are lost, decide with 'walstore logs reset-head --cluster' on the machine "
            "with the best copy"
        )

    # -- writing -----------------------------------------------------------------------------

    def note(self) -> None:
        """Take note that there may be something to write."""
        self._changed.set()

    async def keep(self, current: Callable[[], Synced]) -> None:
        """Write what changes, at once and then with pauses, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if await self.write(current()):
                await self._clock.sleep(_PAUSE_SECONDS)

    async def write(self, now: Synced) -> bool:
        """Write marks unless they are there; return whether the store was asked. Its errors are logged."""
        if not now.limits or self._merged(now) == self._known:
            return False
        try:
            for _ in range(_ATTEMPTS):
                if await self._try(now):
                    break
        except WalError as error:
            self._changed.set()
            self._trouble.warn(f"what the copies have is not written to {self._key} yet: {error}")
        else:
            self._trouble.end()
        return True

    async def _try(self, now: Synced) -> bool:
        """Write if that does not lower what a later leader wrote; return whether nothing is left to do."""
        if self._revision is None:
            self._take(await self._keys.get(self._key))
        known = self._known
        if known is not None and known.log_id == now.log_id and known.epoch > now.epoch:
            return True
        revision, self._revision = self._revision or 0, None
        value = self._merged(now).encode()
        try:
            swap = await self._keys.swap(self._key, value, expected=revision)
        except OutcomeUnknownError:
            return False
        self._take(swap.found)
        return swap.happened

    def _merged(self, now: Synced) -> Synced:
        """Return it with no mark below a known one: what a leader said stays true."""
        known = self.of(bytes.fromhex(now.log_id))
        return now._replace(
            limits={one: max(limit, known.get(one, 0)) for one, limit in now.limits.items()}
        )

    def _take(self, found: KeyValue | None) -> None:
        self._revision = self._known = None
        self._known = read_marks(found)
        self._revision = 0 if found is None else found.revision
        if found is not None and self._known is None:
            logger.error("the key %s has no marks, and is written again", self._key)


def read_marks(found: KeyValue | None) -> Synced | None:
    """Return marks that were found; None for none, and for a damaged document, which says nothing.

    FormatVersionError for those of a newer version: they are neither used nor replaced nor removed.
    """
    with contextlib.suppress(CorruptionError):
        return None if found is None else Synced.decode(found.value, found.key)
    return None


def put_back(which: str, limit: int, mark: int) -> str:
    """Return what is said of a copy that ends before what it had."""
    return (
        f"{which} was put back from an older state: it ends at offset {limit}, and had {mark}; "
        "it is made again from the leader before it counts"
    )


def _listed(marks: Mapping[str, int]) -> str:
    return ", ".join(one or "a program without address" for one in sorted(marks))
