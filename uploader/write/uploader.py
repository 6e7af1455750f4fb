"""Uploader: ships durable batches as fragments and publishes them. One task per log.

It reads what is durable, cuts it into fragments, puts several of them in parallel, and names each contiguous
run of finished ones by one change of the root, while the next ones are under way. A record that a caller
waits for goes with the first fragment that the next change can still name (``CutSchedule``). Between two
calls to the store the process may die:

  * before a put: nothing happened;
  * after a put, before the manifest names it: an orphan, adopted at the next start (orphan_recovery.py);
  * after that: the manifest names it; the local log learns it from there.

So a restart at any point uploads nothing twice and loses nothing (tests/scenarios/test_40_upload.py). If a
manifest names fragments that this directory does not know to be its own, they are compared with the local
records before the log takes them for shipped. Transient faults of the store are waited out (stall_guard.py).
"""

from __future__ import annotations

import logging
from contextlib import nullcontext, suppress
from functools import partial

from uploader.format.entries import Fragment
from uploader.fragments.encoder_processes import encoder_processes
from uploader.layouts.log_session import LogSession
from uploader.root.ownership import Claim, check_held, check_owner, writer_name
from uploader.root.root import Root
from uploader.root.write_guard import Claiming, Remember
from uploader.runtime.task_groups import check_cancelled, first_of
from uploader.stores.port import ObjectNotFoundError
from uploader.write.fragment_cutter import FragmentCutter, Shipment
from uploader.write.fragment_puts import FragmentPuts, FragmentWriter, LateFragmentError
from uploader.write.publish_pipeline import TIMER_SECONDS, CutSchedule
from uploader.write.stall_guard import StallGuard, WriteContext
from uploader.write.writer_settings import UploadSettings
from walstore.core.format.claims import Claims
from walstore.core.offset_range import OffsetRange
from walstore.core.runtime.statistics import UploadStatistics
from walstore.core.runtime.time_limit import within
from walstore.core.tier_port import LocalRecords, TierSource
from walstore.errors import (
    ContentionError,
    CorruptionError,
    FencedError,
    StorageUnavailableError,
    WalError,
)

logger = logging.getLogger("walstore.upload")

_LEAST_SLEEP_SECONDS = 1e-6


