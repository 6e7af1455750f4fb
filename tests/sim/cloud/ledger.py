"""Rules of logs in object storage, and the ledger that is kept of each log to check them.

docs/guarantees.md cites the rules by their names. The ledger knows what callers asked for, were told, and
saw; it knows nothing of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.sim.rules import ViolationError
from walstore.errors import WalError

CLOUD_RULES: Final = {
    "acknowledged": "what was acknowledged is at its offset, for every reader who looks afterwards",
    "one-history": "no two readers ever see different values at one offset",
    "once": "a value that was appended once is in the log once",
    "not-written": "what was reported as not_written is never in the log",
    "invented": "nothing is in the log that nobody appended",
    "whole": "a group is in the log whole and in order, or not at all",
    "offsets": "an append comes behind all that was acknowledged before it began, and where it was expected",
    "goes-on": "who looks later sees no earlier state of the log",
    "readers": "a reader sees every record from its start on, in order",
    "held": "no record goes that a cursor or a pin holds, and none goes while there was no cursor",
    "cursors": "an acknowledged cursor is where it was put, and does not go back",
    "forks": "a fork has the records of its source, and keeps them as long as it lives",
    "sealed": "no append commits behind the end that sealing returned",
    "destroyed": "an append that begins after a log was destroyed is not acknowledged, and nothing remains",
    "sums": "the setsum of the manifest is the sum over its fragments, and of what was collected",
    "scrubs": "scrubbing finds nothing worse than what is left over",
    "one-shipper": "what a local log calls uploaded is in the cloud at that offset",
    "goes-well": "once the store answers, a log can be opened, appended to, read and collected",
    "fails-for-a-cause": "a call fails only if the store did, others came between, or the log ended",
    "typed-errors": "calls raise WalError with an outcome, and asyncio has nothing to complain about",
    "ends": "every call ends",
}


class CloudViolationError(ViolationError):
    """A rule of the cloud was broken."""

    rules = CLOUD_RULES


@dataclass(eq=False)
class Entry:
    """A group that somebody appends."""

    number: int
    sizes: tuple[int, ...]
    floor: int
    """All below was acknowledged or seen before it began."""
    sealed_limit: int | None
    """Where the log was known to end then."""
    was_destroyed: bool
    expect: int | None = None
    status: str = "open"
    """open, acknowledged, refused or unknown."""
    start: int | None = None

    @property
    def values(self) -> list[bytes]:
        return [self.value(at) for at in range(len(self.sizes))]

    def value(self, at: int) -> bytes:
        return f"{self.number}.{at}.".encode().ljust(
            self.sizes[at], b"abcdefgh"[self.number % 8 :][:1]
        )

    def __repr__(self) -> str:
        where = "" if self.start is None else f"@{self.start}"
        return f"append {self.number}{where} x{len(self.sizes)} {self.status}"


@dataclass
class Held:
    """What is known of a cursor or a pin."""

    least: int
    most: int
    is_certain: bool = False
    """Whether it is known to be there."""
    until: float = float("inf")
    """When it may stop to hold, in virtual seconds."""


@dataclass
class Ledger:
    """All that was asked for, told and seen of one log."""

    name: str
    parent: Ledger | None = None
    """The log of which it is a fork."""
    parent_limit: int = 1
    """Offsets below are the parent's."""
    first_head: int = 1
    """Where it began: at the head of the fork."""
    entries: dict[int, Entry] = field(default_factory=dict)
    truth: dict[int, bytes] = field(default_factory=dict)
    """What was acknowledged or seen, at which offset."""
    places: dict[bytes, int] = field(default_factory=dict)
    head: int = 1
    """The greatest that anybody saw."""
    tail: int = 1
    """The greatest that anybody saw, or was told."""
    holds: dict[str, Held] = field(default_factory=dict)
    most_asked: int = 1
    """The greatest position that any cursor may ever have had."""
    is_begun: bool = False
    """Whether it is known to be there."""
    may_be_sealed: bool = False
    sealed_limit: int | None = None
    may_be_destroyed: bool = False
    is_destroyed: bool = False
    checks: int = 0
    now: Callable[[], float] = lambda: 0.0
    """Tells the virtual time."""

    # -- appends -----------------------------------------------------------------------------

    def submit(self, number: int, sizes: Iterable[int], expect: int | None = None) -> Entry:
        """Note that an append begins."""
        entry = Entry(
            number,
            tuple(max(size, 16) for size in sizes),
            floor=self.tail,
            sealed_limit=self.sealed_limit,
            was_destroyed=self.is_destroyed,
            expect=expect,
        )
        self.entries[number] = entry
        return entry

    def acknowledged(self, entry: Entry, start: int) -> None:
        """An append was told that it is in the log."""
        if entry.was_destroyed:
            raise CloudViolationError("destroyed", f"{entry!r} got {start}")
        if entry.status == "refused":
            raise CloudViolationError("not-written", f"{entry!r} got {start} afterwards")
        if start < entry.floor:
            raise CloudViolationError(
                "offsets", f"{entry!r} got {start}, not {entry.floor} or more"
            )
        if entry.expect is not None and start != entry.expect:
            raise CloudViolationError("offsets", f"{entry!r} got {start}, expected {entry.expect}")
        if entry.start is not None and entry.start != start:
            raise CloudViolationError("one-history", f"{entry!r} got {start}")
        entry.start, entry.status = start, "acknowledged"
        for at, value in enumerate(entry.values):
            self.saw(start + at, value)

    def failed(self, entry: Entry, error: WalError) -> None:
        """An append was told by an error what became of it."""
        if entry.status != "open":
            return
        if error.outcome == "not_written":
            entry.status = "refused"
            seen = [value for value in entry.values if value in self.places]
            if seen:
                raise CloudViolationError("not-written", f"{entry!r} is at {self.places[seen[0]]}")
        else:
            entry.status = "unknown"

    def lost_sight(self, entry: Entry) -> None:
        """Nobody was told what became of an append."""
        if entry.status == "open":
            entry.status = "unknown"

    # -- what is seen ------------------------------------------------------------------------

    def saw(self, offset: int, value: bytes) -> None:
        """Somebody saw a value, or was told that it is there: from now on it is."""
        if offset < self.parent_limit:
            assert self.parent is not None
            self._compare(offset, value)
            self.parent.saw(offset, value)
        else:
            self._check_entry(offset, value)
            self._compare(offset, value)
        place = self.places.setdefault(value, offset)
        if place != offset:
            raise CloudViolationError("once", f"{value[:16]!r} is at {place} and {offset}")
        self.truth[offset] = value
        self.tail = max(self.tail, offset + 1)
        if self.sealed_limit is not None and offset >= self.sealed_limit:
            raise CloudViolationError("sealed", f"{offset} in a log sealed at {self.sealed_limit}")

    def _compare(self, offset: int, value: bytes) -> None:
        known = self.truth.get(offset, value)
        if known != value:
            raise CloudViolationError(
                "one-history", f"{offset} was {known[:16]!r}, now is {value[:16]!r}"
            )

    def _check_entry(self, offset: int, value: bytes) -> None:
        entry, at = self.entry_of(value)
        if entry.status == "refused":
            raise CloudViolationError("not-written", f"{entry!r} is at {offset}")
        if entry.start is None:
            entry.start = offset - at
        elif entry.start != offset - at:
            rule = "acknowledged" if entry.status == "acknowledged" else "whole"
            raise CloudViolationError(rule, f"part {at} of {entry!r} is at {offset}")

    def entry_of(self, value: bytes) -> tuple[Entry, int]:
        """Return whose record a value is."""
        try:
            number, at, _ = value.split(b".", 2)
            entry = self.entries[int(number)]
            if entry.value(int(at)) == value:
                return entry, int(at)
        except (ValueError, KeyError, IndexError):
            pass
        raise CloudViolationError("invented", f"nobody appended {value[:24]!r}")

    def looked(self, head: int, tail: int, since: tuple[int, int]) -> None:
        """Somebody who began to look when :meth:`floor` was ``since`` sees the log in ``[head, tail)``."""
        if head < since[0] or tail < since[1]:
            raise CloudViolationError("goes-on", f"[{head}, {tail}) after {since}")
        self.check_head(head)
        self.head, self.tail = max(self.head, head), max(self.tail, tail)
        if self.sealed_limit is not None and tail > self.sealed_limit:
            raise CloudViolationError("sealed", f"it ends at {tail}, not {self.sealed_limit}")

    def floor(self) -> tuple[int, int]:
        """Return what a look that begins now sees at the least."""
        return self.head, self.tail

    def read_all(self, head: int, tail: int, found: dict[int, bytes]) -> None:
        """Somebody read the whole of ``[head, tail)``."""
        self.checks += 1
        if list(found) != list(range(head, tail)):
            raise CloudViolationError("readers", f"[{head}, {tail}) is {_brief(found)}")
        for offset, value in found.items():
            self.saw(offset, value)
        for offset in self.truth:
            if head <= offset < tail and offset not in found:
                raise CloudViolationError("acknowledged", f"{offset} is gone")
        self._check_groups(head, tail)

    def _check_groups(self, head: int, tail: int) -> None:
        for entry in self.entries.values():
            if entry.start is None or entry.start < self.parent_limit:
                continue
            for at in range(len(entry.sizes)):
                offset = entry.start + at
                if entry.start >= tail or offset < head:
                    continue  # it came after this look, or was collected
                if offset >= tail or self.truth.get(offset) != entry.value(at):
                    raise CloudViolationError("whole", f"{entry!r} lacks part {at}")

    # -- cursors -----------------------------------------------------------------------------

    def holds_from(self, now: float) -> int:
        """Return the greatest offset at which the log may begin."""
        most = max(self.most_asked, self.first_head)
        for held in self.holds.values():
            if held.is_certain and now < held.until:
                most = min(most, max(held.most, self.first_head))
        return most

    def check_head(self, head: int) -> None:
        """Check that nothing went that somebody holds."""
        if self.may_be_destroyed:
            return
        now = self.now()
        most = self.holds_from(now)
        if head > most:
            held = {
                name: (held.least, held.most)
                for name, held in self.holds.items()
                if held.is_certain and now < held.until
            }
            raise CloudViolationError(
                "held", f"the log begins at {head}, not {most} or less: {held}"
            )

    def asks(self, name: str, position: int) -> Held:
        """Note that a cursor may be moved to a position from now on."""
        held = self.holds.setdefault(name, Held(position, position))
        held.least, held.most = min(held.least, position), max(held.most, position)
        self.most_asked = max(self.most_asked, position)
        return held

    def is_at(self, name: str, position: int, until: float = float("inf")) -> None:
        """Note that a cursor was acknowledged to be at a position."""
        self.holds[name] = Held(position, position, is_certain=True, until=until)
        self.most_asked = max(self.most_asked, position)
        self.check_head(self.head)

    def found_cursor(self, name: str, position: int | None) -> None:
        """Check where a cursor was found by the only program that moves it; None if there is none."""
        held = self.holds.get(name)
        if position is None:
            if held is not None and held.is_certain:
                raise CloudViolationError("cursors", f"{name} is gone, was at {held.least}")
            return
        if held is None or not held.least <= position <= held.most:
            raise CloudViolationError("cursors", f"{name} is at {position}, not at {held}")

    # -- the end -----------------------------------------------------------------------------

    def sealed(self, limit: int) -> None:
        """Somebody was told that the log is sealed, and ends there."""
        if self.sealed_limit not in (None, limit):
            raise CloudViolationError("sealed", f"at {limit}, and at {self.sealed_limit}")
        self.sealed_limit = limit
        if self.tail > limit:
            raise CloudViolationError("sealed", f"at {limit}, though {self.tail - 1} is in the log")


def _brief(found: dict[int, bytes]) -> str:
    offsets = list(found)
    return f"{len(offsets)} records, {offsets[:3]}…{offsets[-3:]}"
