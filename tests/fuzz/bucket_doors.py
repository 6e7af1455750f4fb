"""Every way into a stored log, and what each may do with objects that are damaged or forged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from typing import Final

from tests.cloud import FAST, GIVES_UP, URL
from tests.fuzz import bases
from tests.fuzz.bases import SETTINGS, TIME_US, MemoryFileSystem
from tests.fuzz.buckets import COLLECTOR, SOURCE, WRITER, LeapingClock, stored
from tests.fuzz.doors import Inspection, run_cli
from uploader import (
    CloudLog,
    CloudTier,
    CloudWriter,
    DirtyLog,
    GarbageCollector,
    Scrubber,
    apply_rebuild,
    destroy,
    fork,
    plan_rebuild,
    rebuild,
    restore,
    seal,
)
from uploader.partitioned import finish_commits, read_partitions
from uploader.partitioned.partitions import SubStore
from uploader.stores.memory import MemoryStore
from walstore import Record, Wal, WalError

SECONDS: Final = 60.0
"""Time on the clock that one door may take for one input; the machine may be busy."""

Work = Callable[[MemoryStore], Awaitable[None]]


def _through(at: Inspection, name: str, work: Work) -> None:
    """Do something with a store of one's own that holds the input."""

    async def run() -> None:
        store = await stored(bases.read_files(at.path))
        async with asyncio.timeout(SECONDS):
            await work(store)

    with at.door(name):
        asyncio.run(run())


def _check(at: Inspection, name: str, record: Record) -> None:
    """Compare what the sum of a fragment covers: the offset and the value."""
    if at.truth is not None:
        before = at.truth.get(record.offset)
        if before is None or before.value != record.value:
            at.problems.append(f"{name}: wrong record {record!r:.300}")


def log(at: Inspection) -> None:
    """Read a log as a follower does."""

    async def read(store: MemoryStore) -> None:
        async with CloudLog.open(URL, store=store, retry=FAST, clock=LeapingClock()) as found:
            for step in (_all, _stream, _look):
                try:
                    await step(at, found)
                except WalError as error:
                    at.judge("CloudLog", error)

    _through(at, "CloudLog", read)


async def _all(at: Inspection, found: CloudLog) -> None:
    async for record in found.reader(verify=True):
        _check(at, "CloudLog", record)
    async for record in found.reader():
        str(record)


async def _stream(at: Inspection, found: CloudLog) -> None:
    async for record in found.reader(stream="eu"):
        str(record)


async def _look(at: Inspection, found: CloudLog) -> None:
    await found.offset_at(TIME_US)
    await found.streams()
    async for entry in found.scan(found.head):
        str(entry)
    await found.cursors.list()
    await found.verify()


def writer(at: Inspection) -> None:
    """Append to a log."""

    async def write(store: MemoryStore) -> None:
        async with CloudWriter.open(URL, settings=WRITER, store=store, retry=FAST) as found:
            offset = await found.append(b"appended")
            await found.append(b"again", expect_offset=offset + 1)
            await found.append(b"of a stream", stream="eu")
            await found.open_stream("closed", metadata={"opened": "again"})
            await found.close_stream("eu")

    _through(at, "CloudWriter", write)


def tier(at: Inspection) -> None:
    """Open the stored log as the tier of a new local one, and append."""
    path = at.path.with_name("local")

    async def ship(store: MemoryStore) -> None:
        wanted = CloudTier(URL, settings=GIVES_UP, store=store, retry=FAST)
        async with Wal.open(path, settings=SETTINGS, tier=wanted, fs=MemoryFileSystem()) as wal:
            await wal.append(b"appended")
            async for record in wal.reader(wal.head, follow=False):
                str(record)

    _through(at, "CloudTier", ship)
    shutil.rmtree(path, ignore_errors=True)


def restored(at: Inspection) -> None:
    """Make a local log of it."""
    path = at.path.with_name("restored")

    async def make(store: MemoryStore) -> None:
        fs = MemoryFileSystem()
        await restore(URL, path, settings=SETTINGS, store=store, retry=FAST, fs=fs)
        async with Wal.open(path, settings=SETTINGS, fs=fs) as wal:
            async for record in wal.reader("earliest", follow=False):
                _check(at, "restore", record)

    _through(at, "restore", make)
    shutil.rmtree(path, ignore_errors=True)


