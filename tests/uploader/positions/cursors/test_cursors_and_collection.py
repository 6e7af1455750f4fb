"""Cursors of a store, and collections that come between: none is acknowledged below collected records."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest

from tests.uploader.positions.cursors.place import PATH, Place
from uploader.format import layout
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores.retry import RetryPolicy
from uploader.testing import StoreKilled
from uploader.testing.faults import (
    Fault,
    call,
    hang,
    happen_then_kill,
    kill,
    postpone,
)
from walstore.errors import (
    CursorMovedError,
    OffsetTrimmedError,
    WalError,
)


@pytest.fixture
def place(impatient: RetryPolicy) -> Place:
    return Place(impatient)


@pytest.mark.parametrize("position", [1, 20])
async def test_a_new_cursor_below_an_announced_collection(place: Place, position: int) -> None:
    await place.announce(21)
    with pytest.raises(OffsetTrimmedError) as told:
        await place.cursors.commit("billing", position)
    assert (told.value.requested, told.value.head) == (position, 21)
    assert "begin at 21" in str(told.value)
    assert f"'walstore gc apply {place.store.url} --confirm'" in str(told.value)
    assert await place.other.load("billing") is None
    assert (await place.cursors.commit("billing", 21)).position == 21


async def test_a_new_cursor_below_the_head(place: Place) -> None:
    place.drop(21)
    with pytest.raises(OffsetTrimmedError, match=r"was collected \("):
        await place.cursors.commit("billing", 20)
    assert await place.other.load("billing") is None


async def test_going_back_below_a_collection_is_undone(place: Place) -> None:
    before = await place.cursors.commit("billing", 25)
    await place.announce(21)
    with pytest.raises(OffsetTrimmedError):
        await place.cursors.rewind("billing", 15)
    assert await place.other.load("billing") == before
    assert (await place.cursors.rewind("billing", 22)).position == 22


async def test_an_expired_pin_is_not_renewed_over_a_collection(place: Place) -> None:
    pin = await place.cursors.pin("report", 5, seconds=60)
    place.clock.advance(61)
    place.drop(21)
    with pytest.raises(OffsetTrimmedError):
        await place.cursors.renew("report", seconds=60)
    assert await place.other.load("report") == pin


async def test_forward_asks_for_no_collection(place: Place) -> None:
    """What lies there is held by where it stood."""
    await place.cursors.commit("billing", 11)
    await place.announce(11)
    before = place.store.count("get").requests
    await place.cursors.commit("billing", 12)
    assert place.store.count("get").requests == before + 1


async def test_an_undo_leaves_alone_what_somebody_else_did(place: Place) -> None:
    place.drop(21)
    place.store.on("put_if_match", call(lambda: place.other.commit("billing", 25)))
    with pytest.raises(ValueError, match="back from 25"):
        await place.cursors.commit("billing", 5)
    found = await place.other.load("billing")
    assert found is not None
    assert found.position == 25


@pytest.mark.parametrize("fault", [kill, happen_then_kill])
@pytest.mark.parametrize("act", ["commit", "rewind", "pin", "renew", "delete"])
async def test_killed_at_every_call(
    impatient: RetryPolicy, fault: Callable[[], Fault], act: str
) -> None:
    """The object is as before or as asked, and the same call by another program does it."""
    acts: dict[str, Callable[[CloudCursors], Awaitable[object]]] = {
        "commit": lambda cursors: cursors.commit("billing", 12),
        "rewind": lambda cursors: cursors.rewind("billing", 4),
        "pin": lambda cursors: cursors.pin("report", 3, seconds=60),
        "renew": lambda cursors: cursors.renew("report", seconds=90),
        "delete": lambda cursors: cursors.delete("billing"),
    }
    for nth in range(1, 20):
        place = Place(impatient)
        await place.other.commit("billing", 9)
        await place.other.pin("report", 7, seconds=60)
        place.store.on("any", fault(), nth=nth)
        try:
            await acts[act](place.cursors)
        except StoreKilled:
            found = {cursor.name: cursor.position for cursor in await place.other.list(strict=True)}
            assert found.get("billing") in {9, 12, 4, None}
            assert found["report"] in {7, 3}
            await acts[act](place.other)
        found = {cursor.name: cursor.position for cursor in await place.other.list(strict=True)}
        assert found.get("billing") == {"commit": 12, "rewind": 4, "delete": None}.get(act, 9)
        assert found["report"] == (3 if act == "pin" else 7)
        if not place.store.is_killed:
            return
    pytest.fail("it never got to its end")


# -- what arrives late, and what nobody checked ------------------------------------------------


def on_its_way(place: Place) -> None:
    """Let whatever changes an object that is there arrive only when it is delivered."""
    for kind in ("put_if_match", "delete"):
        place.store.on(kind, postpone(place.store.late), times=99)


async def test_a_removal_that_arrives_late_leaves_the_next_cursor_alone(place: Place) -> None:
    await place.cursors.commit("billing", 5)
    on_its_way(place)
    with pytest.raises(WalError) as told:
        await place.cursors.delete("billing")
    assert told.value.outcome == "unknown"
    await place.other.delete("billing")
    made = await place.other.commit("billing", 7)
    await place.store.deliver()
    assert await place.other.load("billing") == made


async def test_an_undo_that_arrives_late_leaves_the_next_cursor_alone(place: Place) -> None:
    place.drop(21)
    on_its_way(place)
    with pytest.raises(WalError):
        await place.cursors.create("billing", 5)
    made = await place.other.commit("billing", 25)
    await place.store.deliver()
    assert await place.other.load("billing") == made


async def test_an_undo_takes_nothing_that_came_right_before_it(impatient: RetryPolicy) -> None:
    """Whatever it looks at first, another program may be quicker than what it does then."""
    for nth in range(1, 10):
        place = Place(impatient)
        place.drop(21)
        place.store.on("any", call(lambda place=place: place.other.commit("billing", 25)), nth=nth)
        with contextlib.suppress(OffsetTrimmedError, ValueError):
            await place.cursors.commit("billing", 5)
        if place.store.requests < nth:
            return
        found = await place.other.load("billing")
        assert found is not None
        assert found.position == 25
    pytest.fail("it never got to its end")


async def test_nothing_is_ever_deleted(place: Place) -> None:
    """Stores cannot delete on a condition."""
    await place.announce(21)
    with pytest.raises(OffsetTrimmedError):
        await place.cursors.commit("billing", 5)
    await place.cursors.commit("billing", 25)
    await place.cursors.pin("report", 25, seconds=1)
    for name in ("billing", "report", "nobody"):
        await place.cursors.delete(name)
    assert await place.other.list(strict=True) == []
    assert place.store.count("delete").requests == 0
    assert (await place.cursors.create("billing", 22)).position == 22


async def test_a_removed_cursor_holds_nothing_wherever_it_stood(place: Place) -> None:
    await place.cursors.commit("billing", 5)
    await place.cursors.delete("billing")
    data = json.loads((await place.inner.get(PATH)).data)
    assert (data["position"], data["expires_us"], data["writer"]) == ({"offset": 5}, 0, "me")
    with pytest.raises(CursorMovedError, match="deleted"):
        await place.cursors.renew("billing", seconds=1)
    assert (await place.cursors.pin("billing", 3, seconds=1)).position == 3


async def test_a_damaged_cursor_can_be_removed(place: Place) -> None:
    await place.inner.put_if_absent(PATH, b"{")
    await place.cursors.delete("billing")
    assert await place.cursors.list(strict=True) == []
    assert (await place.cursors.commit("billing", 5)).position == 5


@pytest.mark.parametrize("act", ["commit", "create", "pin"])
async def test_a_cursor_whose_maker_died_is_looked_at_by_the_next(place: Place, act: str) -> None:
    """It was put too late, and nobody was told that it holds anything."""
    makes: dict[str, Callable[[CloudCursors], Awaitable[object]]] = {
        "commit": lambda cursors: cursors.commit("billing", 5),
        "create": lambda cursors: cursors.create("billing", 5),
        "pin": lambda cursors: cursors.pin("billing", 5, seconds=60),
    }
    place.store.on("get", kill(), key_prefix=layout.GARBAGE)
    with pytest.raises(StoreKilled):
        await makes[act](place.cursors)
    place.drop(21)
    with pytest.raises(OffsetTrimmedError) as told:
        await place.other.commit("billing", 9)
    assert (told.value.requested, told.value.head) == (9, 21)
    assert await place.other.load("billing") is None
    made = await place.other.create("billing", 25)
    assert made == await place.other.load("billing")
    assert (made.position, made.expires_us, made.is_unchecked) == (25, None, False)


async def test_a_cursor_whose_maker_was_cancelled_is_looked_at_by_the_next(place: Place) -> None:
    never, reached = asyncio.Event(), asyncio.Event()
    place.store.on("get", hang(never, reached), key_prefix=layout.GARBAGE)
    making = asyncio.create_task(place.cursors.commit("billing", 5))
    await reached.wait()
    making.cancel()
    await asyncio.wait([making])
    place.drop(21)
    for cursors in (place.other, place.cursors):
        with pytest.raises(OffsetTrimmedError):
            await cursors.commit("billing", 9)


async def test_a_step_back_whose_process_died_is_taken_back_by_the_next(place: Place) -> None:
    """To where it stood, which somebody relies upon."""
    before = await place.other.commit("billing", 25)
    place.store.on("get", kill(), key_prefix=layout.GARBAGE)
    with pytest.raises(StoreKilled):
        await place.cursors.rewind("billing", 15)
    held = await place.other.load("billing")
    assert held is not None
    assert (held.position, held.is_unchecked) == (15, True)  # as long as nobody knows, it holds
    place.drop(21)
    with pytest.raises(ValueError, match="back from 25"):
        await place.other.commit("billing", 22)
    assert await place.other.load("billing") == before
    assert await place.other.create("billing", 30) == before


async def test_one_that_came_in_time_is_taken_over(place: Place) -> None:
    place.store.on("get", kill(), key_prefix=layout.GARBAGE)
    with pytest.raises(StoreKilled):
        await place.cursors.create("billing", 5)
    seen = await place.other.load("billing")
    assert seen is not None
    assert (await place.other.create("billing", 9)).position == 5
    # That it was checked since is no move.
    assert (await place.other.commit("billing", 9, seen=seen)).position == 9
    found = await place.other.load("billing")
    assert found is not None
    assert not found.is_unchecked


async def test_one_that_another_program_took_back_is_not_acknowledged(place: Place) -> None:
    """It looked in time, but a collection was announced since, and somebody else saw that first."""

    async def others() -> None:
        await place.announce(21)
        with pytest.raises(OffsetTrimmedError):
            await place.other.commit("billing", 6)

    place.store.on("put_if_match", call(others))
    with pytest.raises(OffsetTrimmedError):
        await place.cursors.commit("billing", 5)
    assert await place.other.load("billing") is None


async def test_one_that_another_program_looked_at_in_time_is_held(place: Place) -> None:
    """Its maker finds a collection that was announced since, which will find the cursor."""

    async def others() -> None:
        await place.other.create("billing", 9)
        await place.announce(21)

    place.store.on("get", call(others), key_prefix=layout.GARBAGE)
    made = await place.cursors.commit("billing", 5)
    assert made == await place.other.load("billing")
    assert (made.position, made.is_unchecked) == (5, False)


# -- made once ---------------------------------------------------------------------------------


async def test_create_leaves_what_is_there(place: Place) -> None:
    made = await place.cursors.create("billing", 11)
    assert made.position == 11
    assert (await place.cursors.create("billing", 15)).position == 11
    assert (await place.other.create("billing", 5)).position == 11
    assert await place.cursors.load("billing") == made


async def test_two_that_create_at_once_agree(place: Place) -> None:
    async def somebody_else() -> None:
        await place.other.create("billing", 7)

    place.store.on("put_if_absent", call(somebody_else))
    assert (await place.cursors.create("billing", 11)).position == 7


@pytest.mark.parametrize("fault", [kill(), happen_then_kill()])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_create_after_a_death_is_where_the_first_was(
    place: Place, fault: Fault, nth: int
) -> None:
    place.store.on("any", fault, nth=nth)
    with contextlib.suppress(StoreKilled):
        await place.cursors.create("billing", 11)
    held = await place.other.load("billing")
    again = await place.other.create("billing", 15)
    assert again.position == (15 if held is None else 11)


async def test_create_below_a_collection_is_taken_back(place: Place) -> None:
    await place.announce(21)
    with pytest.raises(OffsetTrimmedError):
        await place.cursors.create("billing", 11)
    assert await place.cursors.load("billing") is None
