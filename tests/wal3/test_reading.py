"""What one program wrote, the other reads, checks and goes on with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.wal3.ours import AT_ONCE, CURSOR, append, assert_sound, read
from tests.wal3.wal3 import Wal3, Wal3Error, numbered, pairs, running
from uploader import (
    CloudTier,
    CloudWriter,
    GarbageCollector,
    RollUpSettings,
    UploadSettings,
    WriterSettings,
    destroy,
    fork,
)
from walstore import LogNotFoundError, Settings, Wal

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(120)]

ODD = [b"", b"\0", bytes(range(256)), b"x" * 300_000, b"again", b"again"]
TREES = WriterSettings(
    interval_seconds=0, roll_up=RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
)
TINY = {"snapshot_manifest": {"snapshot_rollover_threshold": 2, "fragment_rollover_threshold": 2}}
NUMBERS = [b"%d" % number for number in range(40)]


async def assert_read_there(wal3: Wal3, expected: list[tuple[int, bytes]]) -> None:
    """Assert that wal3 finds these records, and that it finds no fault when it scrubs."""
    assert pairs(await wal3.read()) == expected
    await wal3.call("scrub")


async def assert_read_here(url: str, expected: list[tuple[int, bytes]]) -> None:
    """Assert that we find these records, and no fault when we scrub."""
    assert pairs(await read(url)) == expected
    await assert_sound(url)


async def test_a_log_of_ours(url: str, wal3: Wal3) -> None:
    await append(url, *ODD)
    await assert_read_there(wal3, numbered(ODD))
    times = [record.timestamp_us for record in await read(url)]
    assert [record.timestamp_us for record in await wal3.read()] == times


async def test_many_records_in_a_fragment_with_streams_keys_and_headers(
    url: str, wal3: Wal3
) -> None:
    async with CloudWriter.open(url) as log, asyncio.TaskGroup() as tasks:
        for number in range(2000):
            stream = ("eu", "us", None)[number % 3]
            tasks.create_task(log.append(b"%d" % number, stream=stream))
    await assert_read_there(wal3, numbered([b"%d" % number for number in range(2000)]))


async def test_an_empty_log_of_ours(url: str, wal3: Wal3) -> None:
    await append(url)
    await assert_read_there(wal3, [])
    await wal3.open(create=False)
    assert await wal3.append(b"theirs") == 1
    await assert_read_here(url, [(1, b"theirs")])


async def test_our_tree_of_snapshots(url: str, wal3: Wal3) -> None:
    await append(url, *NUMBERS, settings=TREES)
    assert (await wal3.call("state"))["snapshots"]
    await assert_read_there(wal3, numbered(NUMBERS))
    assert pairs(await wal3.read(17)) == numbered(NUMBERS)[16:]


async def test_a_local_log_that_was_shipped(tmp_path: Path, url: str, wal3: Wal3) -> None:
    upload = UploadSettings(fragment_bytes=4096, roll_up=TREES.roll_up)
    settings = Settings(segment_bytes=64 << 10, batch_bytes=4096)
    tier = CloudTier(url, settings=upload)
    values = [b"%04d" % number + bytes(500) for number in range(300)]
    async with Wal.open(tmp_path / "local", tier=tier, settings=settings) as wal:
        for value in values:
            wal.append_nowait(value)
        await wal.wait_durable(len(values), "cloud")
    await assert_read_there(wal3, numbered(values))


@pytest.mark.parametrize("cut", [1, 8, 23, 40, 41])
async def test_what_we_collected(url: str, wal3: Wal3, cut: int) -> None:
    await append(url, *NUMBERS, settings=TREES)
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.cursors.commit(CURSOR, cut)
        await collector.collect()
    await assert_read_there(wal3, numbered(NUMBERS)[cut - 1 :])
    await wal3.open(create=False)
    assert await wal3.append(b"more") == 41
    await assert_read_here(url, [*numbered(NUMBERS)[cut - 1 :], (41, b"more")])


async def test_our_fork(tmp_path: Path, url: str) -> None:
    await append(url, *NUMBERS, settings=TREES)
    target = tmp_path / "bucket" / "fork"
    await fork(url, target.as_uri(), start=5, stop=31)
    async with running(target) as wal3:
        await assert_read_there(wal3, numbered(NUMBERS)[4:30])
        await wal3.open(create=False)
        assert await wal3.append(b"more") == 31
    await assert_read_here(target.as_uri(), [*numbered(NUMBERS)[4:30], (31, b"more")])


async def test_a_log_of_theirs(url: str, wal3: Wal3) -> None:
    await wal3.open()
    for value in ODD:
        await wal3.append(value)
    await assert_read_here(url, numbered(ODD))
    times = [record.timestamp_us for record in await wal3.read()]
    assert [record.timestamp_us for record in await read(url)] == times


async def test_their_fragments_of_many_records(url: str, wal3: Wal3) -> None:
    await wal3.open()
    await wal3.append(*NUMBERS)
    await wal3.append(*ODD)
    await assert_read_here(url, numbered([*NUMBERS, *ODD]))
    assert pairs(await read(url, 17)) == numbered([*NUMBERS, *ODD])[16:]


async def test_their_tree_of_snapshots_which_we_go_on_with(url: str, wal3: Wal3) -> None:
    await wal3.open(**TINY)
    for value in NUMBERS:
        await wal3.append(value)
    assert (await wal3.call("state"))["snapshots"]
    await assert_read_here(url, numbered(NUMBERS))
    await append(url, b"ours", b"and ours", settings=TREES)
    await assert_read_here(url, numbered([*NUMBERS, b"ours", b"and ours"]))
    await assert_read_there(wal3, numbered([*NUMBERS, b"ours", b"and ours"]))


@pytest.mark.parametrize("cut", [1, 8, 23, 40, 41])
async def test_what_they_collected(url: str, wal3: Wal3, cut: int) -> None:
    await wal3.open(**TINY)
    for value in NUMBERS:
        await wal3.append(value)
    await wal3.call("cursor", name=CURSOR, position=cut)
    await wal3.call("collect")
    # Of a tree it may leave some that it could take.
    head = (await wal3.call("state"))["head"]
    assert min(cut, 2) <= head <= cut
    expected = numbered(NUMBERS)[head - 1 :]
    await assert_read_there(wal3, expected)
    await assert_read_here(url, expected)
    await append(url, b"ours", settings=TREES)
    await assert_read_here(url, [*expected, (41, b"ours")])
    await assert_read_there(wal3, [*expected, (41, b"ours")])


async def test_we_collect_a_log_of_theirs(url: str, wal3: Wal3) -> None:
    await wal3.open(**TINY)
    for value in NUMBERS:
        await wal3.append(value)
    for cut in (3, 4, 17, 18, 40):
        await wal3.call("cursor", name=CURSOR, position=cut)
        async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
            assert (await collector.collect()).head == cut
        await assert_read_here(url, numbered(NUMBERS)[cut - 1 :])
        await assert_read_there(wal3, numbered(NUMBERS)[cut - 1 :])


async def test_they_collect_a_log_of_ours(url: str, wal3: Wal3) -> None:
    await append(url, *NUMBERS, settings=TREES)
    await wal3.open(create=False)
    for cut in (3, 4, 17, 18, 40):
        await wal3.call("cursor", name=CURSOR, position=cut)
        await wal3.call("collect")
        await assert_read_there(wal3, numbered(NUMBERS)[cut - 1 :])
        await assert_read_here(url, numbered(NUMBERS)[cut - 1 :])


async def test_their_copy_of_our_log(tmp_path: Path, url: str, wal3: Wal3) -> None:
    """It is encoded anew under our lengths. We read it and say so; wal3's own scrub refuses it."""
    await append(url, *NUMBERS, settings=TREES)
    target = tmp_path / "bucket" / "copy"
    await wal3.call("copy", to=str(target))
    async with running(target) as copied:
        assert pairs(await copied.read()) == numbered(NUMBERS)
        with pytest.raises(Wal3Error, match="MismatchedNumBytes"):
            await copied.call("scrub")
    assert pairs(await read(target.as_uri())) == numbered(NUMBERS)


async def test_their_copy_of_their_log(tmp_path: Path, url: str, wal3: Wal3) -> None:
    await wal3.open(**TINY)
    for value in NUMBERS:
        await wal3.append(value)
    target = tmp_path / "bucket" / "copy"
    await wal3.call("copy", to=str(target))
    await assert_read_here(target.as_uri(), numbered(NUMBERS))


async def test_they_destroy_a_log_of_ours(url: str, wal3: Wal3, directory: Path) -> None:
    await append(url, *NUMBERS, settings=TREES)
    await wal3.call("destroy")
    assert [path for path in directory.rglob("*") if path.is_file()] == [
        directory / ".tmp" / "lock"
    ]


async def test_we_destroy_a_log_of_theirs(url: str, wal3: Wal3) -> None:
    await wal3.open(**TINY)
    for value in NUMBERS:
        await wal3.append(value)
    assert (await destroy(url, confirm=True)).left == ()
    with pytest.raises(LogNotFoundError):
        await read(url)
    with pytest.raises(Wal3Error, match="UninitializedLog"):
        await wal3.read()
