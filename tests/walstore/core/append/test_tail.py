"""Tail: one write and one sync for a commit, and files on disk that recovery always accepts."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.local import (
    SMALL,
    close_opened,
    draft_of,
    open_blocking,
    open_descriptors,
    read_opened,
    segments,
)
from walstore.core.append.log_state import TailError
from walstore.core.append.tail import Tail
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_batches
from walstore.core.format import checkpoint, segment
from walstore.core.format.checkpoint import DurableCell
from walstore.core.settings import KIB
from walstore.log.opening import Opened
from walstore.testing import Call, FaultyFileSystem, ManualClock

ACTIVE = "next.tmp"
"""The name under which the first segment was opened; its calls keep it."""


@pytest.fixture
def opened(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An empty log on a file system that can fail."""
    found = open_blocking(log_directory, fs=faulty, clock=clock)
    yield found
    faulty.heal()
    close_opened(found, clean=False)


@pytest.fixture
def tail(opened: Opened) -> Tail:
    """Its tail."""
    return opened.tail


def cell_of(directory: Path) -> DurableCell:
    found = checkpoint.decode_cell((directory / checkpoint.CELL_FILE_NAME).read_bytes())
    assert found is not None
    return found


def checkpoint_of(directory: Path) -> checkpoint.Checkpoint:
    data = (directory / checkpoint.FILE_NAME).read_bytes()
    found = checkpoint.decode_checkpoint(data, "CHECKPOINT")
    assert found is not None
    return found


def reopened_values(directory: Path) -> list[bytes]:
    """Open the log on the plain file system and return all its values."""
    opened = open_blocking(directory)
    try:
        limit = opened.tail.durable_limit
        found: list[bytes] = []
        for source in [*opened.sealed, opened.tail.active]:
            end = source.summary.limit if source.summary else limit
            while opened.tail.head + len(found) < end:
                at = opened.tail.head + len(found)
                for batch in read_batches(PosixFileSystem(), source, at, end, 1 << 20):
                    found += batch.values
        return found
    finally:
        close_opened(opened)


def names(calls, *kinds: str) -> list[tuple[str, str]]:
    return [(call.kind, call.path.name) for call in calls if call.kind in kinds]


# -- commits ---------------------------------------------------------------------------------------


def test_a_commit_is_one_write_and_one_sync_whatever_it_holds(tail, faulty) -> None:
    tail.commit([draft_of(1, b"first")])  # reserves the space
    before = len(faulty.calls)
    commit = tail.commit([draft_of(2, *[b"x"] * 100), draft_of(102, b"y"), draft_of(103, b"z")])
    kinds = [call.kind for call in faulty.calls[before:]]
    assert kinds == ["pwrite", "datasync", "store"]
    assert [(framed.start, framed.limit) for framed in commit.frames] == [
        (2, 102),
        (102, 103),
        (103, 104),
    ]
    assert tail.durable_limit == 104


def test_T1_the_durable_limit_moves_only_after_the_sync(tail, faulty, log_directory) -> None:
    seen: list[tuple[int, int]] = []

    def look(call: Call) -> None:
        if call.kind in ("pwrite", "datasync"):
            seen.append((tail.durable_limit, cell_of(log_directory).durable_limit))

    faulty.before_each(look)
    tail.commit([draft_of(1, b"a", b"b")])
    assert seen == [(1, 1), (1, 1)]
    assert cell_of(log_directory).durable_limit == tail.durable_limit == 3


def test_the_cell_says_where_the_durable_frames_end(tail, log_directory) -> None:
    tail.commit([draft_of(1, b"a")])
    cell = cell_of(log_directory)
    assert (cell.head, cell.durable_limit, cell.epoch, cell.tail_start) == (1, 2, 1, 1)
    data = segments(log_directory)[0].read_bytes()
    assert any(data[: cell.tail_position])
    assert not any(data[cell.tail_position :])


def test_space_is_reserved_ahead_and_cut_off_at_the_end(log_directory) -> None:
    opened = open_blocking(log_directory, settings=SMALL.replace(segment_bytes=4 << 20))
    path = opened.tail.active.path
    assert path.stat().st_size == segment.HEADER_BYTES, "an idle log reserves nothing"
    opened.tail.commit([draft_of(1, b"a")])
    assert path.stat().st_size >= 1 << 20
    close_opened(opened)
    assert path.stat().st_size < 1000


