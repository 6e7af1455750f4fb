"""Danube's cases: where a log of that kind failed, and the test that shows that this one does not.

Each case: what Danube's WAL did (measured by a study of it), and the tests that show what is done here. Most
are tests of L1–L16, which were made from these cases; what they leave open is below.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cases import case
from tests.local import SMALL, UnsyncedFileSystem, check_contiguous, read_all, segments
from tests.named import is_there
from tests.waiting import until
from walstore import CorruptionError, Wal, WalClosedError, WalError
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import LOSE_ALL


class Case(NamedTuple):
    """One of Danube's cases."""

    what: str
    danube: str
    tests: tuple[str, ...]


HERE = "scenarios/test_33_conformance_danube.py"
ORDER = "scenarios/test_01_local_order.py"
READERS = "scenarios/test_04_local_readers.py"
RESTART = "scenarios/test_02_local_restart.py"
CASES = {
    "C1": Case(
        "clean restart: append 100, close, open",
        "the next offset is 0; a reader gets one record and hangs",
        (
            "scenarios/test_02_local_restart.py::test_L1_a_clean_restart_continues_at_the_next_offset",
        ),
    ),
    "C2": Case(
        "restart with rotated files: 100, reopen, 60 more",
        "18 of 160 records are read; old files are appended to again",
        (
            "scenarios/test_02_local_restart.py::test_L2_also_with_many_rotated_files",
            f"{HERE}::test_C2_no_file_is_used_again",
        ),
    ),
    "C3": Case(
        "rotation by size under load: every file holds what its name says",
        "11 of 13 files are empty, one range is wrong by 4739",
        (
            "scenarios/test_02_local_restart.py::test_L3_each_file_holds_exactly_its_interval",
            f"{HERE}::test_C3_files_keep_near_their_size_under_load",
        ),
    ),
    "C4": Case(
        "read right after the ack with a cache smaller than the backlog",
        "127 of 5000 records, then an error",
        (f"{READERS}::test_L4_reads_right_after_the_ack_with_a_cache_smaller_than_the_backlog",),
    ),
    "C5": Case(
        "a reader paused while 10 000 records pass",
        "1101 records, then an error",
        (f"{READERS}::test_L5_a_reader_paused_while_10_000_records_pass_gets_them_all",),
    ),
    "C6": Case(
        "a reader from 'latest' under a burst of 2000",
        "one error, then the last 256 records",
        ("scenarios/test_04_local_readers.py::test_L6_latest_readers_under_a_burst_get_all",),
    ),
    "C7": Case(
        "8 concurrent appenders of 10 000",
        "offsets are out of order on disk",
        (f"{ORDER}::test_L7_eight_concurrent_appenders_of_10_000_are_strictly_in_order_on_disk",),
    ),
    "C8": Case(
        "a torn tail at every byte of the last frame, reopen, append, read again",
        "49 of 150 records",
        (
            "scenarios/test_03_local_recovery.py::test_L8_torn_tail_at_every_byte",
            "scenarios/test_03_local_recovery.py::test_L8_through_the_public_api",
            "scenarios/test_03_local_recovery.py::test_L8_torn_again_and_again",
        ),
    ),
    "C9": Case(
        "the disk is full in the middle of a flush, then there is space again",
        "4000 acknowledged, 411 readable, the file is corrupt",
        (
            "scenarios/test_08_local_faults.py::test_L9_disk_full",
            "scenarios/test_08_local_faults.py::test_L9_every_call_fails",
            "scenarios/test_09_local_disk_space.py::test_appends_stop_and_come_back_without_reopening",
            f"{HERE}::test_C9_no_reader_is_given_a_batch_without_its_records",
        ),
    ),
    "C10": Case(
        "kill -9 at random points, acknowledgements only after the sync",
        "1 of 3000 acknowledged records; there is no sync to ask for",
        (
            "scenarios/test_12_local_kill.py::test_L10_kill_9_at_random_points",
            "scenarios/test_11_local_power_loss.py::test_power_fails_at_every_moment",
            f"{HERE}::test_C10_an_offset_that_was_read_is_not_used_again",
            f"{HERE}::test_C10_a_cursor_does_not_pass_over_records_that_take_the_place_of_lost_ones",
        ),
    ),
    "C11": Case(
        "retention, then append, flush and reopen: the head stays, files stay gone",
        "the head is 0 again, and reading there is an error",
        (
            f"{RESTART}::test_L11_retention_stays_in_force_after_append_flush_reopen",
            "walstore/log/test_opening.py::test_L11_the_head_stays_where_it_was_after_append_and_reopen",
        ),
    ),
    "C12": Case(
        "a flipped bit in the middle of a sealed file",
        "the reader ends there silently; later files are never reached",
        (
            "scenarios/test_03_local_recovery.py::test_L12_L13_a_flipped_bit_in_every_byte_is_found",
            "scenarios/test_03_local_recovery.py::test_L12_L13_every_flipped_bit_is_found",
            f"{HERE}::test_C12_readers_pass_over_nothing_on_their_way_to_what_is_whole",
        ),
    ),
    "C13": Case(
        "a flipped bit in the offset or length of a frame",
        "not found, or taken for a torn tail",
        (
            "scenarios/test_03_local_recovery.py::test_L12_L13_a_flipped_bit_in_every_byte_is_found",
            "scenarios/test_03_local_recovery.py::test_L12_L13_readers_of_the_files_alone_find_it_too",
        ),
    ),
    "C14": Case(
        "appends cancelled at every await: no burnt offset, disk, cache and readers agree",
        "an offset may be left out",
        (
            "scenarios/test_06_local_cancellation.py::test_L14_cancellation_at_every_await",
            "scenarios/test_07_cancellation_everywhere.py::test_L14_cancelled_at_every_suspension",
        ),
    ),
    "C15": Case(
        "two open one directory",
        "both write",
        (
            "scenarios/test_05_local_locking.py::test_L15_two_openers_in_one_process",
            "scenarios/test_05_local_locking.py::test_L15_openers_in_many_processes_at_once",
        ),
    ),
    "C16": Case(
        "killed between the object and the manifest, then run again",
        "objects nobody names; files whose range is wrong are uploaded again and again",
        (
            "scenarios/test_40_upload.py::test_L16_killed_at_every_call_of_the_store",
            "scenarios/test_40_upload.py::test_L16_a_hole_between_orphans_is_filled_to_fit",
        ),
    ),
}


