"""What a replicated log keeps of its groups: the words, the pages, and calls that fail."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walstore import CorruptionError, FormatVersionError, StorageUnavailableError
from walstore.core.batches.conditions import MAX_VALUE_CHARS, AppendConditions
from walstore.positions.groups.journal import ENTRY, EntryKind, Remembered, entry
from walstore.positions.groups.kept_journal import (
    KeptJournal,
    adopting_journals,
    pages_of,
    remembered,
    remove_kept,
)

OFFSETS = st.integers(1, 300)
ENTRIES = st.one_of(
    st.builds(lambda at: entry(EntryKind.POSITION, at), OFFSETS),
    st.builds(lambda at, more: entry(EntryKind.SETTLED, at, at + more), OFFSETS, st.integers(1, 9)),
    st.builds(
        lambda kind, at, times: entry(kind, at, count=times),
        st.sampled_from((EntryKind.DELIVERED, EntryKind.DELIVERED_AWAY)),
        OFFSETS,
        st.integers(1, 3),
    ),
    st.builds(lambda at, number: entry(EntryKind.BURIED, at, number), OFFSETS, OFFSETS),
)


class Registers:
    """The registers of a log whose copies may be away."""

    def __init__(self) -> None:
        self.registers: Mapping[str, str] = {}
        self.fails = self.happens = False
        """Whether a change fails, and whether it happens nevertheless."""

    async def change(self, conditions: AppendConditions) -> None:
        if not self.fails or self.happens:
            now = {**self.registers, **(conditions.update or {})}
            self.registers = {name: value for name, value in now.items() if value is not None}
        if self.fails:
            raise StorageUnavailableError("too few copies", outcome="unknown")


def said_by(entries: list[bytes]) -> Remembered:
    """Return what entries say, one after the other."""
    found = Remembered()
    for one in entries:
        _, kind, count, first, second = ENTRY.unpack(one)
        found.note(kind, count, first, second)
    return found


def comparable(found: Remembered) -> tuple[object, ...]:
    settled = {offset for low, high in found.settled for offset in range(low, high)}
    return (
        found.position,
        settled,
        found.deliveries,
        found.away,
        found.buried,
        found.letters,
    )


def test_the_highest_number_of_a_letter_stays_whoever_had_it() -> None:
    found = said_by([entry(EntryKind.BURIED, 1, 2), entry(EntryKind.BURIED, 1, 1)])
    assert (found.buried, found.letters) == ({1: 1}, 2)
    assert comparable(said_by(found.entries())) == comparable(found)


@given(st.lists(st.lists(ENTRIES, max_size=40), max_size=12), st.data())
async def test_what_is_kept_is_what_was_said(
    batches: list[list[bytes]], data: st.DataObject
) -> None:
    """Also if changes fail, happened or not, and are repeated with what came meanwhile."""
    log = Registers()
    journal = KeptJournal(log, "a.b")
    await journal.load(1)
    said: list[bytes] = []
    waiting: list[bytes] = []
    for batch in batches:
        waiting += batch
        log.fails, log.happens = data.draw(st.booleans()), data.draw(st.booleans())
        try:
            await journal.append(b"".join(waiting), syncs=True)
        except StorageUnavailableError:
            continue
        said, waiting = said + waiting, []
        found = await KeptJournal(log, "a.b").load(1)
        assert comparable(found) == comparable(said_by(said))
        if data.draw(st.booleans()):
            now = said_by(said).entries()
            log.fails, log.happens = data.draw(st.booleans()), data.draw(st.booleans())
            try:
                await journal.rewrite(now)
            except StorageUnavailableError:
                continue
            said = now
            assert comparable(await KeptJournal(log, "a.b").load(1)) == comparable(said_by(said))
    log.fails = False
    await journal.rewrite(said_by(said + waiting).entries())
    found = await KeptJournal(log, "a.b").load(1)
    assert comparable(found) == comparable(said_by(said + waiting))
    assert await journal.append(b"", syncs=True) == sum(map(len, log.registers.values()))
    assert all(len(value) <= MAX_VALUE_CHARS for value in log.registers.values())


async def test_the_format() -> None:
    log = Registers()
    journal = KeptJournal(log, "g")
    await journal.load(1)
    await journal.append(
        entry(EntryKind.POSITION, 7)
        + b"".join(entry(EntryKind.SETTLED, at, at + 1) for at in (7, 8, 10))
        + b"".join(entry(EntryKind.DELIVERED, at, count=2) for at in (11, 12))
        + entry(EntryKind.DELIVERED_AWAY, 13, count=1)
        + entry(EntryKind.BURIED, 11, 3),
        syncs=True,
    )
    assert log.registers == {"\0group.1.g": "1 p7 s7-9 s10-11 d11-13x2 a13-14x1 b11-3"}
    await journal.append(entry(EntryKind.SETTLED, 12, 13), syncs=False)
    assert log.registers["\0group.1.g"].endswith("b11-3 s12-13")
    await journal.rewrite([entry(EntryKind.POSITION, 14)])
    assert log.registers == {"\0group.2.g": "1 p14"}
    await remove_kept(log, "g")
    assert log.registers == {}


async def test_many_jobs_take_several_pages() -> None:
    log = Registers()
    journal = KeptJournal(log, "g")
    await journal.load(1)
    entries = [entry(EntryKind.SETTLED, at, at + 1) for at in range(1, 2000, 2)]
    size = await journal.append(b"".join(entries), syncs=True)
    assert len(pages_of(log.registers)["g"]) > 9
    assert size == sum(map(len, log.registers.values()))
    found = await KeptJournal(log, "g").load(1)
    assert comparable(found) == comparable(said_by(entries))


@pytest.mark.parametrize(
    "word",
    [
        "",
        "p",
        "x7",
        "s7",
        "s7-8x1",
        "d7-9",
        "d7-99999999x1",
        "p07",
        "p7 ",
        "b7x1",
        "s1-99999999999999999999",
    ],
)
def test_what_no_version_writes_is_refused(word: str) -> None:
    with pytest.raises(CorruptionError, match="delete the group"):
        remembered({1: f"1 p3 {word}"}, "g")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(FormatVersionError):
        remembered({1: "2 q7"}, "g")


def test_other_registers_are_no_pages() -> None:
    registers = {"\0cursor.group.g": "1", "\0group.g": "1", "\0group.x.g": "1", "group.1.g": "1"}
    assert pages_of(registers) == {}


def test_files_are_adopted_once() -> None:
    found = {"a": said_by([entry(EntryKind.SETTLED, 3, 5)]), "b": Remembered(4)}
    conditions = adopting_journals(found, {"\0group.3.b": "1 p9"})
    assert conditions is not None
    assert conditions.update == {"\0group.1.a": "1 p1 s3-5"}
    assert adopting_journals({}, {}) is None
