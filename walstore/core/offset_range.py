"""OffsetRange: the offsets that a log has, and the errors for those that it does not have. Pure.

Every OffsetTrimmedError and OffsetNotWrittenError is made here; tests/test_house.py counts.
"""

from __future__ import annotations

from typing import NamedTuple

from walstore.errors import OffsetNotWrittenError, OffsetTrimmedError


class OffsetRange(NamedTuple):
    """The offsets ``[head, tail)`` of a log's records.

    A position, where reading starts or stops, may also be ``tail``. Offsets below ``head`` are trimmed, those
    above are not written. A message replaces the one of the error's class.
    """

    head: int
    tail: int

    def check_position(self, offset: int, trimmed: str = "", not_written: str = "") -> None:
        """Raise OffsetTrimmedError or OffsetNotWrittenError unless ``head <= offset <= tail``."""
        self.check_head(offset, trimmed)
        self.check_tail(offset, not_written)

    def check_record(self, offset: int, limit: int | None = None) -> None:
        """Raise OffsetTrimmedError or OffsetNotWrittenError unless a record has the offset.

        With ``limit`` the records from there on are not visible yet: also for those OffsetNotWrittenError.
        """
        self.check_head(offset)
        if offset >= (self.tail if limit is None else limit):
            message = "the offset is not durable yet" if offset < self.tail else ""
            raise self._not_written(offset, message)

    def check_assigned(self, offset: int, message: str = "") -> None:
        """Raise OffsetNotWrittenError unless a record has the offset or had it."""
        if not 0 < offset < self.tail:
            raise self._not_written(offset, message)

    def check_head(self, offset: int, message: str = "") -> None:
        """Raise OffsetTrimmedError if an offset is below the head."""
        if offset < self.head:
            raise self.trimmed(offset, message)

    def check_tail(self, offset: int, message: str = "") -> None:
        """Raise OffsetNotWrittenError if a position is above the tail."""
        if offset > self.tail:
            raise self._not_written(offset, message)

    def trimmed(self, offset: int, message: str = "") -> OffsetTrimmedError:
        """Return the error for an offset that was found to be removed, for example a missing file."""
        return OffsetTrimmedError(message, requested=offset, head=self.head, tail=self.tail)

    def _not_written(self, offset: int, message: str) -> OffsetNotWrittenError:
        return OffsetNotWrittenError(message, requested=offset, head=self.head, tail=self.tail)
