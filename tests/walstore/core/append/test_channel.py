"""Channel: offsets in order, room within the budget, first come first served."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels import Channel
from tests.local import gather_outcomes, turns
from walstore import RecordTooLargeError, Settings, WalClosedError, WouldBlock
from walstore.core.batches.append_request import make_group, make_record
from walstore.core.batches.batch_builder import (
    RECORD_OVERHEAD_BYTES,
    RECORD_ROOM_BYTES,
    AppendRequest,
)
from walstore.core.format.frame import MOST_RECORDS
from walstore.core.settings import KIB
from walstore.errors import OffsetNotWrittenError

SETTINGS = Settings(
    channel_bytes=1000, channel_records=50, max_record_bytes=400, batch_bytes=4 * KIB
)
HUGE = 1 << 30


def make(settings: Settings = SETTINGS, start: int = 1) -> Channel:
    return Channel(start, settings, asyncio.get_running_loop())


def group_of(*values: bytes) -> AppendRequest:
    return make_group(values, None, None, None, None)


def one(value: bytes) -> AppendRequest:
    return make_record(value, None, None, None, None)


def drain(channel: Channel) -> list[bytes]:
    """Take everything, give its room back, and return the values."""
    values: list[bytes] = []
    while drafts := channel.take(HUGE):
        values += [value for draft in drafts for value in draft.values]
        channel.release(drafts)
    return values


async def test_offsets_count_up_from_the_first_in_the_order_of_acceptance() -> None:
    channel = make(start=7)
    assert channel.put_value(b"a") == 7
    assert channel.put(group_of(b"b", b"c")) == 8
    assert await channel.put_wait(group_of(b"d")) == 10
    assert channel.put_value(b"") == 11
    assert channel.tail == 12
    (draft,) = channel.take(HUGE)
    assert (draft.start, draft.limit) == (7, 12)
    assert draft.values == [b"a", b"b", b"c", b"d", b""]


async def test_optional_columns_are_filled_for_plain_values() -> None:
    channel = make()
    channel.put_value(b"a")
    channel.put(make_record(b"b", b"key", "eu", {"h": b"1"}, 5))
    channel.put_value(b"c")
    (draft,) = channel.take(HUGE)
    assert draft.keys == [None, b"key", None]
    assert draft.streams == [None, "eu", None]
    assert draft.headers is not None
    assert [packed is not None for packed in draft.headers] == [False, True, False]
    assert draft.timestamps_us == [None, 5, None]


async def test_a_draft_ends_at_the_size_of_a_batch_and_a_group_is_never_split() -> None:
    settings = SETTINGS.replace(channel_bytes=1 << 20, max_record_bytes=1 << 20)
    channel = make(settings.replace(channel_records=10_000))
    for _ in range(3):
        channel.put(group_of(*[b"x" * 92] * 30))  # 3000 bytes
    channel.put(group_of(*[b"y" * 92] * 100))  # more than a batch
    channel.put_value(b"z")
    drafts = channel.take(HUGE)
    assert [len(draft.values) for draft in drafts] == [30, 30, 30, 100, 1]
    assert [draft.size_bytes for draft in drafts] == [3000, 3000, 3000, 10_000, 9]
    assert [draft.start for draft in drafts] == [1, 31, 61, 91, 191]


async def test_plain_values_fill_batches_too() -> None:
    settings = SETTINGS.replace(channel_bytes=1 << 20, channel_records=10_000)
    channel = make(settings)
    for _ in range(100):
        channel.put_value(b"x" * 92)
    drafts = channel.take(HUGE)
    assert [len(draft.values) for draft in drafts] == [40, 40, 20]


async def test_a_batch_has_not_too_many_records_but_for_a_larger_group() -> None:
    channel = make(Settings())
    for _ in range(40_000):
        channel.put_value(b"")
    channel.put(group_of(*[b""] * 20_000))
    channel.put(group_of(b"", b""))
    sizes = [len(draft.values) for draft in channel.take(HUGE)]
    assert sizes == [16_384, 16_384, 40_000 - 2 * 16_384, 20_000, 2]


async def test_batches_stay_well_below_small_segments() -> None:
    settings = Settings(segment_bytes=64 * KIB)
    channel = make(settings)
    for _ in range(100):
        channel.put_value(b"x" * 1016)
    assert all(draft.size_bytes <= 16 * KIB for draft in channel.take(HUGE))


async def test_take_returns_at_least_one_and_about_as_much_as_asked() -> None:
    channel = make(SETTINGS.replace(channel_bytes=1 << 20, channel_records=10_000))
    for _ in range(200):
        channel.put_value(b"x" * 92)  # 40 in a batch of 4000
    assert [len(channel.take(1)), len(channel.take(8500)), len(channel.take(HUGE))] == [1, 2, 2]
    assert channel.take(HUGE) == []
    assert channel.is_empty


async def test_a_full_channel_refuses_at_once_without_burning_an_offset() -> None:
    channel = make()
    assert channel.put(group_of(b"x" * 300, b"x" * 300)) == 1  # 712
    assert channel.put_value(b"x" * 232) == 3  # 1000
    for attempt in (channel.put_value, lambda value: channel.put(one(value))):
        with pytest.raises(WouldBlock, match="1000 bytes and 3 records wait") as refused:
            attempt(b"")
        assert (refused.value.outcome, refused.value.retriable) == ("not_written", True)
    assert channel.tail == 4
    assert channel.waiting == (1000, 3)
    drain(channel)
    assert channel.waiting == (0, 0)
    assert channel.put_value(b"") == 4


async def test_records_are_bounded_too() -> None:
    channel = make(SETTINGS.replace(channel_bytes=1 << 20))
    for _ in range(50):
        channel.put_value(b"")
    with pytest.raises(WouldBlock):
        channel.put_value(b"")
    with pytest.raises(WouldBlock):
        channel.put(group_of(b"", b""))
    assert len(drain(channel)) == 50
    assert channel.put_value(b"") == 51


@pytest.mark.parametrize("has_options", [False, True])
async def test_what_records_take_in_memory_is_within_the_budget(*, has_options: bool) -> None:
    channel = make(SETTINGS.replace(channel_bytes=4 << 20, channel_records=1_000_000))
    written_bytes = 0
    tracemalloc.start()
    try:
        with pytest.raises(WouldBlock):
            for number in range(1_000_000):
                value = b"%020d" % number
                if has_options:
                    channel.put(make_record(value, b"%016d" % number, None, {"h": b"1"}, number))
                    written_bytes += 20 + 16 + 6 + RECORD_OVERHEAD_BYTES
                else:
                    channel.put_value(value)
                    written_bytes += 20 + RECORD_OVERHEAD_BYTES
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 3 << 20 < taken_bytes < 4.2 * (1 << 20)
    # What is written at a time is counted by what is written, so that commits are as large as ever.
    assert sum(draft.size_bytes for draft in channel.take(HUGE)) == written_bytes


async def test_room_is_held_until_the_disk_has_it() -> None:
    channel = make()
    channel.put(group_of(b"x" * 400, b"x" * 400))
    drafts = channel.take(HUGE)
    with pytest.raises(WouldBlock):
        channel.put_value(b"x" * 300)
    channel.release(drafts)
    assert channel.put_value(b"x" * 300) == 3


@pytest.mark.parametrize("put", ["put_value", "put", "put_wait"])
async def test_a_record_over_the_limit_is_refused_before_it_takes_an_offset(put) -> None:
    channel = make()
    largest = b"x" * 400
    assert channel.put_value(largest) == 1
    drain(channel)
    with pytest.raises(RecordTooLargeError) as refused:
        match put:
            case "put_value":
                channel.put_value(largest + b"x")
            case "put":
                channel.put(one(largest + b"x"))
            case _:
                await channel.put_wait(one(largest + b"x"))
    error = refused.value
    assert (error.size_bytes, error.limit_bytes, error.outcome) == (401, 400, "not_written")
    assert channel.tail == 2


async def test_key_stream_and_headers_count_against_the_limit() -> None:
    channel = make()
    with pytest.raises(RecordTooLargeError):
        channel.put(make_record(b"x" * 300, b"k" * 90, "s" * 11, None, None))
    channel.put(make_record(b"x" * 300, b"k" * 90, "s" * 10, None, None))


async def test_a_group_over_the_budget_is_refused() -> None:
    channel = make()
    with pytest.raises(RecordTooLargeError, match="channel_bytes is 1000"):
        channel.put(group_of(*[b"x" * 101] * 10))
    assert channel.tail == 1


async def test_a_group_larger_than_the_budget_with_its_overhead_passes_alone() -> None:
    channel = make()
    large = group_of(*[b"x" * 100] * 10)  # 1000 bytes, and 80 of overhead
    assert channel.put(large) == 1
    with pytest.raises(WouldBlock):
        channel.put_value(b"")
    drain(channel)
    many = group_of(*[b""] * 60)  # more records than the budget
    assert channel.put(many) == 11
    drain(channel)
    channel.put_value(b"")
    with pytest.raises(WouldBlock):
        channel.put(large)


async def test_room_is_given_in_the_order_of_asking() -> None:
    channel = make()
    channel.put(group_of(b"x" * 400, b"x" * 400))
    order: list[int] = []

    async def append(size: int) -> None:
        offset = await channel.put_wait(one(b"x" * size))
        order.append(offset)

    async with asyncio.TaskGroup() as tasks:
        for size in (400, 1, 400, 1):  # the second would fit at once, but it came second
            tasks.create_task(append(size))
        await turns()
        assert order == []
        with pytest.raises(WouldBlock):  # nor does anybody overtake
            channel.put_value(b"")
        while not channel.is_empty:
            channel.release(channel.take(1))
            await turns()
    assert order == [3, 4, 5, 6]


async def test_cancelled_while_waiting_nothing_was_accepted_and_others_go_on() -> None:
    channel = make()
    channel.put(group_of(b"x" * 400, b"x" * 400))
    large = asyncio.create_task(channel.put_wait(one(b"L" * 400)))
    small = asyncio.create_task(channel.put_wait(one(b"s")))
    await turns()
    large.cancel()
    await turns()
    assert large.cancelled()
    assert small.result() == 3, "it fits now that nobody is before it"
    assert drain(channel) == [b"x" * 400, b"x" * 400, b"s"]


async def test_cancelled_as_it_is_accepted_the_record_is_in_the_log() -> None:
    channel = make()
    channel.put(group_of(b"x" * 400, b"x" * 400))
    waiting = asyncio.create_task(channel.put_wait(one(b"late" * 100)))
    await turns()
    channel.release(channel.take(HUGE))  # accepts it, but its task has not run yet
    waiting.cancel()
    await turns()
    assert waiting.cancelled()
    assert channel.tail == 4
    assert drain(channel) == [b"late" * 100]


async def test_cancelled_callers_are_forgotten_at_once() -> None:
    channel = make()
    channel.put(group_of(b"x" * 400, b"x" * 400))
    patient = asyncio.create_task(channel.put_wait(one(b"p" * 400)))
    await turns()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await channel.put_wait(one(b"x" * 400))
    assert len(channel._admissions.waiting) == 1
    drain(channel)
    assert await patient == 3


async def test_closing_refuses_new_records_and_those_that_wait_but_keeps_accepted_ones() -> None:
    channel = make()
    channel.put(group_of(b"a" * 400, b"b" * 400))
    waiting = asyncio.create_task(channel.put_wait(one(b"x" * 400)))
    await turns()
    channel.close(WalClosedError("the log is closed"))
    channel.close(WalClosedError("again"))
    with pytest.raises(WalClosedError, match=r"^the log is closed$") as refused:
        await waiting
    assert refused.value.outcome == "not_written"
    for attempt in (channel.put_value, lambda value: channel.put(one(value))):
        with pytest.raises(WalClosedError):
            attempt(b"")
    with pytest.raises(WalClosedError):
        await channel.put_wait(one(b""))
    assert drain(channel) == [b"a" * 400, b"b" * 400]


async def test_a_caller_cancelled_while_the_channel_closes_leaves_no_complaint() -> None:
    channel = make()
    channel.put(group_of(b"a" * 400, b"b" * 400))
    waiting = asyncio.create_task(channel.put_wait(one(b"x" * 400)))
    await turns()
    channel.close(WalClosedError("the log is closed"))
    waiting.cancel()
    await turns()
    assert waiting.cancelled()
    gc.collect()  # conftest.py fails the test if asyncio logged a lost exception


async def test_errors_do_not_collect_the_tracebacks_of_all_callers() -> None:
    channel = make()
    cause = OSError("broken")
    failure = WalClosedError("failed", reason="failed")
    failure.__cause__ = cause
    channel.close(failure)
    for _ in range(50):
        with pytest.raises(WalClosedError) as refused:
            channel.put_value(b"")
    error = refused.value
    assert (error.reason, error.__cause__) == ("failed", cause)
    depth = 0
    trace = error.__traceback__
    while trace is not None:
        trace, depth = trace.tb_next, depth + 1
    assert depth < 10


async def test_wait_ready_returns_when_there_is_something() -> None:
    channel = make()
    waiting = asyncio.create_task(channel.wait_ready())
    await turns()
    assert not waiting.done()
    channel.put_value(b"a")
    await waiting
    await channel.wait_ready()  # at once, until it is taken


@pytest.mark.parametrize("when", ["before", "during"])
async def test_poke_ends_one_wait(when) -> None:
    channel = make()
    if when == "before":
        channel.poke()
        await channel.wait_ready()
    else:
        waiting = asyncio.create_task(channel.wait_ready())
        await turns()
        channel.poke()
        await waiting
    again = asyncio.create_task(channel.wait_ready())
    await turns()
    assert not again.done(), "one poke ends one wait"
    again.cancel()


async def test_a_closed_channel_wakes_the_writer_once_and_never_makes_it_spin() -> None:
    channel = make()
    channel.close(WalClosedError("the log is closed"))
    await channel.wait_ready()
    again = asyncio.create_task(channel.wait_ready())
    await turns()
    assert not again.done()
    again.cancel()


async def test_only_assigned_offsets_can_be_waited_for() -> None:
    channel = make(start=5)
    channel.put_value(b"")
    channel.check_assigned(5)
    for offset in (6, 0, -1):
        with pytest.raises(OffsetNotWrittenError):
            channel.check_assigned(offset)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 410)),
        st.tuples(st.just("wait"), st.integers(0, 410)),
        st.tuples(st.just("group"), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.sampled_from([1, 500, HUGE])),
        st.tuples(st.just("release"), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_invariants_hold_over_any_history(steps) -> None:
    """C1 no gaps, C2 within the budget, C3 in the order of asking."""

    async def run() -> None:
        await _History().run(steps)

    asyncio.run(run())


class _History:
    """Does what Hypothesis says to a channel, and checks it after every step."""

    def __init__(self) -> None:
        self.channel = make()
        self.asked: list[asyncio.Task[int]] = []
        self.admitted: list[int] = []
        self.taken: list = []
        self.seen = 1

    async def run(self, steps) -> None:
        for what, detail in steps:
            with contextlib.suppress(WouldBlock, RecordTooLargeError):
                getattr(self, what)(detail)
            await turns(4)
            used, records = self.channel.waiting
            assert used >= 0
            assert used <= 1000 or used == records * (1 + RECORD_ROOM_BYTES)  # one group alone
        await self.end()

    def put(self, size: int) -> None:
        self.channel.put_value(b"x" * size)

    def group(self, count: int) -> None:
        self.channel.put(group_of(*[b"y"] * count))

    def wait(self, size: int) -> None:
        self.asked.append(asyncio.create_task(self.waiting(len(self.asked), size)))

    async def waiting(self, ticket: int, size: int) -> int:
        offset = await self.channel.put_wait(one(b"x" * size))
        self.admitted.append(ticket)
        return offset

    def cancel(self, ticket: int) -> None:
        if ticket < len(self.asked):
            self.asked[ticket].cancel()

    def take(self, most_bytes: int) -> None:
        drafts = self.channel.take(most_bytes)
        for draft in drafts:
            assert draft.start == self.seen
            assert RECORD_OVERHEAD_BYTES * len(draft.values) <= draft.size_bytes
            self.seen = draft.limit
        self.taken.append(drafts)

    def release(self, _: None) -> None:
        if self.taken:
            self.channel.release(self.taken.pop(0))

    async def end(self) -> None:
        for task in self.asked:
            task.cancel()
        results = await gather_outcomes(self.asked)
        assert self.admitted == sorted(self.admitted)
        offsets = [found for found in results if isinstance(found, int)]
        assert offsets == sorted(set(offsets))
        refusals = (asyncio.CancelledError, RecordTooLargeError)
        assert all(isinstance(found, (int, *refusals)) for found in results)
        self.take(HUGE)
        while self.taken:
            self.release(None)
        assert self.seen == self.channel.tail
        assert self.channel.waiting == (0, 0)


async def test_a_group_has_no_more_records_than_a_frame_can_have() -> None:
    channel = make()
    group = dataclasses.replace(group_of(b""), values=range(MOST_RECORDS + 1))
    with pytest.raises(RecordTooLargeError, match="records; the maximum is 16777216"):
        channel.put(group)
    assert channel.put_value(b"a") == 1
