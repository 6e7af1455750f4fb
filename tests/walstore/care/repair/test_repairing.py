"""Repair: every kind of damage has a plan, the plan tells the truth, and the log works afterwards."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import every
from tests.local import UnsyncedFileSystem, close_opened, draft_of, open_blocking, read_opened
from walstore import Record, Settings, Wal
from walstore.care.repair.plan import (
    JOURNAL_NAME,
    KEPT_NAME,
    Interval,
    RepairKind,
    RepairPlan,
    decode_plan,
    encode_plan,
)
from walstore.care.repair.repairing import apply_repair, load_interrupted, plan_repair
from walstore.care.repair.runs import Keep
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_footer
from walstore.core.format import checkpoint, segment
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FormatVersionError,
    InvalidSettingsError,
    LogNotFoundError,
    WalError,
    WalLockedError,
)
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.directory import hold_cursors
from walstore.testing import FaultyFileSystem

FS = UnsyncedFileSystem()
"""Syncs are the business of tests/scenarios/test_35_repair_faults.py."""
FIRST, SECOND, THIRD = (segment.file_name(start) for start in (1, 6, 11))
HINTS = (checkpoint.FILE_NAME, checkpoint.CELL_FILE_NAME)
Damaging = Callable[[Path], object]


async def _make(path: Path) -> None:
    """Three segments of five records, a record a batch: [1, 6), [6, 11), [11, 16)."""
    async with Wal.open(path) as wal:
        for number in range(1, 16):
            await wal.append(b"value %d " % number * 3, key=b"key")
            if number in (5, 10):
                await wal.rotate()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "log"
    asyncio.run(_make(path))
    return path


@pytest.fixture
def log(pristine: Path, log_directory: Path) -> Path:
    shutil.copytree(pristine, log_directory)
    return log_directory


def records(path: Path) -> dict[int, Record]:
    """Open the log, append a record, and return all but that one."""
    opened = open_blocking(path, fs=FS)
    try:
        assert opened.recovery.missing_from is None
        start = opened.tail.durable_limit
        opened.tail.commit([draft_of(start, b"after the repair")])
        found = {record.offset: record for record in read_opened(opened)}
    finally:
        close_opened(opened)
    assert found.pop(start).value == b"after the repair"
    return found


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "LOCK"
    }


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def data_bytes(path: Path) -> int:
    """Return where the footer of a sealed segment begins."""
    file = FS.open(path, "r")
    footer = read_footer(file, 1, path)
    file.close()
    assert footer is not None
    return footer[0].data_bytes


def batch_at(path: Path, number: int) -> int:
    """Return where a batch of a segment begins, counted from 0. All have the same size."""
    magic = b"WBF1"
    data, at = path.read_bytes(), -1
    for _ in range(number + 1):
        at = data.index(magic, at + 1)
    return at


def rewrite_hint(path: Path, **changes: object) -> None:
    """Let the checkpoint say something else, with a right CRC."""
    import dataclasses

    hint_path = path / checkpoint.FILE_NAME
    hint = checkpoint.decode_checkpoint(hint_path.read_bytes(), "")
    assert hint is not None
    changed = dataclasses.replace(hint, **changes)  # type: ignore[arg-type]
    hint_path.write_bytes(checkpoint.encode_checkpoint(changed))


def forget_hints(path: Path) -> None:
    for name in HINTS:
        (path / name).unlink()


def repaired(path: Path, keep: Keep | None = None) -> RepairPlan:
    """Plan and apply; check what every repair must keep to (R1, R2, R4)."""
    before = files(path)
    plan = plan_repair(path, keep=keep, fs=FS)
    assert files(path) == before, "planning changes nothing"
    apply_repair(plan, fs=FS)
    assert not plan_repair(path, fs=FS).is_needed
    after = list(files(path).values())
    assert all(data in after for data in before.values()), "every byte is kept"
    return plan


def check_contents(plan: RepairPlan, path: Path, pristine: Path) -> None:
    """Assert that exactly what the plan calls lost is lost, and all else is as it was."""
    twin = path.with_name("twin")
    shutil.copytree(pristine, twin)
    everything = records(twin)
    lost = {offset for one in plan.lost for offset in range(one.start, one.limit)}
    expected = {offset: found for offset, found in everything.items() if offset not in lost}
    assert records(path) == expected
    assert list(expected) == list(range(plan.head, plan.limit))


# -- kinds of damage -------------------------------------------------------------------------------

HARMLESS: dict[str, tuple[Damaging, set[str]]] = {
    "checkpoint": (lambda log: flip(log / "CHECKPOINT", 40), {"rebuild-checkpoint"}),
    "cell": (lambda log: flip(log / "DURABLE", 20), {"rebuild-cell"}),
    "checkpoint that lies about the tail": (
        lambda log: rewrite_hint(log, previous_crc=1),
        {"rebuild-checkpoint"},
    ),
    "checkpoint that lies about a segment": (
        lambda log: rewrite_hint(log, sealed=(segment.SegmentSummary(1, 7, 9, 9, 9),)),
        {"rebuild-checkpoint"},
    ),
    "checkpoint of another log": (
        lambda log: rewrite_hint(log, log_id=bytes(16)),
        {"rebuild-checkpoint"},
    ),
    "header of a sealed segment": (lambda log: flip(log / SECOND, 20), {"rebuild-header"}),
    "header of the first segment": (lambda log: flip(log / FIRST, 60), {"rebuild-header"}),
    "header of the active segment": (lambda log: flip(log / THIRD, 40), {"rebuild-header"}),
    "one bit of the only header": (
        lambda log: [
            forget_hints(log),
            (log / SECOND).unlink(),
            (log / THIRD).unlink(),
            flip(log / FIRST, 17, 1),
        ],
        {"rebuild-header"},
    ),
    "footer": (lambda log: flip(log / SECOND, data_bytes(log / SECOND) + 9), {"rebuild-footer"}),
    "lost footer": (lambda log: cut(log / SECOND, data_bytes(log / SECOND)), {"rebuild-footer"}),
    "foreign file": (lambda log: (log / "notes.wal").write_bytes(b"notes"), {"set-aside"}),
    "renamed segment": (
        lambda log: (log / THIRD).rename(log / segment.file_name(12)),
        {"rename"},
    ),
    "unfinished batch": (
        lambda log: (log / THIRD).write_bytes((log / THIRD).read_bytes() + b"WBF1 and so on"),
        {"cut-tail"},
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_repairs_lose_nothing(name: str, log: Path, pristine: Path) -> None:
    damage, kinds = HARMLESS[name]
    damage(log)
    plan = repaired(log)
    assert plan.is_needed
    assert not plan.is_lossy
    assert {str(step.kind) for step in plan.steps} == kinds
    if name != "one bit of the only header":
        check_contents(plan, log, pristine)
    assert plan.log_id == plan_repair(pristine, fs=FS).log_id


def _copy_of_another_log(log: Path) -> None:
    other = log.with_name("other")
    asyncio.run(_make(other))
    shutil.copy(other / SECOND, log / SECOND)


LOSSY: dict[str, tuple[Damaging, list[tuple[int, int]]]] = {
    "batch in a sealed segment": (
        lambda log: flip(log / SECOND, batch_at(log / SECOND, 2) + 90),
        [(8, 9)],
    ),
    "batch and footer of a sealed segment": (
        lambda log: [
            flip(log / SECOND, batch_at(log / SECOND, 2) + 90),
            flip(log / SECOND, -3),
        ],
        [(8, 9)],
    ),
    "first batch of a segment": (
        lambda log: flip(log / SECOND, batch_at(log / SECOND, 0) + 4),
        [(6, 7)],
    ),
    "last batch of a sealed segment": (
        lambda log: flip(log / SECOND, batch_at(log / SECOND, 4) + 90),
        [(10, 11)],
    ),
    "sealed segment cut short": (
        lambda log: cut(log / SECOND, batch_at(log / SECOND, 3) + 50),
        [(9, 11)],
    ),
    "batch in the active segment": (
        lambda log: flip(log / THIRD, batch_at(log / THIRD, 1) + 90),
        [(12, 13)],
    ),
    "length of a batch": (
        lambda log: flip(log / THIRD, batch_at(log / THIRD, 1) + 9),
        [(12, 13)],
    ),
    "missing segment in the middle": (lambda log: (log / SECOND).unlink(), [(6, 11)]),
    "segment of another log": (_copy_of_another_log, [(6, 11)]),
    "segment that is something else": (
        lambda log: (log / SECOND).write_bytes(b"something else" * 40),
        [(6, 11)],
    ),
}


@pytest.mark.parametrize("keep", ["before", "after"])
@pytest.mark.parametrize("name", LOSSY)
def test_damage_in_the_middle_needs_a_choice(
    name: str, keep: Keep, log: Path, pristine: Path
) -> None:
    damage, unreadable = LOSSY[name]
    damage(log)
    undecided = plan_repair(log, fs=FS)
    assert undecided.needs_choice
    assert undecided.steps == ()
    assert undecided.unreadable == tuple(Interval(*one) for one in unreadable)
    (first, *_, last) = undecided.choices
    with pytest.raises(InvalidSettingsError, match="several stretches"):
        apply_repair(undecided, fs=FS)

    plan = repaired(log, keep)
    assert plan.unreadable == undecided.unreadable
    start, limit = unreadable[0]
    if keep == "before":
        assert Interval(plan.head, plan.limit) == first == Interval(1, start)
        assert plan.lost == (Interval(start, 16),)
        assert plan.reassigned == Interval(start, 16)
        assert RepairKind.TRUNCATE in {step.kind for step in plan.steps}
    else:
        assert Interval(plan.head, plan.limit) == last == Interval(limit, 16)
        assert plan.lost == (Interval(1, limit),)
        assert plan.reassigned is None
        assert RepairKind.ADVANCE_HEAD in {step.kind for step in plan.steps}
    check_contents(plan, log, pristine)


ONE_SIDED: dict[str, tuple[Damaging, tuple[int, int], set[str]]] = {
    "missing segment at the beginning": (
        lambda log: (log / FIRST).unlink(),
        (6, 16),
        {"advance-head"},
    ),
    "missing segment at the end": (lambda log: (log / THIRD).unlink(), (1, 11), {"truncate"}),
    "missing end of the active segment": (
        lambda log: cut(log / THIRD, batch_at(log / THIRD, 3)),
        (1, 14),
        {"truncate"},
    ),
    "last batch of the log": (
        lambda log: flip(log / THIRD, batch_at(log / THIRD, 4) + 90),
        (1, 15),
        {"truncate", "cut-tail"},
    ),
    "active segment without a good byte": (
        lambda log: (log / THIRD).write_bytes(b"\xff" * 900),
        (1, 11),
        {"truncate", "set-aside"},
    ),
    "all segments": (
        lambda log: [(log / name).unlink() for name in (FIRST, SECOND, THIRD)],
        (16, 16),
        {"advance-head"},
    ),
    "every byte of all segments": (
        lambda log: [(log / name).write_bytes(bytes(99)) for name in (FIRST, SECOND, THIRD)],
        (16, 16),
        {"advance-head", "set-aside"},
    ),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_damage_at_one_end_needs_no_choice(name: str, log: Path, pristine: Path) -> None:
    damage, kept, kinds = ONE_SIDED[name]
    damage(log)
    plan = repaired(log)
    assert (plan.head, plan.limit) == kept
    assert {str(step.kind) for step in plan.steps} - {"cut-tail"} == kinds - {"cut-tail"}
    assert plan.is_lossy
    check_contents(plan, log, pristine)


def test_a_lost_end_may_be_left_behind_so_that_no_offset_is_used_twice(log: Path) -> None:
    cut(log / THIRD, batch_at(log / THIRD, 3))
    plan = repaired(log, "after")
    assert (plan.head, plan.limit, plan.reassigned) == (16, 16, None)
    assert records(log) == {}


def test_an_offset_chooses_the_stretch_around_it(log: Path, pristine: Path) -> None:
    flip(log / FIRST, batch_at(log / FIRST, 1) + 90)
    flip(log / THIRD, batch_at(log / THIRD, 2) + 90)
    assert plan_repair(log, fs=FS).choices == (Interval(1, 2), Interval(3, 13), Interval(14, 16))
    with pytest.raises(InvalidSettingsError, match="offset 13 is not readable"):
        plan_repair(log, keep=13, fs=FS)
    plan = repaired(log, 7)
    assert (plan.head, plan.limit) == (3, 13)
    assert plan.lost == (Interval(1, 3), Interval(13, 16))
    check_contents(plan, log, pristine)


def test_damage_below_the_head_is_no_loss(log: Path) -> None:
    rewrite_hint(log, head=4)
    (log / checkpoint.CELL_FILE_NAME).unlink()
    flip(log / FIRST, batch_at(log / FIRST, 1) + 90)
    plan = repaired(log)
    assert (plan.head, plan.limit, plan.lost) == (4, 16, ())
    assert list(records(log)) == list(range(4, 16))


def test_a_left_over_of_a_deletion_is_no_damage(log: Path) -> None:
    rewrite_hint(log, head=6)
    (log / checkpoint.CELL_FILE_NAME).unlink()
    flip(log / FIRST, batch_at(log / FIRST, 1) + 90)
    assert not plan_repair(log, fs=FS).is_needed


@pytest.mark.parametrize("keep", ["before", "after"])
def test_what_the_log_remembers_survives(keep: Keep, log_directory: Path) -> None:
    """Registers come from the segment's beginning, or from what is left and the checkpoint."""

    async def make() -> None:
        async with Wal.open(log_directory) as wal:
            await wal.append_many([b"one"], update={"owner": "a", "term": "1"})
            await wal.append(b"two")
            await wal.append_many([b"three"], update={"term": "2"})
            await wal.append(b"four")

    async def registers() -> dict[str, str]:
        async with Wal.open(log_directory) as wal:
            return dict(wal.registers)

    asyncio.run(make())
    (path,) = log_directory.glob("*.wal")
    flip(path, batch_at(path, 1) + 90)
    plan = repaired(log_directory, keep)
    (log_directory / checkpoint.FILE_NAME).unlink()  # it must stand in the segments as well
    expected = {"owner": "a", "term": "1" if keep == "before" else "2"}
    assert asyncio.run(registers()) == expected
    assert not any("older values" in note for note in plan.notes) or keep == "after"


