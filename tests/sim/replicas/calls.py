"""Calls: what programs asked a log and were told, as ``tests/histories.py`` reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.histories import Append, History, Outcome, Read


class Calls:
    """Of all programs of a history. What a program that is killed was not told is unknown."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun: dict[bytes, tuple[float, int | None]] = {}
        self._ended = History()

    def begin(self, *values: bytes, expect_offset: int | None = None) -> None:
        """Note that appends of values begin, which nobody appended before."""
        for value in values:
            self._begun[value] = self._now(), expect_offset

    def end(self, value: bytes, outcome: Outcome, offset: int | None = None) -> None:
        """Note what was said of an append."""
        begin, expect_offset = self._begun.pop(value)
        self._ended.appends.append(
            Append(value, begin, self._now(), outcome, offset, expect_offset)
        )

    def saw(self, start: int, values: Sequence[bytes], begin: float) -> None:
        """Note all that was in the log from an offset on, at some moment since ``begin``."""
        self._ended.reads.append(Read(start, tuple(values), begin, self._now()))

    def history(self) -> History:
        """Return all calls so far."""
        cut_off = [
            Append(value, begin, self._now(), "unknown", expect_offset=expect_offset)
            for value, (begin, expect_offset) in self._begun.items()
        ]
        return History([*self._ended.appends, *cut_off], list(self._ended.reads))
