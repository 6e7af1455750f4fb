"""RebuildPlan and Note: what a rebuild would do, and what one has done. Pure values.

A note is put before the new manifest, so that the next rebuild can finish the rest after a process that died
before the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from uploader.format.document import Fields, position, read_document, serialise
from uploader.format.entries import Snapshot
from uploader.format.findings import Finding
from uploader.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Void:
    """An object behind the new end that no program may take for the next fragment."""

    key: str
    etag: str | None
    """Names the object there; None if there is none."""


@dataclass(frozen=True, slots=True)
class Note:
    """The object ``rebuilt/{id}/REBUILD``."""

    start: int
    """Offset of the first record of the rebuilt log."""
    limit: int
    """Offset after its last one."""
    setsum: str
    """Of the new manifest; for people."""
    lost: tuple[str, ...]
    """Offsets that were in the damaged log, or should have been, and are not in the rebuilt one; for
    people."""
    voids: tuple[Void, ...]

    def serialise(self) -> bytes:
        """Return the bytes of the object."""
        return serialise(
            {
                "version": 1,
                "start": position(self.start),
                "limit": position(self.limit),
                "setsum": self.setsum,
                "lost": self.lost,
                "voids": [{"key": one.key, "etag": one.etag} for one in self.voids],
            }
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Note:
        """Read it; CorruptionError for a bad shape."""

        def build(fields: Fields) -> Note:
            return cls(
                start=fields.position("start"),
                limit=fields.position("limit"),
                setsum=fields.text("setsum"),
                lost=tuple(fields.texts("lost")),
                voids=tuple(
                    Void(one.text("key"), one.text("etag") if one.has("etag") else None)
                    for one in fields.objects("voids")
                ),
            )

        return read_document(data, build, path=path)


Keep: TypeAlias = Literal["before", "after"] | int
"""Which stretch stays the log: the first, the last, or the one with that offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that is put, and what each of it may replace. Nothing by default."""

    name: str = ""
    """Of the rebuild: the folder of its copies."""
    manifest: Manifest | None = None
    """The new one; None if the one that is there stays."""
    manifest_etag: str | None = None
    """Of the damaged one; None if it is missing, or stays."""
    snapshots: tuple[tuple[Snapshot, str | None], ...] = ()
    """Those to be put, and the ETag of the damaged one in the same place."""
    garbage_etag: str | None = None
    """Of the announced collection to be cancelled."""
    voids: tuple[Void, ...] = ()
    """What must not be taken for the next fragment."""
    copies: tuple[tuple[str, str], ...] = ()
    """Keys and ETags of what is copied before."""
    is_resumed: bool = False
    """Whether the log carries the mark of a rebuild that was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """What is wrong with a stored log, and what a rebuild would make of it."""

    location: str
    """The log's location, without credentials."""
    damages: tuple[Finding, ...] = ()
    """All that is damaged; nothing, if the log is sound."""
    choices: tuple[range, ...] = ()
    """The stretches of offsets that are proven, of which one can stay the log."""
    keep: Keep = "before"
    """Which of them this plan keeps."""
    start: int
    """Offset of the first record of the log afterwards."""
    limit: int
    """Offset after its last one."""
    lost: tuple[range, ...] = ()
    """Offsets that the damaged log held, or should have held, and that are not in the log afterwards."""
    reassigned: range | None = None
    """Those of them that appends after the rebuild use again, for other records."""
    set_aside: tuple[str, ...] = ()
    """Keys of objects of which a copy is kept, since they are replaced or given up."""
    kept_in: str | None = None
    """The folder of the copies, which end in ``.kept``, relative to the log; None if nothing is set aside."""
    notes: tuple[str, ...] = ()
    """What else to know before it is carried out."""
    fragments: int = 0
    """Fragments of the log afterwards."""
    fragment_bytes: int = 0
    """Their length."""
    setsum: str = ""
    """Of the manifest afterwards, as 64 hex digits."""
    writer: str = ""
    """The writer in the manifest afterwards."""
    is_sealed: bool = False
    """Whether the log takes no more records."""
    next_seq_no: int = 1
    """Number of the next fragment afterwards."""

    changes: Changes = field(default_factory=Changes, repr=False)
    """What :func:`uploader.apply_rebuild` does; not for callers."""

    @property
    def is_marked(self) -> bool:
        """Whether no program may append from the swap of the manifest to the end of the rebuild."""
        changes = self.changes
        is_replaced = changes.manifest is not None
        return changes.is_resumed or (is_replaced and bool(changes.voids) and not self.is_sealed)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.changes != Changes()
