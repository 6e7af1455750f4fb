"""Power fails at every moment of a log's life: what was acknowledged is there, and the log opens.

The file system keeps or loses every unsynced sector, length, name and removal on its own, so commits of
several frames survive in parts, footers without their frames would, and renames without their content.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.effort import first_seed
from tests.local import (
    UnsyncedFileSystem,
    close_opened,
    draft_of,
    open_blocking,
    open_descriptors,
    read_opened,
)
from walstore.core.append.log_state import TailError
from walstore.core.settings import KIB
from walstore.errors import StorageUnavailableError
from walstore.log.opening import Opened
from walstore.testing import Call, FaultyFileSystem, PowerLossFileSystem
from walstore.testing.power import KEEP_ALL, LOSE_ALL

pytestmark = pytest.mark.slow

FS = UnsyncedFileSystem()
MIXED = first_seed("power failures")
"""The first seed of crashes that keep a part of what was not synced; ``make crash`` makes more."""


class PowerCutError(OSError):
    """The moment at which the power fails."""


class Life:
    """A log that is opened, filled, rotated, trimmed and reopened, and knows what it was promised."""

    def __init__(self, directory: Path, cut_at: int) -> None:
        self.power = PowerLossFileSystem(directory, FS)
        self.fs = FaultyFileSystem(self.power)
        self.fs.before_each(self._count)
        self.directory = directory
        self._calls_left = cut_at
        self.head = self.wanted_head = 1
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: dict[int, bytes] = {}
        self.groups: list[range] = []

    def _count(self, call: Call) -> None:
        if call.kind in ("pread", "size", "read", "list", "close"):
            return  # nothing changes there
        self._calls_left -= 1
        if self._calls_left <= 0:
            raise PowerCutError(errno.EIO, "power cut")

    def run(self) -> bool:
        """Live until the power fails; return whether it never did."""
        opened: Opened | None = None
        try:
            for round_ in range(3):
                opened = open_blocking(self.directory, fs=self.fs)
                self._fill(opened, round_)
                close_opened(opened, clean=round_ != 1)
                opened = None
        except (PowerCutError, TailError, StorageUnavailableError):
            self._abandon(opened)
            assert open_descriptors(self.directory) == []
            return False
        return True

    def _fill(self, opened: Opened, round_: int) -> None:
        self._commit(opened, (30,), (200, 200, 200))
        self._commit(opened, (3000, 3000), (5000,), (1,))
        self._commit(opened, (700,) * 9)
        self._commit(
            opened, (20 * KIB,), (20 * KIB,), (20 * KIB, 5), (100,)
        )  # rotates in the middle
        opened.tail.checkpoint()
        if round_:
            summary = opened.sealed[0].summary
            assert summary is not None
            self.wanted_head = summary.limit
            starts = opened.tail.advance_head(summary.limit)
            self.head = opened.tail.head
            opened.tail.remove(starts)
        opened.tail.rotate()
        self._commit(opened, (50,), (1500, 10))

    def _commit(self, opened: Opened, *groups: tuple[int, ...]) -> None:
        """Commit drafts of values of the given sizes, one for each group."""
        start = opened.tail.durable_limit
        drafts = []
        for sizes in groups:
            values = [(b"%07d" % (start + at)) * (size // 7 + 1) for at, size in enumerate(sizes)]
            drafts.append(draft_of(start, *values))
            self.attempted |= dict(enumerate(values, start))
            self.groups.append(range(start, start + len(values)))
            start += len(values)
        opened.tail.commit(drafts)
        self.acknowledged |= {
            offset: self.attempted[offset] for draft in drafts for offset in _offsets(draft)
        }

    def _abandon(self, opened: Opened | None) -> None:
        if opened is not None:
            try:
                close_opened(opened, clean=False)
            except OSError:
                opened.release()

    def check(self, directory: Path) -> None:
        """Assert that what is in ``directory`` after the crash keeps every promise."""
        opened = open_blocking(directory, fs=FS)
        try:
            records = read_opened(opened)
            first = opened.tail.head
            assert self.head <= first <= self.wanted_head
            found = {record.offset: record.value for record in records}
            assert list(found) == list(range(first, first + len(found)))
            for offset, value in self.acknowledged.items():
                assert offset < first or found[offset] == value
            for offset, value in found.items():
                assert self.attempted[offset] == value
            for group in self.groups:
                present = [offset in found for offset in group if offset >= first]
                assert all(present) or not any(present), group
            limit = opened.tail.durable_limit
            opened.tail.commit([draft_of(limit, b"after")])
        finally:
            close_opened(opened)
        opened = open_blocking(directory, fs=FS)
        assert read_opened(opened)[-1].value == b"after"
        close_opened(opened)


def _offsets(draft) -> range:
    return range(draft.start, draft.limit)


def explore(scratch: Path, moments: range, seeds: tuple[int, ...]) -> int:
    """Cut the power at these moments of a life, with each seed; return how many there were."""
    explored = 0
    for moment in moments:
        life = Life(scratch / f"life-{moment}", moment)
        life.directory.mkdir()
        survived = life.run()
        for seed in seeds:
            into = scratch / f"crash-{moment}-{seed}"
            life.power.crash(seed, into)
            life.check(into)
            explored += 1
        if survived:
            return explored
    return explored


def test_a_life_without_accidents(scratch: Path) -> None:
    life = Life(scratch / "life", 1 << 30)
    life.directory.mkdir()
    assert life.run()
    assert len(life.acknowledged) == len(life.attempted) > 50
    assert life.head > 1
    life.check(life.directory)


@pytest.mark.parametrize("first", range(1, 12))
def test_power_fails_now_and_then(scratch: Path, first: int) -> None:
    assert explore(scratch, range(first, 400, 11), seeds=(MIXED + first % 4,)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_power_fails_at_every_moment(scratch: Path, part: int) -> None:
    """Each moment with nothing kept, all kept, and two of four mixtures."""
    seeds = (LOSE_ALL, KEEP_ALL, MIXED + part % 2, MIXED + 2 + part % 2)
    assert explore(scratch, range(1 + part, 2000, 4), seeds) > 133


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_power_fails_again_during_recovery(scratch: Path, seed: int) -> None:
    """The disk that the first crash left is recovered, and the power fails in the middle of that.

    Each moment has two of the four mixtures.
    """
    for moment in range(10 + 18 * (seed % 2), 150, 36):
        life = Life(scratch / f"life-{moment}", moment)
        life.directory.mkdir()
        life.run()
        for again in range(1, 100):
            crashed = scratch / f"crash-{moment}-{again}"
            life.power.crash(MIXED + seed, crashed)
            second = Life(crashed, again)
            try:
                close_opened(open_blocking(crashed, fs=second.fs))
                finished = True
            except PowerCutError:
                finished = False
            into = scratch / f"again-{moment}-{again}"
            second.power.crash(MIXED + seed + 4, into)
            life.check(into)
            if finished:
                break
        else:
            pytest.fail("recovery never finished")


def revive(life: Life) -> None:
    """Open the log again on the same disk, as after a killed process, and take note of what it shows."""
    life.fs.heal()
    opened = open_blocking(life.directory, fs=life.fs)
    life.acknowledged |= {record.offset: record.value for record in read_opened(opened)}
    life.head = opened.tail.head
    close_opened(opened, clean=False)


def explore_restarts(scratch: Path, moments: range) -> int:
    """Kill at these moments, restart, cut the power; return how often."""
    explored = 0
    for moment in moments:
        life = Life(scratch / f"life-{moment}", moment)
        life.directory.mkdir()
        finished = life.run()
        revive(life)
        for seed in (LOSE_ALL, MIXED + 4):
            into = scratch / f"crash-{moment}-{seed}"
            life.power.crash(seed, into)
            life.check(into)
            explored += 1
        if finished:
            break
    return explored


@pytest.mark.parametrize("first", [1, 5, 9, 13])
def test_what_a_restart_shows_survives_the_next_power_cut(scratch: Path, first: int) -> None:
    """Killed between write and sync, the records are found by the restart: now they must stay."""
    assert explore_restarts(scratch, range(first, 400, 17)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 5))
def test_what_any_restart_shows_survives_the_next_power_cut(scratch: Path, first: int) -> None:
    assert explore_restarts(scratch, range(first, 2000, 4)) > 80
