"""ManifestLog: the manifest's compare-and-swap protocol. The manifest is the truth about what is shipped.

Owns the current manifest and its ETag; every change is one swap. Never touches fragments.

What may go wrong, and what follows:
  * another writer appended: ContentionError, nothing of ours was published;
  * another program changed something else (a collector dropped old fragments): tried again on top of it;
  * no answer: the manifest is read back; if that fails too the outcome is unknown and the caller may
    call again with the same fragments, which publishes them once whatever happened before.
"""

from __future__ import annotations

from collections.abc import Sequence

from uploader import cas, layout
from uploader.entries import Fragment
from uploader.manifest import Manifest
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, OutcomeUnknownError


class ManifestLog:
    """The root of one log in an object store, as one writer sees it. One task at a time."""

    def __init__(self, store: ObjectStore, retry: RetryPolicy) -> None:
        self._store = store
        self._retry = retry
        self._etag = ""
        self.manifest = Manifest.initial("")
        """The newest manifest known to be current when it was read or written."""

    async def load(self) -> bool:
        """Read the manifest; return False if there is none. CorruptionError if it is damaged."""
        try:
            stored = await self._retry.call(lambda: self._store.get(layout.MANIFEST))
        except ObjectNotFoundError:
            return False
        manifest = Manifest.parse(stored.data)
        manifest.scrub()
        self.manifest, self._etag = manifest, stored.etag
        return True

    async def load_or_create(self, writer: str) -> None:
        """Read the manifest, creating an empty one if there is none. Several may try: one creates."""
        if await self.load():
            return
        data = Manifest.initial(writer).serialise()
        result = await cas.create(self._store, layout.MANIFEST, data, retry=self._retry)
        if result.outcome is cas.Outcome.UNKNOWN:
            raise OutcomeUnknownError(
                f"{self._store.url} did not say whether the manifest was created; open again"
            )
        if not await self.load():
            raise ContentionError(f"somebody deleted the manifest of {self._store.url}")

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments to the manifest with one swap.

        They continue the manifest and are in the store already. Returns when they are published, also
        if an earlier call had published them without learning it. Raises ContentionError if another
        writer appended instead, OutcomeUnknownError if the store does not answer.
        """
        while True:
            if _holds(self.manifest, fragments):
                return
            if self.manifest.next_seq_no != fragments[0].seq_no:
                raise ContentionError(
                    f"another writer published fragment {fragments[0].seq_no} of {self._store.url}; "
                    "only one log may ship to a prefix"
                )
            manifest = self.manifest.apply_fragments(fragments, writer)
            data = manifest.serialise()
            result = await cas.swap(
                self._store, layout.MANIFEST, data, self._etag, retry=self._retry
            )
            if result.outcome is cas.Outcome.COMMITTED:
                assert result.etag is not None
                self.manifest, self._etag = manifest, result.etag
                return
            if result.outcome is cas.Outcome.UNKNOWN:
                raise OutcomeUnknownError(
                    f"{self._store.url} did not say whether the manifest was swapped"
                )
            if not await self.load():
                raise ContentionError(f"somebody deleted the manifest of {self._store.url}")


def _holds(manifest: Manifest, fragments: Sequence[Fragment]) -> bool:
    """Return whether the manifest names the last of these fragments, hence all of them."""
    last = fragments[-1]
    return any(
        entry.seq_no == last.seq_no and entry.setsum == last.setsum
        for entry in reversed(manifest.fragments)
    )
