"""Whether a fragment was published, asked after an answer was lost. For the roots of both layouts."""

from __future__ import annotations

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.root.tree import ManifestTree
from walstore.errors import ContentionError


async def is_published(tree: ManifestTree, manifest: Manifest, last: Fragment, *, url: str) -> bool:
    """Return whether the manifest names the last of our fragments, hence all of them.

    After a lost answer others may have appended, rolled up and even collected. Then no entry is left
    to compare, and the ContentionError reports an unknown outcome.
    """
    if manifest.next_seq_no <= last.seq_no:
        return False
    if last.limit <= manifest.oldest_offset:
        raise ContentionError(
            f"another writer went on at {url}, and offset {last.start} was collected "
            "before it was known whose records it had",
            outcome="unknown",
        )
    return await tree.locate(manifest, last.start) == last