class Uploader:
    """Ships one log to one store."""

    def __init__(self, session: LogSession, root: Root, settings: UploadSettings) -> None:
        """``root``, that of the session, is loaded."""
        self._url = session.store.url
        self._root = root
        self._settings = settings
        self._clock = session.clock
        self._source: TierSource | None = None
        self._stall_guard = StallGuard(
            url=self._url,
            retry=session.retry,
            clock=session.clock,
            silent_seconds=settings.drain_seconds,
            on_refusal=self._report_refusal,
        )
        self._claim: Claim | None = None
        self._proven_limit = 0
        self._conflicts = 0
        self._planned = root.manifest
        context = WriteContext.of(session, root, self._stall_guard)
        self._puts = FragmentPuts(
            context,
            max_in_flight=settings.max_in_flight,
            is_parallel=settings.parallel_puts,
            may_inline=True,
        )
        self._encoders = encoder_processes(settings.encoder_processes)
        self._fragments = FragmentWriter(context, self._puts, self._encoders)
        self._cutter = FragmentCutter(
            context=context,
            fragments=self._fragments,
            fragment_bytes=settings.fragment_bytes,
            max_in_flight=settings.max_in_flight,
            max_building=max(1, 2 * settings.encoder_processes),
            schedule=CutSchedule(
                interval_seconds=settings.interval_seconds, max_publishing=root.max_publishing
            ),
        )

    @property
    def uploaded_fragments(self) -> int:
        """Fragments put since the log was opened."""
        return self._puts.put_fragments

    @property
    def uploaded_bytes(self) -> int:
        """Length of the fragments put since the log was opened."""
        return self._puts.put_bytes

    @property
    def adopted_fragments(self) -> int:
        """Fragments taken over since the log was opened that had been put before and never published."""
        return self._fragments.adopted_fragments

    def statistics(self) -> UploadStatistics:
        """Return all that is counted, on any thread."""
        schedule = self._cutter.schedule
        return UploadStatistics(
            fragments=self.uploaded_fragments,
            fragment_bytes=self.uploaded_bytes,
            adopted_fragments=self.adopted_fragments,
            retries=self._stall_guard.retries,
            conflicts=self._conflicts,
            put_seconds=schedule.put_seconds,
            publish_seconds=schedule.publish_seconds,
        )

    async def prepare(self, *, is_new: bool) -> None:
        """Look for fragments that a crash left unpublished. Called once, before :meth:`run`.

        A new directory has no records to compare them with, so they are published at once, and it goes
        on behind them. ContentionError if that would omit records that only the old directory has.
        """
        self._planned = self._root.manifest
        await self._cutter.plan()
        if is_new:
            await self._cutter.adopt_unproven(self._root.manifest.writer)

    async def claim(
        self,
        log_id: bytes,
        claims: Claims | None,
        remember: Remember,
        *,
        local: LocalRecords | None,
        take_over: bool,
        is_replicated: bool = False,
    ) -> None:
        """Claim the prefix for its directory, once it is prepared; ``local`` is None for a new directory.

        A directory that is one of several copies must first prove that it holds what the manifest names:
        FencedError if it holds something else, OffsetTrimmedError if it cannot continue there,
        CorruptionError if an object to be compared is damaged. After an error nothing has changed.
        """
        limit = None if local is None else local.durable_limit
        claiming = Claiming(
            self._root, log_id, claims, remember, limit, take_over, self._url, is_replicated
        )
        claim = await claiming.take()
        while claim is None:
            assert local is not None, "a new directory has nothing to prove"
            proven = self._root.manifest
            await self._prove_all(local)
            claim = await claiming.take(proven=proven)
        await self._hold(claim, is_planned=not is_replicated)

    async def _hold(self, claim: Claim, *, is_planned: bool) -> None:
        self._claim, self._fragments.maker = claim, claim.name
        before, after = self._planned, self._root.manifest
        held = Claim.parse(before.writer)
        has_grown = after.next_seq_no != before.next_seq_no
        if not is_planned or has_grown or (held is not None and 0 < held.epoch < claim.epoch):
            # There is none, or it was made by what another directory had published, or was still to publish.
            await self._cutter.plan()

    async def run(self, source: TierSource) -> None:
        """Ship until the source drains and all is shipped; create the manifest if there is none.

        Owned by the log's task group. Cancelling it may leave orphans, nothing else. Raises FencedError if
        another directory claimed the log since this one did, ContentionError, CorruptionError,
        OffsetTrimmedError if records to be shipped are gone from local disk, and StorageUnavailableError if
        the store fulfils no request for ``drain_seconds`` while the log is closing. Refused requests
        (credentials, permissions, room) are repeated until they succeed; each time, callers that wait for
        the cloud get the error.
        """
        self._source = source
        await self._stall_guard.guard(partial(self._run_held, source), source)

    # -- inside ------------------------------------------------------------------------------

    def _report_refusal(self, error: WalError) -> None:
        if self._source is not None:
            self._source.refuse_cloud(error)

    async def _run_held(self, source: TierSource) -> None:
        """Ship; after any failure FencedError if the log was taken over meanwhile."""
        try:
            with nullcontext() if self._encoders is None else self._encoders.used():
                await self._run(source)
        except* WalError as errors:
            error = await self._explain(first_of(errors))
            raise error from error.__cause__

    async def _explain(self, error: WalError) -> WalError:
        """Return the error of a shipment, or FencedError if the newest manifest says so.

        What another directory put, published or collected can cause many errors before that is known. Only
        the store's answer decides: a log that continues acknowledges records that nobody will ever ship.
        """
        if self._claim is None or isinstance(error, FencedError | StorageUnavailableError):
            return error
        try:
            await self._stall_guard.call(self._root.load)
        except (CorruptionError, StorageUnavailableError):
            return error
        try:
            check_held(self._root.manifest, self._claim.name, url=self._url)
        except FencedError as fenced:
            fenced.__cause__ = error
            return fenced
        except ContentionError:
            return error
        return error

    async def _run(self, source: TierSource) -> None:
        await self._begin(source)
        writer = self._writer(source)
        source.advance_uploaded(self._root.manifest.next_offset)
        is_done = False
        while not is_done:
            try:
                async with self._cutter.shipping(source, writer) as shipment:
                    await self._ship(source, shipment)
                is_done = True
            except* LateFragmentError as errors:
                check_cancelled()
                logger.warning("%s", first_of(errors))
                self._conflicts += 1
                await self._stall_guard.call(self._cutter.plan)

    async def _ship(self, source: TierSource, shipment: Shipment) -> None:
        """Ship until the source drains and all is published."""
        mark = 0
        while True:
            if source.durable_limit > shipment.position:
                await self._wait_due(source, mark)
                await self._wait_turn(source, shipment, mark)
                limit, mark = source.durable_limit, source.appended_bytes
                await shipment.ship(limit)
            elif source.is_draining:
                await shipment.finish()
                if source.durable_limit <= shipment.position:
                    return
            else:
                await source.wait_durable_limit(shipment.position + 1)

    def _writer(self, source: TierSource) -> str:
        return self._claim.name if self._claim else writer_name(bytes.fromhex(source.log_id))

    async def _begin(self, source: TierSource) -> None:
        """Create the manifest if there is none, and check that it is ours."""
        log = self._root
        self._check_reaches(source)
        if not log.is_known:
            await self._stall_guard.call(partial(log.load_or_create, self._writer(source)))
        check_owner(log.manifest, bytes.fromhex(source.log_id), url=self._url)
        if self._claim is not None:
            check_held(log.manifest, self._claim.name, url=self._url)
        await self._stall_guard.call(partial(self._prove_last, source))
        self._puts.may_void = partial(self._fragments.is_ours, source)
        await self._puts.void_misfits(log.manifest.next_seq_no, log.manifest.next_offset)

    def _check_reaches(self, local: LocalRecords) -> None:
        """Raise OffsetTrimmedError if the directory's records begin behind what the manifest names."""
        OffsetRange(local.head, local.durable_limit).check_head(
            self._root.manifest.next_offset,
            f"{self._url} lacks records that are no longer on this disk; ship this log to the prefix "
            "that has them",
        )

    async def _prove_all(self, local: LocalRecords) -> None:
        """Compare all that the manifest itself names, and this directory is not known to have shipped.

        Not the last fragment alone: a log that diverged may hold the same record there again. Fragments
        that were rolled up into snapshots since are not compared.
        """
        self._check_reaches(local)
        manifest = self._root.manifest
        try:
            for entry in manifest.fragments:
                if entry.limit > local.uploaded_limit:
                    await self._prove(local, entry)
        except ContentionError as error:
            raise FencedError(f"another directory went on without this one: {error}") from error
        self._proven_limit = manifest.next_offset

    async def _prove_last(self, source: TierSource) -> None:
        """Compare the last fragment, if this directory is not known to have shipped it.

        Normally it died after a swap; but a copy of the directory may have diverged.
        """
        manifest = self._root.manifest
        known_limit = max(source.uploaded_limit, self._proven_limit)
        if manifest.fragments and known_limit < manifest.next_offset:
            await self._prove(source, manifest.fragments[-1])

    async def _prove(self, local: LocalRecords, entry: Fragment) -> None:
        """Raise ContentionError if a fragment differs from the local records, unless these are gone."""
        if entry.start < local.head:
            return
        try:
            found = await self._puts.inspect(entry.path)
        except ObjectNotFoundError as error:
            await self._root.load()
            if entry.start < self._root.manifest.oldest_offset:
                return  # collected meanwhile
            raise CorruptionError("a fragment is missing", path=entry.path) from error
        if found.entry != entry:
            raise CorruptionError(
                "a fragment is not what the manifest says",
                path=entry.path,
                expected=entry,
                found=found.entry,
            )
        await self._fragments.prove(local, found)

    async def _wait_due(self, source: TierSource, mark: int) -> None:
        """Wait for more records: until a fragment is full, the age is reached, or a caller waits."""
        full = mark + self._settings.fragment_bytes
        if source.wants_cloud:
            await source.wait_shipping_due(full)  # at once
            return
        seconds = self._settings.fragment_age_seconds
        with suppress(TimeoutError):
            await within(seconds, source.wait_shipping_due(full), sleep=self._clock.sleep)

    async def _wait_turn(self, source: TierSource, shipment: Shipment, mark: int) -> None:
        """Wait until a fragment cut now would not sit idle, unless a full one has gathered meanwhile."""
        schedule, pipeline = self._cutter.schedule, shipment.pipeline
        await pipeline.wait_room()
        while not (pipeline.is_empty or source.is_draining):
            seconds = pipeline.due - self._clock.monotonic() - TIMER_SECONDS
            is_full = source.appended_bytes - mark >= self._settings.fragment_bytes
            if is_full or seconds < _LEAST_SLEEP_SECONDS:
                return
            early = seconds - schedule.head_start_seconds
            if shipment.may_begin and early >= _LEAST_SLEEP_SECONDS:
                seconds = early
            elif shipment.may_begin and schedule.deserves_head_start(
                source.durable_limit - shipment.position, source.appended_bytes - mark
            ):
                await shipment.begin(source.durable_limit)
                continue
            with suppress(TimeoutError):
                await within(seconds, pipeline.wait_change(), sleep=self._clock.sleep)
