"""Handles of cursors in object storage: lost answers, leases, and what is left of one that died."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uploader.places import Place
from uploader import CloudCursors
from uploader.testing import FaultyStore
from uploader.testing.faults import Request, postpone
from walstore.errors import (
    CursorMovedError,
    InvalidSettingsError,
    OffsetTrimmedError,
    OutcomeUnknownError,
)


class Two:
    """Two programs with cursors of one log of the offsets 1 to 12; the store of one fails."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.store = FaultyStore(place.inner)
        self.cursors = self.make(self.store, "one")
        self.others = self.make(place.inner, "two")
        self.is_late = False
        """Whether changes arrive only when they are delivered."""

    def delay(self) -> None:
        self.is_late = True
        late = postpone(self.store.late)

        async def fault(request: Request[Any]) -> Any:
            return await (late(request) if self.is_late else request())

        self.store.on("put_if_match", fault, times=999)

    def make(self, store: object, writer: str) -> CloudCursors:
        place = self.place
        return CloudCursors(
            store,  # type: ignore[arg-type]
            newest=place.manifest,
            retry=place.retry,
            clock=place.clock,
            writer=writer,
        )


@pytest.fixture
async def two() -> Two:
    return Two(await Place.make())


async def test_what_a_handle_wrote_is_its_own_although_the_answer_was_lost(two: Two) -> None:
    cursor = await two.cursors.open("c")
    two.delay()
    with pytest.raises(OutcomeUnknownError):
        await cursor.commit(5)
    assert (cursor.position, cursor.target) == (1, 1)
    await two.store.deliver()
    two.is_late = False
    await cursor.commit(4)  # not known to be written; but it must not be at 5
    assert (cursor.position, await cursor.refresh()) == (4, 4)


async def test_after_an_unknown_outcome_others_still_count(two: Two) -> None:
    cursor = await two.cursors.open("c")
    two.delay()
    with pytest.raises(OutcomeUnknownError):
        await cursor.commit(5)
    two.is_late = False
    await (await two.others.open("c")).commit(6)
    await two.store.deliver()
    with pytest.raises(CursorMovedError, match="two, handle"):
        await cursor.commit(7)
    assert await cursor.refresh() == 6


async def test_a_program_without_a_handle_moves_it_too(two: Two) -> None:
    cursor = await two.cursors.open("c")
    await two.others.commit("c", 3)
    with pytest.raises(CursorMovedError, match="from 1 to 3 by two"):
        await cursor.commit(4)
    await two.others.commit("c", 5)
    assert await cursor.refresh() == 5
    await cursor.commit(6)
    found = await two.others.load("c")
    assert found is not None
    assert (found.position, found.expires_us) == (6, None)


async def test_a_lease_is_a_pin_that_the_handle_renews(two: Two) -> None:
    place = two.place
    cursor = await two.cursors.open("c", start=3, lease_seconds=60)
    for act in (cursor.renew, lambda: cursor.commit(3), lambda: cursor.commit(4)):
        place.clock.seconds += 50
        await act()
        found = await two.others.load("c")
        assert found is not None
        assert found.expires_us == place.clock.now_us() + 60_000_000
    other = await two.others.open("c")
    assert other.lease_seconds is None
    place.clock.seconds += 1
    await other.commit(5)
    after = await two.others.load("c")
    assert after is not None
    assert after.expires_us == found.expires_us
    await two.others.create("good", 1)
    with pytest.raises(InvalidSettingsError, match="holds for good"):
        await two.cursors.open("good", lease_seconds=9)


async def test_going_back_to_what_is_being_collected_is_undone(two: Two) -> None:
    cursor = await two.cursors.open("c", start=9)
    async with two.place.collector() as collector:
        await collector.collect()
    head = (await two.place.manifest()).oldest_offset
    assert head > 1
    with pytest.raises(OffsetTrimmedError) as told:
        await cursor.rewind(head - 1)
    assert told.value.head == head
    assert (cursor.position, await cursor.refresh()) == (9, 9)
    await cursor.rewind(head)


async def test_the_shortest_lease_is_one(two) -> None:
    """A pin of less than a microsecond is none that holds for good."""
    under_a_microsecond = 4e-7
    cursor = await two.cursors.open("short", lease_seconds=under_a_microsecond)
    assert cursor.lease_seconds == 1e-6
    with pytest.raises(TypeError, match="seen must be a CloudCursor"):
        await two.cursors.commit("short", 2, seen="x")


async def test_the_methods_that_name_a_cursor_say_what_to_write(two: Two) -> None:
    cursors = two.cursors
    for call, position in (
        (lambda: cursors.create("c", 3), 3),
        (lambda: cursors.commit("c", 5), 5),
        (lambda: cursors.rewind("c", 4), 4),
        (lambda: cursors.pin("p", 6, seconds=60), 6),
        (lambda: cursors.renew("p", seconds=90), 6),
    ):
        with pytest.warns(DeprecationWarning, match=r"open\(name") as told:
            assert (await call()).position == position
        assert [one.filename for one in told] == [__file__]
