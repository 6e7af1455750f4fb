"""A cursor: a place in the log that moves by compare-and-swap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.faces import Face, on
from walstore import (
    CursorMovedError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
)


@on("opened", "replicated", "served")
async def test_cursors_move_by_compare_and_swap(log: Any) -> None:
    await log.append_many([b"a", b"b", b"c"])
    one = await log.cursor("c", start="earliest", lease_seconds=60)
    two = await log.cursor("c")
    await one.commit(2)
    with pytest.raises(CursorMovedError) as moved:
        await two.commit(3)
    assert (moved.value.expected, moved.value.actual, moved.value.cursor) == (1, 2, "c")
    assert await two.refresh() == 2
    await two.commit(3)
    with pytest.raises(ValueError, match="back"):
        await two.commit(1)
    await two.rewind(1)
    await two.renew()
    assert (two.position, two.target, two.lease_seconds) == (1, 1, 60)
    with pytest.raises(OffsetNotWrittenError):
        await two.commit(9)
    assert [(info.name, info.position) for info in await log.cursors()] == [("c", 1)]
    await two.delete()
    with pytest.raises(CursorMovedError):
        await one.refresh()
    assert not await log.delete_cursor("c")


@on("opened", "replicated", "served", "readonly", "blocking", "distant")
async def test_another_handle_that_moves_it_is_noticed(face: Face) -> None:
    await face.writer.append_many([b"1", b"2", b"3"])
    one, other = await face.log.cursor("c"), await face.log.cursor("c")
    await one.commit(2)
    with pytest.raises(CursorMovedError):
        await other.commit(3)
    assert await other.refresh() == other.position == 2
    await other.commit(3)
    await other.rewind(1)
    assert [(info.name, info.position) for info in await face.log.cursors()] == [("c", 1)]


@on("opened", "replicated", "served", "readonly")
async def test_a_commit_that_is_cancelled_may_be_made_again(face: Face) -> None:
    await face.writer.append_many([b"%d" % n for n in range(10)])
    cursor = await face.log.cursor("c")
    for offset in range(1, 11):
        dropped = asyncio.create_task(cursor.commit(offset))
        for _ in range(offset % 7):
            await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.wait((dropped,))
        await cursor.commit(offset)
    assert (cursor.position, await cursor.refresh()) == (10, 10)


@on("opened", "replicated", "served", "readonly", "blocking", "distant")
@pytest.mark.parametrize("position", [-1, 0, 2, 7, 1 << 62])
async def test_a_position_outside_of_the_log_is_refused(face: Face, position: int) -> None:
    """The error says what the log has."""
    await face.writer.append_many([b"%d" % n for n in range(5)])
    cursor = await face.log.cursor("c", start=4)
    assert await face.writer.trim(3) == 3
    expected = OffsetTrimmedError if position < 3 else OffsetNotWrittenError
    acts = [lambda: face.log.cursor("new", start=position), lambda: cursor.rewind(position)]
    if position > 4:
        acts.append(lambda: cursor.commit(position))
    for act in acts:
        with pytest.raises(expected) as refused:
            await act()
        assert (refused.value.requested, refused.value.head, refused.value.tail) == (position, 3, 6)
    assert [(info.name, info.position) for info in await face.log.cursors()] == [("c", 4)]
