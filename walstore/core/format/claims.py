"""Claims: the names with which a directory claimed its tier. Pure: bytes in, values out.

A tier belongs to the directory that claimed it last. Opening a log with a tier claims it with a unique
name, and writes that name to a small file next to the log *before* the tier is claimed: so a claim
whose response was lost, or that takes effect an hour later, is known to be this directory's own. A
claim that is not in the file was made by another directory, which has taken the tier over.

The primaries of a replicated log claim for each other: their names are in a register of the log, and so in
every copy, before the tier is claimed.

The format is in docs/format.md. A missing or damaged file counts as no claim, which is safe: then the
directory is treated as one that does not own its tier.
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
"""Number of names kept, the newest. Earlier ones were made many openings ago."""
FILE_BYTES: Final = 4096
"""Length of the file, padded with spaces, so that a full disk has room for the next name."""
MOST_NAME_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class Claims:
    """A directory's claims on a tier."""

    names: tuple[str, ...] = ()
    """Claims that this directory made or attempted, oldest first."""
    succeeds: str | None = None
    """The claim of the directory that this one replaces, if it was restored; otherwise None."""

    def and_then(self, name: str) -> Claims:
        """Return the claims with one more name; ValueError for a name that is too long for the file."""
        if len(name) > MOST_NAME_CHARS or not name.isascii():
            raise ValueError(
                f"a claim's name has up to {MOST_NAME_CHARS} ASCII characters: {name!r}"
            )
        return Claims((*self.names, name)[-MOST_NAMES:], self.succeeds)

    def encode(self) -> bytes:
        """Return the content of the file: a line of JSON, its CRC, and spaces."""
        line = self.to_register().encode()
        return (line + b"\n%08x\n" % crc32c(line)).ljust(FILE_BYTES)

    def to_register(self) -> str:
        """Return the value of a replicated log's register."""
        return json.dumps({"version": VERSION, "names": self.names, "succeeds": self.succeeds})

    @classmethod
    def decode(cls, data: bytes, path: str) -> Claims | None:
        """Read :meth:`encode`; None if it is damaged, FormatVersionError if it is newer."""
        line, _, crc = data.partition(b"\n")
        if crc.rstrip() != b"%08x" % crc32c(line):
            return None
        return cls.of_register(line, path)

    @classmethod
    def of_register(cls, line: str | bytes, path: str) -> Claims | None:
        """Read :meth:`to_register`; as :meth:`decode`."""
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
