"""A cursor: a place in the log that moves by compare-and-swap, wherever the log is."""

from __future__ import annotations

import asyncio
import importlib
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.contract.faces import Face, on
from tests.local import gather_outcomes, turns
from walstore import (
    Cursor,
    CursorMovedError,
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
)

EVERYWHERE = ("opened", "replicated", "served", "readonly", "stored")
IN_THREADS = ("blocking", "distant")


@pytest.fixture
async def log(face: Face) -> Any:
    """The log, of the offsets 1 to 10."""
    await face.writer.append_many([b"%d" % number for number in range(10)])
    return face.log


async def listed(log: Any) -> dict[str, int]:
    """Return where the cursors of a log are."""
    found = await (log.cursors.list() if hasattr(log.cursors, "list") else log.cursors())
    return {one.name: one.position for one in found}


async def delete(log: Any, name: str) -> Any:
    """Remove a cursor whoever has it."""
    return await (log.delete_cursor if hasattr(log, "delete_cursor") else log.cursors.delete)(name)


# -- compare and swap ------------------------------------------------------------------------------


@on(*EVERYWHERE)
async def test_another_handle_that_moves_it_is_noticed(log: Any) -> None:
    first, second = await log.cursor("c"), await log.cursor("c")
    assert (first.name, first.position, first.target, first.lease_seconds) == ("c", 1, 1, None)
    await first.commit(5)
    with pytest.raises(CursorMovedError, match=r"from 1 to 5 by \w+") as found:
        await second.commit(3)
    assert (found.value.expected, found.value.actual, found.value.cursor) == (1, 5, "c")
    assert found.value.outcome == "not_written"
    for call in (lambda: second.commit(8), lambda: second.rewind(2), second.delete):
        with pytest.raises(CursorMovedError):
            await call()
    assert second.position == 1
    assert await second.refresh() == second.position == 5
    await second.commit(8)
    with pytest.raises(CursorMovedError):
        await first.commit(9)
    assert await listed(log) == {"c": 8}
    assert repr(second) == "<Cursor 'c' at 8>"


@on(*IN_THREADS)
async def test_another_handle_that_moves_it_is_noticed_in_threads(log: Any) -> None:
    one, other = await log.cursor("c"), await log.cursor("c")
    await one.commit(2)
    with pytest.raises(CursorMovedError):
        await other.commit(3)
    assert await other.refresh() == other.position == 2
    await other.commit(3)
    await other.rewind(1)
    assert await listed(log) == {"c": 1}


@on(*EVERYWHERE)
async def test_a_position_that_came_back_is_no_excuse(log: Any) -> None:
    first, second = await log.cursor("c"), await log.cursor("c")
    await second.commit(9)
    await second.rewind(1)
    for call in (lambda: first.commit(2), lambda: first.commit(1)):
        with pytest.raises(CursorMovedError) as found:
            await call()
        assert (found.value.expected, found.value.actual) == (1, 1)


@on(*EVERYWHERE)
async def test_one_made_anew_is_another(log: Any) -> None:
    first = await log.cursor("c")
    await delete(log, "c")
    for call in (lambda: first.commit(2), first.refresh):
        with pytest.raises(CursorMovedError, match="deleted") as found:
            await call()
        assert found.value.actual is None
    await first.delete()
    await log.cursor("c")
    with pytest.raises(CursorMovedError):
        await first.commit(2)
    assert await first.refresh() == 1
    await first.commit(2)


@on(*EVERYWHERE)
async def test_deleting(log: Any) -> None:
    first, second = await log.cursor("c"), await log.cursor("c")
    await second.commit(5)
    with pytest.raises(CursorMovedError):
        await first.delete()
    for cursor in (second, second, first):
        await cursor.delete()
    assert await listed(log) == {}
    await log.cursor("b", start=4)
    await log.cursor("a")
    assert list((await listed(log)).items()) == [("a", 1), ("b", 4)]
    await delete(log, "a")
    assert not await delete(log, "a")
    assert await listed(log) == {"b": 4}


@on(*EVERYWHERE)
async def test_of_handles_that_commit_at_once_one_wins(log: Any) -> None:
    handles = [await log.cursor("c") for _ in range(4)]
    others = [await log.cursor(f"other_{at}") for at in range(4)]
    outcomes = await gather_outcomes(
        handle.commit(2 + at) for at, handle in enumerate([*handles, *others])
    )
    assert sum(found is None for found in outcomes[:4]) == 1
    assert sum(isinstance(found, CursorMovedError) for found in outcomes[:4]) == 3
    assert outcomes[4:] == [None] * 4
    assert (await listed(log))["c"] == 2 + outcomes.index(None)


# -- one handle ------------------------------------------------------------------------------------


@on(*EVERYWHERE)
async def test_commits_at_once_end_at_the_last(log: Any) -> None:
    cursor = await log.cursor("c")
    calls = [asyncio.create_task(cursor.commit(at)) for at in range(2, 11)]
    await turns()
    with pytest.raises(ValueError, match="back from 10"):
        await cursor.commit(9)
    await asyncio.gather(*calls)
    assert (cursor.position, cursor.target, await cursor.refresh()) == (10, 10, 10)
    calls = []
    for call in (cursor.commit(11), cursor.rewind(2), cursor.commit(3)):
        calls.append(asyncio.create_task(call))
        await turns()
    await asyncio.gather(*calls)
    assert cursor.position == 3
    assert await listed(log) == {"c": 3}


