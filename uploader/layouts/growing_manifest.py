"""GrowingManifest: the manifest of a fork while its fragments come in, rolled up as it grows.

Snapshots are put before the manifest that names them, as always. Memory does not grow with the log.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from uploader.format import layout, rollup
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings
from uploader.layouts.log_session import LogSession, put_anyhow

_FOLD_FRAGMENTS: Final = 256
"""Fragments added to the manifest at a time; each time copies it."""


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
    """One manifest under construction. Belongs to one task."""

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
            self._begin(fragment.start, fragment.seq_no)
        self._added.append(fragment)
        if len(self._added) == _FOLD_FRAGMENTS:
            await self._fold()

    async def finish(self, start: int, seq_no: int) -> Manifest:
        """Return the manifest of all added fragments; without any, that of a log that begins there."""
        if self._manifest.acc_bytes == 0 and not self._added:
            self._begin(start, seq_no)
        await self._fold()
        return self._manifest

    def _begin(self, start: int, seq_no: int) -> None:
        if (start, seq_no) != (layout.FIRST_OFFSET, layout.FIRST_SEQ_NO):
            self._manifest = dataclasses.replace(
                self._manifest, initial_offset=start, initial_seq_no=seq_no
            )

    async def _fold(self) -> None:
        self._manifest = await self._target.worker.run(self._grown)
        self._added = []
        while made := rollup.plan(self._manifest, self._settings):
            for snapshot in made:
                await put_anyhow(
                    self._target.store,
                    snapshot.path,
                    snapshot.serialise(),
                    retry=self._target.retry,
                )
            replacements = [
                Replacement(snapshot.snapshots or snapshot.fragments, snapshot.pointer())
                for snapshot in made
            ]
            self._manifest = rollup.fold(self._manifest, replacements)

    def _grown(self) -> Manifest:
        return self._manifest.apply_fragments(self._added, self._writer)
