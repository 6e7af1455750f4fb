"""ForkPin and Forking: protect a log from collection, copy its fragments, and build the manifest of its fork.

Owns the selection of fragments, their concurrency, and the manifest with snapshots that they become, in
memory that does not grow with the log. The steps before and after are in ``fork.py``.

The pin expires, so that an abandoned fork does not hold records for ever. It points at the log's first
record, whatever range is copied: in a log without cursors, a pin further on would release all records before
it.

Each attempt uses a new pin name. So the pin can be deleted although stores have no conditional delete: a late
delete never removes another attempt's pin. Pins are deleted, not left to expire, because wal3's collectors do
not know expiry and would keep the records for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from uploader.cursors.cloud_cursors import CloudCursors
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.layouts.growing_manifest import Forked, GrowingManifest
from uploader.layouts.log_session import LogSession
from uploader.read.fragment_copy import FragmentCopier
from uploader.root.tree import ManifestTree
from uploader.runtime.task_groups import task_group
from uploader.stores.errors import ObjectNotFoundError
from walstore.errors import CorruptionError, OffsetTrimmedError

_HOLD_SECONDS: Final = 86_400.0
_RENEW_SECONDS: Final = 3_600.0


class ForkPin:
    """The pin of one fork on its source. Belongs to one task."""

    def __init__(self, source: LogSession, target_url: str) -> None:
        """Name the pin after the target, so that the attempt that succeeds finds the pins of all others."""
        self._source = source
        self._prefix = f"fork_{hashlib.sha256(target_url.encode()).hexdigest()[:16]}_"
        self._name = self._prefix + secrets.token_hex(8)
        self._held_at = 0.0
        self._cursors = CloudCursors(
            source.store,
            newest=self._newest,
            retry=source.retry,
            clock=source.clock,
            writer="walstore fork",
        )

    async def hold(self, start: int | None) -> int | None:
        """Pin the log; return the first offset to copy: ``start`` if given.

        Without ``start``, a collection under way takes precedence, and only the records that it keeps are
        copied. Afterwards the source's manifest is at least as new as the pin. OffsetTrimmedError if
        ``start`` is being collected.
        """
        # A forged manifest may say that the log begins at 0.
        position = max(layout.FIRST_OFFSET, self._source.root.manifest.oldest_offset)
        while True:
            try:
                await self._cursors.pin(self._name, position, seconds=_HOLD_SECONDS)
            except OffsetTrimmedError as error:
                if start is not None and start < error.head:
                    await self.release()
                    raise
                position = max(error.head, position)
                continue
            self._held_at = self._source.clock.monotonic()
            oldest = (await self._newest()).oldest_offset
            return position if start is None and position > oldest else start

    async def renew(self) -> None:
        """Renew the pin for another day, if an hour has passed."""
        if self._source.clock.monotonic() - self._held_at >= _RENEW_SECONDS:
            await self._cursors.renew(self._name, seconds=_HOLD_SECONDS)
            self._held_at = self._source.clock.monotonic()

    async def release(self) -> None:
        """Remove the pin, and those of earlier attempts; no error if there is none."""
        folder = self._source.store.list(f"{layout.CURSOR_FOLDER}{self._prefix}")
        if keys := [listed.key async for listed in folder]:
            await self._source.store.delete(keys)

    async def _newest(self) -> Manifest:
        return await self._source.newest()


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