@on(*EVERYWHERE)
async def test_cancelling_one_of_them_cancels_no_other(log: Any) -> None:
    cursor = await log.cursor("c")
    calls = [asyncio.create_task(cursor.commit(at)) for at in (2, 3, 4, 5)]
    await turns()
    for call in (calls[0], calls[1], calls[3]):
        call.cancel()
    assert await calls[2] is None
    assert await cursor.refresh() >= 4
    await cursor.commit(6)
    assert await listed(log) == {"c": 6}


@on(*EVERYWHERE)
async def test_a_commit_that_is_cancelled_may_be_made_again(log: Any) -> None:
    cursor = await log.cursor("c")
    for offset in range(1, 11):
        dropped = asyncio.create_task(cursor.commit(offset))
        await turns(offset % 7)
        dropped.cancel()
        await asyncio.wait((dropped,))
        await cursor.commit(offset)
    assert (cursor.position, await cursor.refresh()) == (10, 10)


@on(*EVERYWHERE)
async def test_going_back_needs_rewind(log: Any) -> None:
    cursor = await log.cursor("c", start=5)
    with pytest.raises(ValueError, match=r"back from 5.*rewind"):
        await cursor.commit(4)
    await cursor.commit(5)
    await cursor.rewind(2)
    assert (cursor.position, await cursor.refresh()) == (2, 2)


@on(*EVERYWHERE)
@pytest.mark.parametrize("offset", [True, "5", 5.0, None])
async def test_offsets_are_ints(log: Any, offset: Any) -> None:
    cursor = await log.cursor("c")
    for call in (cursor.commit, cursor.rewind):
        with pytest.raises(TypeError):
            await call(offset)


@on(*EVERYWHERE, *IN_THREADS)
@pytest.mark.parametrize("position", [-1, 0, 2, 12, 1 << 62])
async def test_a_position_outside_of_the_log_is_refused(
    face: Face, log: Any, position: int
) -> None:
    """The error says what the log has."""
    cursor = await log.cursor("c", start=4)
    head = await face.writer.trim(3) if hasattr(face.writer, "trim") else 1
    if head <= position <= 11:
        return
    expected = OffsetTrimmedError if position < head else OffsetNotWrittenError
    acts = [lambda: log.cursor("new", start=position), lambda: cursor.rewind(position)]
    if position > 4:
        acts.append(lambda: cursor.commit(position))
    for act in acts:
        with pytest.raises(expected) as refused:
            await act()
        told = refused.value
        assert (told.requested, told.head, told.tail) == (position, head, 11)
    assert await listed(log) == {"c": 4}
    assert (await log.cursor("new")).position == head


# -- opening ---------------------------------------------------------------------------------------


@on(*EVERYWHERE)
@pytest.mark.parametrize(
    ("start", "position"),
    [
        ("earliest", 1),
        ("latest", 11),
        (1, 1),
        (7, 7),
        (11, 11),
        (datetime(2020, 1, 1, tzinfo=UTC), 1),
    ],
)
async def test_where_a_new_one_stands(log: Any, start: Any, position: int) -> None:
    assert (await log.cursor("c", start=start)).position == position
    assert (await log.cursor("c", start="latest")).position == position


@on(*EVERYWHERE)
@pytest.mark.parametrize("start", ["first", datetime(2025, 1, 1)])
async def test_starts_refused(log: Any, start: Any) -> None:
    with pytest.raises(ValueError, match=r"start|time"):
        await log.cursor("c", start=start)
    assert await listed(log) == {}


@on(*EVERYWHERE)
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
async def test_leases_refused(log: Any, seconds: float) -> None:
    with pytest.raises(InvalidSettingsError, match=r"lease_seconds|a pin holds"):
        await log.cursor("c", lease_seconds=seconds)


@on(*EVERYWHERE)
@pytest.mark.parametrize("name", ["", ".lock", "../escape", "a/b"])
async def test_names_refused(log: Any, name: str) -> None:
    for call in (lambda: log.cursor(name), lambda: delete(log, name)):
        with pytest.raises((ValueError, InvalidSettingsError)):
            await call()


# -- leases ----------------------------------------------------------------------------------------


@on(*EVERYWHERE)
async def test_a_lease_belongs_to_the_cursor_and_renewing_it_disturbs_nobody(log: Any) -> None:
    first = await log.cursor("c", lease_seconds=60)
    second = await log.cursor("c", lease_seconds=90)
    assert (first.lease_seconds, second.lease_seconds) == (60, 90)
    await second.renew()
    await first.renew()
    await first.commit(2)
    assert (first.position, first.target) == (2, 2)
    with pytest.raises(CursorMovedError):
        await second.renew()


# -- names of earlier versions ---------------------------------------------------------------------


def test_a_served_one_has_its_old_name_for_a_while() -> None:
    module = importlib.import_module("walstore.net.remote.cursors")
    with pytest.warns(DeprecationWarning, match=r"walstore\.Cursor"):
        assert module.RemoteCursor is Cursor
    with pytest.raises(AttributeError):
        _ = module.Nothing
