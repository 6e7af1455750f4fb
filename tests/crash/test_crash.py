"""A share of the crash states in the ordinary suites, and tests of the machinery that makes them.

Where strace cannot run, a recording that is checked in stands in for a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

import pytest

from tests.crash import strace
from tests.crash.__main__ import turns_of
from tests.crash.campaign import Tally, load, states_of, try_life
from tests.crash.disk import Disk
from tests.crash.recorder import Life, record_life, record_restarts
from tests.effort import first_seed
from walstore.cli.prove.promises import BrokenPromiseError, FoundLog, Promises

GOLDEN = Path(__file__).parents[1] / "golden" / "crash"
FIRST = first_seed("crash")
SEEDS = (0, 4, 6, 8)
"""Lives that sync with each commit, or after some time; the last one compresses."""
QUICK_MOMENTS = 60
STEPS = 8
LENT = "log/next.tmp"


@pytest.fixture(scope="module")
def can_trace() -> bool:
    try:
        strace.prepare()
    except strace.CannotTraceError:
        return False
    return True


def _try(
    lives: list[Life], most: int, keep: Path, choose: Callable[[Life], Container[int]]
) -> Tally:
    """Try states of the moments that are chosen."""
    tally = Tally()
    for life in lives:
        try_life(life, tally, most=most, keep=keep, moments=choose(life))
    assert not tally.failures, "\n".join(each.describe() for each in tally.failures.values())
    print(tally.describe(0))
    return tally


def _life_that_lends(directory: Path) -> tuple[Life, int]:
    """Return a life in which two deleted segments lend their files, and when the first one does.

    Chance decides how often that happens, and when.
    """
    for turn in range(10):
        place = directory / str(turn)
        place.mkdir()
        life = record_life(place, FIRST + 3 + 120 * turn, 4 * STEPS)
        lent = [at for at, one in enumerate(life.events) if one[0] == "rename" and one[2] == LENT]
        if len(lent) >= 2 and len(life.events) - lent[0] >= 60:
            return life, lent[0]
    raise AssertionError("no life lends files twice")


def _a_share(life: Life) -> set[int]:
    """Choose moments from begin to end, about as many as the quick suite can afford."""
    moments = [at for at, event in enumerate(life.events) if event[0] not in ("say", "syncing")]
    return set(moments[:: max(1, len(moments) // QUICK_MOMENTS)])


def _all(life: Life) -> range:
    return range(len(life.events) + 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
def test_a_power_failure_breaks_no_promise(tmp_path: Path, seed: int, can_trace: bool) -> None:
    life = record_life(tmp_path, FIRST + seed, STEPS) if can_trace else load(GOLDEN / "life.xz")
    assert _try([life], 3, tmp_path / "failures", _a_share).tried >= 80


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_power_failure_breaks_no_promise_where_segments_are_recycled(
    tmp_path: Path, can_trace: bool
) -> None:
    """From the moment on at which a deleted segment lends its file to the next one."""
    if not can_trace:
        pytest.skip("strace cannot run here")
    life, first = _life_that_lends(tmp_path)
    step = max(1, min(3, (len(life.events) - first) // 60))
    chosen = range(first, len(life.events), step)
    tally = _try([life], 2, tmp_path / "failures", lambda _: chosen)
    assert tally.tried >= 30


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_power_failure_after_a_restart_breaks_no_promise(tmp_path: Path, can_trace: bool) -> None:
    """A writer killed while it seals leaves an unsynced footer to the next one, which builds on it."""
    if not can_trace:
        pytest.skip("strace cannot run here")
    life = record_life(tmp_path, FIRST + 4, 2 * STEPS)
    turns = turns_of(life)
    sealed = [at + 1 for at in turns if life.events[at - 1][0] == "write"]  # and cut to its length
    named = [at for at in turns if life.events[at - 1][0] == "rename"]
    lives = record_restarts(tmp_path, life, [*sealed[:4], *named[2:8:2]])
    assert _try(lives, 2, tmp_path / "failures", _all).tried >= 100


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_power_failure_is_no_corruption_where_the_system_syncs(
    tmp_path: Path, can_trace: bool
) -> None:
    """With ``sync="os"`` the cell speaks of records that the power failure may take."""
    if not can_trace:
        pytest.skip("strace cannot run here")
    life = record_life(tmp_path, FIRST + 2, 3 * STEPS)

    def while_unsynced(life: Life) -> set[int]:
        stores = [at for at, event in enumerate(life.events) if event[0] == "store"]
        return {at + after for at in stores for after in range(1, 8)}

    _try([life], 6, tmp_path / "failures", while_unsynced)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_values_that_hold_frames_may_be_torn(tmp_path: Path, can_trace: bool) -> None:
    if not can_trace:
        pytest.skip("strace cannot run here")
    life = record_life(tmp_path, FIRST + 1, 4 * STEPS)

    def while_forged(life: Life) -> set[int]:
        forged = [
            at
            for at, event in enumerate(life.events)
            if event[0] == "say" and event[1][0] == "op" and "fill" in event[1][3]
        ]
        return {at + after for at in forged for after in range(6)}

    _try([life], 64, tmp_path / "failures", while_forged)


@pytest.mark.slow
def test_recordings_of_the_format_as_it_was_keep_their_promises(tmp_path: Path) -> None:
    _try([load(GOLDEN / "life.xz"), load(GOLDEN / "life-restart.xz")], 1, tmp_path, _a_share)


@pytest.mark.slow
def test_the_recorded_disk_is_the_real_one(tmp_path: Path, can_trace: bool) -> None:
    """What programs see by the recorded calls alone is what is in the directory."""
    if not can_trace:
        pytest.skip("strace cannot run here")
    life, disk = record_life(tmp_path, FIRST + 12, STEPS), Disk()
    for event in life.events:
        disk.apply(event)
    root = tmp_path / f"life-{life.seed}"
    assert dict(disk.visible()) == {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }
    kinds = {event[0] for event in life.events}
    assert kinds >= {"create", "write", "size", "rename", "mkdir", "syncing", "synced", "say"}


def test_states_of_a_seed_are_the_same_every_time() -> None:
    life = load(GOLDEN / "life.xz")
    first = [state.digest for _, _, state, _ in states_of(life, 2)]
    assert [state.digest for _, _, state, _ in states_of(life, 2)] == first
    assert len(set(first)) > 100


class TestDisk:
    """What may be lost, on a file of two sectors and its name."""

    def test_what_is_synced_is_in_every_state(self) -> None:
        disk = Disk()
        for event in (
            ["create", "a", 1],
            ["write", 1, 0, b"x" * 600],
            ["syncing", 1, 7],
            ["write", 1, 600, b"y" * 10],
            ["synced", 7],
            ["syncing", ".", 8],
            ["synced", 8],
        ):
            disk.apply(event)
        assert disk.durable_names == {"a": 1}
        content = disk.contents[1]
        assert content.durable == b"x" * 600, "a sync covers what came before it"
        assert content.outcome([False, False], None) == b"x" * 600
        assert content.outcome([True, False], None) == b"x" * 600 + bytes(10)
        assert content.outcome([False, True], None) == b"x" * 600, "without its length data is gone"
        assert dict(disk.visible()) == {"a": b"x" * 600 + b"y" * 10}

    def test_sectors_are_lost_one_by_one(self) -> None:
        disk = Disk()
        disk.apply(["create", "a", 1])
        disk.apply(["size", 1, 1024])
        disk.apply(["write", 1, 500, b"z" * 30])
        outcomes = {
            disk.contents[1].outcome([True, low, high], None)[500:530]
            for low in (True, False)
            for high in (True, False)
        }
        assert outcomes == {
            b"z" * 30,
            bytes(30),
            b"z" * 12 + bytes(18),
            bytes(12) + b"z" * 18,
        }

    def test_a_rename_is_not_durable_before_its_directory_is_synced(self) -> None:
        disk = Disk()
        for event in (["create", "a", 1], ["syncing", ".", 1], ["synced", 1], ["rename", "a", "b"]):
            disk.apply(event)
        assert disk.names == {"b": 1}
        assert disk.durable_names == {"a": 1}


class TestPromises:
    """That the judge is no rubber stamp."""

    def _promised(self) -> tuple[Promises, list]:
        promises = Promises()
        for report in (
            ["op", 1, [20, 20], {}],
            ["ok", 1, 1],
            ["op", 2, [20], {"register": "a"}],
            ["ok", 2, 3],
            ["op", 3, [20], {}],
        ):
            promises.hear(report)
        ops = promises.ops
        values = [ops[1].value(0), ops[1].value(1), ops[2].value(0), ops[3].value(0)]
        return promises, [(at, value, None, None) for at, value in enumerate(values, 1)]

    def test_what_was_attempted_may_be_there_or_not(self) -> None:
        promises, records = self._promised()
        for count in (3, 4):
            found = FoundLog(1, count + 1, records[:count], {"a": "2"}, {}, {}, {})
            assert 2 in promises.check_records(found)
            promises.check(found)

    @pytest.mark.parametrize(
        ("found", "complaint"),
        [
            (lambda r: FoundLog(1, 3, r[:2], {"a": "2"}, {}, {}, {}), "ends at 3"),
            (lambda r: FoundLog(1, 4, r[:3], {}, {}, {}, {}), "went back"),
            (lambda r: FoundLog(1, 4, [r[0], r[2], r[1]], {"a": "2"}, {}, {}, {}), "holds"),
            (lambda r: FoundLog(3, 4, r[2:3], {"a": "2"}, {}, {}, {}), "nobody asked"),
            (lambda r: FoundLog(1, 5, [*r[:3], (4, *r[2][1:])], {"a": "2"}, {}, {}, {}), "twice"),
            (
                lambda r: FoundLog(1, 5, [*r[:3], (4, b"7/0 ", None, None)], {}, {}, {}, {}),
                "nobody",
            ),
        ],
    )
    def test_whatever_else_is_found_is_refused(self, found, complaint: str) -> None:
        promises, records = self._promised()
        with pytest.raises(BrokenPromiseError, match=complaint):
            promises.check(found(records))

    def test_an_offset_is_given_once(self) -> None:
        promises, _ = self._promised()
        promises.hear(["op", 4, [20], {}])
        with pytest.raises(BrokenPromiseError, match="given twice"):
            promises.hear(["ok", 4, 3])
