"""Cursors and pins in object storage: compare-and-swap, names, and how long a pin holds."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.uploader.documents import manifest_of
from tests.uploader.logs import replace
from tests.uploader.positions.cursors.place import PATH, Place
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.manifest import Manifest
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores.retry import RetryPolicy
from uploader.testing.faults import (
    call,
    fail,
    happen_then_fail,
    timeout,
)
from walstore.core.validation.fields import CENTURY_SECONDS
from walstore.errors import (
    CorruptionError,
    CursorMovedError,
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
)


@pytest.fixture
def place(impatient: RetryPolicy) -> Place:
    return Place(impatient)


# -- moving ------------------------------------------------------------------------------------


async def test_created_moved_and_deleted(place: Place) -> None:
    assert await place.cursors.load("billing") is None
    made = await place.cursors.commit("billing", 11)
    assert (made.position, made.writer, made.epoch_us) == (11, "me", place.clock.now_us())
    moved = await place.cursors.commit("billing", 15)
    assert moved == await place.cursors.load("billing")
    assert (await place.inner.get(PATH)).etag == moved.etag
    await place.cursors.delete("billing")
    await place.cursors.delete("billing")
    assert await place.cursors.load("billing") is None


async def test_never_back_unless_asked(place: Place) -> None:
    await place.cursors.commit("billing", 15)
    with pytest.raises(ValueError, match=r"rewind\(\)"):
        await place.cursors.commit("billing", 14)
    assert (await place.cursors.rewind("billing", 14)).position == 14


async def test_only_if_as_seen(place: Place) -> None:
    seen = await place.cursors.commit("billing", 5)
    await place.other.commit("billing", 7)
    with pytest.raises(CursorMovedError) as told:
        await place.cursors.commit("billing", 9, seen=seen)
    assert (told.value.expected, told.value.actual) == (5, 7)
    seen = await place.cursors.load("billing")
    assert seen is not None
    seen = await place.cursors.commit("billing", 9, seen=seen)
    await place.other.delete("billing")
    with pytest.raises(CursorMovedError, match="deleted"):
        await place.cursors.commit("billing", 9, seen=seen)


async def test_another_program_in_between(place: Place) -> None:
    """The swap fails, the cursor is read again, and the later position wins."""
    await place.cursors.commit("billing", 5)
    place.store.on("put_if_match", call(lambda: place.other.commit("billing", 7)))
    assert (await place.cursors.commit("billing", 9)).position == 9
    place.store.on("put_if_match", call(lambda: place.other.commit("billing", 20)))
    with pytest.raises(ValueError, match="back from 20"):
        await place.cursors.commit("billing", 12)


async def test_where_it_is_costs_one_read(place: Place) -> None:
    await place.cursors.commit("billing", 5)
    before = place.store.requests
    await place.cursors.commit("billing", 5)
    assert place.store.requests == before + 1


@pytest.mark.parametrize("name", ["", "a-b", "a.b", "ä", "a/b"])
async def test_names_are_wal3s(place: Place, name: str) -> None:
    with pytest.raises(InvalidSettingsError):
        await place.cursors.commit(name, 1)


async def test_an_unknown_outcome_is_told_and_called_again(place: Place) -> None:
    place.store.on("put_if_absent", happen_then_fail(timeout()))
    place.store.on("get", fail(timeout()), nth=2, times=5)
    place.store.on("put_if_absent", fail(timeout()), times=4)
    with pytest.raises(OutcomeUnknownError):
        await place.cursors.commit("billing", 9)
    place.drop(21)
    with pytest.raises(OffsetTrimmedError):  # it was new, so the second call looks for collections
        await place.cursors.commit("billing", 9)


# -- listing -----------------------------------------------------------------------------------


async def test_listing(place: Place) -> None:
    for number in range(25):
        await place.cursors.commit(f"c{number:02}", number + 1)
    found = await place.cursors.list(strict=True)
    assert [(cursor.name, cursor.position) for cursor in found] == [
        (f"c{number:02}", number + 1) for number in range(25)
    ]


@pytest.mark.parametrize("key", ["cursor/foreign.txt", "cursor/a-b.json"])
async def test_a_foreign_object(place: Place, key: str) -> None:
    """Strict as wal3, whose collection stops; else it is left out."""
    await place.cursors.commit("billing", 5)
    await place.inner.put_if_absent(key, b"{}")
    with pytest.raises(CorruptionError, match=key):
        await place.cursors.list(strict=True)
    assert [cursor.name for cursor in await place.cursors.list()] == ["billing"]


async def test_what_lies_in_folders_below_is_another_logs(place: Place) -> None:
    """One at ``cursor`` below this one, for example. It stops nobody."""
    await place.cursors.commit("billing", 5)
    await place.inner.put_if_absent("cursor/cursor/a.json", b"{}")
    await place.inner.put_if_absent("cursor/manifest/MANIFEST", b"{}")
    assert [cursor.name for cursor in await place.cursors.list(strict=True)] == ["billing"]


async def test_a_damaged_cursor(place: Place) -> None:
    await place.cursors.commit("billing", 5)
    await place.inner.put_if_absent("cursor/other.json", b"{")
    with pytest.raises(CorruptionError, match=r"cursor/other\.json"):
        await place.cursors.list(strict=True)
    assert [cursor.name for cursor in await place.cursors.list()] == ["billing"]


async def test_only_a_damaged_cursor_is_removed_for_that(place: Place) -> None:
    """That very object goes, and no cursor that another program has put in its place since."""
    assert not await place.cursors.delete_damaged("billing")
    await place.inner.put_if_absent(PATH, b"{")

    async def mend() -> None:
        await place.other.delete("billing")
        await place.other.commit("billing", 9)

    place.store.on("put_if_match", call(mend))
    assert not await place.cursors.delete_damaged("billing")
    (kept,) = await place.cursors.list()
    assert kept.position == 9
    assert not await place.cursors.delete_damaged("billing")
    await replace(place.inner, PATH, b"[" * 2_000_000)
    assert await place.cursors.delete_damaged("billing")
    assert await place.cursors.load("billing") is None


async def test_a_removed_cursor_stays_where_it_stood_for_wal3(place: Place) -> None:
    """Its collector goes by the lowest object, and takes everything below; where there is none, nothing.

    So a position at the end of all offsets would let it take all as soon as no other cursor is left.
    """
    await place.cursors.commit("billing", 9)
    await place.cursors.commit("billing", 31)
    await place.cursors.delete("billing")
    document = json.loads((await place.inner.get(PATH)).data)
    assert document["position"] == {"offset": 31}


async def test_deleted_while_listing(place: Place) -> None:
    await place.cursors.commit("billing", 5)
    place.store.on("get", call(lambda: place.other.delete("billing")))
    assert await place.cursors.list(strict=True) == []


# -- pins --------------------------------------------------------------------------------------


async def test_a_pin_and_its_end(place: Place) -> None:
    pin = await place.cursors.pin("report", 5, seconds=60)
    assert pin.expires_us == place.clock.now_us() + 60_000_000
    place.clock.advance(30)
    assert (await place.cursors.renew("report", seconds=60)).position == 5
    place.clock.advance(59)
    moved = await place.cursors.commit("report", 9)
    assert not moved.is_expired(place.clock.now_us())
    place.clock.advance(1)
    assert moved.is_expired(place.clock.now_us())
    with pytest.raises(InvalidSettingsError):
        await place.cursors.pin("report", 5, seconds=0)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (0, InvalidSettingsError),
        (-1, InvalidSettingsError),
        (math.nan, InvalidSettingsError),
        (math.inf, InvalidSettingsError),
        (1e300, InvalidSettingsError),
        (10**400, InvalidSettingsError),
        (CENTURY_SECONDS + 1, InvalidSettingsError),
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
async def test_how_long_a_pin_holds_is_bounded(place: Place, seconds: Any, error) -> None:
    made = await place.cursors.pin("report", 5, seconds=CENTURY_SECONDS)
    with pytest.raises(error, match="a pin holds"):
        await place.cursors.pin("report", 6, seconds=seconds)
    with pytest.raises(error, match="a pin holds"):
        await place.cursors.renew("report", seconds=seconds)
    assert await place.cursors.load("report") == made


@pytest.mark.parametrize("name", [5, None, b"a"])
async def test_the_name_of_a_cursor_is_text(place: Place, name: Any) -> None:
    with pytest.raises(TypeError, match="a cursor's name must be a str"):
        await place.cursors.commit(name, 5)


async def test_a_pin_moves_where_it_is_put(place: Place) -> None:
    await place.cursors.pin("report", 15, seconds=60)
    assert (await place.cursors.pin("report", 5, seconds=60)).position == 5


async def test_a_cursor_does_not_become_a_pin(place: Place) -> None:
    """Somebody relies on it for good."""
    await place.cursors.commit("billing", 5)
    with pytest.raises(InvalidSettingsError, match="holds for good"):
        await place.cursors.pin("billing", 5, seconds=60)
    with pytest.raises(InvalidSettingsError, match="no pin"):
        await place.cursors.renew("billing", seconds=60)


async def test_a_pin_that_is_gone_is_not_renewed(place: Place) -> None:
    with pytest.raises(CursorMovedError):
        await place.cursors.renew("report", seconds=60)


# -- within the log ----------------------------------------------------------------------------


@pytest.mark.parametrize("position", [-1, 0, 5, 31, 32, 1 << 64])
async def test_a_position_outside_of_the_log_is_refused(place: Place, position: int) -> None:
    place.drop(11)
    before = await place.cursors.commit("billing", 20)
    acts: list[Callable[[], Awaitable[CloudCursor]]] = [
        lambda: place.cursors.create("new", position),
        lambda: place.cursors.commit("new", position),
        lambda: place.cursors.rewind("billing", position),
        lambda: place.cursors.pin("pin", position, seconds=9),
    ]
    if position > 20:
        acts.append(lambda: place.cursors.commit("billing", position))
    for act in acts:
        if position == 31:
            assert (await act()).position == 31
            continue
        with pytest.raises(OffsetTrimmedError if position < 11 else OffsetNotWrittenError) as told:
            await act()
        assert (told.value.requested, told.value.head, told.value.tail) == (position, 11, 31)
    with pytest.raises(TypeError):
        await place.cursors.commit("billing", True)
    assert position == 31 or await place.other.list(strict=True) == [before]


async def test_what_is_known_of_the_log_is_read_again_before_a_refusal(place: Place) -> None:
    """Only then: moving on within what is known asks for nothing."""
    read: list[int] = []

    async def newest() -> Manifest:
        read.append(place.manifest.next_offset)
        return place.manifest

    cursors = CloudCursors(
        place.store,
        newest=newest,
        retry=RetryPolicy(clock=place.clock),
        clock=place.clock,
        writer="me",
        known=lambda: 11,
    )
    await place.other.create("billing", 1)
    await cursors.commit("billing", 11)
    assert read == []
    await cursors.commit("billing", 12)
    await cursors.commit("billing", 31)
    assert read == [31]
    place.manifest = manifest_of(10, 10, 10, 10)
    await cursors.commit("billing", 41)
    with pytest.raises(OffsetNotWrittenError):
        await cursors.commit("billing", 42)
    assert read == [31, 41, 41]
