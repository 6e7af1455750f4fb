"""KeptJournal: what a group of a replicated log remembers, in registers of the log, and so in every copy.

The registers are the pages of a journal, in the order of their numbers: a version, then words, each one or
several entries. ``p7``: all below 7 is settled; ``s7-9``: 7 and 8 are settled; ``d7-9x2`` and ``a7-9x2``:
those were delivered twice, the last time to a member in the owner's process, or in another; ``b7-3``: 7 is
appended as the third dead letter. Entries that say the same of one offset after the other are one word.
Registers are set whole, so writing a page again does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from walstore.core.batches.conditions import MAX_VALUE_CHARS, RESERVED, AppendConditions
from walstore.core.format.packed import MOST_OFFSET
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError, FormatVersionError
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.kept import kept_cursors
from walstore.positions.groups.journal import (
    CURSOR_PREFIX,
    ENTRY,
    EntryKind,
    GroupJournal,
    Remembered,
    remove_journals,
)

PREFIX: Final = RESERVED + "group."
"""Then the number of the page, a dot, and the name of the group."""
MOST_KEPT_CHARS: Final = 16 << 10
"""Pages with more, and four times what their content needs, are replaced by others. Every segment begins with
all registers."""
_VERSION: Final = "1"
_PAGE_CHARS: Final = 1024
"""A page that has so many is not continued: all of it is written again each time."""
_MOST_DELIVERED: Final = 1 << 22
"""Of one word; a group never has so many."""
_WORD: Final = re.compile(r"([psdab])(\d{1,20})(?:-(\d{1,20}))?(?:x(\d{1,5}))?", re.ASCII)
_LETTERS: Final = {
    EntryKind.POSITION: "p",
    EntryKind.SETTLED: "s",
    EntryKind.DELIVERED: "d",
    EntryKind.DELIVERED_AWAY: "a",
    EntryKind.BURIED: "b",
}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}
_DELIVERIES: Final = frozenset((EntryKind.DELIVERED, EntryKind.DELIVERED_AWAY))
_OF_RANGES: Final = _DELIVERIES | {EntryKind.SETTLED}


class KeptEntry(NamedTuple):
    """What one word says."""

    kind: EntryKind
    first: int
    second: int
    """Of a range the offset after it."""
    deliveries: int

    def word(self) -> str:
        """Return the word."""
        text = f"{_LETTERS[self.kind]}{self.first}"
        if self.kind is not EntryKind.POSITION:
            text += f"-{self.second}"
        return f"{text}x{self.deliveries}" if self.kind in _DELIVERIES else text

    def note_in(self, found: Remembered) -> None:
        """Take note of it."""
        offsets = range(self.first, self.second) if self.kind in _DELIVERIES else (self.first,)
        for offset in offsets:
            found.note(self.kind, self.deliveries, offset, self.second)


def join(entries: bytes) -> Iterator[KeptEntry]:
    """Yield the entries of a journal, those that continue each other as one."""
    last: KeptEntry | None = None
    for at in range(0, len(entries), ENTRY.size):
        _, number, count, first, second = ENTRY.unpack_from(entries, at)
        kind = EntryKind(number)
        if kind in _DELIVERIES:
            second = first + 1
        made = KeptEntry(kind, first, second, count)
        if last is None:
            last = made
        elif kind in _OF_RANGES and (last.kind, last.second, last.deliveries) == (
            kind,
            first,
            count,
        ):
            last = last._replace(second=second)
        else:
            yield last
            last = made
    if last is not None:
        yield last


def parse_page(value: str, group: str) -> Iterator[KeptEntry]:
    """Yield what a page says; CorruptionError if it is none, FormatVersionError if it is newer."""
    version, *words = value.split(" ")
    if version != _VERSION:
        raise FormatVersionError(
            "what the log keeps of the group is newer",
            path=f"group {group}",
            found=version[:20],
            supported=_VERSION,
        )
    for word in words:
        found = _WORD.fullmatch(word)
        if found is not None:
            kind = _KINDS[found[1]]
            numbers = (int(found[2]), int(found[3] or 0), int(found[4] or 0))
            made = KeptEntry(kind, *numbers)
            is_short = kind not in _DELIVERIES or made.second - made.first <= _MOST_DELIVERED
            if max(numbers) <= MOST_OFFSET and is_short and made.word() == word:
                yield made
                continue
        raise CorruptionError(
            "what the log keeps of the group cannot be read; delete the group and make it again",
            path=f"group {group}",
            found=word[:100],
        )


def pages_of(registers: Mapping[str, str]) -> dict[str, dict[int, str]]:
    """Return the pages of all groups: by name, then by number, in order."""
    found: dict[str, dict[int, str]] = {}
    for register, value in registers.items():
        if register.startswith(PREFIX):
            number, _, name = register.removeprefix(PREFIX).partition(".")
            if number.isdecimal() and name:
                found.setdefault(name, {})[int(number)] = value
    return {name: dict(sorted(pages.items())) for name, pages in found.items()}


def remembered(pages: Mapping[int, str], group: str, position: int = 1) -> Remembered:
    """Return what the pages of a group say; raises as :func:`parse_page`."""
    found = Remembered(position)
    for value in pages.values():
        for one in parse_page(value, group):
            one.note_in(found)
    return found


def _continued(number: int, value: str, entries: bytes) -> dict[int, str]:
    """Return the pages from a number on, of which the first one has a value until now, with more entries."""
    changed: dict[int, str] = {}
    for one in join(entries):
        word = one.word()
        if len(value) + 1 + len(word) > _PAGE_CHARS:
            number, value = number + 1, _VERSION
        value = changed[number] = f"{value} {word}"
    return changed


def _setting(group: str, pages: Mapping[int, str | None]) -> AppendConditions:
    update = {f"{PREFIX}{number}.{group}": value for number, value in pages.items()}
    return AppendConditions(update=update, is_upkeep=True)


class RegisterLog(Protocol):
    """What a journal needs of its log. Belongs to the event loop."""

    @property
    def registers(self) -> Mapping[str, str]:
        """The registers of the log, its own among them."""

    @property
    def change(self) -> Callable[[AppendConditions], Awaitable[None]]:
        """Changes registers; on enough machines when it returns."""


class KeptJournal:
    """A :class:`walstore.positions.groups.journal.Journal` in registers."""

    most_bytes = MOST_KEPT_CHARS

    def __init__(self, log: RegisterLog, name: str) -> None:
        self._log = log
        self._name = name
        self._pages: dict[int, str] = {}
        self._number = 1
        """Of the page that is continued."""
        self._doubtful: set[int] = set()
        """Pages that a change which failed may have made."""

    async def load(self, position: int) -> Remembered:
        """As of :class:`walstore.positions.groups.journal.Journal`."""
        self._pages = pages_of(self._log.registers).get(self._name, {})
        self._number = max(self._pages, default=1)
        return remembered(self._pages, self._name, position)

    async def append(self, entries: bytes, *, syncs: bool) -> int:
        """As of :class:`walstore.positions.groups.journal.Journal`."""
        changed = _continued(self._number, self._pages.get(self._number, _VERSION), entries)
        if changed:
            self._doubtful |= changed.keys()
            await self._log.change(_setting(self._name, changed))
            self._pages |= changed
            self._doubtful -= changed.keys()
            self._number = max(changed)
        return sum(map(len, self._pages.values()))

    async def rewrite(self, entries: Sequence[bytes]) -> None:
        """As of :class:`walstore.positions.groups.journal.Journal`; there is at least one entry."""
        made = _continued(self._number + 1, _VERSION, b"".join(entries))
        old = dict.fromkeys(self._doubtful | self._pages.keys())
        # If this fails, it may have happened: what is said later has to be on a later page.
        self._doubtful |= made.keys()
        self._number = max(made) + 1
        await self._log.change(_setting(self._name, {**old, **made}))
        self._pages, self._number, self._doubtful = made, max(made), set()

    async def aclose(self) -> None:
        """As of :class:`walstore.positions.groups.journal.Journal`."""


# -- of a log as a whole ---------------------------------------------------------------------


async def remove_kept(log: RegisterLog, name: str) -> bool:
    """Remove the pages of a group; return whether there were some."""
    pages = pages_of(log.registers).get(name)
    if pages:
        await log.change(_setting(name, dict.fromkeys(pages)))
    return bool(pages)


def adopting_journals(
    found: Mapping[str, Remembered], registers: Mapping[str, str]
) -> AppendConditions | None:
    """Return the change of registers by which a log keeps what journals in files say; None for nothing.

    A group of which the log keeps something already is left aside.
    """
    kept = pages_of(registers)
    update: dict[str, str | None] = {}
    for name, one in found.items():
        if name not in kept:
            pages = _continued(1, _VERSION, b"".join(one.entries()))
            update |= _setting(name, pages).update or {}
    return AppendConditions(update=update, is_upkeep=True) if update else None


def kept_names(registers: Iterable[str]) -> list[str]:
    """Return the names of all registers with pages of groups."""
    return [name for name in registers if name.startswith(PREFIX)]


def restore_journals(fs: FileSystem, directory: Path, registers: Mapping[str, str]) -> None:
    """Make the files of journals say what registers say, durably. Blocking, while the log is closed; OSError.

    Other files are of an earlier time, and are removed.
    """
    remove_journals(fs, directory)
    positions = {
        name.removeprefix(CURSOR_PREFIX): state.position if isinstance(state, CursorState) else 1
        for name, state in kept_cursors(registers).items()
        if name.startswith(CURSOR_PREFIX)
    }
    kept = pages_of(registers)
    for name in positions | kept:
        found = remembered(kept.get(name, {}), name, positions.get(name, 1))
        journal = GroupJournal(fs, directory, name)
        try:
            journal.load(found.position)
            journal.rewrite(found.entries())
        finally:
            journal.close()


assert _PAGE_CHARS <= MAX_VALUE_CHARS
