"""Forking: copies the fragments of one log and builds the manifest of its fork.

Owns the selection of fragments, their concurrency, and the manifest with snapshots that they become, in
memory that does not grow with the log. The steps before and after are in ``fork.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from uploader.admin.fork_pin import ForkPin
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.layouts.growing_manifest import Forked, GrowingManifest
from uploader.layouts.log_session import LogSession
from uploader.read.fragment_copy import FragmentCopier
from uploader.root.tree import ManifestTree
from uploader.runtime.task_groups import task_group
from uploader.stores.errors import ObjectNotFoundError
from walstore.errors import CorruptionError, OffsetTrimmedError


class Forking:
    """One attempt to copy a log. Used once."""

    def __init__(
        self,
        source: LogSession,
        target: LogSession,
        pin: ForkPin,
        *,
        parallel: int,
        is_resumed: bool,
    ) -> None:
        """``pin`` is held. ``is_resumed``: an earlier attempt may have put objects into the target."""
        self._source = source
        self._target = target
        self._pin = pin
        self._parallel = parallel
        self._is_resumed = is_resumed
        # One request for the manifest at a time, so that an older answer never replaces a newer one.
        self._reading = asyncio.Lock()
        self._tree = ManifestTree(source.store, source.worker, newest=self._newest)

    async def run(
        self,
        writer: str,
        start: int | None,
        stop: int,
        progress: Callable[[Forked], None] | None,
    ) -> Manifest:
        """Copy ``[start, stop)``; return the manifest to create.

        Without ``start``, starts again if a collector that did not see the pin removes records that were to
        be copied. OffsetTrimmedError if it removed records beyond ``start`` or ``stop``.
        """
        while True:
            held = self._source.root.manifest
            low = held.oldest_offset if start is None else start
            growing = GrowingManifest(self._target, writer)
            if low > stop:
                raise self._trimmed(stop, held)
            try:
                await self._copy_all(held, low, stop, growing, progress)
                return await growing.finish(low, await self._number_at(held, low))
            except OffsetTrimmedError:
                oldest = (await self._newest()).oldest_offset
                if start is not None or stop < oldest:
                    raise
                self._is_resumed = True

    # -- inside ------------------------------------------------------------------------------

    async def _copy_all(
        self,
        held: Manifest,
        low: int,
        stop: int,
        growing: GrowingManifest,
        progress: Callable[[Forked], None] | None,
    ) -> None:
        copier = FragmentCopier(
            self._source.store,
            self._target.store,
            is_resumed=self._is_resumed,
            retry=self._target.retry,
            worker=self._target.worker,
        )
        in_flight: deque[asyncio.Task[Fragment]] = deque()

        async def take() -> None:
            await growing.add(await in_flight.popleft())
            await self._pin.renew()
            if progress is not None:
                progress(growing.forked())

        async with (
            aclosing(self._tree.fragments(held, low, stop)) as entries,
            task_group() as group,
        ):
            async for entry in entries:
                in_flight.append(group.create_task(self._copy(copier, entry, stop)))
                if len(in_flight) == self._parallel:
                    await take()
            while in_flight:
                await take()

    async def _copy(self, copier: FragmentCopier, entry: Fragment, stop: int) -> Fragment:
        try:
            return await copier.copy(entry, stop)
        except ObjectNotFoundError as error:
            newest = await self._newest()
            if newest.oldest_offset <= entry.start:
                raise CorruptionError("a fragment is missing", path=entry.path) from error
            raise self._trimmed(entry.start, newest) from error

    def _trimmed(self, offset: int, manifest: Manifest) -> OffsetTrimmedError:
        return OffsetTrimmedError(
            f"the offset was collected from {self._source.store.url}",
            requested=offset,
            head=manifest.oldest_offset,
            tail=manifest.next_offset,
        )

    async def _newest(self) -> Manifest:
        async with self._reading:
            return await self._source.newest()

    async def _number_at(self, held: Manifest, offset: int) -> int:
        """Return the number of the fragment that contains an offset, or the next number at the end."""
        found = await self._tree.locate(held, offset)
        return held.next_seq_no if found is None else found.seq_no
