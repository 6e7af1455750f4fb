"""Every operation at every one of its calls: whatever became of the call, and whatever was reported of it.

The call happened or not, and the store reported success or an error, never answered (so the caller gave up),
or answered an hour later, when another controller had compacted and collected; or the call happened an hour
later. After each the collection is whole, and the operation, repeated, has its effect once. A store that
reports success for what did not happen is left out: no protocol survives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, SCHEMA, Program, Site, content, rows
from uploader import Collection
from uploader.stores.port import PreconditionFailedError
from uploader.stores.wrapper import Request
from uploader.testing.faults import (
    Fault,
    fail,
    happen_then_fail,
    outlive_caller,
    postpone,
    report,
    timeout,
)
from uploader.versioned.head import Head, parse_head
from uploader.versioned.version import Version
from walstore.errors import (
    CollectionNotFoundError,
    CollectionRefusedError,
    ContentionError,
    FencedError,
    LeaseExpiredError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalLockedError,
)

TIMES = 6
"""The collection has one update at each of these times."""
NOTE = pa.field("note", pa.string())


class Scene:
    """A collection with merged and pending batches and with garbage, and one program that calls."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.site = Site()
        self.program: Program = self.site.program()
        self.stack = stack
        self.reached = asyncio.Event()
        self.is_over = False
        """Whether no more calls fail."""

    async def fill(self, objects: dict[str, bytes]) -> None:
        """Put what was there before."""
        for key, data in objects.items():
            await self.site.objects.put_if_absent(key, data)
        self.site.clock.seconds = 2 * HOUR

    async def an_hour_later(self) -> None:
        """Let an hour pass, in which somebody else looks after the collection."""
        self.site.clock.seconds += HOUR
        with suppress(CollectionNotFoundError, WalLockedError):
            async with self.site.program().controller() as other:
                await other.compact()
                await other.gc()
        self.site.clock.seconds += HOUR

    async def head(self) -> Head:
        return parse_head((await self.site.objects.get("head")).data)

    async def collection(self) -> Collection:
        """Open it in the program under test."""
        return await self.stack.enter_async_context(self.program.opened())

    async def contents(self) -> list[list[tuple[Any, ...]]]:
        """Return the content as of each time; a critical reader holds all."""
        async with self.site.program().opened() as collection:
            reader = await collection.critical("holds-0")
            return [
                content(await reader.snapshot(as_of=time)) for time in range(await reader.upper())
            ]


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """The objects of the collection that each operation begins with; made once."""
    return asyncio.run(filled())


async def filled() -> dict[str, bytes]:
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.critical("holds-0")
        writer = collection.writer()
        for lower in range(TIMES):
            await writer.append(update(lower), lower=lower, upper=lower + 1)
            if lower in (1, 3):
                await keeper.compact(full=True)
    return {key: (await site.objects.get(key)).data for key in await site.keys()}


def update(time: int) -> pa.Table:
    return rows((time, "v"), at=time)


def expected(limit: int) -> list[list[tuple[Any, ...]]]:
    return [[(key, "v", 1) for key in range(time + 1)] for time in range(limit)]


Call = Callable[[], Awaitable[Any]]


async def as_it_was(scene: Scene) -> None:
    assert await scene.contents() == expected(TIMES)


async def one_more(scene: Scene) -> None:
    assert await scene.contents() == expected(TIMES + 1)


async def append(scene: Scene) -> Call:
    writer = (await scene.collection()).writer()
    return lambda: writer.append(update(TIMES), lower=TIMES, upper=TIMES + 1)


async def publish(scene: Scene) -> Call:
    """Some of it is there."""
    writer = (await scene.collection()).writer()
    table = pa.concat_tables([update(time) for time in range(4, TIMES + 1)])
    return lambda: writer.publish(table, lower=4, upper=TIMES + 1)


async def publish_from_behind(scene: Scene) -> Call:
    """The merged area has passed the shard."""
    collection = await scene.collection()
    table = pa.concat_tables([update(time) for time in range(TIMES + 1)])
    return lambda: collection.writer("second").publish(table, lower=0, upper=TIMES + 1)


async def register(scene: Scene) -> Call:
    collection = await scene.collection()
    return lambda: collection.reader("r", lease_seconds=10 * HOUR)


async def registered(scene: Scene) -> None:
    hold = (await scene.head()).readers["r"]
    assert (hold.frontier, hold.version is None) == (0, False)
    await as_it_was(scene)


async def downgrade(scene: Scene) -> Call:
    reader = await (await scene.collection()).critical("r")
    return lambda: reader.downgrade_since(3)