def test_the_cloud_tier_is_pointed_to(log: Path) -> None:
    rewrite_hint(log, tier_url="s3://bucket/orders", uploaded_limit=13)
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    (held, refused, *_) = plan_repair(log, keep="before", fs=FS).notes
    assert "of what is lost here, s3://bucket/orders holds [8, 13)" in held
    assert "cannot be opened with that tier" in refused
    plan = repaired(log, "after")
    assert any("holds [1, 9)" in note for note in plan.notes)
    hint = checkpoint.decode_checkpoint((log / "CHECKPOINT").read_bytes(), "")
    assert hint is not None
    assert (hint.tier_url, hint.uploaded_limit) == ("s3://bucket/orders", 13)


def test_a_tier_that_the_log_cannot_continue_is_named(log: Path) -> None:
    rewrite_hint(log, tier_url="s3://bucket/orders", uploaded_limit=4)
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    notes = plan_repair(log, keep="after", fs=FS).notes
    assert any("give it a new prefix" in note for note in notes)
    notes = plan_repair(log, keep="before", fs=FS).notes
    assert not any("s3://" in note for note in notes)


@pytest.mark.parametrize("keep", ["before", "after"])
def test_a_large_transaction_that_is_torn_apart_is_named(keep: Keep, log_directory: Path) -> None:
    async def make() -> None:
        small = Settings(transaction_memory_bytes=1000, batch_bytes=4096)
        async with Wal.open(log_directory, settings=small) as wal:
            await wal.append(b"before")
            async with wal.transaction() as transaction:
                for number in range(20):
                    await transaction.append(b"%03d" % number * 400)
            await wal.append(b"behind")

    asyncio.run(make())
    value = {"before": b"010", "after": b"000"}[keep] * 400  # type: ignore[index]
    path = next(path for path in log_directory.glob("*.wal") if value in path.read_bytes())
    flip(path, path.read_bytes().index(value))
    notes = plan_repair(log_directory, keep=keep, fs=FS).notes
    assert any("may be a part of one transaction" in note for note in notes)


