"""Kills of both, at moments of chance, while both write; and the setting that wal3 does not bear."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.waiting import until
from tests.wal3.ledger import Ledger
from tests.wal3.ours import append, assert_sound, read, scrub
from tests.wal3.wal3 import Wal3, Wal3Error, pairs, running
from uploader import CloudLog, CloudWriter, Severity, WriterSettings
from uploader.format import layout
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Request
from walstore.errors import CorruptionError

pytestmark = [pytest.mark.wal3, pytest.mark.kill, pytest.mark.timeout(300)]

WRITER = """
import asyncio, sys
from uploader import CloudWriter, WriterSettings

async def main(url, name):
    async with CloudWriter.open(url, settings=WriterSettings(contention_attempts=100)) as log:
        async def one(number):
            value = f"{name} {number}"
            print("try", value, flush=True)
            offset = await log.append(value.encode())
            print(offset, value, flush=True)

        for first in range(0, 10_000, 4):
            async with asyncio.TaskGroup() as tasks:
                for number in range(first, first + 4):
                    tasks.create_task(one(number))

asyncio.run(main(*sys.argv[1:]))
"""
"""Our half as a process of its own, which says what it tries and what was acknowledged."""


async def ours_until_killed(url: str, name: str, ledger: Ledger, acknowledged: int) -> None:
    """Append in a process of its own, and kill that after so many acknowledgements."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, url, name, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    left = acknowledged
    async for line in process.stdout:
        if not line.endswith(b"\n"):
            break
        said, _, value = line.strip().partition(b" ")
        if said == b"try":
            ledger.unknown.add(value)
            continue
        ledger.acknowledged[int(said)] = value
        left -= 1
        if not left:
            process.kill()
    await process.wait()
    assert left <= 0, "the writer ended by itself"


async def open_beside_others(wal3: Wal3) -> None:
    """Open a log that others write to: wal3 gives up after some contention, and says to try again."""
    for _ in range(100):
        try:
            return await wal3.open()
        except Wal3Error as error:
            if error.name != "LogContentionRetry":
                raise
    raise AssertionError("wal3 never gets its turn")


async def theirs_until_killed(
    directory: Path, name: bytes, ledger: Ledger, acknowledged: int
) -> None:
    """The same through a process of wal3."""
    async with running(directory) as wal3:
        await open_beside_others(wal3)
        left = acknowledged

        async def one(task: int) -> None:
            nonlocal left
            number = 0
            while left > 0:
                number += 1
                done = await ledger.theirs(wal3, b"%s %d %d" % (name, task, number))
                left -= done
            await wal3.kill()

        async with asyncio.TaskGroup() as tasks:
            for task in range(4):
                tasks.create_task(one(task))


@pytest.mark.parametrize("seed", range(3))
async def test_kills_of_both_at_once(url: str, directory: Path, wal3: Wal3, seed: int) -> None:
    chance = random.Random(seed + first_seed("kills of both"))
    ledger = Ledger()
    await append(url)
    for turn in range(4):
        async with asyncio.TaskGroup() as tasks:
            for who in range(2):
                name, count = f"{turn} {who}", chance.randint(1, 40)
                tasks.create_task(ours_until_killed(url, f"ours {name}", ledger, count))
                await asyncio.sleep(0)
                tasks.create_task(
                    theirs_until_killed(directory, f"theirs {name}".encode(), ledger, count)
                )
        found = await read(url)
        ledger.check(found)
        await assert_sound(url)
    await wal3.open(create=False)
    last = await wal3.append(b"theirs, at last")
    await append(url, b"ours, at last")
    found = await read(url)
    assert pairs(found)[-2:] == [(last, b"theirs, at last"), (last + 1, b"ours, at last")]
    assert pairs(await wal3.read()) == pairs(found)
    await wal3.call("scrub")
    await assert_sound(url)


