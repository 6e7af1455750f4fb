"""HeadFile: when a log was first seen to begin at each head. Collectors derive from it how long readers had.

Owns the object ``collection/HEADS``, which wal3 does not know. A head is noted after the manifest was seen to
begin there, so the time is never too early by the clock that noted it. A collector that restarts, or runs on
another machine, relies on it: what is below a head that is old enough can be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from uploader.format import layout
from uploader.format.document import MOST_SMALL_BYTES, Fields, read_document, serialise
from uploader.format.garbage import first_seq_no
from uploader.format.manifest import Manifest
from uploader.root.stored_document import find_stored_or_damaged
from uploader.root.swapped_document import SwappedDocument
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.errors import CorruptionError

logger = logging.getLogger("walstore.gc")

MICROSECONDS: Final = 1_000_000
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class ObservedHead:
    """One place where the log was seen to begin."""

    offset: int
    """No manifest since then names a record below it."""
    seq_no: int
    """Nor a fragment with a lower number."""
    since_us: int
    """When it was seen."""
    interval_us: int
    """How long its collector wanted to wait from then on."""

    def due_us(self, interval_us: int) -> int:
        """Return when a collector that waits so long may delete what is below."""
        return self.since_us + max(self.interval_us, interval_us)


class HeadFile(SwappedDocument[tuple[ObservedHead, ...]]):
    """The record of one log's heads; a damaged one counts as none."""

    def __init__(
        self, store: ObjectStore, *, retry: RetryPolicy, clock: Clock, interval_seconds: float
    ) -> None:
        super().__init__(
            store,
            layout.HEADS,
            _parse,
            serialise=_serialise,
            nothing=tuple,
            retry=retry,
            question=f"{layout.HEADS} was written; collect again",
            most_bytes=MOST_SMALL_BYTES,
            damaged=_none,
        )
        self._clock = clock
        self._interval_us = round(interval_seconds * MICROSECONDS)

    async def note(self, manifest: Manifest) -> ObservedHead:
        """Return since when the log has begun where it does, or further on; from now, if that is new.

        OutcomeUnknownError if the store does not report whether it was noted; call again.
        """
        offset, known = manifest.oldest_offset, None

        def noted(heads: tuple[ObservedHead, ...]) -> tuple[ObservedHead, ...] | None:
            nonlocal known
            now_us = self._clock.now_us()
            known = _covering(heads, offset, now_us)
            if known is not None:
                return None
            known = ObservedHead(offset, first_seq_no(manifest), now_us, self._interval_us)
            return (*self._worth_keeping(heads, now_us), known)

        await self.change(noted)
        assert known is not None
        return known

    async def find(self, offset: int) -> ObservedHead | None:
        """Return since when the log has begun at ``offset`` or further on, if that was noted."""
        return _covering((await self.read()).value, offset, self._clock.now_us())

    async def aged(self) -> ObservedHead | None:
        """Return the furthest head below which everything may be deleted, or None."""
        heads, now_us = (await self.read()).value, self._clock.now_us()
        return max(
            (head for head in heads if head.due_us(self._interval_us) <= now_us),
            key=lambda head: head.offset,
            default=None,
        )

    # -- inside ------------------------------------------------------------------------------

    def _worth_keeping(self, heads: Sequence[ObservedHead], now_us: int) -> list[ObservedHead]:
        """Return the furthest head that is due and those behind it; not those seen in the future."""
        past = [head for head in heads if head.since_us <= now_us]
        due = [head for head in past if head.due_us(self._interval_us) <= now_us]
        last = max((head.offset for head in due), default=0)
        kept = [head for head in past if head.offset >= last]
        return kept[: _MOST - 1]


async def read_heads(store: ObjectStore) -> Sequence[ObservedHead]:
    """Return the heads that were noted; none if the record is missing or damaged. The store's errors."""
    found = await find_stored_or_damaged(store, layout.HEADS, _parse, most_bytes=MOST_SMALL_BYTES)
    return () if found is None else found.value or ()


def _none(damage: CorruptionError) -> tuple[ObservedHead, ...]:
    logger.warning("%s; waiting again", damage)
    return ()


def _parse(data: bytes) -> tuple[ObservedHead, ...]:
    return read_document(data, _heads, path=layout.HEADS, most_bytes=MOST_SMALL_BYTES)


def _covering(heads: Sequence[ObservedHead], offset: int, now_us: int) -> ObservedHead | None:
    """Return the first that was noted of those at ``offset`` or further on.

    One from the future was noted by a clock that went wrong.
    """
    found = [head for head in heads if head.offset >= offset and head.since_us <= now_us]
    return min(found, key=lambda head: head.since_us, default=None)


def _serialise(heads: Sequence[ObservedHead]) -> bytes:
    names = ObservedHead.__slots__
    return serialise({"heads": [{name: getattr(head, name) for name in names} for head in heads]})


def _heads(document: Fields) -> tuple[ObservedHead, ...]:
    return tuple(
        ObservedHead(**{name: fields.number(name) for name in ObservedHead.__slots__})
        for fields in document.objects("heads")
    )