def test_the_tests_of_a_case_are_there() -> None:
    for name, found in CASES.items():
        with case(name):
            assert found.tests
            for test in found.tests:
                assert is_there(test), test


def test_no_case_is_left_out() -> None:
    assert list(CASES) == [f"C{n}" for n in range(1, 17)]


# -- what the tests of L1–L16 leave open ---------------------------------------------------------


async def test_C2_no_file_is_used_again(log_directory: Path) -> None:
    """Danube: after a restart files 1 and 2 hold old and new records mixed."""
    before: dict[Path, bytes] = {}
    values = [b"%03d" % n * 300 for n in range(160)]
    for part in (values[:100], values[100:]):
        async with Wal.open(log_directory, settings=SMALL) as wal:
            for value in part:
                await wal.append(value)
        sealed = segments(log_directory)[:-1]
        for path, data in before.items():
            assert path.read_bytes() == data
        before = {path: path.read_bytes() for path in sealed}
    async with Wal.open(log_directory, settings=SMALL) as wal:
        records = await read_all(wal)
    check_contiguous(records)
    assert [record.value for record in records] == values


async def test_C3_files_keep_near_their_size_under_load(log_directory: Path) -> None:
    """Danube: most files of a rotation by size stay empty, because it does not flush first."""
    settings = SMALL.replace(channel_bytes=1024 * KIB, max_record_bytes=1000)
    async with Wal.open(log_directory, settings=settings) as wal:
        for n in range(900):
            wal.append_nowait(b"%03d" % n * 300)
        await wal.flush()
    sizes = [path.stat().st_size for path in segments(log_directory)]
    assert len(sizes) > 10
    for size in sizes[:-1]:
        assert settings.segment_bytes - 5 * KIB < size < settings.segment_bytes + 5 * KIB


