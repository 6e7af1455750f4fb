"""SwappedRoot: the manifest's compare-and-swap protocol. The manifest is the truth about what is shipped.

Owns the current manifest and its ETag; every change is one swap. The swap that publishes also names the
snapshots rolled up in the background, and drops what a collector has announced. Never touches
fragments.

Failures and their results:
  * another writer appended: ContentionError, nothing of ours was published;
  * another directory claimed the log: FencedError, permanently;
  * another program changed something else (a collector dropped old fragments): retried on top of it;
  * no answer: the manifest is read back; if that fails too the outcome is unknown and the caller may
    call again with the same fragments, which publishes them once whatever happened before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.format.setsum import Setsum
from uploader.root import cas
from uploader.root.garbage_file import Announced
from uploader.root.roller import Roller
from uploader.root.root import Change, Note, make_checked
from uploader.root.stored_document import read_object
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import (
    check_creatable,
    check_not_destroyed,
    is_destroyed,
    may_be_revived,
    missing,
    next_writer,
)
from uploader.stores.port import ListedObject, ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.errors import ContentionError, InvalidSettingsError, LogNotFoundError

_LONG_BYTES: Final = 16 << 10
"""Reading a shorter manifest is as cheap as a HEAD."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A manifest, and the ETag to swap it."""

    manifest: Manifest
    etag: str


