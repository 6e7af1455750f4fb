"""CloudCursor: a named position in a log in object storage, as a value. Pure.

Owns its JSON form, which is wal3's. A pin has one field more, ``expires_us``, behind wal3's own: wal3's
programs tolerate it when they read, and drop it when they rewrite the cursor. Then the pin holds for good,
which keeps too much rather than too little; their collector never lets it expire anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from uploader import layout
from uploader.manifests.document import (
    MOST_SMALL_BYTES,
    Fields,
    check_u64,
    position,
    read_document,
    serialise,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudCursor:
    """What one cursor object said when it was read or written."""

    name: str
    """Letters A to Z, digits and ``_``; unique in the log."""
    position: int
    """Offset of the next record that its reader wants; everything from there on is kept."""
    epoch_us: int
    """When it was written, by the writer's clock; for people."""
    writer: str
    """Who wrote it; for people. Of a pin: its owner."""
    expires_us: int | None = None
    """Of a pin: when it stops to hold anything, in wall-clock microseconds. None: never."""
    etag: str | None = field(default=None, compare=False)
    """Names this content in a swap; None if it is not in a store."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits; ValueError."""
        check_u64(position=self.position, epoch_us=self.epoch_us, expires_us=self.expires_us or 0)

    @classmethod
    def parse(cls, data: bytes, *, name: str, etag: str | None = None) -> CloudCursor:
        """Read the object of cursor ``name``; CorruptionError for a bad shape."""

        def build(fields: Fields) -> CloudCursor:
            return cls(
                name=name,
                position=fields.position("position"),
                epoch_us=fields.number("epoch_us"),
                writer=fields.text("writer"),
                expires_us=fields.number("expires_us") if fields.has("expires_us") else None,
                etag=etag,
            )

        path = layout.cursor_path(name)
        return read_document(data, build, path=path, most_bytes=MOST_SMALL_BYTES)

    def serialise(self) -> bytes:
        """Return the bytes that wal3 would write for it, with the expiry behind if it is a pin."""
        document: dict[str, Any] = {
            "position": position(self.position),
            "epoch_us": self.epoch_us,
            "writer": self.writer,
        }
        if self.expires_us is not None:
            document["expires_us"] = self.expires_us
        return serialise(document)

    def is_expired(self, now_us: int) -> bool:
        """Whether it is a pin whose time is over, so that it holds nothing."""
        return self.expires_us is not None and self.expires_us <= now_us
