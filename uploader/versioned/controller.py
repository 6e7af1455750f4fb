"""Controller: compacts one collection and removes its garbage. Only one controls a collection at a time.

Each controller has an epoch, which it writes into the head when it begins. Its lease only tells others to
wait: what makes a controller safe is that the head refuses the changes of any earlier epoch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from uploader.root import cas
from uploader.runtime.task_groups import gather_all, task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.versioned import transitions, updates
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.compaction import (
    MOST_LOCAL_ROWS,
    CompactionPlan,
    MergedFile,
    merge,
    merged_file,
    plan_compaction,
)
from uploader.versioned.head import Head
from uploader.versioned.merging import (
    MOST_LOCAL_BYTES,
    UNLIMITED_ROWS,
    MergeEngine,
    checked_output,
    plan_job,
)
from uploader.versioned.names import merged_key, version_key
from uploader.versioned.pending import cover, disagreement
from uploader.versioned.pending_batch import PendingBatch, StaleSchemaError, check_schema
from uploader.versioned.sweep import Purged, SweepPlan, check_purge, plan_sweep, sweep
from uploader.versioned.version import MergedBatch
from walstore.core.files.locks import this_process
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import renamed
from walstore.core.runtime.resource import Opening
from walstore.core.validation.arguments import as_text
from walstore.core.validation.fields import check_fields, described, seconds, whole
from walstore.errors import (
    CollectionNotFoundError,
    CollectionRefusedError,
    ContentionError,
    FencedError,
    IndefiniteError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
)

logger = logging.getLogger("walstore.collections")

_ROUNDS: Final = 100
_MOST_NAME_CHARACTERS: Final = 200


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """How a controller works."""

    lease_seconds: float = seconds(
        60.0,
        "Other controllers wait so long after its last change, unless they take over.",
        low=1.0,
    )

    delete_after_seconds: float = seconds(
        3600.0,
        "Objects are kept so long after a newer version took their place. Writers trust a head for "
        "ten minutes, so clocks may differ by the rest.",
        low=1800.0,
    )

    most_rows: int = whole(
        MOST_LOCAL_ROWS,
        "About so many updates are merged at a time in memory. A merge engine is given what is larger.",
        low=1,
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did."""

    passes: int = 0
    """New versions."""
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    """How long it took."""
    version: int = 0
    """The newest version."""
    upper: int = 0
    """The upper frontier of the merged area."""
    since: int = 0


