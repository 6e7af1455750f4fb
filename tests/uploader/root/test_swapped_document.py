"""One object that several programs change: every change happens once, or its caller is told.

The object has the names of the changes made so far. Each is in it once, whatever the store did and said, and
whoever was quicker. ``TAGGED`` shows whose change it was, ``PLAIN`` does not.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.cases import case
from tests.effort import first_seed
from tests.uploader.answers import PUT_FAULTS
from uploader.root.cas import TRUSTED_SECONDS
from uploader.root.stored_document import StoredDocument
from uploader.root.swapped_document import MOST_ROUNDS, SwappedDocument
from uploader.stores import MemoryStore, PreconditionFailedError, RetryPolicy
from uploader.testing import FaultyStore, faults
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    CorruptionError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

KEY = "names"
Names = tuple[str, ...]
FORGETS = 6
"""So many changes the object remembers."""


def parse(data: bytes) -> Names:
    found = json.loads(data)
    if not isinstance(found, list):
        raise CorruptionError("no list", path=KEY)
    return tuple(found)


def serialise(names: Names) -> bytes:
    return json.dumps(names).encode()


def is_mine(put: Names, newest: Names) -> bool | None:
    if put[-1] in newest[-FORGETS:]:
        return True
    return False if len(newest) - len(put) < FORGETS else None


PLAIN: dict[str, Any] = {}
TAGGED: dict[str, Any] = {"is_mine": is_mine}
KINDS = pytest.mark.parametrize("options", [PLAIN, TAGGED], ids=["plain", "tagged"])
BEFORE = pytest.mark.parametrize("before", [None, ("z",)], ids=["absent", "there"])


def add(name: str) -> Callable[[Names], Names | None]:
    return lambda names: None if name in names else (*names, name)


class Place:
    """The object, and two programs that change it: ours, whose store is faulty, and another one."""

    def __init__(self, retry: RetryPolicy) -> None:
        self.inner = MemoryStore()
        self.store = FaultyStore(self.inner)
        self.retry = retry

    def document(self, **options: Any) -> SwappedDocument[Names]:
        return self.document_in(self.store, **options)

    def document_in(self, store: Any, **options: Any) -> SwappedDocument[Names]:
        return SwappedDocument(
            store, KEY, parse, retry=self.retry, serialise=serialise, nothing=tuple, **options
        )

    async def begin(self, before: Names | None) -> None:
        if before is not None:
            await self.inner.put_if_absent(KEY, serialise(before))

    async def other(self, *names: str) -> None:
        """Another program makes changes."""
        for name in names:
            await self.document_in(self.inner).change(add(name))

    async def names(self) -> Names:
        return (await self.document_in(self.inner).read()).value

    def fail_reads(self, times: int = 5) -> None:
        """Answer none of the reads that would decide about a put."""
        self.store.on("get", faults.fail(faults.timeout()), times=times)

    def leave_open(self, kind: Any, *, happens: bool) -> None:
        """Answer neither the puts of one swap nor what would decide about them; the first may happen."""
        error = faults.timeout()
        self.store.on(kind, faults.happen_then_fail(error) if happens else faults.fail(error))
        self.store.on(kind, faults.fail(error), times=self.retry.attempts - 1)


@pytest.fixture
def place(impatient: RetryPolicy) -> Place:
    return Place(impatient)


def kind_of(before: Names | None) -> Any:
    return "put_if_absent" if before is None else "put_if_match"


# -- alone -----------------------------------------------------------------------------------


@KINDS
@BEFORE
async def test_a_change_is_a_read_and_a_put(place: Place, options, before) -> None:
    await place.begin(before)
    document = place.document(**options)
    made = (*(before or ()), "a")
    assert await document.change(add("a")) == made == await place.names()
    assert place.store.requests == 2
    assert await document.change(add("a")) == made, "there is nothing to do"
    assert await document.change(lambda names: names) == made
    assert place.store.requests == 4


@KINDS
@BEFORE
@pytest.mark.parametrize("fault", PUT_FAULTS)
async def test_any_answer_to_a_put_that_is_not_true(place: Place, options, before, fault) -> None:
    await place.begin(before)
    place.store.on(kind_of(before), PUT_FAULTS[fault]())
    made = (*(before or ()), "a")
    assert await place.document(**options).change(add("a")) == made == await place.names()


@KINDS
async def test_what_make_raises_is_passed_on(place: Place, options) -> None:
    await place.begin(("z",))

    def refuse(_names: Names) -> Names:
        raise KeyError("z")

    with pytest.raises(KeyError):
        await place.document(**options).change(refuse)
    assert place.store.requests == 1


@KINDS
async def test_a_store_that_fails_for_good_is_told(place: Place, options) -> None:
    place.store.on("put_if_absent", faults.fail(faults.timeout("not_written")), times=5)
    with pytest.raises(StorageUnavailableError) as caught:
        await place.document(**options).change(add("a"))
    assert caught.value.outcome == "not_written"
    assert await place.names() == ()


async def test_a_worker_reads_and_makes_it(place: Place) -> None:
    worker = Worker("test")
    try:
        document = place.document(worker=worker)
        place.store.on("put_if_absent", faults.call(lambda: place.other("x")))
        assert await document.change(add("a")) == ("x", "a")
        assert (await document.read()).value == ("x", "a")
    finally:
        worker.close()


# -- with others -----------------------------------------------------------------------------


@KINDS
@BEFORE
async def test_a_lost_swap_goes_on_with_what_is_there(place: Place, options, before) -> None:
    """What was found in the way is the next value to change: no further read, and no pause."""
    await place.begin(before)
    place.store.on(kind_of(before), faults.call(lambda: place.other("x")))
    made = (*(before or ()), "x", "a")
    assert await place.document(**options).change(add("a")) == made == await place.names()
    assert place.store.requests == 4
    assert place.retry.clock.waits == []


@KINDS
async def test_who_loses_again_waits_longer_and_reads_again(place: Place, options) -> None:
    await place.begin(())
    for name in "uvwxy":
        place.store.on("put_if_match", faults.call(lambda name=name: place.other(name)))
    assert await place.document(**options).change(add("a")) == tuple("uvwxya")
    assert place.retry.clock.waits == [0.05, 0.1, 0.2, 0.4]
    assert place.store.count("get").requests == 1 + 5 + 4


@KINDS
async def test_who_always_loses_is_told(place: Place, options) -> None:
    await place.begin(())
    others = (f"x{number}" for number in range(MOST_ROUNDS))
    place.store.on(
        "put_if_match", faults.call(lambda: place.other(next(others))), times=MOST_ROUNDS
    )
    with pytest.raises(ContentionError, match=r"the names at memory.* changes all the time"):
        await place.document(**options).change(add("a"))
    assert len(await place.names()) == MOST_ROUNDS
    assert max(place.retry.clock.waits) == 0.4


async def test_a_document_that_is_removed_in_between_begins_anew(place: Place) -> None:
    await place.begin(("z",))
    place.store.on("put_if_match", faults.call(lambda: place.inner.delete([KEY])))
    assert await place.document().change(add("a")) == ("a",) == await place.names()


async def test_without_a_value_there_is_nothing_to_change(place: Place) -> None:
    def missing() -> Names:
        raise LookupError(KEY)

    document = SwappedDocument(place.store, KEY, parse, retry=place.retry, nothing=missing)
    with pytest.raises(LookupError):
        await document.change(add("a"))


@KINDS
async def test_one_swap_says_what_is_there_now(place: Place, options) -> None:
    document = place.document(**options)
    swap = await document.swap(("a",), await document.read())
    assert (swap.put, swap.newest.value, swap.was_unanswered) == (("a",), ("a",), False)
    assert swap.newest.etag == (await place.inner.get(KEY)).etag
    stale = swap.newest
    await place.other("x")
    swap = await document.swap(("a", "b"), stale)
    assert (swap.put, swap.newest.value, swap.was_unanswered) == (None, ("a", "x"), False)
    again = await document.swap(("a", "x", "b"), swap.newest)
    assert again.put == ("a", "x", "b") == await place.names()


# -- what the caller knows -------------------------------------------------------------------


async def test_what_is_known_saves_a_read(place: Place) -> None:
    await place.begin(("z",))
    seen = await place.document().read()
    assert await place.document().change(add("a"), seen=seen) == ("z", "a")
    assert place.store.count("get").requests == 1
    assert await place.document().change(add("b"), seen=seen) == ("z", "a", "b"), "it is old"
    absent: StoredDocument[Names] = StoredDocument((), None)
    assert await place.document().change(add("c"), seen=absent) == ("z", "a", "b", "c")


async def test_what_is_known_is_read_again_before_a_refusal(place: Place) -> None:
    await place.begin(("z",))
    seen = await place.document().read()
    await place.other("x")

    def after_x(names: Names) -> Names:
        if "x" not in names:
            raise LookupError("x")
        return (*names, "a")

    assert await place.document().change(after_x, seen=seen) == ("z", "x", "a")
    with pytest.raises(LookupError):
        await place.document().change(lambda names: ()[len(names)], seen=seen)
    known = StoredDocument(("z", "b"), "etag")
    assert await place.document().change(add("b"), seen=known) == ("z", "x", "a", "b")


# -- what the store does not say -------------------------------------------------------------


@KINDS
@BEFORE
async def test_a_change_that_nobody_can_see_is_told_and_called_again(
    place: Place, options, before
) -> None:
    """Also if what would show whose it was cannot be read: the read has not failed alone."""
    await place.begin(before)
    made = (*(before or ()), "a")
    reads = 6 if options else 5
    error = faults.timeout("not_written")
    place.leave_open(kind_of(before), happens=True)
    place.store.on("get", faults.fail(error), nth=2, times=reads)
    with pytest.raises(OutcomeUnknownError, match=r"whether names was put; call again") as caught:
        await place.document(**options).change(add("a"))
    assert caught.value.retriable
    assert isinstance(caught.value.__cause__, StorageUnavailableError)
    assert await place.names() == made
    assert await place.document(**options).change(add("a")) == made == await place.names()
    place.store.on("put_if_match", faults.fail(faults.timeout()), times=5)
    place.store.on("get", faults.fail(error), nth=2, times=reads)
    with pytest.raises(OutcomeUnknownError, match="the names were counted"):
        await place.document(question="the names were counted", **options).change(add("b"))


@BEFORE
@pytest.mark.parametrize("others", [(), ("x",), ("x", "y")])
async def test_a_change_that_is_ours_returns_once(place: Place, before, others) -> None:
    """Not answered, and read back in vain; then the object shows it, also in what was made from it."""
    await place.begin(before)
    place.leave_open(kind_of(before), happens=True)
    place.store.on("get", faults.fail(faults.timeout()), nth=2, times=4)
    place.store.on("get", faults.call(lambda: place.other(*others)), nth=2)
    made = (*(before or ()), "a")
    assert await place.document(**TAGGED).change(add("a")) == made
    assert await place.names() == (*made, *others)


@BEFORE
async def test_a_change_that_is_not_ours_goes_on(place: Place, before) -> None:
    await place.begin(before)
    place.leave_open(kind_of(before), happens=False)
    place.store.on("get", faults.fail(faults.timeout()), nth=2, times=5)
    place.store.on("get", faults.call(lambda: place.other("x")), nth=2)
    made = (*(before or ()), "x", "a")
    assert await place.document(**TAGGED).change(add("a")) == made == await place.names()


@KINDS
@BEFORE
async def test_a_change_that_may_still_arrive_is_told(place: Place, options, before) -> None:
    """It arrives late: once, and not at all after another one."""
    for others in ([], ["x"]):
        with case(others):
            place = Place(place.retry)
            await place.begin(before)
            place.store.on(kind_of(before), faults.postpone(place.store.late), times=5)
            with pytest.raises(OutcomeUnknownError):
                await place.document(**options).change(add("a"))
            await place.other(*others)
            await place.store.deliver()
            assert await place.names() == (*(before or ()), *(others or ["a"]))


@KINDS
async def test_a_change_that_was_replaced_before_it_was_answered(place: Place, options) -> None:
    """Whoever is told that it lost cannot know that it was there, except by what was made from it."""
    await place.begin(())

    async def replaced_unseen(request: faults.Request[Any]) -> object:
        await request()
        await place.other("x")
        raise faults.timeout()

    place.store.on("put_if_match", replaced_unseen)
    document = place.document(**options)
    swap = await document.swap(("a",), await document.read())
    assert swap.put == (("a",) if options else None)
    assert (swap.newest.value, swap.was_unanswered) == (("a", "x"), True)


@pytest.mark.parametrize("was_answered", [True, False])
async def test_a_document_that_may_have_forgotten(place: Place, was_answered: bool) -> None:
    """Too many changes since: nobody knows, unless the store has refused every attempt."""
    await place.begin(())
    others = [f"x{number}" for number in range(FORGETS + 1)]
    if was_answered:
        place.store.on("put_if_match", faults.call(lambda: place.other(*others)))
        assert await place.document(**TAGGED).change(add("a")) == (*others, "a")
        return

    async def replaced_unseen(request: faults.Request[Any]) -> object:
        await request()
        await place.other(*others)
        raise faults.timeout()

    place.store.on("put_if_match", replaced_unseen)
    with pytest.raises(OutcomeUnknownError):
        await place.document(**TAGGED).change(add("a"))
    assert await place.names() == ("a", *others)


@KINDS
async def test_a_create_that_took_long_is_believed_only_if_the_object_shows_it(
    place: Place, options
) -> None:
    """The key may have been used and removed meanwhile."""

    async def stop(_request: faults.Request[Any]) -> object:
        place.retry.clock.waits.append(TRUSTED_SECONDS)
        raise faults.timeout()

    place.store.on("put_if_absent", stop)
    if options:
        assert await place.document(**options).change(add("a")) == ("a",)
        return
    with pytest.raises(OutcomeUnknownError):
        await place.document().change(add("a"))


# -- damaged ---------------------------------------------------------------------------------


async def test_a_damaged_object_is_told_and_left_alone(place: Place) -> None:
    for data in (b"{}", b"[", b'["' + b"x" * 100 + b'"]'):
        with case(data):
            place = Place(place.retry)
            await place.inner.put_if_absent(KEY, data)
            with pytest.raises(CorruptionError):
                await place.document(most_bytes=90).change(add("a"))
            assert (await place.inner.get(KEY)).data == data


async def test_a_damaged_object_is_replaced_where_that_is_wanted(place: Place) -> None:
    for data in (b"{}", b"[", b'["' + b"x" * 100 + b'"]'):
        with case(data):
            place = Place(place.retry)
            await place.inner.put_if_absent(KEY, data)
            document = place.document(most_bytes=90, damaged=lambda _: ("damaged",))
            stored = await document.read()
            assert stored.value == ("damaged",)
            assert stored.damage is not None
            assert await document.change(add("a")) == ("damaged", "a") == await place.names()


async def test_another_program_damages_it_in_between(place: Place) -> None:
    async def damage() -> None:
        await place.inner.delete([KEY])
        await place.inner.put_if_absent(KEY, b"{}")

    for options, expected in (({}, None), ({"damaged": lambda _: ()}, ("a",))):
        with case(expected):
            await damage()
            await place.inner.delete([KEY])
            await place.inner.put_if_absent(KEY, serialise(("z",)))
            place.store.on("put_if_match", faults.call(damage))
            if expected is None:
                with pytest.raises(CorruptionError):
                    await place.document(**options).change(add("a"))
            else:
                assert await place.document(**options).change(add("a")) == expected


# -- cancelled -------------------------------------------------------------------------------


@KINDS
@BEFORE
@pytest.mark.parametrize("happens", [True, False])
async def test_cancelled_twice_and_called_again(place: Place, options, before, happens) -> None:
    """At every request. The same document goes on, and the change is made once."""
    for nth in range(1, 10):
        with case(nth):
            place = Place(place.retry)
            await place.begin(before)
            document = place.document(**options)
            place.store.on(kind_of(before), faults.call(lambda: place.other("x")))  # noqa: B023
            reached = asyncio.Event()
            place.store.on(
                "any",
                faults.happen_then_hang(asyncio.Event(), reached)
                if happens
                else faults.outlive_caller(place.store.late, reached),
                nth=nth,
            )
            task = asyncio.create_task(document.change(add("a")))
            waiting = asyncio.create_task(reached.wait())
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if task.done():
                assert await place.names() == (*(before or ()), "x", "a")
                return
            task.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            again = asyncio.create_task(document.change(add("a")))
            await place.store.deliver()
            await again
            names = await place.names()
            assert sorted(names) == sorted((*(before or ()), *names[-2:]))
            assert names.count("a") == 1
    raise AssertionError("it never came to an end")


# -- everything ------------------------------------------------------------------------------


FAILURES = (OutcomeUnknownError, StorageUnavailableError, PreconditionFailedError)
"""The last one if a store refuses every attempt for no reason."""


async def program(place: Place, number: int, chance: random.Random, options: Any) -> list[str]:
    """Make some changes through a store that fails at random; return those that were acknowledged.

    A tagged change needs no look at whether it is there already.
    """
    store = FaultyStore(place.inner)
    document = place.document_in(store, **options)
    done: list[str] = []
    for step in range(6):
        for _ in range(chance.randrange(3)):
            kind = chance.choice(["put_if_absent", "put_if_match", "get"])
            says = chance.choice(faults.SAYS)
            is_put = kind != "get"
            happens = chance.random() < 0.5 or (is_put and says == "ok") or not is_put
            fault = faults.report(says, happens=happens)
            if is_put and chance.random() < 0.2:
                fault = faults.postpone(store.late)
            if kind == "get" and says in {"412", "409"}:
                continue
            store.on(kind, fault, nth=chance.randrange(1, 3), times=chance.randrange(1, 6))
        name = f"{number}-{step}"
        make = (lambda names, name=name: (*names, name)) if options else add(name)
        task = asyncio.create_task(document.change(make))
        if chance.random() < 0.2:
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
            task.cancel()
            task.cancel()
        with suppress(asyncio.CancelledError, *FAILURES):
            await task
            done.append(name)
        if chance.random() < 0.5:
            await store.deliver(newest_first=chance.random() < 0.5)
    await store.deliver()
    return done


def check(names: Sequence[str], done: Sequence[str]) -> None:
    assert len(set(names)) == len(names), "twice"
    assert set(done) <= set(names), "acknowledged, and lost"


@KINDS
async def test_whatever_happens_each_change_is_there_once(impatient, options) -> None:
    first = first_seed("swapped")
    for seed in range(first, first + 40):
        with case(seed):
            chance, place = random.Random(seed), Place(impatient)
            tagged = {"is_mine": _by_all} if options else {}
            async with asyncio.TaskGroup() as group:
                programs = [
                    group.create_task(program(place, number, chance, tagged)) for number in range(3)
                ]
            check(await place.names(), [name for one in programs for name in one.result()])


def _by_all(put: Names, newest: Names) -> bool | None:
    return put[-1] in newest
