"""TornCopies: the copies of torn tails that recovery keeps beside a log, for people to look at. Blocking.

``00000000000000000001.broken`` is the first of that segment, ``.broken.2`` the next. The newest few of a log
stay, and none outlives its segment. Nothing here fails an opening or a deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from walstore.core.files.directory import write_durably
from walstore.core.format import segment
from walstore.core.ports import FileSystem

logger = logging.getLogger("walstore.log")

MOST_COPIES: Final = 4
_SUFFIX: Final = ".broken"


class TornCopies:
    """Those in the directory of one log."""

    def __init__(self, fs: FileSystem, directory: Path, names: Iterable[str]) -> None:
        """``names`` are those of all files in the directory."""
        self._fs = fs
        self._directory = directory
        self._kept = sorted(filter(None, map(_parse, names)))

    def keep(self, path: Path, torn: bytes) -> Path | None:
        """Keep the torn tail of a segment in a new file, unless an opening that crashed already did.

        None if there is no room for it.
        """
        start = segment.parse_file_name(path.name)
        assert start is not None
        own = [found for found in self._kept if found[0] == start]
        for _, _, name in own:
            if self._fs.read(self._directory / name) == torn:
                return self._directory / name
        number = own[-1][1] + 1 if own else 1
        copy = path.with_suffix(_SUFFIX if number == 1 else f"{_SUFFIX}.{number}")
        self._remove(self._kept[: max(len(self._kept) + 1 - MOST_COPIES, 0)])
        try:
            write_durably(self._fs, copy, torn)
        except OSError as error:
            logger.warning("no copy of the torn tail of %s is kept: %s", path, error)
            return None
        self._kept = sorted([*self._kept, (start, number, copy.name)])
        return copy

    def remove_of(self, start: int) -> None:
        """Remove the copies of a segment that is deleted."""
        self._remove([found for found in self._kept if found[0] == start])

    def remove_before(self, start: int) -> None:
        """Remove the copies of segments before the log's first one, which were deleted without them."""
        self._remove([found for found in self._kept if found[0] < start])

    def _remove(self, doomed: Iterable[tuple[int, int, str]]) -> None:
        for found in list(doomed):
            start, number, name = found
            logger.info(
                "removing %s, the copy %d of a torn tail of segment %d", name, number, start
            )
            try:
                self._fs.remove(self._directory / name)
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.warning("%s cannot be removed: %s", name, error)
                continue
            self._kept.remove(found)


def _parse(name: str) -> tuple[int, int, str] | None:
    """Return segment and number of a copy, with its name; None for another file."""
    stem, suffix, number = name.partition(_SUFFIX)
    start = segment.parse_file_name(stem + segment.SUFFIX)
    if not suffix or start is None or not (number == "" or number[1:].isdecimal()):
        return None
    return start, int(number[1:] or 1), name