def scrubber(at: Inspection) -> None:
    """Look for damage."""

    async def scrub(store: MemoryStore) -> None:
        async with Scrubber.open(URL, store=store, retry=FAST, clock=LeapingClock()) as found:
            str(await found.scrub())

    _through(at, "Scrubber", scrub)


def collector(at: Inspection) -> None:
    """Collect what no cursor holds."""

    async def collect(store: MemoryStore) -> None:
        async with GarbageCollector.open(
            URL, settings=COLLECTOR, store=store, retry=FAST, clock=LeapingClock()
        ) as found:
            await found.collect(audit=str)

    _through(at, "GarbageCollector", collect)


def life(at: Inspection) -> None:
    """Fork it, go on with a fork, rebuild it, end it."""

    async def fork_it(store: MemoryStore) -> None:
        target = MemoryStore()
        await fork(URL, URL, source_store=store, target_store=target, retry=FAST)

    async def go_on(store: MemoryStore) -> None:
        source = MemoryStore("source")
        async with CloudWriter.open(SOURCE, settings=WRITER, store=source, retry=FAST) as found:
            if found.tail < 7:
                await found.append_many([b"%d" % number for number in range(1, 7)])
        await fork(SOURCE, URL, target_store=store, retry=FAST)

    async def begin_again(store: MemoryStore) -> None:
        await rebuild(store, "fuzz", retry=FAST)

    async def end(store: MemoryStore) -> None:
        await seal(URL, store=store, retry=FAST, clock=LeapingClock())

    async def remove(store: MemoryStore) -> None:
        await destroy(URL, confirm=True, store=store, retry=FAST, clock=LeapingClock())

    for work in (fork_it, go_on, begin_again, _mending(at), end, remove):
        _through(at, work.__name__, work)


def _mending(at: Inspection) -> Work:
    """Rebuild a log of the default layout; then all that is left is read, and is what it was."""

    async def mend(store: MemoryStore) -> None:
        plan = await plan_rebuild(URL, store=store)
        if not plan.is_needed:
            return
        await apply_rebuild(plan, store=store, retry=FAST)
        again = await plan_rebuild(URL, store=store)
        if again.is_needed:
            at.problems.append(f"rebuilding does not end: {again!r:.300}")
        async with CloudLog.open(URL, store=store, retry=FAST, clock=LeapingClock()) as found:
            async for record in found.reader(verify=True):
                if record.offset in (at.truth or ()):  # what was collected may be there again
                    _check(at, "rebuild", record)

    return mend


def others(at: Inspection) -> None:
    """Read it as what is built of logs: a dirty log, a partitioned one."""

    async def dirty(store: MemoryStore) -> None:
        found = await DirtyLog.open(URL, settings=WRITER, store=store, retry=FAST)
        try:
            await found.roll_up({one.name: one.limit for one in await found.dirty()})
        finally:
            await found.aclose()

    async def partitions(store: MemoryStore) -> None:
        count = await read_partitions(store)
        await finish_commits(URL, store=store, retry=FAST)
        for partition in range(count or 0):
            inner = SubStore(store, partition)
            async with CloudLog.open(URL, store=inner, clock=LeapingClock()) as found:
                async for record in found.reader():
                    str(record)

    for work in (dirty, partitions):
        _through(at, work.__name__, work)


def verbs(at: Inspection) -> None:
    """Run the verbs that look."""
    url = f"file://{at.path}"
    for verb in ("verify", "inspect", "scrub", "cursors", "manifest", "gc"):
        run_cli(at, verb, url, "--json")
    run_cli(at, "dump", url)
    run_cli(at, "fragments", url, "--times")


DOORS: Final[tuple[Callable[[Inspection], None], ...]] = (
    *(log, writer, tier, restored, scrubber, collector, life, others, verbs),
)