def test_cursors_outside_the_repaired_log_are_named(log: Path) -> None:
    with hold_cursors(FS, log) as held:
        for name, position in (("early", 2), ("late", 15)):
            held.write(name, CursorState(position, 1, bytes(8), 1, 0, 0, "a test"))
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    for keep, name in (("before", "late"), ("after", "early")):
        plan = plan_repair(log, keep=keep, fs=FS)  # type: ignore[arg-type]
        (note,) = [note for note in plan.notes if note.startswith("cursor ")]
        assert f"cursor '{name}' stands at" in note


def test_the_epoch_is_raised(log: Path) -> None:
    flip(log / THIRD, batch_at(log / THIRD, 2) + 90)
    plan = repaired(log, "before")
    assert plan.epoch == 2
    opened = open_blocking(log, fs=FS)
    assert opened.tail.epoch == 3
    close_opened(opened)


BATCH_BITS = [4, 9, 12, 17, 26, 60, 75, 82, 90, 100, 120]
"""Places in a batch: CRC, length, chain, offset, count and so on, directory, values."""


@pytest.mark.parametrize("name", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_single_flipped_bit_is_put_right(
    name: str, number: int, log: Path, pristine: Path
) -> None:
    begin = batch_at(log / name, number)
    for place in BATCH_BITS:
        flip(log / name, begin + place, 1 << place % 8)
        plan = plan_repair(log, fs=FS)
        assert [step.kind for step in plan.steps] == [RepairKind.CORRECT_BIT]
        assert [damage.position for damage in plan.damages] == [begin + place]
        assert plan.lost == ()
        flip(log / name, begin + place, 1 << place % 8)
    flip(log / name, begin + 90, 1)
    repaired(log)
    assert (log / name).read_bytes() == (pristine / name).read_bytes()
    check_contents(plan, log, pristine)


def test_flipped_bits_of_several_batches(log: Path, pristine: Path) -> None:
    for name, number in ((FIRST, 0), (FIRST, 1), (FIRST, 4), (SECOND, 2), (THIRD, 3)):
        flip(log / name, batch_at(log / name, number) + 90, 4)
    plan = repaired(log)
    assert [step.kind for step in plan.steps] == [RepairKind.CORRECT_BIT] * 5
    check_contents(plan, log, pristine)


def test_two_flipped_bits_of_a_batch_are_damage(log: Path) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90, 4)
    flip(log / SECOND, batch_at(log / SECOND, 2) + 95, 4)
    assert plan_repair(log, fs=FS).unreadable == (Interval(8, 9),)