async def test_C9_no_reader_is_given_a_batch_without_its_records(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """Danube: 4000 records acknowledged and 411 readable, without a word about the rest.

    A reader of accepted records, in the moment in which the log fails, is told so or gets records: what
    it is given has as many records as offsets.
    """
    wal = await Wal.open(log_directory, settings=SMALL, fs=faulty)
    await wal.append(b"first")
    reader = wal.follow(2, visibility="accepted")
    faulty.fail("pwrite", error=errno.EIO)
    with faulty.hold("pwrite") as hold:
        wal.append_nowait(b"being written")
        await hold.wait_entered()
        wal.append_nowait(b"waiting")
    await until(lambda: wal.is_closing)
    delivered: list[int] = []
    try:
        while True:
            batch = await reader.fetch()
            assert len(batch.values) == batch.limit - batch.start
            delivered += [record.offset for record in batch]
    except WalError:
        pass
    assert delivered == list(range(2, 2 + len(delivered)))
    with pytest.raises(WalClosedError):
        await wal.aclose()


async def test_C10_an_offset_that_was_read_is_not_used_again(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """Danube: readers see and acknowledge records that a crash takes back, then others at the offset."""
    wal = await Wal.open(log_directory, settings=SMALL, fs=faulty)
    await wal.append(b"kept")
    reader = wal.follow()
    assert (await anext(reader)).value == b"kept"
    faulty.fail("datasync", error=errno.EIO)
    with pytest.raises(WalError):
        await wal.append(b"may be lost")
    with pytest.raises(WalError):
        await anext(reader)
    assert reader.position == 2
    with pytest.raises(WalClosedError):
        await wal.aclose()
    async with Wal.open(log_directory, settings=SMALL) as again:
        assert again.tail >= 2
        await again.append(b"next")
        follower = again.follow(reader.position)
        seen = [(await anext(follower)).value for _ in range(again.tail - 2)]
        assert seen[-1] == b"next"
        assert seen in ([b"next"], [b"may be lost", b"next"])


async def test_C10_a_cursor_does_not_pass_over_records_that_take_the_place_of_lost_ones(
    tmp_path: Path,
) -> None:
    """Danube: subscriptions keep positions that a crash of the log has made those of other messages.

    Records that were never synced may be lost; records appended after that may not be passed over
    without a word.
    """
    root = tmp_path / "before"
    root.mkdir()
    power = PowerLossFileSystem(root, UnsyncedFileSystem())
    settings = SMALL.replace(sync="os", durability="memory", min_free_bytes=0)
    wal = await Wal.open(root / "log", settings=settings, fs=power)
    for n in range(5):
        await wal.append(b"old %d" % n)
    await until(lambda: wal.visible_limit == 6)
    await (await wal.cursor("billing")).commit(6)
    power.cut()
    with contextlib.suppress(WalError):
        await wal.aclose()
    await asyncio.to_thread(power.crash, LOSE_ALL, tmp_path / "after")
    async with Wal.open(tmp_path / "after" / "log", settings=SMALL) as again:
        old = [record.value for record in await read_all(again)]
        await again.append_many([b"new %d" % n for n in range(7)])
        seen: list[bytes] = []
        try:
            async with again.consumer("billing", follow=False) as consumer:
                async for record in consumer:
                    seen.append(record.value)
        except WalError:
            return  # told
        assert [value for value in [*old, *seen] if value.startswith(b"new")] == [
            b"new %d" % n for n in range(7)
        ]


@pytest.mark.slow
async def test_C12_readers_pass_over_nothing_on_their_way_to_what_is_whole(
    log_directory: Path,
) -> None:
    """Danube: a damaged file ends the reader as if the log ended there."""
    async with Wal.open(log_directory, settings=SMALL) as wal:
        for n in range(300):
            await wal.append(b"%03d" % n * 300)
    path = segments(log_directory)[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"120" * 300)
    data[at] ^= 1
    path.write_bytes(data)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        reader = wal.reader(follow=False)
        seen: list[int] = []
        with pytest.raises(CorruptionError) as caught:
            async for record in reader:
                seen.append(record.offset)
        assert caught.value.path == str(path)
        assert caught.value.position is not None
        assert caught.value.position <= at
        assert seen == list(range(1, len(seen) + 1))
        assert reader.position == len(seen) + 1 <= 121
        with pytest.raises(CorruptionError):
            await reader.fetch()
        whole_again = int(segments(log_directory)[2].stem)
        behind = [record async for record in wal.reader(whole_again, follow=False)]
        check_contiguous(behind, whole_again)
        assert behind[-1].offset == 300
