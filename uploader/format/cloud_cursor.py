"""CloudCursor: a named position in a log in object storage, as a value. Pure.

Owns its JSON form, which is wal3's, with up to two fields more behind wal3's own: ``expires_us`` of a pin,
and ``unchecked`` of a cursor whose records may be gone. wal3's programs tolerate them when they read, and
drop them when they rewrite the cursor. A pin then never expires, which keeps too much rather than too
little; their collector never lets it expire anyway.

A cursor that was removed is a pin that expired in 1970. Its object stays, because stores cannot delete on a
condition: a delete that arrives late would remove the cursor that another program made there since.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

from uploader.format import layout
from uploader.format.document import (
    MOST_SMALL_BYTES,
    Fields,
    check_u64,
    position,
    read_document,
    serialise,
)

_REMOVED_US: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudCursor:
    """The content of one cursor object when it was read or written."""

    name: str
    """Letters A to Z, digits and ``_``; unique in the log."""
    position: int
    """Offset of the next record that its reader needs; all records from there on are kept."""
    epoch_us: int
    """When it was written, by the writer's clock; for people."""
    writer: str
    """Its writer; for people. Of a pin: its owner."""
    expires_us: int | None = None
    """When a pin expires, in wall-clock microseconds. None: never."""
    is_unchecked: bool = False
    """Whether it is not yet checked that the records at ``position`` are still there; if they are, it holds
    them like any other. The call that wrote it has not ended, or its process died."""
    before: CloudCursor | None = None
    """Of an unchecked one: the cursor in whose place it was put, to be put back if the records are gone. None
    if there was no cursor."""
    etag: str | None = field(default=None, compare=False)
    """Names this content in a swap; None if it is not in a store."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits; ValueError."""
        check_u64(position=self.position, epoch_us=self.epoch_us, expires_us=self.expires_us or 0)

    @classmethod
    def parse(cls, data: bytes, *, name: str, etag: str | None = None) -> CloudCursor:
        """Read the object of cursor ``name``; CorruptionError for a bad shape."""

        def build(fields: Fields) -> CloudCursor:
            found = dataclasses.replace(_from_fields(fields, name), etag=etag)
            if not fields.has("unchecked"):
                return found
            change = fields.object("unchecked")
            before = _from_fields(change.object("before"), name) if change.has("before") else None
            return dataclasses.replace(found, is_unchecked=True, before=before)

        path = layout.cursor_path(name)
        return read_document(data, build, path=path, most_bytes=MOST_SMALL_BYTES)

    @classmethod
    def removed(cls, name: str, position: int, *, epoch_us: int, writer: str) -> CloudCursor:
        """Return the replacement of a removed cursor.

        ``position`` is where wal3's collectors stop, which do not know that it holds nothing.
        """
        return cls(
            name=name,
            position=position,
            epoch_us=epoch_us,
            writer=writer,
            expires_us=_REMOVED_US,
        )

    def checked(self) -> CloudCursor:
        """Return the same cursor without the mark of an unchecked one. Its ETag stays."""
        return dataclasses.replace(self, is_unchecked=False, before=None)

    def serialise(self) -> bytes:
        """Return the bytes that wal3 would write for it, with our own fields behind where they apply."""
        document = _to_json(self)
        if self.is_unchecked:
            before = None if self.before is None else _to_json(self.before)
            document["unchecked"] = {"before": before}
        return serialise(document)

    @property
    def is_removed(self) -> bool:
        """Whether it only marks a removed cursor."""
        return self.expires_us == _REMOVED_US

    def is_expired(self, now_us: int) -> bool:
        """Whether it is an expired pin, which holds nothing."""
        return self.expires_us is not None and self.expires_us <= now_us


def _to_json(cursor: CloudCursor) -> dict[str, Any]:
    document: dict[str, Any] = {
        "position": position(cursor.position),
        "epoch_us": cursor.epoch_us,
        "writer": cursor.writer,
    }
    if cursor.expires_us is not None:
        document["expires_us"] = cursor.expires_us
    return document


def _from_fields(fields: Fields, name: str) -> CloudCursor:
    return CloudCursor(
        name=name,
        position=fields.position("position"),
        epoch_us=fields.number("epoch_us"),
        writer=fields.text("writer"),
        expires_us=fields.number("expires_us") if fields.has("expires_us") else None,
    )
