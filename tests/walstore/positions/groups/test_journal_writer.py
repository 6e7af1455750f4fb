"""What a group notes: many notes with one sync, calls that fail, and journals that become short."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.local import turns
from walstore import LimitExceededError, StorageUnavailableError, WalError
from walstore.positions.groups.journal import ENTRY, EntryKind, Remembered, entry
from walstore.positions.groups.journal_writer import JournalWriter

FIRST, SECOND, THIRD = (entry(EntryKind.SETTLED, at, at + 1) for at in (1, 2, 3))


class MemoryJournal:
    """A journal in memory whose calls can be held, and can fail."""

    def __init__(self) -> None:
        self.most_bytes = 1 << 20
        self.kept = b""
        self.syncs: list[bool] = []
        self.rewritten = 0
        self.failures: list[WalError] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def load(self, position: int) -> Remembered:
        return Remembered(position)

    async def append(self, entries: bytes, *, syncs: bool) -> int:
        await self.goes_on.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.kept += entries
        self.syncs.append(syncs)
        return len(self.kept)

    async def rewrite(self, entries: Sequence[bytes]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.kept = b"".join(entries)
        self.rewritten += 1

    async def aclose(self) -> None:
        pass


class Group:
    """What a writer asks of its group."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.failed: list[WalError] = []
        self.writer = JournalWriter(
            self.journal,
            "g",
            present=lambda: Remembered(4),
            unsettled=lambda: 0,
            on_failure=self._fail,
        )

    def _fail(self, error: WalError) -> None:
        self.failed.append(error)
        self.writer.fail(error)


async def test_what_is_noted_while_one_is_written_has_one_sync() -> None:
    group = Group()
    journal, writer = group.journal, group.writer
    journal.goes_on.clear()
    writer.note(FIRST)
    first = asyncio.create_task(writer.sync())
    await turns()
    writer.note(SECOND)
    writer.note(THIRD)
    others = [asyncio.create_task(writer.sync()) for _ in range(2)]
    await turns()
    assert not first.done()
    journal.goes_on.set()
    await asyncio.gather(first, *others)
    assert (journal.kept, journal.syncs) == (FIRST + SECOND + THIRD, [True, True])


async def test_written_is_less_than_durable() -> None:
    group = Group()
    group.writer.note(FIRST)
    await group.writer.wait_written()
    assert (group.journal.kept, group.journal.syncs) == (FIRST, [False])
    await group.writer.sync()
    assert (group.journal.kept, group.journal.syncs) == (FIRST, [False, True])
    await group.writer.sync()  # there is nothing to do
    assert len(group.journal.syncs) == 2


async def test_what_could_not_be_written_is_written_with_what_comes_next() -> None:
    group = Group()
    group.journal.failures = [StorageUnavailableError("away")]
    group.writer.note(FIRST)
    with pytest.raises(StorageUnavailableError, match="away"):
        await group.writer.sync()
    assert (group.writer.is_stuck, group.failed, group.journal.kept) == (True, [], b"")
    group.writer.note(SECOND)
    await group.writer.sync()
    assert (group.writer.is_stuck, group.journal.kept) == (False, FIRST + SECOND)


async def test_an_error_that_does_not_pass_ends_the_group() -> None:
    group = Group()
    broken = WalError("broken")
    group.journal.failures = [broken]
    group.writer.note(FIRST)
    for _ in range(2):
        with pytest.raises(WalError, match="broken"):
            await group.writer.sync()
    assert group.failed == [broken]
    await group.writer.ended()


async def test_a_journal_without_room_becomes_short() -> None:
    group = Group()
    group.journal.failures = [LimitExceededError("full", limit=1)]
    group.writer.note(FIRST)
    await group.writer.sync()
    assert group.journal.rewritten == 1
    assert group.journal.kept == b"".join(Remembered(4).entries())


@pytest.mark.parametrize("fails", [False, True], ids=["there is room", "there is none"])
async def test_a_long_journal_becomes_short_or_goes_on(fails: bool) -> None:
    group = Group()
    group.journal.most_bytes = ENTRY.size
    group.writer.note(FIRST)
    await group.writer.sync()
    rewrite = group.journal.rewrite

    async def refuse(entries: Sequence[bytes]) -> None:
        raise StorageUnavailableError("away")

    group.journal.rewrite = refuse if fails else rewrite  # type: ignore[method-assign]
    group.writer.note(SECOND)
    await group.writer.sync()
    await group.writer.ended()
    assert group.journal.rewritten == (not fails)
    if fails:
        assert group.journal.kept == FIRST + SECOND
        group.writer.note(THIRD)
        await group.writer.sync()
        assert group.journal.kept == FIRST + SECOND + THIRD
