"""Uploader: ships durable batches as fragments and publishes them. One task per log.

Reads what is durable, cuts it into fragments, puts several of them in parallel, and names each contiguous
run of finished ones by one swap of the manifest. Between two calls to the store the process may die:

  * before a put: nothing happened;
  * after a put, before the swap: the fragment is an orphan, adopted at the next start (adoption.py);
  * after the swap: the manifest says so; the local log learns it from there.

So a restart at any point uploads nothing twice and loses nothing (tests/scenarios/test_upload.py).
Faults of the store that may pass are waited out with growing pauses; the local log goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

from uploader import adoption, cas, layout
from uploader.adoption import Slot
from uploader.entries import Fragment
from uploader.fragment import encode_fragment, fragment_timestamp, inspect_fragment
from uploader.manifest_log import ManifestLog
from uploader.setsum import Setsum
from uploader.stores.port import ObjectStore, StoredObject
from uploader.stores.retry import RetryPolicy, is_transient
from walstore.batch import Batch
from walstore.errors import (
    ContentionError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.ports import Clock, TierSource
from walstore.threads import Worker

logger = logging.getLogger("walstore")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """How a log is shipped. Sizes are bytes, times are seconds."""

    fragment_bytes: int = 8 << 20
    """Size of batches at which a fragment is cut, before compression. 4 KiB to 512 MiB."""

    fragment_age_seconds: float = 1.0
    """Longest time a durable record waits for company before it is shipped. 0 or more. Sealing a
    segment, or a caller that waits for the cloud, ships at once."""

    max_in_flight: int = 4
    """Fragments built or put at the same time; memory is about this many times ``fragment_bytes``.
    1 to 64."""

    drain_seconds: float = 30.0
    """How long closing the log waits for a store that does not answer. 0 or more. What is not shipped
    by then stays on disk for the next opening."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 4096 <= self.fragment_bytes <= 512 << 20:
            raise InvalidSettingsError(
                f"fragment_bytes must be 4 KiB to 512 MiB, not {self.fragment_bytes}"
            )
        if not 1 <= self.max_in_flight <= 64:
            raise InvalidSettingsError(f"max_in_flight must be 1 to 64, not {self.max_in_flight}")
        if self.fragment_age_seconds < 0 or self.drain_seconds < 0:
            raise InvalidSettingsError(
                "fragment_age_seconds and drain_seconds must not be negative"
            )


