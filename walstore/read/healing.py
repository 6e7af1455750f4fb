"""Healing reads: decides which failed reads of a local file the tier's copy answers, and reports them."""

from __future__ import annotations

import errno
import logging
from typing import Final

from walstore.errors import CorruptionError, WalError
from walstore.files.segment_file import Segment

logger = logging.getLogger("walstore")

_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Temporary shortages of the system; the file may be intact."""


def is_damage(error: WalError) -> bool:
    """Return whether a local file is damaged, missing or unreadable, so that reading a copy helps."""
    if isinstance(error, CorruptionError):
        return True
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno not in _SHORTAGES


class DamagedSegments:
    """The segments of an open log whose files are damaged. Belongs to the event loop."""

    def __init__(self) -> None:
        self._reported: set[int] = set()

    def report(self, segment: Segment, error: WalError, url: str) -> None:
        """Log the damage of a segment, once."""
        if segment.start in self._reported:
            return
        self._reported.add(segment.start)
        logger.error(
            "%s is damaged; its records are read from %s until 'walstore repair --from-tier' has "
            "rebuilt it: %s",
            segment.path,
            url,
            error,
        )


def not_shipped(error: CorruptionError, limit: int) -> CorruptionError:
    """Return the error for damage found by the uploader: the tier has only offsets below ``limit``."""
    where = error.path if error.position is None else f"{error.path} at byte {error.position}"
    bare = str(error).removesuffix(f": {where}")
    found = CorruptionError(
        f"{bare}, and these records are not in the tier, which ends at offset {limit}",
        path=error.path,
        position=error.position,
        expected=error.expected,
        found=error.found,
    )
    found.__cause__ = error
    return found
