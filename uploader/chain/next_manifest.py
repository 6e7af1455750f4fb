"""NextManifest: makes the next manifest of a chain from the newest one. Never puts it."""

from __future__ import annotations

from collections.abc import Sequence

from uploader.chain.pending_link import LinkBase, Make, WaitForDurableError
from uploader.format.entries import Fragment
from uploader.format.layout import FragmentName
from uploader.format.manifest import Manifest
from uploader.root.garbage_file import Announced
from uploader.root.roller import Roller
from uploader.root.root import Change, make_checked
from uploader.root.tree import ManifestTree
from uploader.root.write_guard import next_writer
from uploader.stores.port import ObjectStore
from walstore.errors import ContentionError
from walstore.runtime.threads import Worker


class NextManifest:
    """Makes the manifests of one chain. Its functions may be called again with a newer manifest."""

    def __init__(
        self, store: ObjectStore, worker: Worker, roller: Roller, announced: Announced
    ) -> None:
        self._store = store
        self._worker = worker
        self._roller = roller
        self._announced = announced
        self._tree = ManifestTree(store, worker, cache_bytes=0)

    def append(self, fragments: Sequence[Fragment], writer: str) -> Make:
        """Return a function that appends fragments, rolls up what is ready and drops announced garbage.

        It returns None if they are published already. It raises ContentionError if they do not continue the
        log, LogSealedError if that is sealed, FencedError if a directory claimed it under another name.
        ValueError, from here, for a key that differs from its entry.
        """
        for fragment in fragments:
            _check_key(fragment)

        async def appended(base: LinkBase) -> Manifest | None:
            manifest, last = base.manifest, fragments[-1]
            if base.is_durable and await self._tree.is_published(manifest, last):
                return None
            name = next_writer(manifest, writer, url=self._store.url)
            first = fragments[0]
            if (manifest.next_seq_no, manifest.next_offset) == (first.seq_no, first.start):
                grown = manifest.apply_fragments(fragments, name)
                return self._roller.fold(self._announced.take_out(grown))
            if not base.is_durable:
                raise WaitForDurableError
            raise ContentionError(
                f"another writer published fragment {first.seq_no} of {self._store.url}; "
                "only one log may ship to a prefix"
            )

        return appended

    def change(self, make: Change) -> Make:
        """Return a function that makes any change; CorruptionError if the result is no sound successor."""

        async def changed(base: LinkBase) -> Manifest | None:
            made = await self._worker.run(make_checked, make, base.manifest)
            if made is None and not base.is_durable:
                raise WaitForDurableError
            return made

        return changed


def _check_key(fragment: Fragment) -> None:
    name = FragmentName.parse(fragment.path)
    stated = FragmentName(fragment.seq_no, fragment.start, fragment.limit, fragment.setsum)
    if name != stated:
        raise ValueError(f"fragment {fragment.seq_no} has the key {fragment.path!r}")