class Uploader:
    """Ships one log to one store."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        manifest_log: ManifestLog,
        settings: UploadSettings,
        retry: RetryPolicy,
        clock: Clock,
        worker: Worker,
    ) -> None:
        self._store = store
        self._manifest_log = manifest_log
        self._settings = settings
        self._retry = retry
        self._clock = clock
        self._worker = worker
        self._slots: deque[Slot] = deque()
        self._draining_since: float | None = None
        self.uploaded_fragments = 0
        self.uploaded_bytes = 0
        self.adopted_fragments = 0

    async def adopt(self, writer: str) -> None:
        """Publish the orphans that continue the manifest, and plan how to fill holes before others.

        Called once, before :meth:`run`. ContentionError if there are fragments of another writer.
        """
        manifest = self._manifest_log.manifest
        orphans = []
        last = layout.fragment_path(manifest.next_seq_no - 1) if manifest.next_seq_no > 1 else None
        async for listed in self._store.list(layout.FRAGMENT_FOLDER, after=last):
            stored = await self._get(listed.key)
            orphans.append(await self._worker.run(inspect_fragment, stored.data, listed.key))
        slots = adoption.plan(manifest.next_seq_no, manifest.next_offset, orphans)
        whole = [slot.orphan for slot in takewhile(lambda slot: slot.orphan, slots) if slot.orphan]
        if whole:
            logger.warning("adopting %d fragments that were put but not published", len(whole))
            await self._manifest_log.publish(whole, writer)
            self.adopted_fragments += len(whole)
        self._slots = deque(slots[len(whole) :])

    async def run(self, source: TierSource, writer: str) -> None:
        """Create the manifest if there is none, then ship until the source drains and all is shipped.

        Owned by the log's task group. Cancelling it may leave orphans, nothing else. Raises
        ContentionError, CorruptionError, and StorageUnavailableError if the store refuses for good or
        does not answer within ``drain_seconds`` of the log's closing.
        """
        await self._persist(source, lambda: self._manifest_log.load_or_create(writer))
        mark = 0
        while True:
            position = self._manifest_log.manifest.next_offset
            source.advance_uploaded(position)
            if source.is_draining and position >= source.durable_limit:
                return
            await source.wait_durable_limit(position + 1)
            limit = source.durable_limit
            if limit <= position:
                continue
            await self._wait_due(source, mark)
            limit, mark = source.durable_limit, source.appended_bytes
            try:
                await self._ship(source, limit, writer)
            except* WalError as group:
                raise _first(group) from None

    # -- inside ------------------------------------------------------------------------------

    async def _wait_due(self, source: TierSource, mark: int) -> None:
        """Wait for company: until a fragment is full, the age is reached, or somebody is in a hurry."""
        async with asyncio.TaskGroup() as group:
            full = mark + self._settings.fragment_bytes
            waiting = group.create_task(source.wait_shipping_due(full))
            aging = group.create_task(self._clock.sleep(self._settings.fragment_age_seconds))
            await asyncio.wait((waiting, aging), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            aging.cancel()

    async def _ship(self, source: TierSource, limit: int, writer: str) -> None:
        """Ship ``[next offset, limit)``: build and put in parallel, publish in order."""
        manifest = self._manifest_log.manifest
        seq_no, position = manifest.next_seq_no, manifest.next_offset
        in_flight: deque[asyncio.Task[Fragment]] = deque()
        async with asyncio.TaskGroup() as group:
            while position < limit or in_flight:
                while position < limit and len(in_flight) < self._settings.max_in_flight:
                    slot = self._slots.popleft() if self._slots else None
                    end = slot.limit if slot else limit
                    batches = await self._gather(source, position, end, exact=slot is not None)
                    make = self._adopt_slot(slot, batches) if slot and slot.orphan else None
                    in_flight.append(group.create_task(make or self._put(source, seq_no, batches)))
                    seq_no, position = seq_no + 1, batches[-1].limit
                await asyncio.wait((in_flight[0],))
                run = [in_flight.popleft().result()]
                while in_flight and in_flight[0].done():
                    run.append(in_flight.popleft().result())
                await self._publish(source, run, writer)
                source.advance_uploaded(run[-1].limit)

    async def _publish(self, source: TierSource, run: list[Fragment], writer: str) -> None:
        await self._persist(source, lambda: self._manifest_log.publish(run, writer))

    async def _gather(
        self, source: TierSource, position: int, limit: int, *, exact: bool
    ) -> list[Batch]:
        """Read batches for one fragment: all of ``[position, limit)`` if exact, else up to its size."""
        batches: list[Batch] = []
        size = 0
        while position < limit and (exact or size < self._settings.fragment_bytes):
            missing = max(self._settings.fragment_bytes - size, 4096)
            for batch in await source.read_local(position, limit, missing):
                batches.append(batch)
                size += batch.nbytes
                position = batch.limit
        return batches

    async def _put(self, source: TierSource, seq_no: int, batches: list[Batch]) -> Fragment:
        """Build a fragment and put it, once, however often the store has to be asked."""
        timestamp_us = self._clock.now_us()
        built = await self._worker.run(lambda: encode_fragment(batches, timestamp_us=timestamp_us))
        key = layout.fragment_path(seq_no)

        async def create() -> cas.PutResult:
            result = await cas.create(self._store, key, built.data, retry=self._retry)
            if result.outcome is cas.Outcome.UNKNOWN:
                raise OutcomeUnknownError(f"{self._store.url} did not say whether {key} was put")
            return result

        result = await self._persist(source, create)
        if result.outcome is cas.Outcome.LOST:
            raise ContentionError(
                f"another writer put {key} in {self._store.url}; only one log may ship to a prefix"
            )
        self.uploaded_fragments += 1
        self.uploaded_bytes += len(built.data)
        return built.entry(seq_no)

    async def _adopt_slot(self, slot: Slot, batches: list[Batch]) -> Fragment:
        """Return an orphan's entry after proving that it holds exactly our records."""
        orphan = slot.orphan
        assert orphan is not None
        stored = await self._get(orphan.path)
        ours = await self._worker.run(_matches, stored.data, orphan, batches)
        if not ours:
            raise ContentionError(
                f"{orphan.path} in {self._store.url} holds other records than this log"
            )
        self.adopted_fragments += 1
        return orphan

    async def _get(self, key: str) -> StoredObject:
        return await self._retry.call(lambda: self._store.get(key))

    async def _persist(self, source: TierSource, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call while its failure may pass; give up only when the log is closing."""
        attempt = 0
        while True:
            try:
                return await call()
            except (StorageUnavailableError, OutcomeUnknownError) as error:
                if isinstance(error, StorageUnavailableError) and not is_transient(error):
                    raise
                attempt += 1
                now = self._clock.monotonic()
                if source.is_draining:
                    since = self._draining_since = self._draining_since or now
                    if now - since >= self._settings.drain_seconds:
                        raise
                logger.warning("%s; trying again (attempt %d)", error, attempt)
                await self._clock.sleep(self._retry.wait_seconds(attempt))


def _matches(data: bytes, orphan: Fragment, batches: list[Batch]) -> bool:
    total = Setsum.zero()
    timestamp_us = fragment_timestamp(data)
    for batch in batches:
        total += Setsum.of_records(batch.start, timestamp_us, batch.values)
    return total == orphan.setsum


def _first(group: BaseExceptionGroup[WalError]) -> WalError:
    """Return the first error of a group of errors, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WalError)
    return error
