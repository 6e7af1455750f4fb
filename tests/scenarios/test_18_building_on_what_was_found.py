"""S3, S6, S15, S16: a log goes on from what an opening finds, be it in memory only, cut off, or too much."""

from __future__ import annotations

import asyncio
import copy
import errno
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import every
from tests.local import (
    SMALL,
    UnsyncedFileSystem,
    close_opened,
    draft_of,
    open_blocking,
    read_all,
    read_opened,
    read_values,
    segments,
    stored_batches,
)
from walstore import Wal, WalError
from walstore.care.verify.verifying import verify_directory
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.files.log_bounds import find_missing
from walstore.core.format import segment
from walstore.core.format.ledger import Marks
from walstore.core.settings import KIB
from walstore.testing import Call, FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

FS = UnsyncedFileSystem()
ROOT = Path(__file__).parents[2]
CHECKPOINT, DURABLE = "CHECKPOINT", "DURABLE"
STEPS = every(2), every(17)
"""From one call that is harmed to the next, and from one power loss to the next."""


# -- S3: what the process before left in memory only -----------------------------------------------


class KilledError(OSError):
    """The process is dead: no call of it happens any more."""

    def __init__(self, call: Call) -> None:
        super().__init__(errno.EIO, "killed", str(call.path))


class Promises:
    """What the processes that wrote a log acknowledged."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.registers: dict[str, str] = {}

    def write(self, directory: Path, fs: FaultyFileSystem, life: int) -> None:
        """Open the log and commit, rotate and change registers until a call fails; close nothing cleanly."""
        opened = open_blocking(directory, fs=fs)
        tail = opened.tail
        try:
            for turn in range(4):
                start, value = tail.durable_limit, b"%d %d " % (life, turn) * 180
                tail.commit([draft_of(start, value)])
                self.records[start] = value
                marks = Marks(registers={f"{life}": f"{turn}"})
                tail.commit([BatchBuilder(tail.durable_limit, marks=marks)])
                self.registers[f"{life}"] = f"{turn}"
                if turn != 2:
                    tail.rotate()
        finally:
            close_opened(opened, clean=False)

    def check(self, directory: Path) -> None:
        """Everything that looks at the log finds it whole, with all that was acknowledged."""
        assert verify_directory(directory).problems == ()
        assert find_missing(FS, directory) is None
        for _ in range(2):
            opened = open_blocking(directory, fs=FS)
            records = read_opened(opened)
            assert [record.offset for record in records] == list(range(1, len(records) + 1))
            found = {record.offset: record.value for record in records}
            assert self.records.items() <= found.items()
            for name, value in self.registers.items():
                assert int(opened.tail.ledger.registers[name]) >= int(value)
            opened.tail.commit([draft_of(opened.tail.durable_limit, b"after")])
            close_opened(opened)
            self.records[len(records) + 1] = b"after"
        seen = [record.value for batch in stored_batches(directory) for record in batch]
        assert seen == [*found.values(), b"after"]


def kill_at(fs: FaultyFileSystem, nth: int) -> None:
    """Let the nth call from now on, and all behind it, not happen."""
    last = len(fs.calls) + nth

    def die(call: Call) -> None:
        if len(fs.calls) >= last and call.kind != "close":
            raise KilledError(call)

    fs.before_each(die)


def fail_syncs(fs: FaultyFileSystem, nth: int) -> None:
    fs.fail("datasync", nth=nth)


def fail_directory_syncs(fs: FaultyFileSystem, nth: int) -> None:
    fs.fail("sync_directory", nth=nth)


def fail_all_syncs_from(fs: FaultyFileSystem, nth: int) -> None:
    fs.fail("*sync*", nth=nth, times=None)


HARMS = [kill_at, fail_syncs, fail_directory_syncs, fail_all_syncs_from]


def harmed(directory: Path, fs: FaultyFileSystem, promises: Promises, life: int) -> bool:
    """Write until the harm comes; return whether it came."""
    try:
        promises.write(directory, fs, life)
    except Exception:  # noqa: BLE001 - whatever the writer's thread would get
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("what", ["commit", "rotate"])
@pytest.mark.parametrize("harm", HARMS)
def test_S3_harmed_within_a_commit_or_a_rotation(
    scratch: Path, harm: Callable[[FaultyFileSystem, int], None], what: str
) -> None:
    """At each call of it; then a second process opens, commits and rotates, and the power goes."""
    is_harmed, nth = True, 0
    while is_harmed:
        nth += 1
        root = scratch / str(nth)
        root.mkdir()
        power = PowerLossFileSystem(root, FS)
        fs, promises = FaultyFileSystem(power), Promises()
        opened = open_blocking(root / "log", fs=fs)
        promises.records[1] = b"kept" * 100
        opened.tail.commit([draft_of(1, promises.records[1])])
        harm(fs, nth)
        try:
            if what == "commit":
                opened.tail.commit([draft_of(2, b"perhaps")])
            else:
                opened.tail.rotate()
            is_harmed = False
        except Exception:  # noqa: BLE001 - whatever the writer's thread would get
            is_harmed = True
        finally:
            close_opened(opened, clean=False)
        assert not harmed(root / "log", FaultyFileSystem(power), promises, 2)
        for seed in (LOSE_ALL, KEEP_ALL, 2, 3):
            power.crash(seed, scratch / f"{nth} {seed}")
            copy.deepcopy(promises).check(scratch / f"{nth} {seed}" / "log")
    assert nth > 1 or (what, harm) == ("commit", fail_directory_syncs)


def live_twice(root: Path, harm: Callable, nth: int, cut_at: int) -> tuple[bool, bool]:
    """Let a process be harmed at a call, another one go on, and the power go at a call of that.

    Returns whether the harm came, and whether the power went before the second process ended.
    """
    root.mkdir()
    power = PowerLossFileSystem(root, FS)
    promises = Promises()
    first, second = FaultyFileSystem(power), FaultyFileSystem(power)
    harm(first, nth)
    is_harmed = harmed(root / "log", first, promises, 1)
    second.before_each(lambda _: len(second.calls) >= cut_at and power.cut())
    is_cut = harmed(root / "log", second, promises, 2)
    for seed in (LOSE_ALL, KEEP_ALL, nth + 2):
        crashed = root.with_name(f"{root.name} {seed}")
        power.crash(seed, crashed)
        if promises.records or segments(crashed / "log"):
            copy.deepcopy(promises).check(crashed / "log")
        shutil.rmtree(crashed)
    shutil.rmtree(root)
    return is_harmed, is_cut


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS)
def test_S3_what_is_found_in_memory_is_synced_before_it_is_built_upon(
    scratch: Path, harm: Callable[[FaultyFileSystem, int], None]
) -> None:
    """A process dies, or a sync fails, at any call. The next one opens what the page cache holds, writes
    on, and then the power goes, at any call of that process."""
    nth_step, cut_step = STEPS
    tries = 0
    for nth in itertools.count(1, nth_step):
        is_harmed = False
        for cut_at in itertools.count(5 + 3 * nth % cut_step, cut_step):
            is_harmed, is_cut = live_twice(scratch / f"{nth} {cut_at}", harm, nth, cut_at)
            tries += 1
            if not is_cut:
                break
        if not is_harmed:
            break
    assert tries > 1


# -- S6: the end of the file went missing below the head -------------------------------------------


async def cut_below_the_head(directory: Path, *, keep: int, without: tuple[str, ...]) -> None:
    """Make a log of 20 records with head 18 whose file ends behind so many records."""
    places = []
    async with Wal.open(directory) as wal:
        for number in range(1, 21):
            await wal.append(b"%d" % number)
            places.append(wal._engine.writer._tail.written_position)
        assert await wal.trim(18) == 18
    (path,) = await asyncio.to_thread(segments, directory)
    await asyncio.to_thread(os.truncate, path, places[keep - 1])
    for name in without:
        (directory / name).unlink()


@pytest.mark.parametrize("without", [(), (DURABLE,), (CHECKPOINT,)])
@pytest.mark.parametrize("keep", [1, 10, 16])
async def test_S6_no_offset_below_the_head_is_given_out(
    log_directory: Path, without: tuple[str, ...], keep: int
) -> None:
    await cut_below_the_head(log_directory, keep=keep, without=without)
    head = None
    for turn in range(3):
        async with Wal.open(log_directory) as wal:
            if turn == 0 and CHECKPOINT not in without:
                assert wal.recovery.missing_from == keep + 1
                head = wal.head
                assert head >= 18
            elif turn == 0:
                head = wal.head
            assert wal.head == head
            offset = wal.tail
            assert offset >= wal.head
            assert await wal.append(b"new %d" % turn) == offset
            async with wal.reader("earliest", follow=False) as reader:
                values = [record.value async for record in reader]
            assert values[-1] == b"new %d" % turn
            async with asyncio.timeout(60):
                await wal.rotate()
                head = await wal.trim(offset)
            assert head == offset
            assert await read_values(wal) == [b"new %d" % turn]
    assert (await asyncio.to_thread(verify_directory, log_directory)).problems == ()


# -- S16: too much, too often, and missing ---------------------------------------------------------

OPENING = """
import asyncio, json, resource, sys, time
from walstore import Wal

