"""Checking a whole log against its manifest, one fragment in memory at a time."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_check import check_fragment
from uploader.read.fragment_reader import FragmentReader
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker


@dataclass(frozen=True, slots=True)
class Verified:
    """What :meth:`uploader.CloudLog.verify` has checked."""

    fragments: int
    records: int
    fragment_bytes: int
    setsum: str
    """Sum over everything ever appended, as 64 hex digits."""


async def verify_log(
    manifest: Manifest, fragments: FragmentReader, worker: Worker, *, url: str
) -> Verified:
    """Read every fragment and check it against its entry and the manifest.

    Checks offsets, contiguity, setsum, times and streams of each, and that the setsums add up, also to those
    of this reader's older manifests. Warns of a length that differs. CorruptionError names the object.
    """
    await worker.run(manifest.scrub)
    total = manifest.collected
    records = size = count = 0
    async with aclosing(fragments.tree.fragments(manifest)) as entries:
        async for entry in entries:
            data = await fragments.fetch(entry)
            await worker.run(_verify, data, entry)
            fragments.note_length(entry, data)
            total += entry.setsum
            records += entry.limit - entry.start
            size += len(data)
            count += 1
    if total != manifest.setsum:
        raise CorruptionError(
            "the fragments' setsums do not add up to the manifest's",
            path=url,
            expected=manifest.setsum.hexdigest(),
            found=total.hexdigest(),
        )
    return Verified(count, records, size, total.hexdigest())


def _verify(data: bytes, entry: Fragment) -> None:
    """Check a fragment as a scrub does; CorruptionError for the first fault."""
    check_fragment(data, entry).require_sound()
