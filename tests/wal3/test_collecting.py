"""Collections that one began and the other finds, and cursors that both move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wal3.ours import AT_ONCE, CURSOR, append, assert_sound, read
from tests.wal3.wal3 import Wal3, Wal3Error, numbered, pairs
from uploader import CloudLog, CloudWriter, GarbageCollector, RollUpSettings, WriterSettings
from uploader.format import layout
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import kill

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(120)]

TREES = WriterSettings(
    interval_seconds=0, roll_up=RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
)
TINY = {"snapshot_manifest": {"snapshot_rollover_threshold": 2, "fragment_rollover_threshold": 2}}
NUMBERS = [b"%d" % number for number in range(20)]


async def is_rolled_up(url: str) -> bool:
    """Whether each snapshot is deeper than the one behind it: roll-ups run while publishing goes on."""
    async with CloudLog.open(url) as log:
        depths = [snapshot.depth for snapshot in log.manifest.snapshots]
    return depths == sorted(set(depths), reverse=True)


async def assert_both_find(url: str, wal3: Wal3, head: int, values: list[bytes]) -> None:
    """Assert that both find the values from there on, and no fault."""
    expected = numbered(values)[head - 1 :]
    assert pairs(await read(url)) == expected
    assert pairs(await wal3.read()) == expected
    await wal3.call("scrub")
    await assert_sound(url)


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("is_ours", [True, False])
async def test_we_go_on_with_what_they_began(
    url: str, wal3: Wal3, phases: int, is_ours: bool
) -> None:
    if is_ours:
        await append(url, *NUMBERS, settings=TREES)
        await wal3.open(create=False)
    else:
        await wal3.open(**TINY)
        for value in NUMBERS:
            await wal3.append(value)
    await wal3.call("cursor", name=CURSOR, position=9)
    for phase in range(1, phases + 1):
        await wal3.call("collect", phase=phase)
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.collect()
        head = (await collector.collect()).head
    assert head == 9
    await assert_both_find(url, wal3, 9, NUMBERS)
    await append(url, b"ours")
    await wal3.append(b"theirs")
    await assert_both_find(url, wal3, 9, [*NUMBERS, b"ours", b"theirs"])


@pytest.mark.parametrize("nth", range(1, 13))
async def test_they_go_on_with_what_we_began(
    url: str, directory: Path, wal3: Wal3, nth: int
) -> None:
    """Our collector dies at its n-th write."""
    await append(url, *NUMBERS, settings=TREES)
    local = LocalStore(directory)
    store = FaultyStore(local)
    try:
        async with GarbageCollector.open(url, settings=AT_ONCE, store=store) as collector:
            await collector.cursors.commit(CURSOR, 9)
            for kind in ("put_if_absent", "put_if_match", "delete"):
                store.on(kind, kill(), nth=(nth + 2) // 3)
            await collector.collect()
    except (StoreKilled, BaseExceptionGroup):
        pass
    await local.aclose()
    await wal3.open(create=False)
    await wal3.append(b"theirs")
    await wal3.call("collect")
    head = (await wal3.call("state"))["head"]
    assert head <= 9
    await assert_both_find(url, wal3, head, [*NUMBERS, b"theirs"])
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.collect()
        assert (await collector.collect()).head == 9
    await assert_both_find(url, wal3, 9, [*NUMBERS, b"theirs"])
    left = [path.name for path in directory.glob(f"{layout.FRAGMENT_FOLDER}*/*")]
    assert len(left) == 13


async def test_cursors_of_both(url: str, wal3: Wal3) -> None:
    await append(url, *NUMBERS)
    await wal3.call("cursor", name="theirs", position=5)
    async with CloudLog.open(url) as log:
        found = await log.cursors.load("theirs")
        assert found is not None
        assert found.position == 5
        await log.cursors.commit("theirs", 8, seen=found)
        await log.cursors.commit("ours", 7)
        await wal3.call("cursor", name="ours", position=11)
        assert {each.name: each.position for each in await log.cursors.list()} == {
            "ours": 11,
            "theirs": 8,
        }
    await wal3.open(create=False)
    await wal3.call("collect")
    assert (await wal3.call("state"))["head"] == 8


async def test_a_low_threshold_of_theirs_stops_their_appends_and_harms_nothing(
    url: str, wal3: Wal3
) -> None:
    """As docs/format.md says of roll-ups. A writer of ours with such thresholds puts it right."""
    values = [b"%d" % number for number in range(24)]
    await wal3.open(**TINY)
    for value in values:
        await wal3.append(value)
    async with GarbageCollector.open(url, settings=AT_ONCE) as collector:
        await collector.cursors.commit(CURSOR, 13)
        await collector.collect()
    await wal3.open(create=False, **TINY)
    for _ in range(3):
        with pytest.raises(Wal3Error, match="sequential"):
            await wal3.append(b"unknown")
    await assert_both_find(url, wal3, 13, values)
    # One of wal3's programs with thresholds as they are by default goes on behind what was put already.
    await wal3.open(create=False)
    await wal3.append(b"theirs")
    ours = []
    async with CloudWriter.open(url, settings=TREES) as log:
        while len(ours) < 6 or not await is_rolled_up(url):
            ours.append(b"ours %d" % len(ours))
            await log.append(ours[-1])
    await wal3.open(create=False, **TINY)
    await wal3.append(b"and theirs")
    await assert_both_find(url, wal3, 13, [*values, b"unknown", b"theirs", *ours, b"and theirs"])