class Controller:
    """Compacts a collection and removes its garbage. One task at a time; made by :meth:`open`.

    All methods raise FencedError once another controller has taken over, CollectionNotFoundError if the
    collection was deleted, and pass on the store's errors. Cancellation leaves the collection whole; objects
    that were written for nothing are removed by a later :meth:`gc`.
    """

    def __init__(
        self, session: CollectionSession, epoch: int, settings: ControllerSettings
    ) -> None:
        self.epoch = epoch
        """Its number: one more than that of the controller before."""
        self.settings = settings
        self._session = session
        self._turn = asyncio.Lock()
        self._is_closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str | None = None,
        take_over: bool = False,
        settings: ControllerSettings | None = None,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[Controller]:
        """Become the controller of a collection.

        Args:
            url: Location of the collection.
            name: Names this controller in the head and in errors: 1 to 200 characters. Default: host and
                process.
            take_over: Whether to replace a controller whose lease runs; it is fenced.
            settings: How it works.
            store: Replaces the store that the URL names, and stays open.
            retry: For puts whose answer asks for a retry.
            clock: For tests.

        Raises:
            WalLockedError: Another controller's lease runs.
            CollectionNotFoundError: There is no collection, or it was deleted.
            InvalidSettingsError: The name is empty or too long.
        """
        chosen = settings or ControllerSettings()
        holder = this_process() if name is None else _check_holder(name)

        async def open_it() -> Controller:
            session = CollectionSession(url, store=store, retry=retry, clock=clock)
            try:
                await session.head.load()
                head = await session.head.change(
                    lambda head: transitions.take(
                        head,
                        holder,
                        now_us=session.clock.now_us(),
                        expires_us=session.after_us(chosen.lease_seconds),
                        take_over=take_over,
                    )
                )
            except BaseException:
                await session.aclose()
                raise
            return cls(session, head.epoch, chosen)

        return Opening(open_it)

    @renamed(is_full="full")
    async def plan(self, *, full: bool = False) -> CompactionPlan | None:
        """Return what :meth:`compact` would do first, None if nothing. Changes nothing.

        IndefiniteError if two writers are known to have published different updates for the same times.
        """
        async with self._turn:
            head = await self._newest()
            pending = await self._pending(head)
            return plan_compaction(head, pending, is_full=full, most_rows=self.settings.most_rows)

    @renamed(is_full="full")
    async def compact(
        self, *, engine: Literal["local"] | MergeEngine = "local", full: bool = False
    ) -> Compacted:
        """Add what is pending now to the merged area, and merge batches, until nothing is left to do.

        Args:
            engine: ``local``: in this process, on a thread, ``most_rows`` updates at a time. A
                :class:`~uploader.versioned.merging.MergeEngine`, as ``walstore.spark.merge_engine`` returns,
                gets the passes with more updates than that or more than 1 GiB; a pass has no limit then.
            full: Whether all batches become one, so that whatever was removed or overwritten before
                ``since`` is gone from the newest version.

        Raises:
            IndefiniteError: Two writers published different updates for the same times. Nothing was changed.
            CorruptionError: An input is damaged, or an engine has lost updates. Nothing was changed.

        An engine's own errors are passed on. Nothing was changed by its pass, and what it put is garbage.
        """
        merger = None if engine == "local" else engine
        if engine != "local" and not callable(getattr(engine, "merge", None)):
            raise InvalidSettingsError(f"engine must be 'local' or a merge engine, not {engine!r}")
        most_rows = self.settings.most_rows if merger is None else UNLIMITED_ROWS
        async with self._turn:
            done = Compacted()
            began = self._session.clock.monotonic()
            limit: int | None = None
            while True:
                head = await self._renewed()
                pending = await self._pending(head)
                if limit is None:
                    # Writers may be faster than passes.
                    parts = cover(pending, head.upper)
                    limit = parts[-1].limit if parts else head.upper
                plan = plan_compaction(
                    head,
                    pending,
                    is_full=full,
                    most_rows=most_rows,
                    limit=limit,
                )
                if plan is None:
                    return dataclasses.replace(
                        done,
                        seconds=self._session.clock.monotonic() - began,
                        version=head.version.n,
                        upper=head.upper,
                        since=head.since,
                    )
                try:
                    if merger is not None and self._is_large(plan):
                        merging = self._merge_by(merger, plan, head)
                    else:
                        merging = self._merge(plan, head)
                    output = await self._renewing(merging)
                except StaleSchemaError:
                    if head.schema.id == (await self._newest()).schema.id:
                        raise
                    continue
                await self._commit(plan, output)
                done = dataclasses.replace(
                    done,
                    passes=done.passes + 1,
                    rows_read=done.rows_read + plan.rows,
                    rows_written=done.rows_written + output.rows,
                    bytes_read=done.bytes_read + plan.size_bytes,
                    bytes_written=done.bytes_written + output.size_bytes,
                )

    async def gc(self, *, dry_run: bool = False) -> Purged:
        """Remove what no version that a reader holds needs, an hour after it was replaced.

        ``dry_run`` only says what would be removed. May be killed at any point and repeated.

        It looks again if a reader registers, or a batch is published, where something is about to go.
        """
        async with self._turn:
            while True:
                head = await self._newest() if dry_run else await self._renewed()
                plan = await plan_sweep(
                    self._session, head, delete_after_seconds=self.settings.delete_after_seconds
                )
                if dry_run:
                    return plan.swept(head)
                try:
                    head = await self._declare(head, plan)
                except CollectionRefusedError:
                    continue  # What stopped it is seen now, and less goes.
                await sweep(self._session.store, plan, head)
                return plan.swept(head)

    async def _declare(self, head: Head, plan: SweepPlan) -> Head:
        """Say in the head what may be gone from now on; CollectionRefusedError if some of it must stay."""
        if plan.purged > head.purged:
            head = await self._change(
                lambda head: transitions.announce_purge(head, epoch=self.epoch, purged=plan.purged)
            )
            await check_purge(self._session, head, plan)
        return await self._change(
            lambda head: transitions.raise_floors(
                head, epoch=self.epoch, gc_floor=plan.gc_floor, purged=plan.purged
            )
        )

    async def expire(self, reader: str) -> bool:
        """Remove a reader, leased or critical: its handle gets LeaseExpiredError. False if there is none."""
        async with self._turn:
            self._check()
            found = reader in (await self._newest()).readers
            await self._change(lambda head: transitions.release(head, reader))
            return found

    async def aclose(self) -> None:
        """End the lease, so that another controller need not wait; of a deleted collection there is none.

        Idempotent.
        """
        self._session.check_loop()
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with suppress(CollectionNotFoundError):
                await self._session.head.change(
                    lambda head: transitions.resign(head, epoch=self.epoch)
                )
        finally:
            await self._session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _newest(self) -> Head:
        self._check()
        head = await self._session.head.load()
        transitions.check_epoch(head, self.epoch)
        return transitions.expire(head, now_us=self._session.clock.now_us())

    async def _renewed(self) -> Head:
        """Extend the lease, remove readers whose lease has ended, and return the newest head."""
        self._check()
        expires_us = self._session.after_us(self.settings.lease_seconds)

        def renew(head: Head) -> Head:
            head = transitions.renew_epoch(head, epoch=self.epoch, expires_us=expires_us)
            return transitions.expire(head, now_us=self._session.clock.now_us())

        return await self._session.head.change(renew)

    async def _change(self, transition: Callable[[Head], Head]) -> Head:
        """Apply a change of this controller; its lease is extended with it."""
        expires_us = self._session.after_us(self.settings.lease_seconds)

        def renewing(head: Head) -> Head:
            return transition(
                transitions.renew_epoch(head, epoch=self.epoch, expires_us=expires_us)
            )

        return await self._session.head.change(renewing)

    async def _pending(self, head: Head) -> list[PendingBatch]:
        """Return what is pending; IndefiniteError if shards are known to disagree."""
        pending = await self._session.pending.survey(head)
        pair = disagreement(pending)
        if pair is not None:
            one, other = pair
            raise IndefiniteError(
                "two writers published different updates for the same times; nothing was merged",
                writers=(one.writer, other.writer),
                lower=max(one.lower, other.lower),
                upper=one.upper,
            )
        return pending

    async def _merge(self, plan: CompactionPlan, head: Head) -> MergedBatch:
        """Read the inputs, and put the objects of the output."""
        session = self._session
        try:
            tables = await session.read_merged(plan.run, head.schema)
            tables += await session.pending.read(plan.parts, head.schema)
        except ObjectNotFoundError as error:
            # Inputs of the newest version are only removed by another controller.
            transitions.check_epoch(await session.head.load(), self.epoch)
            raise FencedError(f"an input of the compaction was removed: {error.key}") from error
        outputs = await session.worker.run(merge, tables, plan, head.schema)
        encode = partial(
            merged_file,
            schema=head.schema,
            collection=head.collection,
            lower=plan.lower,
            upper=plan.upper,
            since=plan.since,
        )
        files = await gather_all(session.worker.run(encode, output) for output in outputs)
        keys = await gather_all(self._put(file) for file in files)
        return MergedBatch(
            lower=plan.lower,
            upper=plan.upper,
            since=plan.since,
            rows=sum(file.rows for file in files),
            size_bytes=sum(len(file.data) for file in files),
            digest=sum(file.digest for file in files) % (1 << 64),
            schema_id=head.schema.id,
            keys=tuple(keys),
        )

    def _is_large(self, plan: CompactionPlan) -> bool:
        return plan.rows > self.settings.most_rows or plan.size_bytes > MOST_LOCAL_BYTES

    async def _merge_by(self, engine: MergeEngine, plan: CompactionPlan, head: Head) -> MergedBatch:
        """Let an engine merge the inputs, and check its result."""
        session = self._session
        for part in plan.parts:
            check_schema(part.batch.footer, head.schema, part.batch.key)
        try:
            rows, digest = await self._counted(plan, head)
            job = plan_job(
                plan,
                url=session.url,
                collection=head.collection,
                schema=head.schema,
                epoch=self.epoch,
                rows=rows,
            )
            result = await engine.merge(job)
        except Exception as error:
            # Inputs of the newest version are only removed by another controller.
            transitions.check_epoch(await session.head.load(), self.epoch)
            if isinstance(error, ObjectNotFoundError):
                raise FencedError(f"an input of the compaction was removed: {error.key}") from error
            raise
        return checked_output(job, result, digest=digest)

    async def _counted(self, plan: CompactionPlan, head: Head) -> tuple[int, int]:
        """Return how many updates of the inputs count, and their digest. Reads parts of batches."""
        rows = sum(batch.rows for batch in plan.run)
        digest = sum(batch.digest for batch in plan.run)
        for part in plan.parts:
            if (part.start, part.limit) == (part.batch.lower, part.batch.upper):
                rows, digest = rows + part.batch.footer.rows, digest + part.batch.footer.digest
                continue
            for table in await self._session.pending.read([part], head.schema):
                rows += table.num_rows
                digest += await self._session.worker.run(updates.digest, table)
        return rows, digest % (1 << 64)

    async def _renewing(self, work: Coroutine[Any, Any, MergedBatch]) -> MergedBatch:
        """Return what ``work`` returns, and extend the lease meanwhile; FencedError ends it."""
        async with task_group() as group:
            renewing = group.create_task(self._renew_forever())
            try:
                return await work
            finally:
                renewing.cancel()

    async def _renew_forever(self) -> None:
        while True:
            await self._session.clock.sleep(self.settings.lease_seconds / 4)
            try:
                await self._renewed()
            except (StorageUnavailableError, OutcomeUnknownError, ContentionError) as error:
                logger.warning("the controller's lease was not renewed: %s", error)

    async def _put(self, file: MergedFile) -> str:
        key = merged_key(self.epoch)
        result = await cas.create(self._session.store, key, file.data, retry=self._session.retry)
        result.decided(self._session.store.url, f"{key} was put; compact again")
        return key

    async def _commit(self, plan: CompactionPlan, output: MergedBatch) -> None:
        """Make a version with the output the newest one. What is written is never removed here.

        ContentionError if the inputs are no longer in the newest version: another program changed it.
        """
        session = self._session
        for _ in range(_ROUNDS):
            head = await session.head.load()
            transitions.check_epoch(head, self.epoch)
            version = transitions.next_version(
                head, run=plan.run, output=output, created_us=session.clock.now_us()
            )
            key = version_key(version.n)
            put = await cas.create(session.store, key, version.serialise(), retry=session.retry)
            put.decided(session.store.url, f"{key} was put; compact again")
            try:
                await self._change(
                    lambda head, version=version, key=key: transitions.commit(  # type: ignore[misc]
                        head, version, key, epoch=self.epoch, consumed=plan.consumed()
                    )
                )
            except ContentionError:
                if self._session.head.seen.head.version.n >= version.n:
                    raise
                continue
            return
        raise ContentionError("the head changes all the time; compact again later")

    def _check(self) -> None:
        self._session.check_home()
        if self._is_closed:
            raise WalClosedError("the controller is closed")


def _check_holder(name: object) -> str:
    text = as_text(name, "the name of a controller")
    if not 0 < len(text) <= _MOST_NAME_CHARACTERS:
        raise InvalidSettingsError(
            f"the name of a controller has 1 to {_MOST_NAME_CHARACTERS} characters, not {len(text)}"
        )
    return text
