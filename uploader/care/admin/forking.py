"""ForkPin, Forking and GrowingManifest: protect a log from collection, copy its fragments, and build the
manifest of its fork.

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
import dataclasses
import hashlib
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.chain.inline import InlineStore
from uploader.format import layout, rollup
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.fragments.fragment import decode_fragment, verify_fragment
from uploader.fragments.fragment_builder import encode_fragment
from uploader.fragments.fragment_file import fragment_timestamp, is_ours
from uploader.layouts.log_session import LogSession, put_anyhow
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.read.fragment_reader import missing_fragment
from uploader.root.stored_document import read_fragment
from uploader.root.tree import ManifestTree
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, OffsetTrimmedError
from walstore.positions.cursor import Cursor

_HOLD_SECONDS: Final = 86_400.0
_RENEW_SECONDS: Final = 3_600.0
_FOLD_FRAGMENTS: Final = 256
"""Fragments added to the manifest at a time; each time copies it."""


class ForkPin:
    """The pin of one fork on its source. Belongs to one task."""

    def __init__(self, source: LogSession, target_url: str) -> None:
        """Name the pin after the target, so that the attempt that succeeds finds the pins of all others."""
        self._source = source
        self._prefix = f"fork_{hashlib.sha256(target_url.encode()).hexdigest()[:16]}_"
        self._name = self._prefix + secrets.token_hex(8)
        self._held_at = 0.0
        self._pin: Cursor | None = None
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
                self._pin = await self._cursors.open(
                    self._name, start=position, lease_seconds=_HOLD_SECONDS
                )
                await self._pin.rewind(position)
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
        assert self._pin is not None
        if self._source.clock.monotonic() - self._held_at >= _RENEW_SECONDS:
            await self._pin.renew()
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
        concurrency: int,
        is_resumed: bool,
    ) -> None:
        """``pin`` is held. ``is_resumed``: an earlier attempt may have put objects into the target."""
        self._source = source
        self._target = target
        self._pin = pin
        self._concurrency = concurrency
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
                held.offsets.check_head(
                    stop, f"the offset was collected from {self._source.store.url}"
                )
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
            InlineStore(self._source.store, self._source.worker, self._source.clock),
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
                if len(in_flight) == self._concurrency:
                    await take()
            while in_flight:
                await take()

    async def _copy(self, copier: FragmentCopier, entry: Fragment, stop: int) -> Fragment:
        try:
            return await copier.copy(entry, stop)
        except ObjectNotFoundError as error:
            url = self._source.store.url
            raise missing_fragment(entry, await self._newest(), url) from error

    async def _newest(self) -> Manifest:
        async with self._reading:
            return await self._source.newest()

    async def _number_at(self, held: Manifest, offset: int) -> int:
        """Return the number of the fragment that contains an offset, or the next number at the end."""
        found = await self._tree.locate(held, offset)
        return held.next_seq_no if found is None else found.seq_no


@dataclass(frozen=True, slots=True)
class Forked:
    """What a fork holds so far."""

    start: int
    """Offset of its first record."""
    limit: int
    """Offset after its last record."""
    next_seq_no: int
    """Number of the next fragment."""
    fragment_bytes: int
    """Length of its fragments."""
    setsum: str
    """Sum of its records, as 64 hex digits."""

    @classmethod
    def of(cls, manifest: Manifest) -> Forked:
        """Return the manifest of a fork."""
        return cls(
            start=manifest.oldest_offset,
            limit=manifest.next_offset,
            next_seq_no=manifest.next_seq_no,
            fragment_bytes=manifest.acc_bytes,
            setsum=manifest.setsum.hexdigest(),
        )


class GrowingManifest:
    """The manifest of a fork while its fragments come in, rolled up as it grows. Belongs to one task.

    Snapshots are put before the manifest that names them, as always. Memory does not grow with the log.
    """

    def __init__(self, target: LogSession, writer: str) -> None:
        """Begin empty; ``writer`` is the writer that the manifest will name."""
        self._target = target
        self._writer = writer
        self._settings = RollUpSettings()
        self._manifest = Manifest.initial(writer)
        self._added: list[Fragment] = []

    def forked(self) -> Forked:
        """Return the result so far."""
        return Forked.of(self._grown())

    async def add(self, fragment: Fragment) -> None:
        """Add a fragment that is in the target, the first one or the next."""
        if self._manifest.acc_bytes == 0 and not self._added:
            self._manifest = Manifest.initial(
                self._writer, start=fragment.start, seq_no=fragment.seq_no
            )
        self._added.append(fragment)
        if len(self._added) == _FOLD_FRAGMENTS:
            await self._fold()

    async def finish(self, start: int, seq_no: int) -> Manifest:
        """Return the manifest of all added fragments; without any, that of a log that begins there."""
        if self._manifest.acc_bytes == 0 and not self._added:
            self._manifest = Manifest.initial(self._writer, start=start, seq_no=seq_no)
        await self._fold()
        return self._manifest

    async def _fold(self) -> None:
        self._manifest = await self._target.worker.run(self._grown)
        self._added = []
        self._manifest, made = rollup.roll_up(self._manifest, self._settings)
        for snapshot in made:
            data = snapshot.serialise()
            await put_anyhow(self._target.store, snapshot.path, data, retry=self._target.retry)

    def _grown(self) -> Manifest:
        return self._manifest.apply_fragments(self._added, self._writer)


class FragmentCopier:
    """Copies fragments from one store to another. Any number of tasks may call it."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        *,
        is_resumed: bool,
        retry: RetryPolicy,
        worker: Worker,
    ) -> None:
        """``is_resumed``: look in the target first, since an earlier attempt may have put much of it."""
        self._source = source
        self._target = target
        self._is_resumed = is_resumed
        self._retry = retry
        self._worker = worker

    async def copy(self, entry: Fragment, stop: int) -> Fragment:
        """Copy the records of a fragment before ``stop``; return the entry of the copy.

        Its number and first offset stay; its key is that of the default layout. ObjectNotFoundError if
        the source no longer has it, CorruptionError if it does not match its entry.
        """
        whole = dataclasses.replace(entry, path=layout.fragment_path(entry.seq_no))
        if stop >= entry.limit and self._is_resumed:
            there = await self._copied(whole)
            if there is not None:
                return there
        data = await read_fragment(self._source, entry)
        await self._worker.run(verify_fragment, data, entry)
        if stop < entry.limit:
            data, whole = await self._worker.run(partial(_cut, data, entry, stop))
        await put_anyhow(self._target, whole.path, data, retry=self._retry)
        return _entry_of(whole, data)

    async def _copied(self, entry: Fragment) -> Fragment | None:
        """Return the entry of a copy that is there already; None if there is none, or another object."""
        try:
            data = await read_fragment(self._target, entry)
            await self._worker.run(verify_fragment, data, entry)
        except (ObjectNotFoundError, CorruptionError):
            return None
        return _entry_of(entry, data)


def _entry_of(entry: Fragment, data: bytes) -> Fragment:
    """Return a fragment's entry with what its verified bytes say."""
    return dataclasses.replace(entry, num_bytes=len(data), is_ours=is_ours(data, path=entry.path))


def _cut(data: bytes, entry: Fragment, stop: int) -> tuple[bytes, Fragment]:
    """Return the fragment that ends at ``stop``, with the same number and time."""
    batch = decode_fragment(data, entry).slice(entry.start, stop)
    timestamp_us = fragment_timestamp(data, path=entry.path)
    encoded = encode_fragment([batch], timestamp_us=timestamp_us)
    return encoded.data, encoded.entry(entry.seq_no)
