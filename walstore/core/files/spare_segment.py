"""SpareSegment: the file of a segment that was given up, kept for the next segment of the same log.

The blocks of such a file are written already, so a sync of what replaces them writes no journal of the file
system: large groups take 0.7 to 0.9 of the time (docs/performance.md, "Recycled segments"). Blocking; belongs
to the writer's thread.

What the file still contains is never taken for frames of the new segment: each segment has a salt of its
own, and a header that says what follows its frames (docs/format.md, "Segment header").
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from walstore.core.format import segment
from walstore.core.ports import File, FileSystem

NAME: Final = "next.tmp"
"""Name of a file that is a segment of no log: kept for the next one, or while the next one is made."""
_ROOM_SEGMENTS: Final = 4
"""A file is kept only while so many segments fit on the disk besides ``min_free_bytes``."""


class SpareSegment:
    """At most one file, in the directory of one log."""

    def __init__(
        self, fs: FileSystem, directory: Path, *, segment_bytes: int, min_free_bytes: int
    ) -> None:
        """Begin with none. A file of that name that an earlier opening left is not used."""
        self._fs = fs
        self._directory = directory
        self._path = directory / NAME
        self._segment_bytes = segment_bytes
        self._least_free_bytes = min_free_bytes + _ROOM_SEGMENTS * segment_bytes
        self._is_there = False

    def keep(self, path: Path) -> bool:
        """Take the file of a segment that was given up away from its name; False if it is not wanted.

        There is one already, or the disk is rather full; then the one that is there is deleted, too. The
        directory must be synced before :meth:`take`: until then a crash may bring the old name back.
        FileNotFoundError if the file is gone; any other failure is a False.
        """
        if not self._has_room():
            self.drop()
            return False
        if self._is_there:
            return False
        try:
            self._fs.replace(path, self._path)
        except FileNotFoundError:
            raise
        except OSError:
            return False
        self._is_there = True
        return True

    def take(self) -> File | None:
        """Return the file, open for writing, if there is one that nobody else has open or linked.

        Its end is cut off, where the footer was: without it the file is no sealed segment. No error is
        raised: a file that is of no use is left to the caller that makes the next one of that name.
        """
        if not self._is_there:
            return None
        self._is_there = False
        with contextlib.suppress(OSError):
            file = self._fs.open(self._path, "r+")
            try:
                end = min(file.size() - segment.SEAL.size, self._segment_bytes)
                if end > segment.HEADER_BYTES and file.is_alone():
                    file.truncate(end)
                    # A value that ended here might look like a footer's end.
                    file.pwrite([bytes(segment.SEAL.size)], end - segment.SEAL.size)
                    return file
            except BaseException:
                file.close()
                raise
            file.close()
        return None

    def drop(self) -> None:
        """Delete the file, if there is one; never raises."""
        if self._is_there:
            self._is_there = False
            with contextlib.suppress(OSError):
                self._fs.remove(self._path)

    def _has_room(self) -> bool:
        try:
            return self._fs.free_bytes(self._directory) >= self._least_free_bytes
        except OSError:
            return False
