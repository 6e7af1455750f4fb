"""ManifestLog: the manifest's compare-and-swap protocol. The manifest is the truth about what is shipped.

Owns the current manifest and its ETag; every change is one swap. Never touches fragments.

What may go wrong, and what follows:
  * another writer appended: ContentionError, nothing of ours was published;
  * another program changed something else (a collector dropped old fragments): tried again on top of it;
  * no answer: the manifest is read back; if that fails too the outcome is unknown and the caller may
    call again with the same fragments, which publishes them once whatever happened before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from uploader import cas, layout
from uploader.entries import Fragment
from uploader.manifest import Manifest
from uploader.root import Change
from uploader.setsum import Setsum
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, LogNotFoundError, OutcomeUnknownError
from walstore.threads import Worker


class ManifestLog:
    """The root of one log in an object store, as one writer sees it. One task at a time."""

    def __init__(self, store: ObjectStore, retry: RetryPolicy, worker: Worker) -> None:
        """``worker`` takes the work on long manifests off the event loop."""
        self._store = store
        self._retry = retry
        self._worker = worker
        self._etag: str | None = None
        self._manifest = Manifest.initial("")

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known to be current when it was read or written."""
        return self._manifest

    @property
    def is_known(self) -> bool:
        """Whether there is a manifest, as far as we know."""
        return self._etag is not None

    @property
    def max_publishing(self) -> int:
        """One: swaps follow one another."""
        return 1

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """Return wal3's key, which depends on the number alone."""
        del start, limit, setsum
        return layout.fragment_path(seq_no)

    async def unpublished(self) -> AsyncIterator[ListedObject]:
        """Yield the objects behind the last fragment in ``log/``."""
        last = self.manifest.next_seq_no - 1
        after = layout.fragment_path(last) if last > 0 else None
        async for listed in self._store.list(layout.FRAGMENT_FOLDER, after=after):
            yield listed

    async def load(self) -> bool:
        """Read the manifest; return False if there is none.

        CorruptionError if it is damaged, or older than the one known before. The store's errors are
        passed on: how often a read is repeated is the store's affair.
        """
        try:
            stored = await self._store.get(layout.MANIFEST)
        except ObjectNotFoundError:
            return False
        if stored.etag != self._etag:
            manifest = await self._worker.run(_parse, stored.data)
            if self._etag is not None:
                self.manifest.scrub_successor(manifest)
            self._manifest, self._etag = manifest, stored.etag
        return True

    async def load_or_create(self, writer: str) -> None:
        """Read the manifest, creating an empty one if there is none. Several may try: one creates.

        OutcomeUnknownError if the store does not answer; call again.
        """
        if await self.load():
            return
        data = Manifest.initial(writer).serialise()
        result = await cas.create(self._store, layout.MANIFEST, data, retry=self._retry)
        if result.outcome is cas.Outcome.UNKNOWN:
            raise OutcomeUnknownError(
                f"{self._store.url} did not say whether the manifest was created; open again",
                retriable=True,
            ) from result.cause
        if not await self.load():
            raise ContentionError(f"somebody deleted the manifest of {self._store.url}")

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments to the manifest with one swap.

        They continue the manifest and are in the store already. Returns when they are published, also
        if an earlier call had published them without learning it. Raises ContentionError if another
        writer appended instead, OutcomeUnknownError if the store does not answer: call again with the
        same fragments then.
        """
        while True:
            if _holds(self.manifest, fragments[-1]):
                return
            end = self.manifest.next_seq_no, self.manifest.next_offset
            if end != (fragments[0].seq_no, fragments[0].start):
                raise ContentionError(
                    f"another writer published fragment {fragments[0].seq_no} of {self._store.url}; "
                    "only one log may ship to a prefix"
                )
            if await self._swap(self.manifest.apply_fragments(fragments, writer)):
                return

    async def change(self, make: Change) -> bool:
        """Swap the manifest for what ``make`` makes of it; again, if another writer was quicker."""
        while True:
            if not self.is_known and not await self.load():
                raise LogNotFoundError(
                    f"there is no log at {self._store.url}", location=self._store.url
                )
            manifest = await self._worker.run(make, self.manifest)
            if manifest is None:
                return False
            if await self._swap(manifest):
                return True

    async def _swap(self, manifest: Manifest) -> bool:
        """Swap the known manifest for ``manifest``; if it was no longer current, load the newer one."""
        assert self._etag is not None
        data = await self._worker.run(manifest.serialise)
        result = await cas.swap(self._store, layout.MANIFEST, data, self._etag, retry=self._retry)
        if result.outcome is cas.Outcome.COMMITTED:
            assert result.etag is not None
            self._manifest, self._etag = manifest, result.etag
            return True
        if result.outcome is cas.Outcome.UNKNOWN:
            raise OutcomeUnknownError(
                f"{self._store.url} did not say whether the manifest was swapped; open again",
                retriable=True,
            ) from result.cause
        if not await self.load():
            raise ContentionError(f"somebody deleted the manifest of {self._store.url}")
        return False


def _parse(data: bytes) -> Manifest:
    manifest = Manifest.parse(data)
    manifest.scrub()
    return manifest


def _holds(manifest: Manifest, last: Fragment) -> bool:
    """Return whether the manifest names the last of our fragments, hence all of them."""
    return manifest.next_seq_no > last.seq_no and last in manifest.fragments