async def compare_and_downgrade(scene: Scene) -> Call:
    """Its owner looks at the token before."""
    collection = await scene.collection()

    async def call() -> None:
        reader = await collection.critical("r")
        if reader.token != "done":
            await reader.compare_and_downgrade("", "done", 3)

    return call


async def downgraded(scene: Scene) -> None:
    assert (await scene.head()).readers["r"].frontier == 3
    await as_it_was(scene)


async def renew(scene: Scene) -> Call:
    """A leased reader moves to the newest version, or begins again if its lease has ended."""
    collection = await scene.collection()
    readers = [await collection.reader("r", lease_seconds=900)]

    async def call() -> None:
        try:
            await readers[-1].downgrade_since(3)
        except LeaseExpiredError:
            readers.append(await collection.reader("r", lease_seconds=900))
            await readers[-1].downgrade_since(3)

    return call


async def clone(scene: Scene) -> Call:
    reader = await (await scene.collection()).critical("source")

    async def call() -> None:
        copy = await reader.clone(lease_seconds=10 * HOUR)
        assert content(await copy.snapshot(as_of=2)) == expected(3)[2]
        await copy.aclose()

    return call


async def release(scene: Scene) -> Call:
    return (await (await scene.collection()).critical("r")).release


async def released(scene: Scene) -> None:
    assert "r" not in (await scene.head()).readers
    await as_it_was(scene)


async def snapshot(scene: Scene) -> Call:
    reader = await (await scene.collection()).critical("r")

    async def call() -> None:
        assert content(await reader.snapshot(as_of=4)) == expected(5)[4]

    return call


async def listen(scene: Scene) -> Call:
    reader = await (await scene.collection()).critical("r")

    async def call() -> None:
        seen, frontier = [], 0
        async with aclosing(reader.listen(after=-1)) as steps:
            while frontier < TIMES:
                table, frontier = await anext(steps)
                seen += table["_t"].to_pylist()
        assert seen == list(range(TIMES))

    return call


async def compact(scene: Scene) -> Call:
    async def call() -> None:
        async with scene.program.controller(take_over=True) as controller:
            await controller.compact(full=True)

    return call


async def compacted(scene: Scene) -> None:
    assert [batch.upper for batch in (await scene.head()).version.batches] == [TIMES]
    await as_it_was(scene)


async def gc(scene: Scene) -> Call:
    async def call() -> None:
        async with scene.program.controller(take_over=True) as controller:
            await controller.gc()

    return call


async def collected(scene: Scene) -> None:
    head, keys = await scene.head(), await scene.site.keys()
    assert head.gc_floor >= 2
    assert sum(key.startswith("versions/") for key in keys) == 1 + head.version.n - head.gc_floor
    await as_it_was(scene)


async def expire(scene: Scene) -> Call:
    await (await scene.collection()).critical("r")

    async def call() -> None:
        async with scene.program.controller(take_over=True) as controller:
            await controller.expire("r")

    return call


async def create(scene: Scene) -> Call:
    async def call() -> None:
        async with scene.program.opened():
            pass

    return call


async def evolve(scene: Scene) -> Call:
    collection = await scene.collection()
    return lambda: collection.evolve(SCHEMA.append(NOTE))


async def evolved(scene: Scene) -> None:
    options = scene.site.program().options()
    async with Collection.open("memory://here", **options) as collection:
        reader = await collection.critical("holds-0")
        found = content(await reader.snapshot(as_of=TIMES - 1))
        assert found == [(key, "v", None, 1) for key in range(TIMES)]


async def delete(scene: Scene) -> Call:
    """Repeated by whoever wants it gone."""
    collection = await scene.collection()

    async def call() -> None:
        await collection.delete()
        await Collection.finish_deletion("memory://here", **scene.program.options())

    return call


async def deleted(scene: Scene) -> None:
    assert (await scene.head()).is_deleted
    assert [key for key in await scene.site.keys() if not key.startswith("pending/")] == ["head"]
    assert len(await scene.site.keys("pending/")) <= 1
    with pytest.raises(CollectionNotFoundError):
        async with scene.site.program().opened():
            pass


OPERATIONS: tuple[
    tuple[Callable[[Scene], Awaitable[Call]], Callable[[Scene], Awaitable[None]]], ...
] = (
    (append, one_more),
    (publish, one_more),
    (publish_from_behind, one_more),
    (register, registered),
    (downgrade, downgraded),
    (compare_and_downgrade, downgraded),
    (renew, as_it_was),
    (clone, as_it_was),
    (release, released),
    (snapshot, as_it_was),
    (listen, as_it_was),
    (compact, compacted),
    (gc, collected),
    (expire, released),
    (create, as_it_was),
    (evolve, evolved),
    (delete, deleted),
)
"""What prepares a call, and what must be the case in the end."""


