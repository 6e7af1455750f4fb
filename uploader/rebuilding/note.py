"""Note: what a rebuild did, and what it still has to do behind the end of the new manifest. Pure.

It is put before the new manifest, so that the next rebuild can finish the rest after a process that died
before the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from uploader.format.document import Fields, position, read_document, serialise


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
