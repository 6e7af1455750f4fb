"""Cursors and pins in object storage: compare-and-swap, lost answers, and collections that come between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.uploader.documents import manifest_of
from tests.uploader.logs import replace
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.garbage import Garbage, apply_garbage
from uploader.format.manifest import Manifest
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import (
    Fault,
    call,
    fail,
    hang,
    happen_then_fail,
    happen_then_kill,
    kill,
    postpone,
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
    WalError,
)
from walstore.testing import ManualClock

GOLDEN = Path(__file__).parents[3] / "golden" / "wal3_garbage" / "cursor.json"
LOG = manifest_of(10, 10, 10)
PATH = "cursor/billing.json"


class Place:
    """A store with a log of offsets 1 to 30, and cursors on it."""

    def __init__(self, retry: RetryPolicy) -> None:
        self.inner = MemoryStore()
        self.store = FaultyStore(self.inner)
        self.clock = ManualClock()
        self.cursors = CloudCursors(
            self.store, newest=self.newest, retry=retry, clock=self.clock, writer="me"
        )
        self.other = CloudCursors(
            self.inner, newest=self.newest, retry=retry, clock=self.clock, writer="other"
        )
        self.manifest = LOG

    async def newest(self) -> Manifest:
        return self.manifest

    async def announce(self, first_to_keep: int) -> Garbage:
        """Say that a collection is about to drop what lies below."""
        cut = plan_garbage(self.manifest, first_to_keep, {})
        assert cut is not None
        await self.inner.put_if_absent(layout.GARBAGE, cut.garbage.serialise())
        return cut.garbage

    def drop(self, first_to_keep: int) -> None:
        cut = plan_garbage(self.manifest, first_to_keep, {})
        assert cut is not None
        after = apply_garbage(self.manifest, cut.garbage)
        assert after is not None
        self.manifest = after


@pytest.fixture
def place(impatient: RetryPolicy) -> Place:
    return Place(impatient)


# -- the object --------------------------------------------------------------------------------


def test_the_object_is_wal3s() -> None:
    data = GOLDEN.read_bytes()
    cursor = CloudCursor.parse(data, name="a")
    assert (cursor.position, cursor.epoch_us, cursor.writer) == (3, 1234567890123456, "w")
    assert cursor.expires_us is None
    assert cursor.serialise() == data


def test_a_pin_has_one_field_more() -> None:
    """Behind wal3's; when a program of theirs rewrites the object, it holds for good."""
    pin = CloudCursor(name="a", position=3, epoch_us=5, writer="w", expires_us=9)
    data = pin.serialise()
    assert data == b'{"position":{"offset":3},"epoch_us":5,"writer":"w","expires_us":9}'
    assert CloudCursor.parse(data, name="a") == pin
    assert (pin.is_expired(8), pin.is_expired(9)) == (False, True)
    rewritten = CloudCursor.parse(data.replace(b',"expires_us":9', b""), name="a")
    assert not rewritten.is_expired(1 << 60)


def test_one_that_nobody_checked_says_so_and_what_was_there() -> None:
    """Behind wal3's fields, too; theirs go on reading it."""
    before = CloudCursor(name="a", position=7, epoch_us=4, writer="v", expires_us=9)
    made = CloudCursor(name="a", position=3, epoch_us=5, writer="w", is_unchecked=True)
    data = made.serialise()
    assert (
        data == b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":{"before":null}}'
    )
    assert CloudCursor.parse(data, name="a") == made
    made = dataclasses.replace(made, before=before)
    assert json.loads(made.serialise())["unchecked"]["before"] == json.loads(before.serialise())
    assert CloudCursor.parse(made.serialise(), name="a") == made
    assert made.checked() == CloudCursor(name="a", position=3, epoch_us=5, writer="w")


def test_one_that_was_removed_is_a_pin_that_expired() -> None:
    """Also for programs that know pins and no removals."""
    gone = CloudCursor.removed("a", 3, epoch_us=5, writer="w")
    assert gone.is_removed
    assert gone.is_expired(1)
    assert CloudCursor.parse(gone.serialise(), name="a") == gone


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"position":3,"epoch_us":5,"writer":"w"}',
        b'{"position":{"offset":3},"epoch_us":-5,"writer":"w"}',
        b'{"position":{"offset":3},"epoch_us":5}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","expires_us":"x"}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":true}',
        b'{"position":{"offset":3},"epoch_us":5,"writer":"w","unchecked":{"before":{"epoch_us":5}}}',
    ],
)
def test_bad_shapes(data: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"cursor/a\.json"):
        CloudCursor.parse(data, name="a")


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


# -- beside a collection -----------------------------------------------------------------------


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
