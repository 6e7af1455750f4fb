"""Scrubber: reads all of a log in object storage, and tells everything that is wrong with it.

Owns the order of things and their limits: the manifest, then every fragment, hashed record by record,
several at a time, then what lies beside them. What it finds is collected, never raised, and none of it
is dropped because a limit is reached. It writes nothing.

Writers, collectors and roll-ups may be at work meanwhile. Anything that looks wrong is looked at again
after reading the manifest anew: what was collected is no fault, and what was replaced is looked up where
it is now. The scrub ends where the log did when it began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from uploader.admin.scrub_objects import ScrubObjects
from uploader.admin.scrub_report import ScrubReport, ScrubTally
from uploader.admin.scrub_root import ScrubRoot
from uploader.admin.scrub_walk import ScrubWalk
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.findings import RESTORE, Finding, Severity, of_unavailable
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_check import Checked, CheckOutcome, check_fragment
from uploader.root.stored_document import read_object
from uploader.runtime.task_groups import task_group
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.errors import StorageUnavailableError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.resource import Opening
from walstore.runtime.threads import Worker
from walstore.validation.arguments import as_count

_MOST_UNAVAILABLE: Final = 8
"""So many fragments in a row that the store does not give: then the scrub ends for now."""


class Scrubber:
    """Checks one log. Make one with :meth:`open`. One scrub at a time; belongs to one event loop."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        max_in_flight: int = 4,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[Scrubber]:
        """Open the log under ``url`` for checking; needs read access only.

        Raises LogNotFoundError if there is no log, and the store's errors; never CorruptionError.

        Args:
            url: Where the log lies.
            max_in_flight: Fragments that are read and hashed at the same time; memory is about three times
                as many. 1 to 64.
            store: Replaces the store that the URL names; closed with the scrubber all the same.
            retry: How reading the root is repeated.
            clock: Sleeps between attempts, and says which pins are over.
        """
        as_count(max_in_flight, "max_in_flight", high=64)

        async def open_it() -> Scrubber:
            opened = cls(
                store=chosen_store(url, store),
                max_in_flight=max_in_flight,
                retry=retry or RetryPolicy(clock=clock or SystemClock()),
            )
            try:
                await opened.check_found()
            except BaseException:
                await opened.aclose()
                raise
            return opened

        return Opening(open_it)

    def __init__(self, *, store: ObjectStore, max_in_flight: int, retry: RetryPolicy) -> None:
        """Not for callers; see :meth:`open`."""
        self._store = store
        self._max_in_flight = max_in_flight
        self._retry = retry
        self._worker = Worker("scrub", threads=2)

    @property
    def url(self) -> str:
        """Where the log lies, without credentials."""
        return self._store.url

    async def check_found(self) -> None:
        """Raise LogNotFoundError if there is no log."""
        root = self._root(ScrubTally())
        await root.read()
        await root.aclose()

    async def scrub(
        self,
        *,
        start: int | None = None,
        max_fragments: int | None = None,
        progress: Callable[[ScrubTally], None] | None = None,
    ) -> ScrubReport:
        """Check the log from ``start`` on, and return all that was found.

        Whatever the limits and faults, the report has every finding up to where it got. If it did not get
        to the end, ``next_start`` says where to go on; what lies beside the fragments is looked at by the
        call that gets to the end. Raises LogNotFoundError if the log is gone. Cancelling it has no effect
        on anything.

        Args:
            start: First offset; None for the log's first.
            max_fragments: Fragments to look at, at the most; at least 1. None for all.
            progress: Called with what was done so far, after each fragment.
        """
        if max_fragments is not None:
            as_count(max_fragments, "max_fragments")
        tally = ScrubTally()
        root = self._root(tally)
        try:
            manifest = await root.read()
            if manifest is None:
                return tally.report(next_start=start or layout.FIRST_OFFSET)
            tally.position = max(start or 0, manifest.oldest_offset)
            tally.limit = manifest.next_offset
            next_start = await self._walk(root, manifest, tally, max_fragments, progress)
            if next_start is None:
                await ScrubObjects(
                    self._store,
                    self._worker,
                    newest=root.newest,
                    report=tally.add,
                    clock=self._retry.clock,
                ).check()
        except StorageUnavailableError as error:
            tally.add(of_unavailable("", error))
            next_start = tally.position
        finally:
            await root.aclose()
        return tally.report(next_start=next_start)

    async def aclose(self) -> None:
        """Release connections and threads; twice is allowed."""
        self._worker.close()
        await self._store.aclose()

    # -- fragments ---------------------------------------------------------------------------

    async def _walk(
        self,
        root: ScrubRoot,
        manifest: Manifest,
        tally: ScrubTally,
        max_fragments: int | None,
        progress: Callable[[ScrubTally], None] | None,
    ) -> int | None:
        """Look at the fragments; return where to go on, or None at the end."""
        walk = ScrubWalk(self._store, self._worker, newest=root.newest, report=tally.add)
        in_flight: deque[asyncio.Task[Checked]] = deque()
        unavailable: list[int] = []
        next_start: int | None = None

        async def take() -> None:
            checked = await in_flight.popleft()
            tally.take(checked)
            tally.snapshots = walk.snapshots
            if checked.fate is CheckOutcome.UNAVAILABLE:
                unavailable.append(checked.entry.start)
            else:
                unavailable.clear()
            if progress is not None:
                progress(tally)

        async with (
            aclosing(walk.fragments(manifest, tally.position, tally.limit)) as entries,
            task_group() as group,
        ):
            begun = 0
            async for entry in entries:
                if begun == max_fragments or len(unavailable) >= _MOST_UNAVAILABLE:
                    next_start = entry.start
                    break
                begun += 1
                in_flight.append(group.create_task(self._examine(entry, root)))
                if len(in_flight) == self._max_in_flight:
                    await take()
            while in_flight:
                await take()
        tally.snapshots = walk.snapshots
        if len(unavailable) >= _MOST_UNAVAILABLE:
            return unavailable[0]
        if next_start is None:
            tally.position = tally.limit
        return next_start

    async def _examine(self, entry: Fragment, root: ScrubRoot) -> Checked:
        """Look at a fragment; once more, if something is wrong and the newest manifest still names it."""
        checked = Checked(entry)
        try:
            checked = await self._look(entry)
            if not checked.findings:
                return checked
            if (await root.newest()).oldest_offset > entry.start:
                return Checked(entry, fate=CheckOutcome.COLLECTED)
            return await self._look(entry)
        except StorageUnavailableError as error:
            findings = *checked.findings, of_unavailable(entry.path, error)
            return Checked(entry, findings, fate=CheckOutcome.UNAVAILABLE)

    async def _look(self, entry: Fragment) -> Checked:
        try:
            # One byte more than there should be, so that a longer object shows.
            data = await self._store.get_range(entry.path, 0, entry.num_bytes + 1)
            if len(data) > entry.num_bytes:
                data = (await read_object(self._store, entry.path)).data
        except ObjectNotFoundError:
            what = f"a fragment is missing, and with it records {entry.start} to {entry.limit}"
            finding = Finding(Severity.ERROR, entry.path, what, RESTORE)
            return Checked(entry, (finding,), fate=CheckOutcome.LOST)
        return await self._worker.run(check_fragment, data, entry)

    def _root(self, tally: ScrubTally) -> ScrubRoot:
        return ScrubRoot(self._store, self._worker, self._retry, report=tally.add)