async def main(directory):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()  # of all threads; a busy machine changes little
    async with Wal.open(directory) as wal:
        seconds = time.process_time() - began
        offset = await wal.append(b"after")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([seconds, grown, offset, wal.recovery.truncated_bytes]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("begin", [b"", b"torn" * 25], ids=["zeroes", "torn and zeroes"])
def test_S16_two_gigabytes_of_zeroes_behind_the_frames(log_directory: Path, begin: bytes) -> None:
    """A reservation that went wrong, or a copy: it opens in seconds, in a few megabytes."""

    async def make() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append(b"kept")

    asyncio.run(make())
    (path,) = segments(log_directory)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(begin)
    os.truncate(path, size + (2 << 30))
    command = [sys.executable, "-c", OPENING, str(log_directory)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=True)
    seconds, grown_kib, offset, torn = json.loads(ended.stdout)
    assert seconds < 10  # 0.5 on an idle machine; the system caches what it reads of the hole
    assert grown_kib < 100 * KIB
    assert (offset, torn) == (2, len(begin))
    assert path.stat().st_size < 1 << 20


def test_S16_copies_of_torn_tails_are_bounded(log_directory: Path) -> None:
    """The newest four are kept, in whichever segments they were found."""
    for turn in range(25):
        opened = open_blocking(log_directory, fs=FS)
        assert opened.tail.durable_limit == turn + 1
        opened.tail.commit([draft_of(turn + 1, b"%d" % turn)])
        if turn % 10 == 9:
            opened.tail.rotate()
        close_opened(opened)
        with segments(log_directory)[-1].open("ab") as file:
            file.write(b"torn tail %d" % turn)
    close_opened(open_blocking(log_directory, fs=FS))
    kept = {path.read_bytes() for path in log_directory.glob("*.broken*")}
    assert kept == {b"torn tail %d" % turn for turn in range(21, 25)}


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_S16_synced_offsets_that_are_gone_are_logged(
    log_directory: Path, caplog: pytest.LogCaptureFixture, *, is_sealed: bool
) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append_many([b"1", b"2"])
        if is_sealed:
            await wal.rotate()
        place = wal._engine.writer._tail.written_position
        await wal.append(b"3")
    (log_directory / CHECKPOINT).unlink()
    last = (await asyncio.to_thread(segments, log_directory))[-1]
    if is_sealed:
        last.unlink()
    else:
        await asyncio.to_thread(os.truncate, last, place)
    assert await asyncio.to_thread(find_missing, FS, log_directory) == 3
    with caplog.at_level(logging.ERROR, logger="walstore"):
        async with Wal.open(log_directory) as wal:
            assert wal.recovery.missing_from == 3
            assert await read_values(wal) == [b"1", b"2"]
    assert "ends before offset 3 although offsets below 4 had been synced" in caplog.text


# -- S15: a large ledger ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_S15_fifty_tiny_appends_to_a_log_with_a_large_ledger_make_no_segment_each(
    scratch: Path,
) -> None:
    """Every segment begins with the whole ledger, here 4 MB, and a segment should be of 64 KiB."""
    directory = scratch / "log"
    settings = SMALL.replace(channel_bytes=8 << 20, checkpoint_bytes=1 << 30)
    async with Wal.open(directory, settings=settings, fs=FS) as wal:
        for first in range(0, 1000, 100):
            update = {f"register {first + number}": "x" * 4000 for number in range(100)}
            async with wal.transaction(update=update):
                pass
        before = await asyncio.to_thread(segments, directory)
        for number in range(50):
            await wal.append(b"%d" % number)
        after = await asyncio.to_thread(segments, directory)
        assert len(after) - len(before) <= 1
        assert sum(path.stat().st_size for path in after) < 32 << 20
        with pytest.raises((WalError, ValueError)):
            await wal.append(b"", stream="s" * 1000)
    async with Wal.open(directory, settings=settings, fs=FS) as wal:
        assert len(wal.registers) == 1000
        assert [record.value for record in await read_all(wal)] == [b"%d" % n for n in range(50)]
        assert segment.HEADER_BYTES == 64
