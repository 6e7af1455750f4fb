"""The journal of a group: its bytes, and what is left of a file that is cut or damaged."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from tests.cases import case
from tests.effort import first_seed
from walstore.core.files.posix import PosixFileSystem
from walstore.errors import CorruptionError, FormatVersionError, StorageUnavailableError
from walstore.positions.groups.journal import (
    ENTRY,
    HEADER,
    MAGIC,
    EntryKind,
    GroupJournal,
    Remembered,
    decode,
    entry,
)
from walstore.testing import FaultyFileSystem

ENTRIES = [
    entry(EntryKind.POSITION, 3),
    entry(EntryKind.SETTLED, 5, 8),
    entry(EntryKind.DELIVERED, 4, count=2),
    entry(EntryKind.DELIVERED_AWAY, 9, count=70_000),
    entry(EntryKind.BURIED, 4, 7),
]
FILE = HEADER.pack(MAGIC, 1) + b"".join(ENTRIES)


def journal(directory: Path) -> GroupJournal:
    return GroupJournal(PosixFileSystem(), directory, "g")


def test_the_format_is_as_ever() -> None:
    """Version 1, as it is in files that exist."""
    assert FILE.hex() == (
        "57414c4752500d0a0100000000000000"
        "70c17e980100000003000000000000000000000000000000"
        "8b1c71a40200000005000000000000000800000000000000"
        "44e6d73d0300020004000000000000000000000000000000"
        "0f7d5bb20400ffff09000000000000000000000000000000"
        "98d6d46a0500000004000000000000000700000000000000"
    )
    found = decode(FILE, "g")
    assert found == Remembered(
        position=3,
        settled=[(5, 8)],
        deliveries={4: 2, 9: 65_535},
        away={9},
        buried={4: 7},
        letters=7,
        end=len(FILE),
    )
    assert found.unsettled((2, 3, 5, 7, 8)) == [3, 8]
    assert list(found.settled_offsets()) == [5, 6, 7]


def test_what_is_settled_by_ranges_in_any_order_that_overlap() -> None:
    random = Random(first_seed("ranges"))
    for _ in range(200):
        found = Remembered(position=random.randrange(10))
        for _ in range(random.randrange(6)):
            low = random.randrange(30)
            found.settled.append((low, low + 1 + random.randrange(8)))
        left = [
            offset
            for offset in range(40)
            if offset >= found.position and offset not in found.settled_offsets()
        ]
        assert found.unsettled(range(40)) == left


def test_very_many_dead_letters_are_looked_up_at_once() -> None:
    """With one pass over all that is settled for each of them this would take minutes."""
    many = 100_000
    settled = [(2 * number, 2 * number + 1) for number in range(many)]
    found = Remembered(settled=settled)
    assert found.unsettled(range(2 * many)) == list(range(1, 2 * many, 2))


def test_it_ends_at_the_first_damaged_entry() -> None:
    for cut in range(HEADER.size, len(FILE)):
        whole = (cut - HEADER.size) // ENTRY.size
        assert decode(FILE[:cut], "g").end == HEADER.size + whole * ENTRY.size
    for at in range(HEADER.size, len(FILE)):
        flipped = bytearray(FILE)
        flipped[at] ^= 1
        with case(at):
            assert decode(bytes(flipped), "g").end == at - (at - HEADER.size) % ENTRY.size


def test_what_is_no_journal_or_a_newer_one_is_refused() -> None:
    for data in (b"", FILE[:10], b"x" + FILE[1:]):
        with case(data), pytest.raises(CorruptionError):
            decode(data, "g")
    for data in (HEADER.pack(MAGIC, 2), HEADER.pack(MAGIC, 1) + entry(99, 1)):  # type: ignore[arg-type]
        with case(data), pytest.raises(FormatVersionError):
            decode(data, "g")


@pytest.mark.parametrize("call", ["replace", "sync_directory"])
def test_after_a_replacement_that_may_have_happened_nothing_is_appended(
    tmp_path: Path, call: str
) -> None:
    """Else it might go to a file that has lost its name."""
    fs = FaultyFileSystem(PosixFileSystem())
    made = GroupJournal(fs, tmp_path, "g")
    made.load(1)
    fs.fail(call, errno.ENOSPC, happened=True)
    with pytest.raises(StorageUnavailableError) as failed:
        made.rewrite([entry(EntryKind.POSITION, 9)])
    assert not failed.value.retriable
    made.close()
    assert journal(tmp_path).load(1).position == 9


def test_without_room_for_a_replacement_the_old_file_goes_on(tmp_path: Path) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    made = GroupJournal(fs, tmp_path, "g")
    made.load(1)
    fs.fail("pwrite", errno.ENOSPC, name=".next")
    with pytest.raises(OSError, match="space"):
        made.rewrite([entry(EntryKind.POSITION, 9)])
    made.append(ENTRIES[1], syncs=True)
    made.close()
    assert journal(tmp_path).load(1).settled == [(5, 8)]


def test_made_appended_to_replaced_and_loaded(tmp_path: Path) -> None:
    made = journal(tmp_path)
    assert made.load(5) == Remembered(5, end=HEADER.size + ENTRY.size)
    made.append(ENTRIES[1], syncs=True)
    made.append(ENTRIES[2] + ENTRIES[3][:7], syncs=False)  # cut by a crash
    made.close()
    again = journal(tmp_path)
    found = again.load(1)
    assert (found.position, found.settled, found.deliveries) == (5, [(5, 8)], {4: 2})
    again.append(ENTRIES[4], syncs=True)
    again.rewrite([entry(EntryKind.POSITION, 9)])
    again.append(entry(EntryKind.SETTLED, 10, 11), syncs=True)
    again.close()
    found = journal(tmp_path).load(1)
    assert (found.position, found.settled, found.buried) == (9, [(10, 11)], {})
    assert [path.name for path in (tmp_path / "groups").iterdir()] == ["g"]
