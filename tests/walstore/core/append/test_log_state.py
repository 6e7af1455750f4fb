"""Reached: the outcome of an append, by how far the tail had come. LogState: what each event changes and whom
it wakes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import frames
from tests.local import turns
from walstore import WalClosedError
from walstore.core.append.log_state import Commit, LogState, Reached
from walstore.core.batches.framer import Framed
from walstore.core.files.segment_file import Segment
from walstore.core.format.segment import SegmentSummary


def segment(start: int, limit: int | None = None) -> Segment:
    summary = None if limit is None else SegmentSummary(start, limit, 1000, 0, 0)
    return Segment(Path(f"{start}.wal"), start, summary)


def commit(start: int, count: int, *, sealed=(), active: Segment | None = None) -> Commit:
    data = bytearray(frames.build(frames.values_only(*[b"x"] * count, start=start)))
    return Commit(
        frames=[Framed(data, 0, start, start + count, data)],
        limit=start + count,
        durable_limit=start + count,
        is_synced=True,
        serial=0,
        sealed=list(sealed),
        active=active or segment(1),
        size_bytes=len(data),
        head=1,
        registers=None,
    )


@pytest.fixture
async def state():
    """An empty log that begins at 1."""
    return LogState(
        loop=asyncio.get_running_loop(),
        head=1,
        durable_limit=1,
        uploaded_limit=1,
        sealed=[],
        active=segment(1),
        cache_bytes=1 << 20,
    )


async def test_a_commit_moves_limit_cache_and_counters_together(state) -> None:
    waiter = state.durable.waiter(4)
    assert state.on_commit(commit(1, 3)) == [waiter]  # for the caller to wake
    assert state.durable.value == 4
    assert state.appended_records == 3
    assert 0 < state.appended_bytes < state.cache.size_bytes
    assert [(b.start, b.limit) for b in state.cache.read(1, 4, 100)] == [(1, 4)]


async def test_segments_are_found_by_offset(state) -> None:
    state.on_commit(commit(1, 3))
    state.on_commit(commit(4, 3, sealed=[segment(1, 4)], active=segment(4)))
    state.on_rotate(segment(4, 7), segment(7))
    assert [state.segment_of(offset).start for offset in (1, 3, 4, 6, 7, 99)] == [1, 1, 4, 4, 7, 7]
    assert state.segment_of(0) is None
    assert [s.start for s in state.sealed_segments()] == [1, 4]
    state.on_drop([1], 4)
    assert state.head == 4
    assert state.segment_of(3) is None
    assert state.segment_of(4).start == 4


async def test_a_failure_reaches_every_waiter_with_its_own_error(state) -> None:
    waiters = [state.durable.waiter(2), state.durable.waiter(5), state.uploaded.waiter(2)]
    state.on_failure(
        Reached(2, 2, 5, 0, 0, 0),
        lambda target: RuntimeError(str(target)),
        lambda serial: RuntimeError(str(serial)),
    )
    await waiters[0]
    for waiter, target in ((waiters[1], "5"), (waiters[2], "2")):
        with pytest.raises(RuntimeError, match=target):
            await waiter
    assert state.is_draining
    assert state.draining.done()


async def test_the_end_is_told_to_each_waiter_by_a_copy(state) -> None:
    error = WalClosedError("the log is closed")
    first, second = state.durable.waiter(2), state.durable.waiter(2)
    state.end(error)
    assert str(first.exception()) == str(second.exception()) == "the log is closed"
    assert first.exception() is not second.exception()


# -- shipping --------------------------------------------------------------------------------------


async def due(state: LogState, appended_bytes: int = 1 << 30) -> asyncio.Task[None]:
    task = asyncio.create_task(state.wait_shipping_due(appended_bytes))
    await turns()
    return task


async def test_shipping_is_due_after_so_many_bytes(state) -> None:
    task = await due(state, 1)
    assert not task.done()
    state.on_commit(commit(1, 1))
    await task
    assert (await due(state, state.appended_bytes)).done()
    later = await due(state, state.appended_bytes + 1)
    assert not later.done()
    later.cancel()


async def test_shipping_is_due_once_for_sealed_segments(state) -> None:
    state.on_rotate(segment(1, 4), segment(4))
    assert (await due(state)).done()
    task = await due(state)
    assert not task.done()
    state.on_rotate(segment(4, 7), segment(7))
    await task


@pytest.mark.parametrize("what", ["cloud", "drain", "failure"])
async def test_shipping_is_due_when_somebody_waits_or_the_log_ends(state, what) -> None:
    task = await due(state)
    waiter = None
    if what == "cloud":
        waiter = state.uploaded.waiter(5)
        state.request_cloud()
        assert state.wants_cloud
    elif what == "drain":
        state.drain()
        state.drain()
    else:
        state.on_failure(
            Reached(1, 1, 1, 0, 0, 0), lambda _: RuntimeError(), lambda _: RuntimeError()
        )
    await task
    assert (await due(state)).done()
    del waiter


async def test_an_upload_wakes_waiters_and_retention(state) -> None:
    waiter = state.uploaded.waiter(5)
    assert not state.shrinkable.is_set()
    state.advance_uploaded(5)
    await waiter
    assert state.shrinkable.is_set()
    assert not state.wants_cloud


async def test_a_cancelled_wait_for_shipping_leaves_nothing_behind(state) -> None:
    task = await due(state)
    task.cancel()
    await turns()
    state.drain()
    assert (await due(state)).done()


def reached() -> Reached:
    return Reached(
        durable_limit=5,
        written_limit=8,
        attempted_limit=10,
        durable_serial=2,
        written_serial=4,
        attempted_serial=6,
    )


def test_records_are_durable_unknown_or_not_written_by_their_limit() -> None:
    found = {limit: reached().outcome(limit) for limit in (4, 5, 6, 8, 9, 10)}
    assert found == {
        4: "durable",
        5: "durable",
        6: "unknown",
        8: "unknown",
        9: "not_written",
        10: "not_written",
    }


def test_changes_of_the_ledger_are_too_by_their_number() -> None:
    found = {serial: reached().settled_outcome(serial) for serial in (2, 3, 4, 5)}
    assert found == {2: "durable", 3: "unknown", 4: "unknown", 5: "not_written"}


def test_in_doubt_all_that_was_handed_over_may_be_on_disk() -> None:
    doubt = reached().in_doubt()
    assert [doubt.outcome(limit) for limit in (5, 6, 10, 11)] == [
        "durable",
        "unknown",
        "unknown",
        "not_written",
    ]
    assert [doubt.settled_outcome(serial) for serial in (2, 3, 6, 7)] == [
        "durable",
        "unknown",
        "unknown",
        "not_written",
    ]


def test_a_sync_covers_all_that_was_written() -> None:
    found = reached()
    found.note_synced()
    assert (found.outcome(8), found.settled_outcome(4)) == ("durable", "durable")