def test_commits_of_many_sizes_are_read_back(log_directory) -> None:
    opened = open_blocking(log_directory, settings=SMALL.replace(segment_bytes=1 << 20))
    expected: list[bytes] = []
    for size in (0, 1, 100, 5000, 300_000, 7):
        draft = draft_of(len(expected) + 1, *[b"v" * size] * 3)
        opened.tail.commit([draft])
        expected += draft.values
    close_opened(opened)
    assert reopened_values(log_directory) == expected


def test_timestamps_never_go_back_though_the_clock_does(tail, clock) -> None:
    first = tail.commit([draft_of(1, b"a")]).frames[0].base_timestamp_us
    clock.shift_wall(-3600)
    second = tail.commit([draft_of(2, b"b"), draft_of(3, b"c", timestamp_us=5)])
    assert [framed.base_timestamp_us for framed in second.frames] == [first, first]


# -- rotation --------------------------------------------------------------------------------------


def test_T3_a_segment_is_sealed_and_synced_before_the_next_one_gets_its_name(
    tail, faulty, log_directory
) -> None:
    tail.commit([draft_of(1, b"a", b"b")])
    before = len(faulty.calls)
    sealed = tail.rotate()
    calls = names(
        faulty.calls[before:], "pwrite", "truncate", "datasync", "replace", "sync_directory"
    )
    old, new = segment.file_name(1), segment.file_name(3)
    assert calls == [
        ("pwrite", ACTIVE),  # the footer
        ("truncate", ACTIVE),
        ("datasync", ACTIVE),
        ("pwrite", ACTIVE),  # the header of the next
        ("datasync", ACTIVE),
        ("replace", new),
        ("sync_directory", log_directory.name),
    ]
    assert sealed.summary is not None
    assert (sealed.start, sealed.summary.limit) == (1, 3)
    assert [path.name for path in segments(log_directory)] == [old, new]


def test_a_commit_that_does_not_fit_goes_to_the_next_segment_whole(tail, log_directory) -> None:
    tail.commit([draft_of(1, b"a" * 50 * KIB)])
    commit = tail.commit([draft_of(2, b"b" * 10 * KIB), draft_of(3, b"c" * 10 * KIB)])
    assert [(s.start, s.summary.limit) for s in commit.sealed if s.summary] == [(1, 3)]
    assert commit.active.start == 3
    assert [path.name for path in segments(log_directory)] == [
        segment.file_name(1),
        segment.file_name(3),
    ]
    assert (tail.durable_limit, cell_of(log_directory).tail_start) == (4, 3)


def test_frames_are_durable_before_a_footer_vouches_for_them(tail, faulty) -> None:
    tail.commit([draft_of(1, b"a" * 50 * KIB)])
    before = len(faulty.calls)
    tail.commit([draft_of(2, b"b" * 10 * KIB), draft_of(3, b"c" * 10 * KIB)])
    calls = names(faulty.calls[before:], "pwrite", "datasync")
    assert [kind for kind, _ in calls[:3]] == ["pwrite", "datasync", "pwrite"]


def test_one_batch_larger_than_a_segment_is_not_split(log_directory) -> None:
    opened = open_blocking(log_directory)
    opened.tail.commit([draft_of(1, b"a")])
    opened.tail.commit([draft_of(2, b"b" * 200 * KIB)])
    opened.tail.commit([draft_of(3, b"c")])
    assert [path.name for path in segments(log_directory)] == [
        segment.file_name(start) for start in (1, 2, 3)
    ]
    close_opened(opened)
    assert [len(value) for value in reopened_values(log_directory)] == [1, 200 * KIB, 1]


def test_an_empty_segment_is_known_as_such(tail) -> None:
    assert tail.is_empty
    tail.commit([draft_of(1, b"")])
    assert not tail.is_empty
    tail.rotate()
    assert tail.is_empty


# -- checkpoints and head --------------------------------------------------------------------------


def test_a_checkpoint_is_wanted_after_so_many_bytes(tail, log_directory) -> None:
    tail.commit([draft_of(1, b"a" * 30 * KIB)])
    assert not tail.wants_checkpoint
    tail.commit([draft_of(2, b"a" * 60 * KIB)])
    assert tail.wants_checkpoint
    tail.checkpoint()
    assert not tail.wants_checkpoint
    found = checkpoint_of(log_directory)
    assert found.next_offset == 3
    assert [summary.start for summary in found.sealed] == [1]
    assert (found.tail_start, found.tail_position) == (2, cell_of(log_directory).tail_position)


