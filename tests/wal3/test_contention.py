"""Both write to one log: in turns, at once, and each stopped at its worst moment while the other goes on."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.wal3.ledger import Ledger
from tests.wal3.ours import AT_ONCE, CURSOR, assert_sound, read
from tests.wal3.wal3 import Wal3, Wal3Error, pairs
from uploader import CloudLog, CloudWriter, GarbageCollector, RollUpSettings, WriterSettings
from uploader.format import layout
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore
from uploader.testing.faults import Fault, hang, happen_then_hang
from walstore import Record

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(120)]

TREES = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
SETTINGS = WriterSettings(interval_seconds=0, contention_attempts=100, roll_up=TREES)
FRAGMENT = layout.FRAGMENT_FOLDER
MANIFEST = layout.MANIFEST


async def assert_agreed(url: str, wal3: Wal3, ledger: Ledger) -> list[Record]:
    """Assert that both find the same records, no fault, and what the ledger says; return them."""
    found = await read(url)
    assert pairs(await wal3.read()) == pairs(found)
    await wal3.call("scrub")
    await assert_sound(url)
    ledger.check(found)
    print(len(found), "records;", dict(ledger.errors))
    return found


async def test_in_turns(url: str, wal3: Wal3) -> None:
    """wal3 learns from its first refused put that somebody else was there, and goes behind."""
    ledger = Ledger()
    await wal3.open()
    async with CloudWriter.open(url, settings=SETTINGS) as log:
        for number in range(50):
            assert await ledger.ours(log, b"ours %d" % number)
            assert await ledger.theirs(wal3, b"theirs %d" % number)
        async with CloudLog.open(url) as read_by_us:
            assert read_by_us.manifest.ours_from is None, "they appended last"
        assert await ledger.ours(log, b"the last one")
    found = await assert_agreed(url, wal3, ledger)
    async with CloudLog.open(url) as read_by_us:
        assert read_by_us.manifest.ours_from == read_by_us.manifest.next_seq_no - 1
    assert len(found) == 101
    assert not ledger.errors


async def test_in_turns_each_opening_anew(url: str, wal3: Wal3) -> None:
    ledger = Ledger()
    for number in range(15):
        async with CloudWriter.open(url, settings=SETTINGS) as log:
            assert await ledger.ours(log, b"ours %d" % number)
        await wal3.open(create=False)
        assert await ledger.theirs(wal3, b"theirs %d" % number)
        await wal3.call("close")
    assert len(await assert_agreed(url, wal3, ledger)) == 30


@pytest.mark.parametrize("tasks_each", [1, 8])
async def test_both_at_once(url: str, wal3: Wal3, tasks_each: int) -> None:
    """With settings as they are; wal3's appends may fail for contention, but say what became of them."""
    ledger = Ledger()
    await wal3.open()

    async def ours(log: CloudWriter, task: int) -> None:
        for number in range(80 // tasks_each):
            assert await ledger.ours(log, b"ours %d %d" % (task, number))

    async def theirs(task: int) -> None:
        for number in range(80 // tasks_each):
            await ledger.theirs(wal3, b"theirs %d %d" % (task, number))

    settings = WriterSettings(contention_attempts=100)
    async with CloudWriter.open(url, settings=settings) as log, asyncio.TaskGroup() as tasks:
        for task in range(tasks_each):
            tasks.create_task(ours(log, task))
            tasks.create_task(theirs(task))
    await assert_agreed(url, wal3, ledger)


async def test_two_of_each_at_once(url: str, wal3: Wal3, second: Wal3) -> None:
    ledger = Ledger()
    await wal3.open()
    await second.open()

    async def ours(log: CloudWriter, name: bytes) -> None:
        for number in range(30):
            await ledger.ours(log, b"%s %d" % (name, number))

    async def theirs(process: Wal3, name: bytes) -> None:
        for number in range(30):
            await ledger.theirs(process, b"%s %d" % (name, number))

    async with (
        CloudWriter.open(url, settings=SETTINGS) as one,
        CloudWriter.open(url, settings=SETTINGS) as two,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(ours(one, b"one"))
        tasks.create_task(ours(two, b"two"))
        tasks.create_task(theirs(wal3, b"three"))
        tasks.create_task(theirs(second, b"four"))
    await assert_agreed(url, wal3, ledger)


# -- wal3 stopped -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [FRAGMENT, MANIFEST])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_they_are_stopped_and_we_go_on(
    url: str, wal3: Wal3, second: Wal3, key: str, when: str, is_killed: bool
) -> None:
    """Whatever they have put is published by us; what they have not put goes behind ours, or nowhere."""
    ledger = Ledger()
    await wal3.open()
    await ledger.theirs(wal3, b"first")
    await wal3.stop(when, key)
    late = asyncio.create_task(ledger.theirs(wal3, b"late"))
    await wal3.stopped()
    async with CloudWriter.open(url, settings=SETTINGS) as log:
        for number in range(3):
            assert await ledger.ours(log, b"ours %d" % number)
    await (wal3.kill() if is_killed else wal3.go())
    is_in_the_log = await late
    assert is_in_the_log is not is_killed
    found = [record.value for record in await assert_agreed(url, second, ledger)]
    if (key, when) != (FRAGMENT, "before"):
        assert found[1] == b"late"
    elif not is_killed:
        assert found[-1] == b"late"
    await second.open(create=False)
    assert await ledger.theirs(second, b"last")
    await assert_agreed(url, second, ledger)


# -- ours stopped -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [FRAGMENT, MANIFEST])
@pytest.mark.parametrize("fault", [hang, happen_then_hang])
async def test_we_are_stopped_and_they_go_on(
    url: str, directory: Path, wal3: Wal3, key: str, fault: Fault
) -> None:
    """What we have put they publish when they open, or meet it; then ours is told that it is committed."""
    ledger = Ledger()
    local = LocalStore(directory)
    store = FaultyStore(local)
    async with CloudWriter.open(url, settings=SETTINGS, store=store) as log:
        assert await ledger.ours(log, b"first")
        await wal3.open(create=False)
        release, reached = asyncio.Event(), asyncio.Event()
        kind = "put_if_absent" if key == FRAGMENT else "put_if_match"
        store.on(kind, fault(release, reached), key_prefix=key)
        late = asyncio.create_task(ledger.ours(log, b"late"))
        await reached.wait()
        for number in range(3):
            assert await ledger.theirs(wal3, b"theirs %d" % number)
        release.set()
        assert await late
        assert await ledger.ours(log, b"last")
    await local.aclose()
    found = [record.value for record in await assert_agreed(url, wal3, ledger)]
    assert found[4 if key == FRAGMENT and fault is hang else 1] == b"late"


# -- collection -------------------------------------------------------------------------------


async def assert_collected(url: str, wal3: Wal3, ledger: Ledger) -> None:
    """Assert that both find the same from the same head on, and that nothing is wrong."""
    head = (await wal3.call("state"))["head"]
    found = await read(url)
    assert pairs(await wal3.read()) == pairs(found)
    await wal3.call("scrub")
    await assert_sound(url)
    ledger.check(found, head)
    assert found[-1].offset + 1 == (await wal3.call("state"))["next"]
    print(f"[{head}, {found[-1].offset + 1});", dict(ledger.errors))


async def test_we_collect_beside_their_writer(url: str, wal3: Wal3) -> None:
    """Its own threshold for snapshots of snapshots is well above ours, as docs/format.md asks."""
    ledger = Ledger()
    await wal3.open(
        snapshot_manifest={"snapshot_rollover_threshold": 64, "fragment_rollover_threshold": 2}
    )
    await wal3.call("cursor", name=CURSOR, position=1)
    is_done = False

    async def theirs() -> None:
        nonlocal is_done
        for number in range(120):
            await ledger.theirs(wal3, b"theirs %d" % number)
        is_done = True

    heads = set()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(theirs())
        async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
            while not is_done or not heads:
                end = (await wal3.call("state"))["next"]
                await collector.cursors.commit(CURSOR, max(end - 5, 1))
                heads.add((await collector.collect()).head)
    assert max(heads) > 1
    assert ledger.errors.keys() <= {"LogContentionDurable", "LogContentionFailure"}
    await assert_collected(url, wal3, ledger)


async def test_they_collect_beside_our_writer(url: str, wal3: Wal3, second: Wal3) -> None:
    """They come too late as long as we write as fast as we can, and collect when we pause."""
    ledger = Ledger()
    tries = asyncio.Semaphore(0)

    async def ours(log: CloudWriter) -> None:
        for number in range(120):
            assert await ledger.ours(log, b"ours %d" % number)
            if number % 20 == 19:
                await tries.acquire()

    async with CloudWriter.open(url, settings=SETTINGS) as log, asyncio.TaskGroup() as tasks:
        assert await ledger.ours(log, b"first")
        await wal3.open(create=False)
        writing = tasks.create_task(ours(log))
        is_last = False
        while not is_last:
            is_last = writing.done()
            end = (await second.call("state"))["next"]
            await second.call("cursor", name=CURSOR, position=max(end - 5, 1))
            with contextlib.suppress(Wal3Error):
                await wal3.call("collect")
            tries.release()
    assert (await second.call("state"))["head"] > 60
    await assert_collected(url, second, ledger)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("call", "key"), [("put", layout.GARBAGE), ("put", MANIFEST), ("delete", FRAGMENT)]
)
async def test_they_are_stopped_while_they_collect(
    url: str, wal3: Wal3, second: Wal3, call: str, key: str, when: str
) -> None:
    """We append and move the cursor meanwhile; what they collect is only what they may."""
    ledger = Ledger()
    async with CloudWriter.open(url, settings=SETTINGS) as log:
        for number in range(20):
            assert await ledger.ours(log, b"%d" % number)
        await wal3.open(create=False)
        await wal3.call("cursor", name=CURSOR, position=9)
        await wal3.stop(when, key, call=call)
        collecting = asyncio.create_task(wal3.call("collect"))
        await wal3.stopped()
        for number in range(5):
            assert await ledger.ours(log, b"meanwhile %d" % number)
        await log.cursors.commit(CURSOR, 12)
        await wal3.go()
        await asyncio.gather(collecting, return_exceptions=True)
        assert await ledger.ours(log, b"behind")
        await assert_collected(url, second, ledger)
        await second.open(create=False)
        with contextlib.suppress(Wal3Error):
            await second.call("collect")
        await second.call("collect")
        assert (await second.call("state"))["head"] in range(9, 13)
        assert await ledger.ours(log, b"last")
    await assert_collected(url, second, ledger)