@pytest.mark.parametrize("seed", range(3))
async def test_kills_in_turns(url: str, directory: Path, wal3: Wal3, seed: int) -> None:
    """Who comes next opens what the killed one left, and goes on."""
    chance = random.Random(seed + first_seed("kills in turns"))
    ledger = Ledger()
    await append(url)
    for turn in range(12):
        name, count = str(turn), chance.randint(1, 12)
        if chance.random() < 0.5:
            await ours_until_killed(url, f"ours {name}", ledger, count)
        else:
            await theirs_until_killed(directory, f"theirs {name}".encode(), ledger, count)
        if chance.random() < 0.3:
            await wal3.open(create=False)
            await wal3.call("scrub")
    found = await read(url)
    ledger.check(found)
    assert pairs(await wal3.read()) == pairs(found)
    await wal3.call("scrub")
    await assert_sound(url)


# -- several puts under way -----------------------------------------------------------------------


async def die_behind_a_hole(directory: Path, *, parallel_puts: bool) -> None:
    """Append six fragments of two records, and die when the others are put but the third is not."""
    local = LocalStore(directory)
    store = FaultyStore(local)
    settings = WriterSettings(fragment_bytes=4096, interval_seconds=0, parallel_puts=parallel_puts)
    death = asyncio.Event()

    async def die(_request: Request[object]) -> object:
        await death.wait()
        raise StoreKilled

    store.on("put_if_absent", die, key_prefix=layout.fragment_path(3))
    try:
        async with (
            CloudWriter.open("file:///ignored", settings=settings, store=store) as log,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(12):
                tasks.create_task(log.append(b"%02d" % number + bytes(1500)))
            if parallel_puts:
                await until(lambda: log.statistics().put_fragments == 5)
            else:
                await until(lambda: log.statistics().committed_records == 4)
            store.is_killed = True
            death.set()
    except (StoreKilled, BaseExceptionGroup):
        pass
    await local.aclose()


async def test_one_put_at_a_time_leaves_nothing_that_harms(
    url: str, directory: Path, wal3: Wal3
) -> None:
    await die_behind_a_hole(directory, parallel_puts=False)
    for number in range(8):
        await wal3.open(create=False)
        await wal3.append(b"theirs %d" % number)
    found = await read(url)
    assert [record.value for record in found[-8:]] == [b"theirs %d" % number for number in range(8)]
    await wal3.call("scrub")
    await assert_sound(url)


async def test_several_puts_at_a_time_are_the_end_of_a_log_that_wal3_opens(
    url: str, directory: Path, wal3: Wal3
) -> None:
    """As docs/guarantees.md says. wal3 warns while the log is whole, which an opening of ours mends."""
    await die_behind_a_hole(directory, parallel_puts=True)
    warned = [
        found.key for found in (await scrub(url)).findings if found.severity is Severity.WARNING
    ]
    assert warned == [layout.fragment_path(number) for number in (4, 5, 6)]
    await wal3.open(create=False)
    await wal3.append(b"theirs")
    for _ in warned:
        # It links one with each attempt and makes three of them.
        with contextlib.suppress(Wal3Error):
            await wal3.open(create=False)
    with pytest.raises(CorruptionError):
        async with CloudLog.open(url) as log:
            await log.verify()


async def test_several_puts_at_a_time_do_no_harm_if_one_of_ours_comes_first(
    url: str, directory: Path, wal3: Wal3
) -> None:
    """It fills the hole and voids what does not fit behind that; wal3 opens the log once ours is past."""
    await die_behind_a_hole(directory, parallel_puts=True)
    await append(url, b"3")
    with pytest.raises(Wal3Error, match="CorruptFragment"):
        await wal3.open(create=False)
    await append(url, b"4", b"5", b"6")
    await wal3.open(create=False)
    await wal3.append(b"theirs")
    found = await read(url)
    assert [record.value for record in found[-5:]] == [b"3", b"4", b"5", b"6", b"theirs"]
    await wal3.call("scrub")
    await assert_sound(url)
