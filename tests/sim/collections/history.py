"""CollectionHistory: programs that use one collection, over a bad network, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.sim.cloud.network import Network, SimStore, World
from tests.sim.cloud.scene import MachineClock
from tests.sim.collections import plan as plans
from tests.sim.collections.lists import Book, read_last, transact
from tests.sim.collections.plan import CollectionPlan
from tests.sim.collections.truth import (
    SCHEMA,
    CollectionViolationError,
    Truth,
    Updates,
    content_of,
    to_table,
)
from tests.sim.loop import OUTSIDE, Process, SimLoop, StuckError
from tests.sim.rules import ViolationError
from tests.sim.surroundings import quiet
from uploader.root import stored_document
from uploader.stores.retry import RetryPolicy
from uploader.versioned import collection_session, names
from uploader.versioned.collection import Collection
from uploader.versioned.collection_reader import CollectionReader
from uploader.versioned.collection_writer import CollectionWriter
from uploader.versioned.controller import Controller
from uploader.versioned.head import parse_head
from uploader.versioned.version import Version
from walstore.errors import (
    ContentionError,
    FencedError,
    LeaseExpiredError,
    OutcomeUnknownError,
    StorageUnavailableError,
    UpperMismatchError,
    WalError,
    WalLockedError,
)

URL: Final = "sim://collection"
_LAST_SECONDS: Final = 10 * 86_400
_TROUBLES: Final = (StorageUnavailableError, OutcomeUnknownError)


class InlineWorker:
    """Runs its calls at once."""

    def __init__(self, *_: object) -> None:
        self.is_closed = False

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def close(self) -> None:
        self.is_closed = True


class CollectionHistory:
    """One history."""

    def __init__(self, plan: CollectionPlan) -> None:
        self.plan = plan
        self.random = Random(f"collection history {plan.seed}")
        self.loop = SimLoop(self.random, shuffles=True, most_turns=3_000_000)
        self.world = World(
            self.random,
            self.loop,
            Network(**plan.faults),
            etags_of_content=plan.etags_of_content,
            page=plan.page,
            shuffles=plan.shuffles,
            probes=False,
            lies=False,
            watch=self.note,
        )
        self.truth = Truth(plan.seed, plan.kind, is_definite=plan.shards > 1)
        self.book = Book()
        self.trace: list[tuple[float, str, str]] = []
        self.violation: ViolationError | None = None
        self.happened: Counter[str] = Counter()

    def note(self, who: Process, text: str) -> None:
        self.trace.append((self.loop.time(), who.name, text))

    def run(self) -> None:
        """Run to the end; raises the violation that was found."""
        ids = Random(f"ids {self.plan.seed}")
        with (
            quiet(),
            patch.object(collection_session, "SharedWorker", InlineWorker),
            patch.object(stored_document, "SharedWorker", InlineWorker),
            patch.object(names, "token_hex", lambda size: ids.randbytes(size).hex()),
        ):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._direct())
            except StuckError as error:
                raise CollectionViolationError("ends", str(error)) from error
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()
        if self.violation is not None:
            raise self.violation
        # What is left of an asynchronous generator whose process was killed.
        complaints = [one for one in self.loop.complaints if "asynchronous generator" not in one]
        if complaints:
            raise CollectionViolationError("typed-errors", complaints[0])

    async def _direct(self) -> None:
        founder = Program(self, "founder")
        await founder.alone(founder.create())
        changes = transact if self.plan.lists else write
        programs = [
            *(("w", number, changes) for number in range(self.plan.writers)),
            *(("r", number, read) for number in range(self.plan.readers)),
            *(("c", number, control) for number in range(self.plan.controllers)),
        ]
        slots = [
            asyncio.create_task(self._lives(f"{name}{number}", number, work))
            for name, number, work in programs
        ]
        await asyncio.wait(slots)
        if self.violation is None:
            self.world.network = Network()
            await asyncio.sleep(8000)  # what is under way arrives
            last = Program(self, "last")
            await last.alone(settle(last))

    async def _lives(self, name: str, number: int, work: Callable[..., Awaitable[None]]) -> None:
        for life in range(self.plan.lives):
            program = Program(self, f"{name}.{life}")
            task = self.loop.spawn(program.process, self.guarded(work(program, number)), name)
            if self.random.random() < self.plan.kills:
                seconds = self.random.choice([0.2, 1.0, 5.0, 30.0, 4000.0])
                await asyncio.wait([task], timeout=self.random.uniform(0, seconds))
                if not task.done():
                    self.loop.kill(program.process)
                    self.happened["kills"] += 1
                    self.note(OUTSIDE, f"{program.process} is killed")
            else:
                await asyncio.wait([task])
            if self.violation is not None:
                return

    async def guarded(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except ViolationError as violation:
            self.violate(violation)
        except Exception as error:  # noqa: BLE001
            rule = "fails-for-a-cause" if isinstance(error, WalError) else "typed-errors"
            found = CollectionViolationError(rule, f"a program got {error!r}")
            found.__cause__ = error
            self.violate(found)

    def violate(self, violation: ViolationError) -> None:
        if self.violation is None and violation.rule not in self.plan.ignored:
            self.violation = violation
            self.note(OUTSIDE, f"VIOLATION {violation}")


class Program:
    """One process."""

    def __init__(self, history: CollectionHistory, name: str) -> None:
        self.history = history
        self.plan = history.plan
        self.random = history.random
        self.truth = history.truth
        self.process = Process(name)
        self.clock = MachineClock(history.loop, self.random, leaps=self.plan.leaps)

    def options(self) -> dict[str, Any]:
        attempts = self.random.choice([1, 2, 5])
        return {
            "store": SimStore(self.history.world, URL, self.process),
            "clock": self.clock,
            "retry": RetryPolicy(clock=self.clock, attempts=attempts, jitter=self.random.random),
        }

    async def alone(self, call: Any) -> None:
        await asyncio.wait(
            [self.history.loop.spawn(self.process, self.history.guarded(call), "alone")]
        )

    async def create(self) -> None:
        while True:
            try:
                made = await Collection.open(
                    URL,
                    create=True,
                    schema=SCHEMA,
                    key=("k",),
                    kind=self.plan.kind,
                    **self.options(),
                )
            except _TROUBLES:
                continue
            return await made.aclose()

    def trace(self, text: str) -> None:
        self.history.note(self.process, text)

    def count(self, what: str) -> None:
        self.history.happened[what] += 1

    async def pause(self) -> None:
        waits = [0.0, 0.0, 0.3, 5.0]
        if self.plan.delays:
            waits += [60.0, 700.0, 4000.0]
        await asyncio.sleep(self.random.choice(waits) * self.random.random())

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Collection]:
        while True:
            try:
                found = await Collection.open(URL, **self.options())
                break
            except _TROUBLES:
                await self.pause()
        try:
            yield found
        finally:
            with contextlib.suppress(*_TROUBLES, LeaseExpiredError):
                await found.aclose()


async def write(program: Program, number: int) -> None:
    """Append, or publish what the seed says."""
    plan, random = program.plan, program.random
    async with program.opened() as collection:
        writer = collection.writer(f"w{number % plan.shards}")
        at = None
        for _ in range(plan.calls):
            await program.pause()
            if at is None:
                with contextlib.suppress(*_TROUBLES):
                    at = await writer.upper()
            if at is None:
                continue
            lower = max(at - random.choice([0, 0, 0, 0, 2]), 0)
            upper = lower + random.choice([1, 2, 5, 20])
            at = await _append(program, writer, lower, upper)


async def _append(program: Program, writer: CollectionWriter, lower: int, upper: int) -> int | None:
    """Append an interval until its outcome is known; return where the shard ends, if that is known."""
    truth = program.truth
    updates: Updates = truth.batch(lower, upper, program.random)
    table = to_table(updates, program.plan.kind)
    has_doubt = False
    for _ in range(program.random.choice([1, 3, 10])):
        program.trace(f"append [{lower}, {upper}) {updates[:2]} …")
        try:
            if truth.is_definite:
                end = await writer.publish(table, lower=lower, upper=upper)
            else:
                await writer.append(table, lower=lower, upper=upper)
                end = upper
        except UpperMismatchError as error:
            program.trace(f"append: {error}")
            if not has_doubt:
                truth.refuse(updates)
            program.count("mismatches")
            return error.actual
        except _TROUBLES as error:
            program.trace(f"append: {error!r}")
            has_doubt |= error.outcome == "unknown"
            await program.pause()
        else:
            program.trace(f"append -> {end}")
            program.count("appends")
            truth.acknowledge(lower, upper, updates)
            return end
    return None


async def read(program: Program, number: int) -> None:
    """Register, read as of many times, listen, give up times, sleep too long."""
    random = program.random
    async with program.opened() as collection:
        reader = None
        is_critical = number == 1
        for _ in range(program.plan.calls):
            await program.pause()
            try:
                if reader is None:
                    if is_critical:
                        reader = await collection.critical(f"r{number}")
                    else:
                        reader = await collection.reader(f"r{number}", lease_seconds=900)
                act = random.choice([snapshot, snapshot, listen, downgrade, clone])
                await act(program, reader)
            except _TROUBLES as error:
                program.trace(f"read: {error!r}")
            except LeaseExpiredError as error:
                program.trace(f"read: {error!r}")
                program.count("expired leases")
                reader = None
                if is_critical:
                    continue


async def snapshot(program: Program, reader: CollectionReader) -> None:
    limit = await reader.upper()
    if limit <= reader.frontier:
        return
    as_of = program.random.randint(reader.frontier, limit - 1)
    program.trace(f"snapshot as of {as_of} …")
    found = content_of(await reader.snapshot(as_of=as_of))
    program.trace(f"snapshot as of {as_of} -> {dict(found)}")
    program.truth.saw(as_of, found)
    program.count("snapshots")


async def listen(program: Program, reader: CollectionReader) -> None:
    """Begin with a snapshot, and check that the steps after it lead to later snapshots."""
    limit = await reader.upper()
    if limit <= reader.frontier:
        return
    as_of = program.random.randint(reader.frontier, limit - 1)
    state: dict[int, str] = {}
    rows: Counter[Any] = Counter()
    at = as_of
    steps = reader.subscribe(as_of=as_of)
    async with contextlib.aclosing(steps):
        async for table, frontier in steps:
            for row in table.to_pylist():
                if row["_t"] >= frontier or row["_t"] < at:
                    raise CollectionViolationError("listen", f"{row} in [{at}, {frontier})")
                if program.plan.kind == "diff":
                    rows[row["k"], row["v"]] += row["_d"]
                elif row["_deleted"]:
                    state.pop(row["k"], None)
                else:
                    state[row["k"]] = row["v"]
            at = frontier
            content = Counter(state.items()) if program.plan.kind == "upsert" else rows
            found = Counter({row: count for row, count in content.items() if count})
            program.trace(f"listen up to {frontier}: {dict(found)}")
            program.truth.saw(frontier - 1, found)
            program.count("steps listened")
            await program.pause()
            if frontier >= limit or program.random.random() < 0.1:
                break


async def downgrade(program: Program, reader: CollectionReader) -> None:
    limit = await reader.upper()
    if limit > reader.frontier:
        since = program.random.randint(reader.frontier, limit - 1)
        program.trace(f"downgrade to {since}")
        await reader.downgrade_since(since)
        program.count("downgrades")


async def clone(program: Program, reader: CollectionReader) -> None:
    frontier = reader.frontier
    async with await reader.clone(
        f"clone-{program.random.randrange(1 << 30)}", lease_seconds=900
    ) as copy:
        if copy.frontier > frontier:
            raise CollectionViolationError("holds", f"a clone of {frontier} holds {copy.frontier}")
        await snapshot(program, copy)
    program.count("clones")


async def control(program: Program, _: int) -> None:
    """Compact and collect; be fenced."""
    random = program.random
    for _ in range(program.plan.calls):
        await program.pause()
        try:
            opening = Controller.open(URL, take_over=random.random() < 0.5, **program.options())
            async with opening as controller:
                for _ in range(random.randint(1, 4)):
                    if random.random() < 0.6:
                        done = await controller.compact(full=random.random() < 0.2)
                        program.trace(f"compacted {done}")
                        program.count("compactions")
                    else:
                        swept = await controller.gc()
                        program.trace(f"swept {swept}")
                        check_held(program.history)
                        program.count("objects swept" if swept.size_bytes else "sweeps of nothing")
                    await program.pause()
        except (*_TROUBLES, FencedError, WalLockedError, ContentionError) as error:
            program.trace(f"control: {error!r}")
            program.count(f"control: {type(error).__name__}")


async def settle(program: Program) -> None:
    """Once all is well: everything is readable, a collection leaves no garbage."""
    history, truth = program.history, program.truth
    async with program.opened() as collection, await collection.reader("last") as reader:
        limit = await reader.upper()
        if program.plan.lists:
            await read_last(program, reader, limit)
        for as_of in range(reader.frontier, limit):
            truth.saw(as_of, content_of(await reader.snapshot(as_of=as_of)))
        for lower, upper, _ in truth.acknowledged:
            if upper > limit:
                raise CollectionViolationError(
                    "acknowledged", f"[{lower}, {upper}) is beyond {limit}"
                )
        async with Controller.open(URL, take_over=True, **program.options()) as controller:
            await controller.compact()
            _check_layers(history)
            await asyncio.sleep(4000)
            await reader.downgrade_since(max(limit - 1, 0))
            await controller.compact(full=True)
            await asyncio.sleep(4000)
            await controller.gc()
            _check_swept(history)
            if limit:
                truth.saw(limit - 1, content_of(await reader.snapshot(as_of=limit - 1)))


def _check_layers(history: CollectionHistory) -> None:
    version = parse_head(history.world.bucket(URL).objects["head"].data).version
    batches = version.batches
    if len(batches) > 1 + max(version.rows, 1).bit_length():
        raise CollectionViolationError("layers", f"{[batch.rows for batch in batches]}")


def check_held(history: CollectionHistory) -> set[str]:
    """Check what the newest head promises its readers; return the objects of the versions that are kept."""
    objects = history.world.bucket(URL).objects
    head = parse_head(objects["head"].data)
    if head.gc_floor > head.oldest_held_version or head.purged > head.upper:
        raise CollectionViolationError(
            "holds", f"{head.gc_floor} is collected, {head.readers} are held"
        )
    if any(hold.frontier < head.since for hold in head.readers.values()):
        raise CollectionViolationError("holds", f"since is {head.since}, held are {head.readers}")
    needed: set[str] = set()
    key, version = head.version_key, head.version
    while key is not None:
        needed |= {key, *version.object_keys()}
        if version.n <= head.gc_floor or version.parent is None:
            break
        key = version.parent
        if key not in objects:
            raise CollectionViolationError("kept", f"{key} is missing")
        version = Version.parse(objects[key].data, path=key)
    missing = needed - objects.keys()
    if missing:
        raise CollectionViolationError("kept", f"missing are {sorted(missing)}")
    return needed


def _check_swept(history: CollectionHistory) -> None:
    objects = history.world.bucket(URL).objects
    needed = check_held(history)
    pending = {key for key in objects if key.startswith("pending/")}
    garbage = objects.keys() - needed - pending - {"head"}
    if garbage:
        raise CollectionViolationError("swept", f"left are {sorted(garbage)}")


def happenings(history: CollectionHistory) -> Counter[str]:
    """Return how often what happened."""
    return history.happened


def simulate(seed: int, **changes: Any) -> CollectionHistory:
    """Run the history of a seed; raises ViolationError."""
    history = CollectionHistory(plans.draw(seed).replace(**changes))
    history.run()
    return history
