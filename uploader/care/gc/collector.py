"""GarbageCollector: removes the oldest part of a log, which no cursor needs, while others write and read.

Owns the order of the steps; the process may die after each, and any collector continues from there:

  1. Plan: cursors, manifest, cursors again; the lowest cursor is where the garbage ends.
  2. Put what remains of snapshots that are kept in part. Nothing names it yet.
  3. Announce: swap ``gc/GARBAGE`` from empty to the plan. From here on no cursor can be made below its end
     unnoticed, and no other collection can begin.
  4. Look at the cursors again. One that came before the announcement is seen now. Note it in ``gc/GARBAGE``.
  5. Drop: swap the manifest for one without the garbage, on top of whatever writers did meanwhile; or find
     that a writer that publishes all the time has done it (``garbage_file.py``).
  6. Note when that was, and wait until no reader can still use an older manifest.
  7. Check that the manifest still does not name it, delete it slowly, and swap ``gc/GARBAGE`` to empty.

wal3's collector and writer take the same steps on the same objects, without 4 and 6. Why this is safe, and
what it assumes about time, is in docs/collection.md.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Final

from uploader.care.gc.apply import Execution
from uploader.care.gc.collection_plan import (
    AuditCallback,
    Collected,
    CollectorSettings,
    Deleted,
    Plan,
    ProgressCallback,
)
from uploader.care.gc.deleter import Collectable, Deleter, Leak
from uploader.care.gc.observed_heads import HeadFile
from uploader.care.gc.orphans import find_leaks, void_misfits
from uploader.care.gc.planner import Planner
from uploader.format.layout import FIRST_OFFSET, FIRST_SEQ_NO, fragment_path
from uploader.format.setsum import Setsum
from uploader.layouts.log_session import LogSession
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.read.fragment_reader import FragmentReader
from uploader.root.garbage_file import GarbageFile
from uploader.root.holds import Keepers
from uploader.root.tree import ManifestTree
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_settings
from walstore.errors import CollectionRefusedError, ContentionError

logger = logging.getLogger("walstore.gc")

_ATTEMPTS: Final = 7


class GarbageCollector(MustClose):
    """Collects one log. Make one with :meth:`open`; one task at a time.

    Any number of collectors may work on a log at once, on any machine. A cancelled call stops where it is;
    the next call, of any collector, continues.
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        settings: CollectorSettings | None = None,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[GarbageCollector]:
        """Open the log under ``url`` for collecting; needs write access, except for :meth:`plan`.

        LogNotFoundError if there is no log, CorruptionError if its manifest is damaged, else the store's
        errors. The other options are those of :class:`uploader.CloudTier`.
        """

        async def open_it() -> GarbageCollector:
            session = LogSession(
                url, store=store, retry=retry, clock=clock, worker=Worker("collector", threads=2)
            )
            async with session.closed_on_error():
                await session.find_root()
                session.check_found()
                return cls(session, as_settings(settings, CollectorSettings))

        return Opening(open_it)

    def __init__(self, session: LogSession, settings: CollectorSettings) -> None:
        """Not for callers; see :meth:`open`."""
        store, root, worker = session.store, session.root, session.worker
        retry, clock = session.retry, session.clock
        self._session = session
        self._home = LoopGuard("collector")
        self._max_fragments = settings.max_fragments
        self._tree = ManifestTree(store, worker, newest=session.newest)
        file = GarbageFile(store, retry=retry, worker=worker)
        self._heads = HeadFile(
            store, retry=retry, clock=clock, interval_seconds=settings.interval_seconds
        )
        self._cursors = CloudCursors(
            store, newest=session.newest, retry=retry, clock=clock, writer="walstore collector"
        )
        keepers = Keepers(store)
        self._deleter = Deleter(store=store, settings=settings, clock=clock)
        self._execution = Execution(
            store=store,
            root=root,
            file=file,
            heads=self._heads,
            keepers=keepers,
            deleter=self._deleter,
            newest=session.newest,
            settings=settings,
            retry=retry,
            clock=clock,
            worker=worker,
        )
        fragments = FragmentReader(store=store, worker=worker, cache_bytes=0, newest=session.newest)
        self._planner = Planner(
            file=file,
            heads=self._heads,
            keepers=keepers,
            newest=session.newest,
            tree=self._tree,
            offset_at=fragments.offset_at,
            settings=settings,
            clock=clock,
            worker=worker,
        )

    @property
    def url(self) -> str:
        """The log's location, without credentials."""
        return self._session.store.url

    @property
    def cursors(self) -> CloudCursors:
        """The cursors that hold the log."""
        return self._cursors

    async def plan(self) -> Plan:
        """Return what :meth:`apply` would do now. Changes nothing.

        CorruptionError if the log, a cursor or the announced collection is damaged; ContentionError if
        cursors keep moving back; else the store's errors.
        """
        return await self._planner.plan()

    async def apply(
        self,
        plan: Plan,
        *,
        progress: ProgressCallback | None = None,
        audit: AuditCallback | None = None,
    ) -> Collected:
        """Do what was planned; waits for the interval to pass, up to ``max_wait_seconds``.

        ``audit`` gets a line of JSON for each removed object. CollectionRefusedError if the plan has
        findings; ContentionError if it is out of date: then plan again. After any other error, and after
        :attr:`Collected.due_us`, plan and apply again, which continues where this call stopped.
        """
        if plan.findings:
            raise CollectionRefusedError("; ".join(plan.findings))
        if plan.is_empty:
            return Collected(head=plan.head, cutoff=plan.cutoff)
        return await self._execution.run(plan, progress, audit)

    async def collect(
        self, *, progress: ProgressCallback | None = None, audit: AuditCallback | None = None
    ) -> Collected:
        """Plan, apply, and remove earlier leaks. Continues what another collector left unfinished.

        Raises as :meth:`apply`; plans again a few times before it raises ContentionError.
        """
        collected = await self._collect(progress, audit)
        swept = await self.sweep(progress=progress, audit=audit)
        return dataclasses.replace(collected, deleted=(*collected.deleted, *swept))

    async def sweep(
        self, *, progress: ProgressCallback | None = None, audit: AuditCallback | None = None
    ) -> tuple[Deleted, ...]:
        """Remove leaked fragments and snapshots below the log's head; return them.

        Only what has been below the head for the interval, and at most about ``max_fragments`` at once.
        Costs a listing of the snapshots. Fragments behind the log's end that can never be part of it are
        replaced by objects that no program takes for fragments; costs a listing of those behind the end.
        """
        session = self._session
        store, root, worker = session.store, session.root, session.worker
        manifest = await session.newest()
        await void_misfits(store, root, retry=session.retry, worker=worker)
        if manifest.oldest_offset == FIRST_OFFSET:
            return ()
        await self._heads.note(manifest)
        head = await self._heads.aged()
        if head is None or head.offset > manifest.oldest_offset:
            return ()
        key = root.fragment_key(FIRST_SEQ_NO, start=1, limit=2, setsum=Setsum())
        collectable = Collectable(store, worker, manifest, head)
        leaks = find_leaks(
            store,
            self._tree,
            manifest,
            head,
            collectable,
            is_sharded=key != fragment_path(FIRST_SEQ_NO),
        )
        async with aclosing(leaks):
            return await self._deleter.delete(
                _first(leaks, self._max_fragments),
                collectable,
                phase="sweep",
                total=0,
                progress=progress,
                audit=audit,
            )

    async def aclose(self) -> None:
        """Release connections and threads; may be called twice."""
        await self._session.aclose()

    def _left_open(self) -> Unclosed | None:
        if not hasattr(self, "_home") or self._session.is_closed or self._home.is_inherited:
            return None
        return Unclosed(f"the collector of the log at {self.url}")

    # -- inside ------------------------------------------------------------------------------

    async def _collect(
        self, progress: ProgressCallback | None, audit: AuditCallback | None
    ) -> Collected:
        for attempt in range(_ATTEMPTS):
            # A writer that rolls up all the time invalidates a plan that takes what it rolls up.
            plan = await self._planner.plan(rolled_up_only=attempt % 2 == 1)
            try:
                return await self.apply(plan, progress=progress, audit=audit)
            except ContentionError as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                logger.info("%s: %s", self.url, error)
        raise AssertionError("unreachable")


async def _first(items: AsyncIterable[Leak], count: int) -> AsyncIterator[Leak]:
    async for item in items:
        yield item
        count -= 1
        if not count:
            return