def test_T4_the_head_is_durable_before_a_file_goes(tail, faulty, log_directory) -> None:
    for start in (1, 2, 3):
        tail.commit([draft_of(start, b"a" * 50 * KIB)])
    assert tail.advance_head(2) == [1]
    assert checkpoint_of(log_directory).head == cell_of(log_directory).head == tail.head == 2
    assert len(segments(log_directory)) == 3
    seen: list[tuple[str, int]] = []
    faulty.before_each(
        lambda call: (
            seen.append((call.path.name, checkpoint_of(log_directory).head))
            if call.kind in ("remove", "replace", "datasync")
            else None
        )
    )
    tail.remove([1])
    assert [path.name for path in segments(log_directory)] == [
        segment.file_name(2),
        segment.file_name(3),
    ]
    assert seen == [("DURABLE", 2), (ACTIVE, 2)], "its file gets that name"


def test_only_whole_sealed_segments_are_dropped(tail) -> None:
    for start in (1, 2, 3):
        tail.commit([draft_of(start, b"a" * 50 * KIB)])
    assert tail.advance_head(1) == []
    assert tail.advance_head(3) == [1, 2]
    assert tail.advance_head(3) == []
    assert tail.advance_head(2) == []
    assert tail.head == 3


def test_a_head_inside_a_segment_is_in_the_log_itself(log_directory) -> None:
    """Also without the checkpoint, which could be lost."""
    opened = open_blocking(log_directory)
    opened.tail.commit([draft_of(1, b"a", b"b", b"c", b"d")])
    assert opened.tail.advance_head(3) == []
    opened.tail.commit([draft_of(5, b"e")])
    close_opened(opened)
    for name in ("CHECKPOINT", "DURABLE"):
        (log_directory / name).unlink()
    opened = open_blocking(log_directory)
    assert opened.tail.head == 3
    assert [record.offset for record in read_opened(opened)] == [3, 4, 5]
    close_opened(opened)


def test_a_head_without_room_for_its_frame_is_the_begin_of_its_segment(
    opened, faulty, log_directory
) -> None:
    """The log goes on where it was: what is written next continues the frame before the lost one."""
    tail = opened.tail
    tail.commit([draft_of(1, b"a", b"b", b"c")])
    faulty.fail("pwrite", errno.ENOSPC, name=ACTIVE, written_bytes=0)
    assert tail.advance_head(3) == []
    assert (tail.head, tail.ledger.head) == (1, 0)
    faulty.heal()
    tail.commit([draft_of(4, b"d")])
    close_opened(opened, clean=False)
    assert reopened_values(log_directory) == [b"a", b"b", b"c", b"d"]


def test_a_head_whose_frame_is_written_in_part_fails_the_log(tail, faulty) -> None:
    """What is behind the last frame is not known, so nothing may be written there."""
    tail.commit([draft_of(1, b"a", b"b", b"c")])
    faulty.fail("pwrite", errno.ENOSPC, name=ACTIVE)
    faulty.fail("truncate", errno.ENOSPC)
    with pytest.raises(TailError):
        tail.advance_head(3)
    faulty.heal()
    with pytest.raises(TailError):
        tail.commit([draft_of(4, b"d")])


# -- failures --------------------------------------------------------------------------------------


def outcome_of(error: TailError) -> str:
    """Return what became of the last record that was handed over."""
    return error.reached.outcome(error.reached.attempted_limit)


def commit_failing(tail: Tail, *drafts: BatchBuilder) -> TailError:
    with pytest.raises(TailError) as failed:
        tail.commit(drafts)
    return failed.value


@pytest.mark.parametrize("written", [None, 0, 1, 50, 100])
def test_a_write_that_fails_is_taken_back(opened, faulty, log_directory, written) -> None:
    opened.tail.commit([draft_of(1, b"kept")])
    faulty.fail("pwrite", errno.ENOSPC, name=ACTIVE, written_bytes=written)
    error = commit_failing(opened.tail, draft_of(2, b"lost" * 100))
    assert (error.cause.errno, error.reached.durable_limit, outcome_of(error)) == (
        errno.ENOSPC,
        2,
        "not_written",
    )
    close_opened(opened, clean=False)
    assert reopened_values(log_directory) == [b"kept"]


def test_a_write_that_fails_and_cannot_be_taken_back_is_unknown(tail, faulty) -> None:
    faulty.fail("pwrite", errno.EIO, name=ACTIVE)
    faulty.fail("truncate", errno.EIO)
    assert outcome_of(commit_failing(tail, draft_of(1, b"a"))) == "unknown"


