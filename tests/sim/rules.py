"""Rules: what must be true of a log whatever happens, and the book that is kept to check them.

docs/guarantees.md cites the rules by their names. The book knows what callers asked for and what they were
told; it knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from walstore.errors import WalError
from walstore.records import Record

RULES: Final = {
    "durable-survives": "what was acknowledged at level disk is in the log after any crash, in its place",
    "found-survives": "what an opening found, or a durable reader saw, survives any later crash",
    "offsets": "offsets are consecutive, each is given once, and no acknowledged one is used again",
    "not-written": "what was reported as not_written, or rolled back, is never in the log",
    "durable-outcome": "what was reported as durable is in the log",
    "no-resurrection": "what one opening did not find is found by no later one",
    "whole": "a group or transaction is in the log whole and in order, or not at all",
    "once": "a value that was appended once, or repeated under its sequence number, is in the log once",
    "invented": "nothing is in the log that nobody appended, with the options it was appended with",
    "registers": "registers change together with their records, and never go back behind an acknowledgement",
    "fences": "an append through a fence fails once a later one was acknowledged",
    "streams": "a stream's reader sees the stream's records and no others, and opened streams survive",
    "readers": "a reader sees every record from its start on, once, in order",
    "head": "the head never goes back behind an acknowledged trim, and never passes what was asked for",
    "cursors": "an acknowledged commit of a cursor survives, and no record at or above it is removed",
    "ends": "every call ends",
    "drains": "a log that was closed without an error, or whose tasks were cancelled, loses nothing accepted",
    "reopens": "a log opens again once its disk works",
    "verifies": "verify finds no problem in what a session or a crash left",
    "nothing-missing": "recovery never misses what had been durable",
    "fails-for-a-cause": "a call fails only if the disk did, the caller broke a condition, or the log closes",
    "typed-errors": "calls raise WalError with an outcome, and asyncio has nothing to complain about",
    "one-writer": "nobody changes a log's files without holding its lock",
    "releases": "a closed log has no files open",
}


class ViolationError(Exception):
    """A rule was broken."""

    rules: ClassVar[Mapping[str, str]] = RULES

    def __init__(self, rule: str, story: str) -> None:
        super().__init__(f"{rule} ({self.rules[rule]}): {story}")
        self.rule = rule


SETTLED: Final = ("durable", "refused", "gone")


@dataclass(eq=False)
class Entry:
    """A group that somebody appends: its records, and what it changes besides."""

    number: int
    kind: str
    sizes: tuple[int, ...]
    stream: str | None = None
    update: dict[str, str] = field(default_factory=dict)
    expect: dict[str, str | None] = field(default_factory=dict)
    fence: int | None = None
    status: str = "open"
    """open, accepted, durable, refused (not written), unknown, or gone (an opening did not find it)."""
    start: int | None = None
    """Offset of its first record, once that is known."""
    least: int = 1
    """No record of it has a lower offset."""
    session: int = 0
    """The opening of the log in which it was appended."""
    tries: int = 0
    rule: str = "durable-survives"
    """The rule that its loss breaks, once it is durable."""

    @property
    def values(self) -> list[bytes]:
        return [self.value(at) for at in range(len(self.sizes))]

    def value(self, at: int) -> bytes:
        return f"{self.number}.{at}.".encode().ljust(
            self.sizes[at], b"abcdefgh"[self.number % 8 :][:1]
        )

    def __repr__(self) -> str:
        where = "" if self.start is None else f"@{self.start}"
        return f"{self.kind} {self.number}{where} x{len(self.sizes)} {self.status}"


class Book:
    """All that was asked for and told about one log."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.promised: dict[int, tuple[bytes, str]] = {}
        """What must be at an offset, and by which rule."""
        self.head_least = 1
        self.head_most: float = 1
        self.tail_least = 1
        self.opened_tail = 1
        self.session = 0
        self.counters: dict[str, int] = {}
        """What registers that one actor raises were acknowledged to have."""
        self.fence = 0
        self.cursors: dict[str, int] = {}
        """Where each was when that was acknowledged last."""
        self.cursors_most: dict[str, int] = {}
        """Where each may be at most."""
        self.streams: set[str] = set()
        self.checks = 0

    # -- what callers did and were told --------------------------------------------------------

    def submit(self, kind: str, sizes: Iterable[int], **options: Any) -> Entry:
        number = len(self.entries) + 1
        entry = Entry(number, kind, tuple(max(size, 16) for size in sizes), **options)
        entry.least, entry.session = self.opened_tail, self.session
        self.entries[number] = entry
        return entry

    def accepted(self, entry: Entry, start: int) -> None:
        """Somebody was told the offset of an entry's first record."""
        if entry.start is not None and entry.start != start:
            raise ViolationError("once", f"{entry!r} now is at {start}")
        if start < entry.least and entry.tries < 2:
            raise ViolationError("offsets", f"{entry!r} got {start} below {entry.least}")
        entry.start = start
        if entry.status in ("open", "unknown"):
            entry.status = "accepted"

    def durable(self, entry: Entry, start: int | None = None) -> None:
        """An entry was acknowledged at level disk."""
        if start is not None and entry.sizes:
            self.accepted(entry, start)
        if entry.status in ("refused", "gone"):
            raise ViolationError("not-written", f"{entry!r} was acknowledged afterwards")
        entry.status = "durable"
        for name, value in entry.update.items():
            self.counters[name] = max(int(value), self.counters.get(name, 0))
        if entry.start is not None:
            for at in range(len(entry.sizes)):
                self.promise(entry.start + at, entry.value(at), entry.rule)

    def failed(self, entry: Entry, error: WalError) -> None:
        """A caller was told by an error what became of an entry."""
        if error.outcome == "durable":
            self.durable(entry)
        elif error.outcome == "unknown" or entry.tries > 1:
            self.lost_sight(entry)
        else:
            self.refused(entry)

    def refused(self, entry: Entry) -> None:
        """A caller was told that an entry was not written."""
        if entry.status == "durable":
            raise ViolationError("not-written", f"{entry!r} had been acknowledged")
        entry.status = "refused"

    def lost_sight(self, entry: Entry) -> None:
        """Nobody was told what became of an entry."""
        if entry.status not in SETTLED:
            entry.status = "unknown"

    def promise(self, offset: int, value: bytes, rule: str) -> None:
        """From now on a value must be at an offset."""
        had = self.promised.get(offset)
        if had is not None and had[0] != value:
            raise ViolationError("offsets", f"{offset} was {had[0][:12]!r}, now is {value[:12]!r}")
        if had is None:
            self.promised[offset] = value, rule
        self.tail_least = max(self.tail_least, offset + 1)

    def entry_of(self, value: bytes) -> tuple[Entry, int]:
        """Return whose record a value is."""
        try:
            number, at, _ = value.split(b".", 2)
            entry = self.entries[int(number)]
            if entry.value(int(at)) == value:
                return entry, int(at)
        except (ValueError, KeyError, IndexError):
            pass
        raise ViolationError("invented", f"nobody appended {value[:24]!r}")

    def saw(self, record: Record, *, keeps: bool) -> Entry:
        """A reader saw a record; ``keeps``: it saw only what is durable."""
        entry, at = self.entry_of(record.value)
        if record.stream != entry.stream:
            raise ViolationError("invented", f"{entry!r} has stream {record.stream!r}")
        start = record.offset - at
        if entry.start is not None and entry.start != start:
            raise ViolationError("offsets", f"{entry!r} was seen at {start}")
        if entry.status == "refused":
            raise ViolationError("not-written", f"{entry!r} is in the log at {record.offset}")
        if entry.status == "gone":
            raise ViolationError("no-resurrection", f"{entry!r} is in the log at {record.offset}")
        if keeps:
            entry.start = start
            self.promise(record.offset, record.value, "found-survives")
        return entry

    # -- what an opening found -----------------------------------------------------------------

    def reopened(
        self, records: list[Record], registers: Mapping[str, str], head: int, tail: int
    ) -> None:
        """Check all that a log holds after it was opened, and settle what was open."""
        self.checks += 1
        found = {record.offset: record.value for record in records}
        if list(found) != list(range(head, tail)):
            raise ViolationError("offsets", f"[{head}, {tail}) holds {_brief(found)}")
        if not self.head_least <= head <= self.head_most:
            raise ViolationError(
                "head", f"it is {head}, not in [{self.head_least}, {self.head_most}]"
            )
        for offset, (value, rule) in list(self.promised.items()):
            if offset < head:
                del self.promised[offset]
            elif found.get(offset) != value:
                got = found.get(offset)
                raise ViolationError(
                    rule,
                    f"{offset} was {self.entry_of(value)[0]!r}, now is "
                    f"{'gone' if got is None else got[:12]!r}; the log is [{head}, {tail})",
                )
        self._check_groups(records, head)
        self._check_registers(registers)
        self.opened_tail = self.tail_least = max(self.tail_least, tail)

    def _check_groups(self, records: list[Record], head: int) -> None:
        places: dict[int, dict[int, int]] = {}
        for record in records:
            entry = self.saw(record, keeps=True)
            _, at = self.entry_of(record.value)
            seen = places.setdefault(entry.number, {})
            if at in seen:
                raise ViolationError("once", f"{entry!r} is at {seen[at]} and {record.offset}")
            seen[at] = record.offset
        for number, seen in places.items():
            entry = self.entries[number]
            assert entry.start is not None
            want = {at: entry.start + at for at in range(len(entry.sizes))}
            if seen != {at: offset for at, offset in want.items() if offset >= head}:
                raise ViolationError("whole", f"of {entry!r} there is {seen}")
            entry.status = "durable"
        for entry in self.entries.values():
            if entry.number in places or not entry.sizes or entry.status in ("refused", "gone"):
                continue
            limit = entry.least if entry.start is None else entry.start + len(entry.sizes) - 1
            if limit < head:
                continue  # it may have been trimmed
            if entry.status == "durable":
                raise ViolationError("durable-outcome", f"{entry!r} is not in the log from {head}")
            entry.status = "gone"
            entry.start = None

    def _check_registers(self, registers: Mapping[str, str]) -> None:
        by_name: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            for name in entry.update:
                by_name.setdefault(name, []).append(entry)
        for name, entries in by_name.items():
            value = registers.get(name)
            now = self.entries.get(int(value)) if value is not None else None
            if value is not None and (now is None or name not in now.update):
                raise ViolationError("registers", f"{name} is {value!r}, which nobody set")
            self._settle_register(name, entries, now)

    def _settle_register(self, name: str, entries: list[Entry], now: Entry | None) -> None:
        """A register holds what the last entry set; those before it may have been in the log."""
        chain: list[Entry] = []
        if name.startswith("shared"):
            at = now
            while at is not None:
                chain.append(at)
                before = at.expect[name]
                at = None if before is None else self.entries[int(before)]
        else:
            chain = [entry for entry in entries if now is not None and entry.number <= now.number]
        for entry in entries:
            if entry in chain:
                certain = entry is now or name.startswith("shared")
                if certain and entry.status == "refused":
                    raise ViolationError("registers", f"{name} has what {entry!r} set")
                if certain and entry.status == "gone":
                    raise ViolationError("no-resurrection", f"{name} has what {entry!r} set")
                if certain:
                    entry.status = "durable"
            elif entry.status == "durable":
                raise ViolationError("registers", f"{name} is {now!r}, behind {entry!r}")
            elif entry.status not in SETTLED:
                entry.status = "gone"

    def closed_cleanly(self) -> None:
        """Everything accepted must be in the log from now on."""
        for entry in self.pending():
            self.durable(entry)

    def pending(self) -> list[Entry]:
        """Return what was accepted since the log was opened and not acknowledged yet."""
        return [
            entry
            for entry in self.entries.values()
            if entry.status == "accepted" and entry.session == self.session
        ]


def _brief(found: Mapping[int, bytes]) -> str:
    offsets = list(found)
    return f"{len(offsets)} records, {offsets[:3]}…{offsets[-3:]}"
