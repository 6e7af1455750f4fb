"""RestoreMarker: the file that marks a directory with a restore in progress. Pure: bytes in, values out.

It has a segment's name but is no segment, so that a directory with it does not open as a log. It is
removed last, when everything else is durable.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from crc32c import crc32c

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RestoreMarker:
    """Identifies a restore; one with the same values continues where an interrupted one stopped."""

    url: str
    """The source, without credentials."""
    log_id: str
    """Identity of the log to restore, in hex."""
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
        """Read :meth:`encode`; None if it is damaged, forged or of another version."""
        line, _, crc = data.partition(b"\n")
        if crc != b"%08x\n" % crc32c(line):
            return None
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
            return None
        stop = fields.get("stop")
        is_right = (
            set(fields) == {"url", "log_id", "head", "stop"}
            and isinstance(fields["url"], str)
            and isinstance(fields["log_id"], str)
            and all(
                type(at) is int and at >= 0 for at in (fields["head"], 0 if stop is None else stop)
            )
        )
        return cls(**fields) if is_right else None