# -- nothing to do, and refusals -------------------------------------------------------------------


def test_a_good_log_needs_nothing(log: Path) -> None:
    before = files(log)
    plan = plan_repair(log, fs=FS)
    assert not plan.is_needed
    assert (plan.head, plan.limit, plan.lost, plan.steps) == (1, 16, (), ())
    apply_repair(plan, fs=FS)
    assert files(log) == before


def test_no_log(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LogNotFoundError):
            plan_repair(path)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_open(log: Path) -> None:
    flip(log / SECOND, 20)
    plan = plan_repair(log, fs=FS)
    lock = PosixFileSystem().lock(log / "LOCK", "somebody")
    with pytest.raises(WalLockedError):
        apply_repair(plan, fs=FS)
    lock.release()


def test_a_log_that_changed_meanwhile(log: Path) -> None:
    flip(log / SECOND, 20)
    plan = plan_repair(log, fs=FS)
    flip(log / THIRD, 20)
    before = files(log)
    with pytest.raises(WalError, match="changed since the repair was planned"):
        apply_repair(plan, fs=FS)
    assert files(log) == before


def test_a_newer_version(log: Path) -> None:
    from crc32c import crc32c

    data = bytearray((log / SECOND).read_bytes())
    data[12:14] = (99).to_bytes(2, "little")
    data[8:12] = crc32c(bytes(data[12 : segment.HEADER_BYTES])).to_bytes(4, "little")
    (log / SECOND).write_bytes(data)
    with pytest.raises(FormatVersionError):
        plan_repair(log, fs=FS)


