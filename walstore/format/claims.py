"""Claims: the names under which a directory claimed the tier that it ships to. Pure: bytes in, values out.

A tier belongs to the directory that claimed it last. Whoever opens a log with a tier claims it, under a name
that nobody else has, and writes that name into a small file next to the log *before* the tier is asked: so a
claim whose answer was lost, or that takes effect an hour later, is known to be this directory's own. A claim
that is not in the file was made by another directory, which has taken the tier over.

The format is in docs/format.md. A file that is missing or damaged knows of no claim, which is safe: the
directory is then treated as one that does not hold its tier.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from crc32c import crc32c

from walstore.errors import FormatVersionError

FILE_NAME: Final = "CLAIMS"
VERSION: Final = 1
MOST_NAMES: Final = 16
"""Names that are kept, the newest. Those before them were made many openings ago."""
FILE_BYTES: Final = 4096
"""Length of the file, filled up with spaces: so a full disk has room for the next name."""
MOST_NAME_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class Claims:
    """What a directory knows of its claims on a tier."""

    names: tuple[str, ...] = ()
    """Claims that this directory made, or asked for, oldest first."""
    succeeds: str | None = None
    """The claim of the directory that this one was restored in place of; None for any other."""

    def and_then(self, name: str) -> Claims:
        """Return the same with one more name; ValueError for one that is too long for the file."""
        if len(name) > MOST_NAME_CHARS or not name.isascii():
            raise ValueError(
                f"a claim's name has up to {MOST_NAME_CHARS} ASCII characters: {name!r}"
            )
        return Claims((*self.names, name)[-MOST_NAMES:], self.succeeds)

    def encode(self) -> bytes:
        """Return the content of the file: a line of JSON, its CRC, and spaces."""
        document = {"version": VERSION, "names": self.names, "succeeds": self.succeeds}
        line = json.dumps(document).encode()
        return (line + b"\n%08x\n" % crc32c(line)).ljust(FILE_BYTES)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Claims | None:
        """Read :meth:`encode`; None if it is damaged, FormatVersionError if it is newer."""
        line, _, crc = data.partition(b"\n")
        if crc.rstrip() != b"%08x" % crc32c(line):
            return None
        try:
            document: Any = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        version, names, succeeds = map(document.get, ("version", "names", "succeeds"))
        if isinstance(version, int) and version > VERSION:
            raise FormatVersionError(
                "claims were written by a newer version",
                path=path,
                found=version,
                supported=VERSION,
            )
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        return cls(tuple(names), succeeds if isinstance(succeeds, str) else None)