def answered_late(scene: Scene, *, happens_first: bool) -> Fault:
    async def fault(request: Request[Any]) -> object:
        answer = await request() if happens_first else None
        await scene.an_hour_later()
        return answer if happens_first else await request()

    return fault


def reports(scene: Scene) -> dict[str, Fault]:
    """Return what may become of one call: whether it happened, and what was reported."""
    late = scene.program.store.late
    return {
        "happened, error": happen_then_fail(timeout()),
        "not, error": fail(timeout()),
        "happened, 412": report("412", happens=True),
        "not, 409": report("409", happens=False),
        "happened, never answered": never(scene, happens=True),
        "not, never answered": never(scene, happens=False),
        "later, never answered": outlive_caller(late, scene.reached),
        "later, error": postpone(late),
        "happened, answered later": answered_late(scene, happens_first=True),
        "later, answered then": answered_late(scene, happens_first=False),
    }


def meanwhile(scene: Scene, fault: Fault) -> Fault:
    """Return what does nothing once the operation has ended."""

    async def at_first(request: Request[Any]) -> object:
        return await (request() if scene.is_over else fault(request))

    return at_first


def never(scene: Scene, *, happens: bool) -> Fault:
    async def fault(request: Request[Any]) -> object:
        try:
            if happens:
                await request()
        finally:
            scene.reached.set()
        return await asyncio.get_running_loop().create_future()

    return fault


REPORTS = (
    "happened, error", "not, error", "happened, 412", "not, 409", "happened, never answered",
    "not, never answered", "later, never answered", "later, error", "happened, answered later",
    "later, answered then",
)  # fmt: skip
OUTCOMES = (
    StorageUnavailableError, OutcomeUnknownError, LeaseExpiredError, FencedError, ContentionError,
    PreconditionFailedError, CollectionNotFoundError, CollectionRefusedError,
)  # fmt: skip
"""What a call may raise for these faults."""


async def attempt(scene: Scene, call: Call) -> bool:
    """Make the call, and give up once it waits for ever; return whether it succeeded."""
    calling = asyncio.ensure_future(call())
    reached = asyncio.ensure_future(scene.reached.wait())
    await asyncio.wait([calling, reached], return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    if not calling.done():
        calling.cancel()
        await asyncio.wait([calling])
    scene.reached.clear()
    if calling.cancelled():
        return False
    error = calling.exception()
    if error is None:
        return True
    assert isinstance(error, OUTCOMES), error
    return False


async def whole(scene: Scene) -> None:
    """Check what every head promises: what it names is there, and nobody's hold is broken."""
    head = await scene.head()
    if head.is_deleted:
        return
    assert head.gc_floor <= head.oldest_held_version
    assert head.purged <= head.upper
    assert all(hold.frontier >= head.since for hold in head.readers.values())
    keys = set(await scene.site.keys())
    key, version = head.version_key, head.version
    while key is not None and version.n >= head.gc_floor:
        assert keys >= {key, *version.object_keys()}
        key = version.parent
        if key is not None and version.n > head.gc_floor:
            version = Version.parse((await scene.site.objects.get(key)).data, path=key)
        else:
            break


async def run(name: str, said: str, nth: int, objects: dict[str, bytes]) -> bool:
    """Run an operation of which one call fares so; return whether it has that many calls."""
    prepare, check = next(one for one in OPERATIONS if one[0].__name__ == name)
    async with AsyncExitStack() as stack:
        scene = Scene(stack)
        await scene.fill(objects)
        call = await prepare(scene)
        before = scene.program.store.requests
        scene.program.store.on("any", meanwhile(scene, reports(scene)[said]), nth=nth)
        await attempt(scene, call)
        scene.is_over = True
        if scene.program.store.requests - before < nth:
            return False
        await whole(scene)
        late = scene.program.store.late[:]
        for _ in range(4):
            if await attempt(scene, call):
                break
            await scene.an_hour_later()
        else:
            pytest.fail(f"call {nth} of {name}: it never succeeds again")
        if late:
            await scene.an_hour_later()
            await scene.program.store.deliver()
        await whole(scene)
        await check(scene)
        return True


@pytest.mark.parametrize("said", REPORTS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {"append", "register"} else pytest.mark.slow)
        for name in (one[0].__name__ for one in OPERATIONS)
    ],
)
async def test_whatever_becomes_of_a_call_and_whatever_is_reported(
    name: str, said: str, objects: dict[str, bytes]
):
    for nth in range(1, 60):
        if not await run(name, said, nth, objects):
            assert nth > 1
            return
    pytest.fail("it never ended")
