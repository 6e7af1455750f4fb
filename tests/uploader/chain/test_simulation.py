"""Writers, readers and collectors in a world where answers are lost, puts come late and programs die.

Whatever happens: what was acknowledged is in the log, for every reader who looks afterwards, once and in its
place, and its content can be read, whether its object is there or only a manifest holds it; and all readers
see links of one and the same chain. If the log is destroyed meanwhile, what was
acknowledged is in it when it ends, and nobody begins it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.effort import first_seed
from tests.uploader.chain.chains import InlineWorker, run
from tests.uploader.chain.virtual import NetworkStore, VirtualClock, VirtualLoop, Weather, World
from uploader.care.admin.destroy import destroy
from uploader.chain import ChainRoot, ChainSettings, inline, pruning
from uploader.chain.inline import InlineStore
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.layout import parse_manifest_key
from uploader.format.link import Link
from uploader.format.manifest import Manifest, seal_writer
from uploader.format.rollup import RollUpSettings
from uploader.stores import RetryPolicy
from uploader.stores.port import ObjectNotFoundError, PreconditionFailedError
from walstore.errors import (
    ContentionError,
    LogNotFoundError,
    LogSealedError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

EXPECTED_ERRORS = (
    ContentionError,
    LogNotFoundError,
    LogSealedError,
    OutcomeUnknownError,
    StorageUnavailableError,
)


class Simulation:
    """One world, and what is known to be true of it."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.world = World(seed, weather)
        self.random = Random(seed + 1)
        self.acknowledged: dict[int, Fragment] = {}
        self.offset_limit = 1
        self.reads = 0
        self.inline_reads = 0
        self.kills = 0
        self.contentions = 0
        self.heads: dict[int, Link] = {}

    def log(self, alpha: int) -> ChainRoot:
        """Return a root as a program on some machine would have it."""
        number = self.random.getrandbits(64)
        clock = VirtualClock(self.random.uniform(-300, 300))
        retry = RetryPolicy(clock=clock, attempts=3, jitter=lambda: 0.0)
        ids = (f"{number:016x}-{count}" for count in range(10**9))
        return ChainRoot(
            NetworkStore(self.world),
            retry,
            InlineWorker(),
            settings=ChainSettings(alpha=alpha, inline_bytes=1 << 20),
            roll_up=RollUpSettings(fragments_per_snapshot=4096),
            make_id=lambda: next(ids),
        )

    def must_hold(self, manifest: Manifest, known: dict[int, Fragment]) -> None:
        """Check that a manifest names what had been acknowledged when it was asked for."""
        held = {item.seq_no: item for item in manifest.fragments}
        oldest = manifest.fragments[0].seq_no if manifest.fragments else manifest.next_seq_no
        for seq_no, item in known.items():
            assert seq_no < oldest or held.get(seq_no) == item, f"fragment {seq_no} is lost"
        manifest.scrub()

    async def must_be_readable(self, store: NetworkStore, clock: VirtualClock, path: str) -> None:
        """Check that a fragment, named by the newest manifest, can be read."""
        self.inline_reads += path not in self.world.objects
        found = await InlineStore(store, InlineWorker(), clock).get(path)
        assert found.data == content(path)

    def note_head(self, log: ChainRoot) -> None:
        head = log.head
        assert head is not None
        assert self.heads.setdefault(head.slot, head) == head, "two links for one slot"

    async def patiently(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Call until the store answers."""
        for _ in range(20):
            try:
                await call()
                return
            except (StorageUnavailableError, OutcomeUnknownError):
                await asyncio.sleep(self.random.uniform(0, 5))
        raise StorageUnavailableError("it never answered")

    # -- programs ----------------------------------------------------------------------------

    async def write(self, alpha: int, count: int) -> None:
        """Open, publish some fragments, several at a time; when others were quicker, go on behind them."""
        log = self.log(alpha)
        try:
            await self.patiently(lambda: log.load_or_create("w"))
            while count > 0:
                salt = f"{self.random.getrandbits(32):x}/"
                seq_no, start = log.manifest.next_seq_no, log.manifest.next_offset
                sizes = [2] * self.random.randint(1, 2 * alpha)
                count -= len(sizes)
                items = run(*sizes, seq_no=seq_no, start=start, salt=salt)
                await self._bring(log, items)
                were_quicker = False
                try:
                    async with asyncio.TaskGroup() as group:
                        for item in items:
                            group.create_task(self._publish(log, item))
                except* ContentionError:
                    were_quicker = True
                if were_quicker:  # not in that block, where a kill would become a group of errors
                    self.contentions += 1
                    await self.patiently(log.load)
                await asyncio.sleep(self.random.choice([0, 0, 0.1, 1, 400, 5000]))
        finally:
            await log.aclose()

    async def _bring(self, log: ChainRoot, items: list[Fragment]) -> None:
        """Let the manifests hold fragments, as far as they do; put the objects of the others."""
        store = NetworkStore(self.world)
        for item in items:
            if not log.take_content(item.path, content(item.path), store):
                await self.patiently(partial(put, store, item.path))

    async def _publish(self, log: ChainRoot, item: Fragment) -> None:
        while True:
            try:
                await log.publish([item], "w")
            except (OutcomeUnknownError, StorageUnavailableError):
                await asyncio.sleep(self.random.uniform(0, 5))
                continue
            assert self.acknowledged.setdefault(item.seq_no, item) == item, "acknowledged twice"
            return

    async def collect(self) -> None:
        """Drop the oldest fragment now and then, as a collector in a program of its own does."""
        log = self.log(1)
        try:
            await self.patiently(lambda: log.load_or_create("w"))
            for _ in range(3):
                await self.patiently(lambda: log.change(_collect_one))
                await asyncio.sleep(self.random.uniform(0, 2000))
        finally:
            await log.aclose()

    async def destroy(self) -> None:
        """Destroy the log, and call again whenever that fails; it may be killed in between."""
        clock = VirtualClock(self.random.uniform(-300, 300))
        retry = RetryPolicy(clock=clock, attempts=3, jitter=lambda: 0.0)
        store = NetworkStore(self.world)
        await self.patiently(
            lambda: destroy(store.url, confirm=True, store=store, retry=retry, clock=clock)
        )

    async def read(self) -> None:
        """Follow the log for a while."""
        log = self.log(1)
        for _ in range(self.random.randint(1, 6)):
            known = dict(self.acknowledged)
            try:
                if await log.load():
                    self.must_hold(log.manifest, known)
                    self.note_head(log)
                    self.reads += 1
                    await self._read_one(log)
            except StorageUnavailableError:
                pass
            await asyncio.sleep(self.random.choice([0.05, 1, 4000]))

    async def _read_one(self, log: ChainRoot) -> None:
        """Read a fragment, most often one of the last."""
        fragments = log.manifest.fragments
        if not fragments:
            return
        item = fragments[-1 - min(int(self.random.expovariate(0.3)), len(fragments) - 1)]
        try:
            await self.must_be_readable(NetworkStore(self.world), VirtualClock(), item.path)
        except ObjectNotFoundError:
            while not await log.load():
                pass
            assert item not in log.manifest.fragments, "a fragment without a content"

    async def live(self, program: Coroutine[Any, Any, None], seconds: float | None) -> None:
        """Let a program run until it ends, gives up or is killed; what it sent still arrives."""
        try:
            await asyncio.wait_for(program, seconds)
        except* TimeoutError:
            self.kills += 1
        except* EXPECTED_ERRORS:
            self.contentions += 1

    # -- all of it ---------------------------------------------------------------------------

    async def run(self, writers: int) -> None:
        await self.act(writers)
        self.world.weather = Weather(lost=0, unanswered=0, late=0)
        log = self.log(4)
        await log.load_or_create("w")
        self.must_hold(log.manifest, self.acknowledged)
        before = log.manifest
        for item in before.fragments:
            await self.must_be_readable(NetworkStore(self.world), VirtualClock(), item.path)
        items = run(*[2] * 5, seq_no=before.next_seq_no, start=before.next_offset, salt="last")
        await self._bring(log, items)
        await asyncio.gather(*(self._publish(log, item) for item in items))
        await log.settle()
        for item in log.manifest.fragments:
            assert self.world.objects[item.path] == content(item.path)
        self.note_head(log)
        self.must_hold(log.manifest, self.acknowledged)
        self.check_chain(log)
        await log.aclose()

    async def run_to_the_end(self, writers: int) -> None:
        """Somebody destroys the log while others write, read and collect."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.act(writers))
            for _ in range(3):
                await asyncio.sleep(self.random.choice([0.2, 2, 100, 3000, 9000]))
                group.create_task(self.live(self.destroy(), self.random.choice([None, 1.0])))
        self.world.weather = Weather(lost=0, unanswered=0, late=0)
        if not self.world.objects:  # nobody had begun it by then
            await self.log(4).load_or_create("w")
        await self.destroy()
        sealed = next(link for link in self.chain() if link.manifest.is_sealed)
        self.must_hold(sealed.manifest, self.acknowledged)
        log = self.log(4)
        assert not await log.load()
        with pytest.raises(LogNotFoundError):
            await log.load_or_create("w")
        assert layout.TOMBSTONE in self.world.objects

    async def act(self, writers: int) -> None:
        random = self.random
        async with asyncio.TaskGroup() as group:
            for _ in range(writers):
                alpha = random.choice([1, 2, 3, 8])
                life = random.choice([None, None, None, 0.3, 1.0, 3.0, 600.0])
                writing = self.live(self.write(alpha, random.randint(1, 30)), life)
                group.create_task(writing)
                for _ in range(random.randint(0, 2)):
                    group.create_task(self.read())
                if random.random() < 0.3:
                    group.create_task(self.live(self.collect(), random.choice([None, 0.5])))
                await asyncio.sleep(random.choice([0, 0.2, 1, 5, 100, 4000, 9000]))
        await asyncio.sleep(20_000)  # all that was sent has arrived

    def check_chain(self, log: ChainRoot) -> None:
        """Every head that was seen lies on the chain."""
        chain = self.chain()
        assert chain[-1] == log.head
        places = {link.slot: link for link in chain}
        for slot, head in self.heads.items():
            assert places[slot] == head
        for before, after in itertools.pairwise(chain):
            before.manifest.scrub_successor(after.manifest)

    def chain(self) -> list[Link]:
        """Follow the chain from its anchor through all that was ever put."""
        links = {}
        for key, data in self.world.first.items():
            if key.startswith("manifest/"):
                slot = parse_manifest_key(key)
                links[slot] = Link.parse(data, slot=slot)
        chain = [links[0]]
        while chain[-1].next in links:
            after = links[chain[-1].next]
            if not after.follows(chain[-1]):
                break
            chain.append(after)
        return chain


def content(path: str) -> bytes:
    return f"content of {path}".encode()


async def put(store: NetworkStore, path: str) -> None:
    with contextlib.suppress(PreconditionFailedError):
        await store.put_if_absent(path, content(path))


def _collect_one(manifest: Manifest) -> Manifest | None:
    if len(manifest.fragments) < 3:
        return None
    first = manifest.fragments[0]
    return dataclasses.replace(
        manifest,
        writer=seal_writer("gc") if manifest.is_sealed else "gc",
        collected=manifest.collected + first.setsum,
        fragments=manifest.fragments[1:],
        initial_offset=first.limit,
        initial_seq_no=first.seq_no + 1,
    )


def simulate(seed: int, weather: Weather, *, writers: int = 12) -> Simulation:
    simulation = Simulation(seed, weather)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(simulation.run(writers))
    return simulation


WEATHERS = {
    "fine": Weather(lost=0, unanswered=0, late=0),
    "windy": Weather(),
    "stormy": Weather(lost=0.1, unanswered=0.15, late=0.1),
    "slow": Weather(lost=0.01, unanswered=0.01, late=0.2, patient=0.9),
}


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prune as early as alphas of at most 8 allow, so that slots are cleaned up within seconds."""
    monkeypatch.setattr(pruning, "KEPT_SLOTS", 20)
    monkeypatch.setattr(pruning, "_BATCH", 4)
    monkeypatch.setattr(inline, "_CLOSE_SECONDS", 0.0)  # a program that is killed does not wait


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_is_there(seed: int, weather: str, tight: None) -> None:
    simulate(seed + first_seed("worlds"), WEATHERS[weather], writers=6)


def destroyed(seed: int, weather: Weather, *, writers: int = 6) -> Simulation:
    simulation = Simulation(seed, weather)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(simulation.run_to_the_end(writers))
    return simulation


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a destroyer do its work on the event loop, whose time is not that of threads."""
    monkeypatch.setattr(
        "uploader.layouts.log_session.Worker", lambda *_args, **_options: InlineWorker()
    )


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_was_there_when_the_log_ended(
    seed: int, weather: str, tight: None, on_the_loop: None
) -> None:
    destroyed(seed + first_seed("ends"), WEATHERS[weather])


def many(
    name: str, least: int, live: Callable[[int, Weather], Simulation], *happenings: str
) -> None:
    """Try so many seeds in each weather, and more until each of these has happened in some world."""
    first = first_seed(name)
    happened: Counter[str] = Counter()
    for seed in range(first, first + 10 * least):
        for weather in WEATHERS.values():
            simulation = live(seed, weather)
            happened["late_puts"] += simulation.world.late_puts
            happened.update({what: getattr(simulation, what) for what in happenings})
        if seed >= first + least - 1 and all(happened.values()):
            return
    pytest.fail(f"not all of it happened: {happened}")


@pytest.mark.slow
def test_many_ends(tight: None, on_the_loop: None) -> None:
    many("many ends", 10, destroyed, "reads", "contentions")


@pytest.mark.slow
def test_many_worlds(tight: None) -> None:
    """Enough of them for everything to happen: deaths, contention, late puts."""
    live = partial(simulate, writers=9)
    many("many worlds", 6, live, "reads", "inline_reads", "kills", "contentions")