def test_a_sync_that_fails_is_unknown_and_never_tried_again(opened, faulty, log_directory) -> None:
    tail = opened.tail
    tail.commit([draft_of(1, b"kept")])
    before = faulty.count("datasync", name=ACTIVE)
    faulty.fail("datasync", errno.EIO, name=ACTIVE)
    error = commit_failing(tail, draft_of(2, b"in doubt"))
    assert (error.reached.durable_limit, outcome_of(error)) == (2, "unknown")
    close_opened(opened, clean=False)
    assert faulty.count("datasync", name=ACTIVE) == before + 1
    assert cell_of(log_directory).durable_limit == 2


def test_T2_after_a_failure_nothing_is_written_any_more(tail, faulty) -> None:
    faulty.fail("datasync", errno.EIO, name=ACTIVE)
    failure = commit_failing(tail, draft_of(1, b"in doubt"))
    faulty.heal()
    before = len(faulty.calls)
    for call in (tail.sync, tail.rotate, tail.checkpoint, lambda: tail.commit([draft_of(2, b"b")])):
        with pytest.raises(TailError) as again:
            call()
        assert again.value is failure
    assert len(faulty.calls) == before


def test_what_a_failed_sync_left_in_memory_only_is_not_found_again(
    opened, faulty, log_directory
) -> None:
    """The system may drop such pages without writing them, and says nothing the second time."""
    opened.tail.commit([draft_of(1, b"kept")])
    faulty.fail("datasync", errno.EIO, name=ACTIVE)
    commit_failing(opened.tail, draft_of(2, b"in doubt"))
    close_opened(opened, clean=False)
    assert reopened_values(log_directory) == [b"kept"]


@pytest.mark.parametrize(
    "kind", ["pwrite", "truncate", "datasync", "open", "replace", "sync_directory"]
)
def test_a_rotation_that_fails_inside_a_commit_keeps_what_was_durable(
    opened, faulty, log_directory, kind
) -> None:
    """The first draft is durable by then; of the second nothing was written."""
    tail = opened.tail
    tail.commit([draft_of(1, b"a" * 50 * KIB)])
    faulty.fail(kind, errno.EIO, nth=2 if kind in ("pwrite", "datasync") else 1)
    error = commit_failing(tail, draft_of(2, b"b" * 10 * KIB), draft_of(3, b"c" * 10 * KIB))
    assert (error.reached.durable_limit, outcome_of(error)) == (3, "not_written")
    assert tail.reached.attempted_limit == 4
    faulty.heal()
    close_opened(opened, clean=False)
    assert [value[:1] for value in reopened_values(log_directory)] == [b"a", b"b"]


def test_without_room_to_reserve_it_writes_as_far_as_there_is_room(log_directory, faulty) -> None:
    opened = open_blocking(log_directory, fs=faulty)
    faulty.limit_space(40 * KIB)
    for start in range(1, 4):
        opened.tail.commit([draft_of(start, b"x" * 10 * KIB)])
    error = commit_failing(opened.tail, draft_of(4, b"x" * 10 * KIB))
    assert (error.cause.errno, error.reached.durable_limit, outcome_of(error)) == (
        errno.ENOSPC,
        4,
        "not_written",
    )
    close_opened(opened, clean=False)
    assert len(reopened_values(log_directory)) == 3
    assert faulty.count("allocate") == 1


def test_an_open_that_fails_at_any_call_leaves_neither_descriptor_nor_lock(
    log_directory, faulty
) -> None:
    failed: list[str] = []
    for nth in range(1, 60):
        before = len(faulty.calls)
        faulty.fail("*", errno.EIO, nth=nth)
        try:
            opened = open_blocking(log_directory, fs=faulty)
        except OSError:
            failed.append(faulty.calls[before + nth - 1].kind)
            faulty.heal()
            assert open_descriptors(log_directory) == []
            shutil.rmtree(log_directory, ignore_errors=True)
            continue
        made = [call.kind for call in faulty.calls[before:]]
        faulty.heal()
        close_opened(opened)
        if len(made) < nth:
            break
        assert made[nth - 1] in ("cell", "store", "free_bytes")  # it opens without
        shutil.rmtree(log_directory)
    else:
        pytest.fail("it should have opened")
    assert {"lock", "list", "open", "pwrite", "datasync", "replace"} <= {*failed}
    assert open_descriptors(log_directory) == []