class SwappedRoot:
    """A :class:`~uploader.root.root.Root` that is one manifest, replaced by swaps.

    Any number of tasks of one event loop may call it: reads and swaps follow one another.
    """

    def __init__(
        self,
        store: ObjectStore,
        retry: RetryPolicy,
        worker: Worker,
        *,
        roll_up: RollUpSettings | None = None,
        note: Note | None = None,
    ) -> None:
        """``worker`` takes the work on long manifests off the event loop; ``note`` is called before
        fragments are published."""
        self._store = store
        self._retry = retry
        self._worker = worker
        self._note = note
        self._known: _Known | None = None
        # Whether the last load found a long manifest unchanged: the next one then asks for its ETag first.
        self._may_ask_cheaply = False
        self._turn = asyncio.Lock()
        self._roller = Roller(store, retry, worker, roll_up or RollUpSettings())
        self._announced = Announced(store, worker, retry.clock)
        self._tree = ManifestTree(store, worker, cache_bytes=0)

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known to be current when it was read or written."""
        return _NOTHING if self._known is None else self._known.manifest

    @property
    def is_known(self) -> bool:
        """Whether there is a manifest, as far as we know."""
        return self._known is not None

    @property
    def put_snapshots(self) -> int:
        """Snapshots put so far, named by a manifest or not yet."""
        return self._roller.put_snapshots

    @property
    def max_publishing(self) -> int:
        """One: swaps follow one another."""
        return 1

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """Return wal3's key, which depends only on the number."""
        del start, limit, setsum
        return layout.fragment_path(seq_no)

    def early_key(self, seq_no: int) -> str | None:
        """Return wal3's key."""
        return layout.fragment_path(seq_no)

    def take_content(self, path: str, data: bytes, store: ObjectStore) -> bool:
        """Return False: wal3's programs know only objects."""
        del path, data, store
        return False

    def begin_inline(self) -> None:
        """Do nothing: there are none."""

    async def put_inline(self) -> None:
        """Do nothing: there are none."""

    async def unpublished(self) -> AsyncIterator[ListedObject]:
        """Yield the objects behind the last fragment in ``log/``, whatever the order of the listing.

        Skips those of another log below, but yields objects that are not fragments in a fragment's place.
        """
        last = self.manifest.next_seq_no - 1
        after = layout.fragment_path(last) if last > 0 else None
        listing = self._store.list(layout.FRAGMENT_FOLDER, after=after)
        found = [listed async for listed in listing if layout.is_among_fragments(listed.key)]
        for listed in sorted(found, key=lambda listed: listed.key):
            yield listed

    async def load(self) -> bool:
        """Read the manifest; return False if there is none, or one came after the log was destroyed.

        Once a long manifest was found unchanged, only its ETag is requested first, so that following an
        idle log transfers nothing.
        """
        async with self._turn:
            return await self._is_unchanged() or await self._load()

    async def may_have_changed(self) -> bool:
        """Return True: :meth:`load` itself requests only the ETag where it can."""
        return True

    async def load_or_create(self, writer: str) -> None:
        """Read the manifest, creating an empty one if there is none; see :meth:`Root.load_or_create`."""
        async with self._turn:
            before = self._known
            if not await self._load():
                await check_creatable(self._store, is_gone=self.is_known)
                await self._create(writer)
            was_looked_at = self._known is not before and may_be_revived(self.manifest)
        if not was_looked_at:
            await check_not_destroyed(self._store)

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments to the manifest with one swap; see :meth:`Root.publish`.

        ValueError if a key is not the one that :meth:`fragment_key` returns.
        """
        if self._note is not None:
            await self._note(fragments)
        for fragment in fragments:
            if fragment.path != layout.fragment_path(fragment.seq_no):
                raise ValueError(f"fragment {fragment.seq_no} has the key {fragment.path!r}")
        async with self._turn:
            while not await self._tree.is_published(self.manifest, fragments):
                known = self._current()
                name = next_writer(known.manifest, writer, url=self._store.url)
                end = known.manifest.next_seq_no, known.manifest.next_offset
                if end != (fragments[0].seq_no, fragments[0].start):
                    raise ContentionError(
                        f"another writer published fragment {fragments[0].seq_no} of "
                        f"{self._store.url}; only one log may ship to a prefix"
                    )
                grown = known.manifest.apply_fragments(fragments, name)
                await self._swap(known, self._roller.fold(self._announced.take_out(grown)))
            self._roller.begin(self.manifest)
            self._announced.begin()

    async def change(self, make: Change) -> bool:
        """Swap the manifest for the result of ``make``; repeated if another writer was quicker."""
        async with self._turn:
            while True:
                if self._known is None and not await self._load():
                    raise missing(self._store.url)
                known = self._current()
                manifest = await self._worker.run(make_checked, make, known.manifest)
                if manifest is None:
                    return False
                if await self._swap(known, manifest):
                    return True

    async def settle(self) -> None:
        """Return when no snapshot is being put. The next :meth:`publish` names those that were."""
        await self._roller.wait()
        await self._announced.wait()

    async def aclose(self) -> None:
        """Cancel the background work, which is harmless; idempotent."""
        await self._roller.aclose()
        await self._announced.aclose()

    # -- inside ------------------------------------------------------------------------------

    def _current(self) -> _Known:
        if self._known is None:
            raise LogNotFoundError(
                f"there is no log at {self._store.url}; create one first", location=self._store.url
            )
        return self._known

    async def _load(self) -> bool:
        try:
            stored = await read_object(self._store, layout.MANIFEST)
        except ObjectNotFoundError:
            return False
        is_same = self._known is not None and stored.etag == self._known.etag
        self._may_ask_cheaply = is_same and len(stored.data) >= _LONG_BYTES
        if self._known is None or not is_same:
            before = None if self._known is None else self._known.manifest
            manifest = await self._worker.run(_parse, stored.data, before)
            if may_be_revived(manifest):
                if await is_destroyed(self._store):
                    return False
                _check_successor(before, manifest)
            self._known = _Known(manifest, stored.etag)
        return True

    async def _is_unchanged(self) -> bool:
        if self._known is None or not self._may_ask_cheaply:
            return False
        found = await self._store.head(layout.MANIFEST)
        return found is not None and found.etag == self._known.etag

    async def _create(self, writer: str) -> None:
        data = Manifest.initial(writer).serialise()
        result = await cas.create(self._store, layout.MANIFEST, data, retry=self._retry)
        result.decided(self._store.url, "the manifest was created; open again")
        async for listed in self._store.list(f"{layout.MANIFEST}."):
            raise InvalidSettingsError(
                f"a log of the other layout was created at {self._store.url} at the same time; "
                f"delete {layout.MANIFEST} or {listed.key}, whichever is empty"
            )
        if not await self._load():
            await check_not_destroyed(self._store)
            raise ContentionError(f"the manifest of {self._store.url} was deleted")

    async def _swap(self, known: _Known, manifest: Manifest) -> bool:
        """Swap a known manifest for ``manifest``; if it was no longer current, load the newer one."""
        # Waking a thread would take longer than the work itself, and all appends wait for it.
        is_short = manifest.is_short
        data = manifest.serialise() if is_short else await self._worker.run(manifest.serialise)
        result = await cas.swap(self._store, layout.MANIFEST, data, known.etag, retry=self._retry)
        if result.outcome is cas.PutOutcome.COMMITTED:
            assert result.etag is not None
            self._known = _Known(manifest, result.etag)
            return True
        result.decided(self._store.url, "the manifest was swapped; open again")
        if not await self._load():
            raise ContentionError(f"the manifest of {self._store.url} was deleted")
        return False


def _parse(data: bytes, before: Manifest | None) -> Manifest:
    manifest = Manifest.parse(data)
    manifest.scrub()
    if not may_be_revived(manifest):
        _check_successor(before, manifest)
    return manifest


def _check_successor(before: Manifest | None, manifest: Manifest) -> None:
    if before is not None:
        before.scrub_successor(manifest)


_NOTHING: Final = Manifest.initial("")
