"""Rounds of the scrub that somebody asks for, and what is told of them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.cluster.replication.cluster import Cluster
from tests.walstore.cluster.replication.test_damage import segments, start
from tests.walstore.cluster.replication.test_healing import filled, flip, sealed_files
from tests.walstore.cluster.replication.test_replication import caught_up
from walstore import InvalidSettingsError, Wal, WalClosedError
from walstore.cluster.replication.position import SegmentExtent
from walstore.cluster.replication.scrub import Scrub
from walstore.cluster.replication.scrub_tally import CopyTally, OwnTally
from walstore.core.runtime.statistics import ScrubRound, unpack_statistics
from walstore.testing import FaultyFileSystem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as made:
        yield made


async def opened(cluster: Cluster, **options: float) -> tuple[Wal, dict[str, bytes]]:
    """Return a log whose copies are equal, opened again, and its sealed files."""
    _, sound = await filled(cluster)
    await start(cluster)
    wal = await cluster.primary(0, **options)
    await caught_up(cluster, wal, 1, 2)
    await until(lambda: all(one.is_present for one in wal.statistics().copies))
    return wal, sound


async def scrubbed(wal: Wal) -> ScrubRound:
    """Let a round begin, and return it once it has ended."""
    number = wal.begin_scrub()
    await until(lambda: (last := wal.statistics().last_scrub) is not None and last.number >= number)
    last = wal.statistics().last_scrub
    assert last is not None
    return last


@pytest.mark.parametrize("seconds", [0, 86400])
async def test_a_round_reads_all_copies_now(cluster: Cluster, seconds: float) -> None:
    """Also where no round begins by itself, and while a slow one runs."""
    wal, sound = await opened(cluster, scrub_seconds=seconds)
    assert wal.statistics().last_scrub is None
    flip(segments(cluster, 0)[0], 0.4)
    # No header or seal: these are looked at, too, as a copy joins.
    flip(segments(cluster, 2)[1], 0.6)
    found = await scrubbed(wal)
    assert [sealed_files(cluster, number, sound) for number in range(3)] == [sound] * 3
    own, first, second = found.copies
    assert (own.address, own.damaged_segments, own.mended_bytes) == ("", 1, 1)
    assert (first.damaged_segments, first.mended_bytes) == (0, 0)
    assert (second.damaged_segments, second.mended_bytes) == (1, 1)
    assert {one.checked_bytes for one in found.copies} == {found.total_bytes}
    assert found.checked_bytes == found.total_bytes > sum(map(len, sound.values()))
    assert [(dict(one.left), one.trouble) for one in found.copies] == [({}, None)] * 3
    assert found.is_asked
    assert found.ended_us is not None
    again = await scrubbed(wal)
    assert [one.damaged_segments for one in again.copies] == [0, 0, 0]
    await wal.aclose()


async def test_damage_that_stays_is_named_and_the_rest_is_checked(cluster: Cluster) -> None:
    """Damage at the same place everywhere helps nobody. It hides no damage elsewhere."""
    wal, sound = await opened(cluster)
    for number in range(3):
        flip(segments(cluster, number)[0], 0.5)
    flip(segments(cluster, 1)[1], 0.5)
    found = await scrubbed(wal)
    name = segments(cluster, 0)[0].name
    assert [list(one.left) for one in found.copies] == [[name]] * 3
    assert all(name in one.left[name] for one in found.copies)
    assert [one.damaged_segments for one in found.copies] == [1, 2, 1]
    assert sealed_files(cluster, 1, sound)[segments(cluster, 1)[1].name] in sound.values()
    await wal.aclose()


@pytest.mark.parametrize("first", range(3))
async def test_a_takeover_does_not_always_begin_at_the_oldest_segment(
    cluster: Cluster, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it begins is random, and nothing is left out. The rounds after that begin with the oldest."""
    order: list[int] = []
    make, check = Scrub.__init__, OwnTally.check

    def make_it(scrub: Scrub, *arguments: Any, **options: Any) -> None:
        make(scrub, *arguments, **{**options, "first": first + 3})

    async def check_it(tally: OwnTally, extent: SegmentExtent) -> None:
        if not isinstance(tally, CopyTally):
            order.append(extent.start)
        await check(tally, extent)

    monkeypatch.setattr(Scrub, "__init__", make_it)
    monkeypatch.setattr(OwnTally, "check", check_it)
    wal, _ = await opened(cluster, scrub_seconds=0.01)
    await until(lambda: len(order) >= 6)
    starts = [int(path.stem) for path in segments(cluster, 0)]
    assert order[:3] == starts[first:] + starts[:first]
    assert order[3:6] == starts
    await wal.aclose()


async def test_a_copy_that_is_not_there_is_not_called_whole(cluster: Cluster) -> None:
    wal, _ = await opened(cluster)
    await cluster.machines[2].stop()
    await until(lambda: not wal.statistics().copies[1].is_present)
    found = await scrubbed(wal)
    assert [one.trouble is None for one in found.copies] == [True, True, False]
    assert found.copies[2].checked_bytes == 0
    await wal.aclose()


async def test_a_second_one_joins(cluster: Cluster) -> None:
    disk = cluster.machines[0].fs = FaultyFileSystem()
    wal, _ = await opened(cluster)
    with disk.hold("pread", name=segments(cluster, 0)[1].name) as held:
        first = wal.begin_scrub()
        assert wal.begin_scrub() == first
        await held.wait_entered()
        now = wal.statistics().scrub
        assert now is not None
        assert now.is_asked
        assert (now.number, now.ended_us) == (first, None)
        assert 0 < now.checked_bytes < now.total_bytes
        assert wal.begin_scrub() == first
        held.release()
    assert (await scrubbed(wal)).number == first
    assert (await scrubbed(wal)).number > first
    await wal.aclose()
    with pytest.raises(WalClosedError):
        wal.begin_scrub()


async def test_a_round_is_told_over_a_connection(cluster: Cluster) -> None:
    wal, _ = await opened(cluster, scrub_seconds=0.01)
    await until(lambda: wal.statistics().last_scrub is not None)
    now = wal.statistics()
    assert unpack_statistics(dataclasses.asdict(now)) == now
    assert now.last_scrub is not None
    assert not now.last_scrub.is_asked
    await wal.aclose()


async def test_a_log_without_other_copies_has_none(tmp_path: Path) -> None:
    async with Wal.open(tmp_path / "log") as wal:
        with pytest.raises(InvalidSettingsError, match="verify"):
            wal.begin_scrub()
        assert wal.statistics().scrub is None
