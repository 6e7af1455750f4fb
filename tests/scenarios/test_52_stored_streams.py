"""Streams of a log with several writers: one is closed while others append to it, whatever fails meanwhile.

The promise: once ``close_stream`` has returned, the stream has the records that the log names then and no
others until it is opened again; who was told StreamClosedError has nothing in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cloud import FAST, URL, cloud_log, put_fragment
from tests.effort import first_seed
from tests.local import turns
from uploader import CloudWriter, fork, seal
from uploader.care.admin.scrubber import Scrubber
from uploader.format import layout
from uploader.format.findings import Severity
from uploader.format.manifest import Manifest
from uploader.root.stream_file import StreamFile
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import (
    call,
    fail,
    hang,
    happen_then_fail,
    happen_then_hang,
    kill,
    postpone,
    report,
    timeout,
)
from uploader.write.writer_settings import WriterSettings
from walstore import StreamClosedError
from walstore.errors import ContentionError, CorruptionError, StorageUnavailableError, WalError
from walstore.testing import ManualClock

LAYOUTS = ["swap", "chain"]
PUBLISHES = {"swap": "put_if_match", "chain": "put_if_absent"}
MOST_REQUESTS = 40


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def writer(store, kind: str | None = None) -> CloudWriter:
    settings = WriterSettings(interval_seconds=0)
    return CloudWriter.open(URL, store=store, retry=FAST, layout=kind, settings=settings)


async def opened_writer(store) -> CloudWriter:
    return await writer(store)


async def in_stream(store, name: str) -> list[bytes]:
    """Return the values of a stream; nothing is wrong with the log."""
    async with Scrubber.open(URL, store=store) as scrubber:
        found = (await scrubber.scrub()).findings
    assert [one for one in found if one.severity is Severity.ERROR] == []
    async with cloud_log(store) as log:
        await log.verify()
        return [record.value async for record in log.reader(stream=name)]


async def is_open(store, name: str) -> bool:
    async with cloud_log(store) as log:
        return (await log.streams())[name].is_open


class UnderWay:
    """A writer with a fragment in the store, of streams ``eu`` and ``us``, that no manifest names yet."""

    def __init__(self, log: CloudWriter, other: CloudWriter) -> None:
        self.log = log
        self.other = other
        """Opened before, so it did not look for such a fragment."""
        self.release = asyncio.Event()
        self.told: list[asyncio.Task[int]] = []

    async def outcomes(self) -> list[int | BaseException]:
        self.release.set()
        return await asyncio.gather(*self.told, return_exceptions=True)


@asynccontextmanager
async def under_way(store: MemoryStore, kind: str) -> AsyncIterator[UnderWay]:
    faulty = FaultyStore(store)
    async with writer(faulty, kind) as log, writer(store) as other:
        await log.append(b"1", stream="eu")
        await log.append(b"2", stream="us")
        scene, reached = UnderWay(log, other), asyncio.Event()
        faulty.on(PUBLISHES[kind], hang(scene.release, reached), key_prefix="manifest/")
        for value, name in ((b"late", "eu"), (b"3", "us")):
            scene.told.append(asyncio.ensure_future(log.append(value, stream=name)))
        await reached.wait()
        try:
            yield scene
        finally:
            scene.release.set()


def check(told: list[int | BaseException], offset: int) -> None:
    """The append to the closed stream was refused, the other one is in the log."""
    refused, told_offset = told
    assert isinstance(refused, StreamClosedError), refused
    assert (refused.outcome, told_offset) == ("not_written", offset)


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_closed_while_a_fragment_is_on_its_way(store, kind) -> None:
    async with under_way(store, kind) as scene:
        await scene.other.close_stream("eu")
        assert not await is_open(store, "eu")
        check(await scene.outcomes(), 3)
        assert await scene.log.append(b"4", stream="us") == 4
    assert await in_stream(store, "eu") == [b"1"]
    assert await in_stream(store, "us") == [b"2", b"3", b"4"]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_and_another_writer_goes_on_in_its_place(store, kind) -> None:
    """What lies where the log goes on is not taken over: its stream was closed since it was made."""
    async with under_way(store, kind) as scene:
        other = scene.other
        await other.close_stream("eu")
        assert await other.append(b"other", stream="us") == 3
        check(await scene.outcomes(), 4)
    assert await in_stream(store, "eu") == [b"1"]
    assert await in_stream(store, "us") == [b"2", b"other", b"3"]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_and_its_writer_is_dead_for_all_that_is_known(store, kind) -> None:
    """Who opens the log next does not take it over, either."""
    async with under_way(store, kind) as scene:
        await scene.other.close_stream("eu")
        async with writer(store) as late:
            assert late.statistics().adopted_fragments == 0
            assert await late.append(b"other", stream="us") == 3
        check(await scene.outcomes(), 4)
    assert await in_stream(store, "eu") == [b"1"]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_opened_again_before_it_goes_on(store, kind) -> None:
    """What was made before the closing does not come in behind it; it is appended anew."""
    async with under_way(store, kind) as scene:
        other = scene.other
        await other.close_stream("eu")
        async with cloud_log(store) as log:
            tail = log.tail
        await other.open_stream("eu")
        told = await scene.outcomes()
        assert told == [3, 4]
        assert min(told) >= tail
    assert await in_stream(store, "eu") == [b"1", b"late"]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_taken_over_before_it_is_closed(store, kind) -> None:
    """Then it is in the log, and its writer learns that."""
    async with under_way(store, kind) as scene:
        async with writer(store) as late:
            assert late.statistics().adopted_fragments == 1
            await late.close_stream("eu")
        assert await scene.outcomes() == [3, 4]
    assert await in_stream(store, "eu") == [b"1", b"late"]


@pytest.mark.parametrize("verb", ["open", "seal"])
async def test_named_at_the_last_moment(store, verb) -> None:
    """The closing is half done, so its writer may name it still, while another one sees that it must go."""
    async with under_way(store, "swap") as scene:
        await StreamFile(store, retry=FAST, worker=scene.log._session.worker).change(
            lambda table: table.close("eu")
        )
        looking, go_on, reached = FaultyStore(store), asyncio.Event(), asyncio.Event()
        looking.on("put_if_match", hang(go_on, reached), key_prefix="manifest/")
        act = seal(URL, store=looking) if verb == "seal" else opened_writer(looking)
        task = asyncio.ensure_future(act)
        await reached.wait()
        assert await scene.outcomes() == [3, 4]
        go_on.set()
        opened = await task
        if verb == "open":
            assert await opened.append(b"4", stream="us") == 5
            await opened.aclose()
    assert await in_stream(store, "eu") == [b"1", b"late"]
    assert not await is_open(store, "eu")


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_sealed_with_it_in_the_next_place(store, kind) -> None:
    async with under_way(store, kind) as scene:
        await scene.other.close_stream("eu")
        assert await seal(URL, store=store) == 3
        told = await scene.outcomes()
        assert all(isinstance(item, WalError) for item in told)
        assert await in_stream(store, "eu") == [b"1"]


async def test_a_program_of_wal3_takes_the_number_away(store) -> None:
    """Its manifest does not say what was closed, so a writer looks."""
    async with under_way(store, "swap") as scene:
        await scene.other.append(b"other")  # the fragment in the next place is published
        await scene.other.close_stream("eu")
        assert await scene.outcomes() == [3, 4]
        found = await store.get(layout.MANIFEST)
        known = Manifest.parse(found.data)
        entry = await put_fragment(store, known.next_seq_no, known.next_offset, [b"wal3"])
        grown = known.apply_fragments([entry], "log writer")
        await store.put_if_match(layout.MANIFEST, grown.serialise(), found.etag)
        stale = scene.log
        with pytest.raises(StreamClosedError):
            await stale.append(b"late again", stream="eu")
    assert await in_stream(store, "eu") == [b"1", b"late"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_many_writers_and_one_who_closes(store, kind) -> None:
    """Each append is in the log once, before the closing, or was refused."""
    told: dict[bytes, int | BaseException] = {}
    under_way = asyncio.Event()

    async def appending(log: CloudWriter, who: int) -> None:
        for number in range(40):
            value = b"%d %d" % (who, number)
            try:
                told[value] = await log.append(value, stream="eu")
            except WalError as error:
                told[value] = error
            if len(told) > 20:
                under_way.set()

    async with contextlib.AsyncExitStack() as stack:
        logs = [await stack.enter_async_context(writer(store, kind)) for _ in range(4)]
        async with asyncio.TaskGroup() as tasks:
            for who, log in enumerate(logs[1:]):
                tasks.create_task(appending(log, who))
            await under_way.wait()
            await logs[0].close_stream("eu")
            final = await in_stream(store, "eu")
    assert await in_stream(store, "eu") == final
    written = {value for value, found in told.items() if isinstance(found, int)}
    errors = [found for found in told.values() if not isinstance(found, int)]
    assert written == set(final)
    assert len(final) == len(written)
    assert {type(error) for error in errors} <= {StreamClosedError, ContentionError}
    assert {error.outcome for error in errors} <= {"not_written"}


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_closed_behind_a_writer_that_never_pauses(store, kind, clock: ManualClock) -> None:
    """It is always quicker, but it sees now and then what was closed, and its own manifest says so."""
    closing = FaultyStore(store)
    async with (
        CloudWriter.open(
            URL, store=store, retry=RetryPolicy(clock=clock), clock=clock, layout=kind
        ) as busy,
        writer(closing) as log,
    ):
        for name in ("eu", "us"):
            await busy.append(b"1", stream=name)
        lost = 0

        async def publish() -> None:
            nonlocal lost
            lost += 1
            clock.advance(0.5)
            await busy.append(b"x", stream="us")
            await busy._guard._background.wait()

        closing.on(PUBLISHES[kind], call(publish), key_prefix="manifest/", times=100)
        await log.close_stream("eu")
        assert 1 <= lost <= 10
        with pytest.raises(StreamClosedError):
            await busy.append(b"late", stream="eu")
    assert await in_stream(store, "eu") == [b"1"]


# -- whatever fails ----------------------------------------------------------------------------


async def change(log: CloudWriter, verb: str) -> None:
    if verb == "open":
        await log.open_stream("asia", metadata={"a": "b"})
    elif verb == "close":
        await log.close_stream("eu")
    else:
        await log.append(b"x", stream="asia")


async def is_done(store: MemoryStore, verb: str) -> bool:
    async with cloud_log(store) as log:
        found = await log.streams()
    return not found["eu"].is_open if verb == "close" else "asia" in found


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["open", "close", "append"])
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_killed_at_any_request(kind, verb) -> None:
    """Another one finishes it by doing it again; before that nobody sees half of it."""
    for nth in range(1, MOST_REQUESTS):
        store = MemoryStore()
        async with writer(store, kind) as other:
            await other.append(b"1", stream="eu")
            faulty = FaultyStore(store)
            log = await writer(faulty)
            await log.append(b"2", stream="eu")
            faulty.on("any", kill(), nth=nth)
            with contextlib.suppress(BaseException):
                await change(log, verb)
            was_killed = faulty.is_killed
            with contextlib.suppress(BaseException):
                await log.aclose()
            expected = [b"1", b"2"]
            if verb == "close" and await is_done(store, verb):
                with pytest.raises(StreamClosedError):
                    await other.append(b"3", stream="eu")
            else:
                with contextlib.suppress(
                    StreamClosedError
                ):  # it looked at the table for some reason
                    await other.append(b"3", stream="eu")
                    expected.append(b"3")
            await change(other, verb)
            assert await is_done(store, verb)
            assert await in_stream(store, "eu") == expected
        if not was_killed:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["open", "close", "append"])
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_any_answer_is_lost(kind, verb) -> None:
    """The call succeeds, once."""
    for nth in range(1, MOST_REQUESTS):
        store = MemoryStore()
        faulty = FaultyStore(store)
        async with writer(faulty, kind) as log:
            await log.append(b"1", stream="eu")
            before = faulty.requests
            faulty.on("any", happen_then_fail(timeout()), nth=nth)
            await change(log, verb)
            assert await is_done(store, verb)
            count = faulty.requests - before
            if verb == "close":
                with pytest.raises(StreamClosedError):
                    await log.append(b"x", stream="eu")
        assert await in_stream(store, "eu") == [b"1"]
        assert len(await in_stream(store, "asia")) == (verb == "append")
        if count < nth:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["open", "close", "append"])
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_cancelled_at_any_request(kind, verb) -> None:
    """Nothing hangs, nobody else is harmed, and doing it again does it."""
    for nth in range(1, MOST_REQUESTS):
        store = MemoryStore()
        faulty = FaultyStore(store)
        async with writer(faulty, kind) as log:
            await log.append(b"1", stream="eu")
            go_on, reached = asyncio.Event(), asyncio.Event()
            faulty.on("any", happen_then_hang(go_on, reached), nth=nth)
            task = asyncio.ensure_future(change(log, verb))
            waiting = asyncio.ensure_future(reached.wait())
            await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
            was_reached = reached.is_set() and not task.done()
            neighbour = asyncio.ensure_future(log.append(b"2", stream="us"))
            await turns(3)
            task.cancel()
            waiting.cancel()
            go_on.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert await neighbour in {2, 3}
            await change(log, verb)
            assert await is_done(store, verb)
        assert await in_stream(store, "eu") == [b"1"]
        assert await in_stream(store, "us") == [b"2"]
        if not was_reached:
            return
    raise AssertionError("it never came to an end")


async def test_a_table_that_is_damaged_is_told(store) -> None:
    """By a typed error; appends without a stream go on."""
    await store.put_if_absent(layout.STREAMS, b'{"version":1}')
    async with writer(store) as log:
        with pytest.raises(WalError, match=r"field .* is missing"):
            await log.append(b"1", stream="eu")
        assert await log.append(b"1") == 1


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_table_that_is_gone_is_told(store, kind) -> None:
    """Nobody knows what was closed: not appended to streams, not forked without them, not begun anew."""
    async with writer(store, kind) as other:
        await other.append(b"1", stream="eu")
        await other.append(b"2", stream="us")
        await other.close_stream("eu")
        await store.delete([layout.STREAMS])
        async with writer(store) as log, cloud_log(store) as reader:
            for call in (
                lambda: log.append(b"x", stream="eu"),
                lambda: log.append(b"x", stream="new"),
                lambda: log.open_stream("eu"),
                lambda: log.close_stream("eu"),
                log.streams,
                reader.streams,
                lambda: fork(URL, "memory://x", source_store=store, target_store=MemoryStore()),
            ):
                with pytest.raises(CorruptionError, match="the manifest names"):
                    await call()
            assert await log.append(b"3") == 3
            with pytest.raises(CorruptionError):
                await other.append(b"x", stream="new")
    assert await store.head(layout.STREAMS) is None
    assert await in_stream(store, "us") == [b"2"]


async def test_a_store_that_does_not_answer(store, clock: ManualClock) -> None:
    """The append was never accepted, so it says so; what became of a closing nobody knows."""
    faulty = FaultyStore(store)
    settings = WriterSettings(interval_seconds=0)
    async with CloudWriter.open(
        URL, store=faulty, retry=FAST, settings=settings, clock=clock
    ) as log:
        await log.append(b"1", stream="eu")
        faulty.on("any", fail(timeout()), key_prefix="streams/", times=10**6)
        for call_it, outcome in (
            (lambda: log.append(b"x", stream="new"), "not_written"),
            (lambda: log.close_stream("eu"), "unknown"),
            (lambda: log.open_stream("new"), "unknown"),
        ):
            calling = asyncio.create_task(call_it())
            while not calling.done():
                await turns(50)
                clock.advance(settings.patience_seconds)
            with pytest.raises(StorageUnavailableError) as caught:
                await calling
            assert caught.value.outcome == outcome
        assert await log.append(b"2", stream="eu") == 2


# -- all of it at once -------------------------------------------------------------------------


class Storm:
    """Several writers that append to one stream, close it and open it, over stores that misbehave."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.rng = random.Random(seed)
        self.store = MemoryStore()
        self.late: list[FaultyStore] = []
        self.told: dict[bytes, int | WalError] = {}
        self.closed: list[
            tuple[int, int]
        ] = []  # (tail when it was closed, tail before it was opened)
        self.turn = asyncio.Lock()  # one at a time closes or opens

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            logs = []
            for _ in range(3):
                faulty = FaultyStore(self.store)
                self.late.append(faulty)
                logs.append(await stack.enter_async_context(writer(faulty, self.kind)))
            async with asyncio.TaskGroup() as tasks:
                for who, log in enumerate(logs):
                    tasks.create_task(self.live(who, log, self.late[who]))
            for faulty in self.late:
                await faulty.deliver(newest_first=self.rng.random() < 0.5)

    async def live(self, who: int, log: CloudWriter, faulty: FaultyStore) -> None:
        for number in range(12):
            if self.rng.random() < 0.4:
                faulty.on("any", self.fault(faulty), nth=self.rng.randint(1, 6))
            if self.rng.random() < 0.2:
                await faulty.deliver()
            if self.rng.random() < 0.25:
                await self.change(log)
            else:
                name = self.rng.choice(("eu", "eu", "us"))
                values = [b"%s %d %d %d" % (name.encode(), who, number, at) for at in range(2)]
                await asyncio.gather(*(self.append(log, value, name) for value in values))
            await turns(self.rng.randint(0, 5))

    def fault(self, faulty: FaultyStore):
        return self.rng.choice(
            (
                fail(timeout()),
                happen_then_fail(timeout()),
                report("412", happens=True),
                report("409", happens=False),
                postpone(faulty.late),
            )
        )

    async def append(self, log: CloudWriter, value: bytes, name: str) -> None:
        try:
            self.told[value] = await log.append(value, stream=name)
        except WalError as error:
            self.told[value] = error

    async def change(self, log: CloudWriter) -> None:
        async with self.turn:
            with contextlib.suppress(WalError):
                if self.rng.random() < 0.6:
                    await log.close_stream("eu")
                    self.closed.append((await self.tail(), 0))
                else:
                    before = await self.tail()
                    self.closed = [(start, limit or before) for start, limit in self.closed]
                    await log.open_stream("eu")

    async def tail(self) -> int:
        async with cloud_log(self.store) as log:
            return log.tail

    async def check(self) -> None:
        async with cloud_log(self.store) as log:
            await log.verify()
            found = {record.offset: record async for record in log.reader()}
        values = [record.value for record in found.values()]
        assert len(values) == len(set(values)), "twice"
        for value, outcome in self.told.items():
            if isinstance(outcome, int):
                assert found[outcome].value == value
            elif outcome.outcome == "not_written":
                assert value not in values, outcome
        for start, limit in self.closed:
            inside = range(start, limit or max([*found, 0]) + 1)
            assert not [at for at in inside if at in found and found[at].stream == "eu"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_whatever_happens(kind) -> None:
    """No record comes into a closed stream, none is lost or doubled."""
    closed = refused = 0
    first = first_seed("stored streams")
    for seed in range(first, first + 10):
        storm = Storm(kind, seed)
        async with asyncio.timeout(60):
            await storm.run()
            await storm.check()
        closed += len(storm.closed)
        refused += sum(isinstance(item, StreamClosedError) for item in storm.told.values())
    assert closed  # most seeds close the stream, and refuse appends to it
    assert refused