def test_a_full_disk_is_told_before_anything_is_changed(log: Path) -> None:
    flip(log / SECOND, 20)
    fs = FaultyFileSystem(FS)
    fs.limit_space(1000)
    plan = plan_repair(log, fs=fs)
    before = files(log)
    with pytest.raises(DiskFullError, match="the repair writes"):
        apply_repair(plan, fs=fs)
    assert files(log) == before


# -- the journal -----------------------------------------------------------------------------------


def _interrupt(log: Path) -> RepairPlan:
    """Begin a repair and fail behind its first move."""
    plan = plan_repair(log, keep="before", fs=FS)
    fs = FaultyFileSystem(FS)
    fs.fail("replace", nth=3, times=None)
    with pytest.raises(OSError, match="Input/output error"):
        apply_repair(plan, fs=fs)
    return plan


def test_an_interrupted_repair_keeps_the_log_shut_until_it_is_finished(
    log: Path, pristine: Path
) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    begun = _interrupt(log)
    with pytest.raises(CorruptionError, match=r"repair\.wal"):
        open_blocking(log, fs=FS)
    plan = plan_repair(log, fs=FS)
    assert plan.steps[0].kind is RepairKind.FINISH
    assert (plan.lost, plan.actions) == (begun.lost, begun.actions)
    apply_repair(plan, fs=FS)
    assert not (log / JOURNAL_NAME).exists()
    check_contents(plan, log, pristine)


