"""Members of a group, wherever its jobs are kept: what each may do, and what becomes of the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cases import case
from tests.contract.faces import Face, on
from tests.contract.test_group import fetched
from walstore import InvalidSettingsError, LeaseExpiredError, WalClosedError, WalError, delayed
from walstore.positions.groups.delay import NOT_BEFORE

HERE = on("opened", "served", "stored")


def mortal(face: Face, most: int, **options: Any) -> dict[str, Any]:
    """Return options with which a job may fail so often; of a stored log, letters are appended elsewhere."""
    letters = {} if face.beside is None else {"letters": face.beside}
    return {"max_deliver": most, **letters, **options}


async def letters_of(face: Face, stream: str) -> list[Any]:
    if not face.is_blocking:
        await face.log.refresh()
    async with face.log.reader(stream=stream, follow=False) as reader:
        return [record async for record in reader]


async def until_dead(group: Any, wanted: int) -> None:
    while (await group.statistics()).dead < wanted:
        await group.fetch(max_wait_seconds=0.01)


@HERE
async def test_each_record_is_one_members_also_of_other_programs(face: Face) -> None:
    await face.writer.append_many([b"%d" % number for number in range(40)])
    seen: Counter[bytes] = Counter()

    async def member(log: Any) -> None:
        async with log.group("workers") as group:
            while seen.total() < 40:
                for job in await group.fetch(3, max_wait_seconds=0.1):
                    assert job.deliveries == 1
                    seen[job.value] += 1
                    await job.ack()

    async with face.again() as other, asyncio.TaskGroup() as tasks:
        for log in (face.log, other, face.log, other):
            tasks.create_task(member(log))
    assert seen == Counter({b"%d" % number: 1 for number in range(40)})
    async with face.log.group("workers") as group:
        found = await group.statistics()
        assert (found.floor, found.pending, found.unsettled, found.lag) == (41, 0, 0, 0)
        assert await group.fetch(max_wait_seconds=0) == []


@HERE
async def test_a_job_has_all_parts_of_its_record(face: Face) -> None:
    await face.writer.append(b"v", key=b"k", stream="s", headers={"h": b"1"})
    async with face.log.group("g", stream="s") as group:
        job = await anext(aiter(group))
        parts = (job.offset, job.value, job.key, job.stream, dict(job.headers))
        assert parts == (1, b"v", b"k", "s", {"h": b"1"})
        assert job.timestamp_us == await face.log.timestamp_at(1)
        assert job.timestamp == job.record.timestamp
        assert repr(job) == "<Job 1, delivery 1>"


@HERE
async def test_what_is_not_acknowledged_comes_again(face: Face) -> None:
    assert face.clock is not None
    await face.writer.append_many([b"a", b"b", b"c", b"d"])
    async with face.log.group("g", ack_wait_seconds=60) as group:
        a, b, c, d = await fetched(group, 4)
        await a.ack()
        await b.nak()
        await c.nak(delay_seconds=0.05)
        face.clock.skip(30)
        again = await group.fetch(2)
        again += await fetched(group, 2 - len(again))
        assert [(job.value, job.deliveries) for job in again] == [(b"b", 2), (b"c", 2)]
        face.clock.skip(30)  # no more for those that came again
        assert [(job.value, job.deliveries) for job in await group.fetch(2)] == [(b"d", 2)]
        with pytest.raises(LeaseExpiredError):
            await d.in_progress()
        await d.ack()  # late, and done nevertheless
        await group.ack(again[:1])
        found = await group.statistics()
        assert (found.floor, found.redelivered) == (3, 3)


@HERE
async def test_in_progress_keeps_a_job(face: Face) -> None:
    assert face.clock is not None
    await face.writer.append(b"a")
    async with (
        face.again() as log,
        face.log.group("g", ack_wait_seconds=60) as group,
        log.group("g", ack_wait_seconds=60) as other,
    ):
        (job,) = await group.fetch()
        for _ in range(4):
            face.clock.skip(40)
            assert (
                await group.fetch(max_wait_seconds=0) == await other.fetch(max_wait_seconds=0) == []
            )
            await job.in_progress()
        await job.ack()
        assert await other.fetch(max_wait_seconds=0) == []


@HERE
async def test_a_poison_record_becomes_a_dead_letter(face: Face) -> None:
    await face.writer.append(b"poison", key=b"k", stream="in", headers={"h": b"1"})
    await face.writer.append(b"fine", stream="in")
    async with face.log.group("g", **mortal(face, 3)) as group:
        handled = []
        while not (await group.statistics()).dead:
            for job in await group.fetch(max_wait_seconds=0.05):
                if job.value == b"poison":
                    await job.nak()
                else:
                    handled.append(job.value)
                    await job.ack()
        assert handled == [b"fine"]
        (letter,) = await letters_of(face, "g.dead")
        assert (letter.value, letter.key) == (b"poison", b"k")
        times = [letter.headers.get(f"walstore.{at}_delivery_us") for at in ("first", "last")]
        if face.beside is None:  # else there is no one clock
            assert [time is not None for time in times] == [True, True]
            assert int(times[0]) <= int(times[1])
        headers = {name: value for name, value in letter.headers.items() if "_us" not in name}
        assert headers == {
            "h": b"1", "walstore.group": b"g", "walstore.offset": b"1", "walstore.deliveries": b"3",
            "walstore.stream": b"in",
        }  # fmt: skip
        found = await group.statistics()
        assert (found.dead, found.unsettled) == (1, 0)
        assert await group.fetch(max_wait_seconds=0.1) == []  # it does not read its own letters


class NoPictureError(Exception):
    """What a handler raises."""


@on("opened", "replicated", "served", "stored", "blocking", "distant")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoPictureError("none at /x"), "NoPictureError: none at /x"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        ("given up: é", "given up: é"),
        ("é" * 2000, "é" * 512),
    ],
)
async def test_a_dead_letter_says_what_the_last_handler_said(
    face: Face, error: Any, text: str
) -> None:
    await face.writer.append(b"poison")
    async with face.log.group("g", **mortal(face, 2, ack_wait_seconds=3600.0)) as group:
        (job,) = await fetched(group, 1)
        await job.nak(error="at first")
        (job,) = await fetched(group, 1)
        await job.nak(error=error)
        await until_dead(group, 1)
        (letter,) = await letters_of(face, "g.dead")
        assert letter.headers["walstore.error"].decode() == text
        assert letter.headers["walstore.deliveries"] == b"2"
        assert await group.fetch(max_wait_seconds=0) == []


@on("opened", "replicated", "served", "stored", "blocking", "distant")
async def test_a_job_that_is_dropped_with_a_reason_is_a_dead_letter_at_once(face: Face) -> None:
    await face.writer.append_many([b"bad", b"good"])
    async with face.log.group("g", **mortal(face, 9, ack_wait_seconds=3600.0)) as group:
        bad, good = await fetched(group, 2)
        await bad.term(ValueError("no such picture"))
        (letter,) = await letters_of(face, "g.dead")
        assert letter.headers["walstore.error"] == b"ValueError: no such picture"
        assert (letter.value, letter.headers["walstore.deliveries"]) == (b"bad", b"1")
        await bad.term("again")  # nothing happens
        await good.ack()
        found = await group.statistics()
        assert (found.dead, found.unsettled) == (1, 0)
    assert len(await letters_of(face, "g.dead")) == 1


@HERE
async def test_what_is_no_error_is_refused(face: Face) -> None:
    await face.writer.append(b"a")
    async with face.log.group("g") as group:
        (job,) = await fetched(group, 1)
        for wrong in (7, b"text", ValueError):
            with case(wrong), pytest.raises(TypeError, match="an exception or a text"):
                await job.nak(error=wrong)
            with case(wrong), pytest.raises(TypeError, match="an exception or a text"):
                await job.term(wrong)
        assert (await group.statistics()).pending == 1


@on("stored")
async def test_a_reason_needs_a_place_for_the_letter(face: Face) -> None:
    await face.writer.append(b"a")
    async with face.log.group("g") as group:
        (job,) = await fetched(group, 1)
        with pytest.raises(InvalidSettingsError, match="letters="):
            await job.term("bad")
        await job.ack()


@on("opened", "served")
async def test_a_job_that_is_acknowledged_late_leaves_no_letter(face: Face) -> None:
    """Its letter was refused, since the stream is closed; by then the work is done."""
    await face.log.open_stream("g.dead")
    await face.log.close_stream("g.dead")
    await face.log.append(b"late", stream="in")
    async with face.log.group("g", stream="in", **mortal(face, 1)) as group:
        (job,) = await group.fetch()
        face.clock.skip(40)
        assert await group.fetch(max_wait_seconds=0.05) == []
        await job.ack()
        await face.log.open_stream("g.dead")
        assert await group.fetch(max_wait_seconds=0.05) == []
        found = await group.statistics()
        assert (found.dead, found.unsettled, await letters_of(face, "g.dead")) == (0, 0, [])


@HERE
async def test_a_job_that_is_dropped_leaves_no_letter(face: Face) -> None:
    await face.writer.append(b"a")
    async with face.log.group("g", **mortal(face, 1, dead_letters="morgue")) as group:
        (job,) = await group.fetch()
        await job.term()
        assert await group.fetch(max_wait_seconds=0.1) == []
        assert await letters_of(face, "morgue") == []


@HERE
async def test_jobs_of_a_key_keep_their_order(face: Face) -> None:
    for number in range(30):
        await face.writer.append(b"%d" % number, key=b"%d" % (number % 3))
    done: list[int] = []
    busy: set[bytes] = set()

    async def member(log: Any) -> None:
        async with log.group("g", ordered=True) as group:
            while len(done) < 30:
                jobs = await group.fetch(5, max_wait_seconds=0.1)
                for job in jobs:
                    assert job.key not in busy
                    busy.add(job.key)
                for job in jobs:
                    await asyncio.sleep(0)
                    done.append(int(job.value))
                    busy.discard(job.key)
                    await job.ack()

    async with face.again() as other, asyncio.TaskGroup() as tasks:
        for log in (face.log, other, face.log, other):
            tasks.create_task(member(log))
    for key in range(3):
        assert [number for number in done if number % 3 == key] == list(range(key, 30, 3))


@HERE
async def test_only_so_many_are_with_members_of_all_programs(face: Face) -> None:
    await face.writer.append_many([b"a", b"b", b"c"])
    async with (
        face.again() as log,
        face.log.group("g", max_ack_pending=2) as group,
        log.group("g", max_ack_pending=2) as other,
    ):
        jobs = await fetched(group, 2)
        assert (
            await group.fetch(max_wait_seconds=0.05)
            == await other.fetch(max_wait_seconds=0.05)
            == []
        )
        await jobs[0].ack()
        assert [job.value for job in await other.fetch()] == [b"c"]


# -- delays ----------------------------------------------------------------------------------


def pass_time(face: Face, seconds: float) -> None:
    """Let time pass, by both clocks of a group."""
    assert face.clock is not None
    face.clock.skip(seconds)
    face.clock.shift_wall(seconds)


@HERE
async def test_a_delayed_job_comes_in_its_time_and_holds_no_other_back(face: Face) -> None:
    """Those whose time has come are delivered in the order of their moments, before others."""
    for value, seconds in ((b"late", 900), (b"soon", 300), (b"then", 600)):
        await face.writer.append(value, headers={**delayed(seconds, clock=face.clock), "h": b"1"})
    await face.writer.append(b"now")
    async with face.log.group("g", ack_wait_seconds=3600.0) as group:
        (now,) = await fetched(group, 1)
        assert (now.value, await group.fetch(9, max_wait_seconds=0)) == (b"now", [])
        await now.ack()
        found = await group.statistics()
        assert (found.floor, found.pending, found.unsettled) == (1, 0, 3)
        pass_time(face, 310)
        (soon,) = await fetched(group, 1)
        assert (soon.value, soon.deliveries, soon.headers["h"]) == (b"soon", 1, b"1")
        await soon.nak()
        assert [(job.value, job.deliveries) for job in await fetched(group, 1)] == [(b"soon", 2)]
        pass_time(face, 600)
        await face.writer.append(b"new")
        assert [job.value for job in await fetched(group, 3)] == [b"then", b"late", b"new"]


@HERE
async def test_a_delay_outlives_the_members(face: Face) -> None:
    await face.writer.append(b"a", headers=delayed(600, clock=face.clock))
    async with face.log.group("g") as group:
        assert await group.fetch(max_wait_seconds=0.01) == []
    pass_time(face, 500)
    async with face.again() as log, log.group("g", ack_wait_seconds=60.0) as group:
        assert await group.fetch(max_wait_seconds=0.01) == []
        pass_time(face, 110)
        assert [job.value for job in await fetched(group, 1)] == [b"a"]


@HERE
async def test_a_delayed_job_holds_back_those_of_its_key(face: Face) -> None:
    await face.writer.append(b"1", key=b"k", headers=delayed(600, clock=face.clock))
    await face.writer.append_many([b"2", b"3"], key=b"k")
    await face.writer.append(b"other", key=b"l")
    async with face.log.group("g", ordered=True) as group:
        assert [job.value for job in await fetched(group, 1)] == [b"other"]
        assert await group.fetch(max_wait_seconds=0.01) == []
        pass_time(face, 610)
        for value in (b"1", b"2"):
            (job,) = await fetched(group, 1)
            assert job.value == value
            await job.ack()


@HERE
async def test_a_moment_that_is_past_or_none_delays_nothing(face: Face) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    odd = ({NOT_BEFORE: b"soon"}, {NOT_BEFORE: b""}, {NOT_BEFORE: b"9" * 40}, delayed(past))
    for headers in odd:
        await face.writer.append(b"a", headers=headers)
    async with face.log.group("g") as group:
        jobs = await fetched(group, len(odd))
        assert {job.offset for job in jobs} == {1, 2, 3, 4}


@HERE
async def test_more_delayed_jobs_than_may_be_unsettled_hold_no_other_back(face: Face) -> None:
    await face.writer.append_many([b"later"] * 1100, headers=delayed(600, clock=face.clock))
    await face.writer.append(b"now")
    async with face.log.group("g", max_ack_pending=1) as group:
        assert [job.value for job in await fetched(group, 1)] == [b"now"]


# -- entering and leaving --------------------------------------------------------------------


@HERE
async def test_a_member_enters_once(face: Face) -> None:
    await face.writer.append(b"a")
    member = face.log.group("workers")
    await member.__aexit__(None, None, None)  # before it entered: nothing happens
    entering = [asyncio.ensure_future(member.__aenter__()) for _ in range(2)]
    await asyncio.wait(entering)
    with pytest.raises(RuntimeError, match="once"):
        await entering[1]
    assert [job.value for job in await member.fetch()] == [b"a"]
    await member.__aexit__(None, None, None)
    with pytest.raises(RuntimeError, match="once"):
        await member.__aenter__()


@HERE
async def test_a_group_that_could_not_be_entered_is_entered_otherwise(face: Face) -> None:
    """The options of the failed attempt are not those of the group."""
    await face.writer.append(b"a")
    for start in (99, "soon"):
        with case(start), pytest.raises((ValueError, WalError)):
            await face.log.group("workers", start=start).__aenter__()
    async with face.log.group("workers") as group:
        assert [job.value for job in await group.fetch()] == [b"a"]


@HERE
async def test_what_a_member_leaves_behind_goes_to_one_that_waits(face: Face) -> None:
    await face.writer.append_many([b"a", b"b"])
    async with face.log.group("g") as first, face.log.group("g") as second:
        await fetched(first, 2)
        waiting = asyncio.ensure_future(second.fetch(2))
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        assert [job.value for job in await waiting][:1] == [b"a"]
        with pytest.raises(WalClosedError):
            await first.fetch()


@HERE
async def test_a_fetch_that_waits_ends_when_its_member_leaves(face: Face) -> None:
    """And takes nothing, whatever comes at that moment; another member gets it."""
    leaves = face.log.group("workers")
    await leaves.__aenter__()
    async with face.log.group("workers") as stays:
        waits = [asyncio.ensure_future(member.fetch()) for member in (leaves, stays)]
        await face.writer.append(b"before")  # both wait by now, or one of them has it
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await leaves.__aexit__(None, None, None)
        await face.writer.append(b"after")
        if not waits[0].done() or waits[0].exception() is not None:
            with pytest.raises(WalClosedError, match="left"):
                await waits[0]
        first = await waits[1]
        await stays.ack(first)
        (second,) = await stays.fetch()
        assert {first[0].value, second.value} == {b"before", b"after"}
        with pytest.raises(WalClosedError):
            await leaves.fetch()


@HERE
async def test_a_fetch_that_waits_ends_when_the_group_is_deleted(face: Face) -> None:
    async with face.log.group("g") as group:
        waiting = asyncio.ensure_future(group.fetch())
        await group.statistics()
        assert await face.log.delete_group("g")
        with pytest.raises(WalClosedError, match="was deleted"):
            await waiting


@HERE
async def test_an_exception_of_one_job_takes_no_others_to_the_dead_letters(face: Face) -> None:
    """It ends the member, which gives back what it had; only what was begun was delivered."""
    await face.writer.append_many([b"bad", b"2", b"3"])
    options = mortal(face, 2)
    for deliveries in (1, 2):
        with pytest.raises(ZeroDivisionError):
            async with face.log.group("g", **options) as group:
                jobs = [(job.offset, job.deliveries) for job in await fetched(group, 3)]
                assert jobs == [(1, deliveries), (2, 1), (3, 1)]
                raise ZeroDivisionError
    async with face.log.group("g", **options) as group:
        jobs = await fetched(group, 2)
        assert [(job.offset, job.deliveries) for job in jobs] == [(2, 1), (3, 1)]
        await group.ack(jobs)
        await until_dead(group, 1)
        assert [letter.value for letter in await letters_of(face, "g.dead")] == [b"bad"]


@HERE
async def test_who_has_left_cannot_end_the_lease_of_who_has_its_job_now(face: Face) -> None:
    """Both had it for the first time, as the one that left had not begun it."""
    await face.writer.append_many([b"1", b"2"])
    async with face.log.group("g") as here:
        async with face.log.group("g") as there:
            left = await fetched(there, 2)
        jobs = await fetched(here, 2)
        assert [(job.offset, job.deliveries) for job in jobs] == [(1, 2), (2, 1)]
        await left[1].nak()
        with pytest.raises(LeaseExpiredError):
            await left[1].in_progress()
        assert (await here.statistics()).pending == 2
        await left[0].ack()  # the work is done, whoever did it
        assert (await here.statistics()).pending == 1


@HERE
async def test_jobs_are_acknowledged_in_their_own_group(face: Face) -> None:
    await face.writer.append_many([b"%d" % number for number in range(4)])
    async with (
        face.log.group("a") as a,
        face.log.group("b") as b,
        face.log.group("a") as too,
    ):
        jobs = await fetched(a, 4)
        await fetched(b, 4)
        with pytest.raises(ValueError, match="of group 'a'"):
            await b.ack(jobs)
        with pytest.raises(TypeError, match="several jobs"):
            await a.ack(jobs[0])
        for wrong in ([1], ["job"], [jobs[0], None], 7, b"jobs"):
            with case(wrong), pytest.raises(TypeError, match="takes"):
                await a.ack(wrong)
        assert (await a.statistics()).unsettled == (await b.statistics()).unsettled == 4
        await too.ack(jobs)
        assert ((await a.statistics()).unsettled, (await b.statistics()).unsettled) == (0, 4)


# -- dead letters that become jobs again ------------------------------------------------------

WITH_REDRIVE = on("opened", "replicated", "served", "blocking", "distant")


async def make_letters(face: Face, *values: bytes) -> list[int]:
    """Make a dead letter of each job; return their offsets."""
    for value in values:
        await face.writer.append(value, key=b"k", stream="in", headers={"h": b"1"})
    async with face.log.group("g", stream="in", ack_wait_seconds=3600.0) as group:
        for job in await fetched(group, len(values)):
            await job.term(ValueError("bad"))
    return [letter.offset for letter in await letters_of(face, "g.dead")]


@WITH_REDRIVE
async def test_letters_become_jobs_of_their_group_again_each_once(face: Face) -> None:
    letters = await make_letters(face, b"1", b"2")
    async with face.log.group("other", stream="in", ack_wait_seconds=3600.0) as other:
        for job in await fetched(other, 2):
            await job.ack()
        assert await face.log.redrive_group("g") == (letters, [], 0)
        assert await face.log.redrive_group("g") == ([], [], 0)  # as after a lost answer
        async with face.log.group("g", stream="in", ack_wait_seconds=3600.0) as group:
            jobs = await fetched(group, 2)
            assert [job.value for job in jobs] == [b"1", b"2"]
            if not face.is_blocking:
                assert {(job.key, job.stream) for job in jobs} == {(b"k", "in")}
                headers = {"h": b"1", "walstore.redriven_for": b"g"}
                assert [dict(job.headers) for job in jobs] == [headers] * 2
            assert {job.deliveries for job in jobs} == {1}
            await jobs[0].ack()
            await jobs[1].term("bad again")
            assert await group.fetch(max_wait_seconds=0) == []
        assert await other.fetch(max_wait_seconds=0.01) == []
    *_, newest = await letters_of(face, "g.dead")
    assert "walstore.redriven_for" in newest.headers
    assert await face.log.redrive_group("g") == ([newest.offset], [], 0)
    assert await face.log.redrive_group("nobody") == ([], [], 0)


@WITH_REDRIVE
async def test_letters_are_redriven_one_by_one_or_so_many(face: Face) -> None:
    one, two, three, four = await make_letters(face, b"1", b"2", b"3", b"4")
    assert await face.log.redrive_group("g", offsets=[three, 999]) == ([three], [], 3)
    assert await face.log.redrive_group("g", offsets=[three]) == ([], [], 3)
    assert await face.log.redrive_group("g", limit=2) == ([one, two], [], 1)
    async with face.log.group("g", stream="in", ack_wait_seconds=3600.0) as group:
        assert [job.value for job in await fetched(group, 3)] == [b"3", b"1", b"2"]
    assert await face.log.redrive_group("g", limit=2) == ([four], [], 0)
    for wrong in (0, -1, 1.5, "2"):
        with case(wrong), pytest.raises((TypeError, ValueError)):
            await face.log.redrive_group("g", limit=wrong)
    with pytest.raises(ValueError, match="group's name"):
        await face.log.redrive_group("a b")


@on("opened", "replicated", "served")
async def test_who_redrives_at_the_same_time_or_is_cancelled_appends_no_letter_twice(
    face: Face,
) -> None:
    letters = await make_letters(face, *(b"%d" % number for number in range(20)))
    calls = [
        asyncio.ensure_future(face.log.redrive_group("g", limit=limit)) for limit in (5, 7, None)
    ]
    for turns in range(8):
        cancelled = asyncio.ensure_future(face.log.redrive_group("g", limit=3))
        for _ in range(turns * 5):
            await asyncio.sleep(0)
        cancelled.cancel()
        cancelled.cancel()
        await asyncio.wait([cancelled])
    await asyncio.gather(*calls)
    found = await face.log.redrive_group("g")
    assert found.left == 0
    async with face.log.group("g", stream="in", ack_wait_seconds=3600.0) as group:
        jobs = await fetched(group, len(letters))
        assert sorted(int(job.value) for job in jobs) == list(range(20))
        assert await group.fetch(max_wait_seconds=0) == []


@on("opened", "served")
async def test_a_letter_without_its_value_takes_that_of_its_record(face: Face) -> None:
    """If the log still has it."""
    value = bytes(face.log.max_record_bytes - 20) if hasattr(face.log, "max_record_bytes") else b""
    if not value:
        value = bytes(face.log.settings.max_record_bytes - 20)
    await face.writer.append(value, stream="in")
    async with face.log.group("g", stream="in") as group:
        (job,) = await fetched(group, 1)
        await job.term("bad")
    (letter,) = await letters_of(face, "g.dead")
    assert (letter.value, letter.headers["walstore.omitted"]) == (b"", b"value")
    found = await face.log.redrive_group("g")
    assert found.skipped == [letter.offset]  # it is too large with a header
    assert (found.letters, found.left) == ([], 1)
