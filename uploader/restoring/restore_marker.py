"""RestoreMarker: the file that says that a restore is under way in a directory. Pure: bytes in, values out.

It is named like a segment and none, so that a directory in which it lies does not open as a log. It goes
last, when all else is durable.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from crc32c import crc32c

from uploader.format.document import MOST_SMALL_BYTES, Fields, read_document
from walstore.errors import CorruptionError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RestoreMarker:
    """What is being restored; a restore that says the same goes on where an interrupted one stopped."""

    url: str
    """Where from, without credentials."""
    log_id: str
    """Identity of the log to be made, in hex."""
    head: int
    """Its first offset."""
    stop: int | None
    """Its last offset plus one, if the caller gave one."""

    def encode(self) -> bytes:
        """Return the content of the file: a line of JSON and its CRC."""
        line = json.dumps({"version": VERSION, **asdict(self)}).encode()
        return line + b"\n%08x\n" % crc32c(line)

    @classmethod
    def decode(cls, data: bytes) -> RestoreMarker | None:
        """Read :meth:`encode`; None if it is damaged or of another version."""
        line, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % crc32c(line):
            return None
        try:
            return read_document(line, cls._from_fields, path="marker", most_bytes=MOST_SMALL_BYTES)
        except CorruptionError:
            return None

    @classmethod
    def _from_fields(cls, fields: Fields) -> RestoreMarker:
        if fields.number("version") != VERSION:
            raise CorruptionError("a marker of another version", path=fields.path)
        return cls(
            url=fields.text("url"),
            log_id=fields.text("log_id"),
            head=fields.number("head"),
            stop=fields.number("stop") if fields.has("stop") else None,
        )