def test_a_damaged_plan_of_an_interrupted_repair(log: Path, pristine: Path) -> None:
    """Then what was moved away already is lost to the log, and the report says so."""
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    _interrupt(log)
    flip(log / JOURNAL_NAME, 100)
    assert load_interrupted(FS, log) is None
    plan = repaired(log, "before")
    assert any("plan of an interrupted repair" in damage.message for damage in plan.damages)
    check_contents(plan, log, pristine)


def test_the_record_of_a_repair_stays(log: Path) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    plan = repaired(log, "before")
    data = (log / KEPT_NAME / "repair-1.json").read_bytes()
    assert decode_plan(data, "") == plan
    assert b'"lost"' in data
    flip(log / SECOND, batch_at(log / SECOND, 1) + 90)
    records_before = {path.name for path in (log / KEPT_NAME).iterdir()}
    repaired(log)
    added = {path.name for path in (log / KEPT_NAME).iterdir()} - records_before
    assert {"repair-2.json", f"{SECOND}.2", "CHECKPOINT.2"} <= added


def test_plans_survive_their_encoding(log: Path) -> None:
    flip(log / SECOND, batch_at(log / SECOND, 2) + 90)
    for keep in (None, "before", "after", 3):
        plan = plan_repair(log, keep=keep, fs=FS)
        assert decode_plan(encode_plan(plan), "") == plan
    data = encode_plan(plan)
    assert decode_plan(data[:-5], "") is None
    assert decode_plan(b"", "") is None


# -- any damage ------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    name=st.sampled_from([FIRST, SECOND, THIRD, *HINTS]),
    place=st.floats(0, 1, exclude_max=True),
    mask=st.integers(0, 255),
    keep=st.sampled_from(["before", "after"]),
)
@pytest.mark.slow
def test_any_flipped_byte_or_cut(
    name: str, place: float, mask: int, keep: Keep, pristine: Path, tmp_path: Path
) -> None:
    """A mask of 0 stands for a cut. What is not reported as lost is intact."""
    log = tmp_path / "log"
    for path in (log, log.with_name("twin")):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(pristine, log)
    position = int(place * (log / name).stat().st_size)
    if mask:
        flip(log / name, position, mask)
    else:
        cut(log / name, position)
    needs_choice = plan_repair(log, fs=FS).needs_choice
    plan = repaired(log, keep if needs_choice else None)
    check_contents(plan, log, pristine)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_flipped_bytes(pristine: Path, tmp_path: Path) -> None:
    for name in (FIRST, SECOND, THIRD, *HINTS):
        for position in range(0, (pristine / name).stat().st_size, every(7)):
            log = tmp_path / "log"
            for path in (log, log.with_name("twin")):
                shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(pristine, log)
            flip(log / name, position, 1 << position % 8 if position % 2 else 0xFF)
            needs_choice = plan_repair(log, fs=FS).needs_choice
            plan = repaired(log, ("before", "after")[position % 4 // 2] if needs_choice else None)
            check_contents(plan, log, pristine)


def test_settings_of_the_log_do_not_matter(log_directory: Path) -> None:
    """Compressed batches, many segments: repaired all the same."""

    async def make() -> None:
        small = Settings(segment_bytes=64 << 10, checkpoint_bytes=64 << 10)
        async with Wal.open(log_directory, settings=small) as wal:
            for number in range(300):
                await wal.append(b"%d" % number * 400, durability="memory")
            await wal.flush()

    asyncio.run(make())
    paths = sorted(log_directory.glob("*.wal"))
    flip(paths[1], batch_at(paths[1], 1) + 500)
    plan = plan_repair(log_directory, fs=FS)
    assert plan.needs_choice
    assert len(plan.unreadable) == 1
    plan = repaired(log_directory, "after")
    assert list(records(log_directory)) == list(range(plan.head, plan.limit))
