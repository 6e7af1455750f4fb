"""Gazette's cases for the append state machine and the spool, for one log on one disk.

The table says for each of Gazette's tests which rule of ours answers it and which tests show that, or why it
has no meaning here: replication, routing and leases of a cluster. Our append corresponds to Gazette's
``Append`` RPC, a transaction to its stream of chunks, a rollback to a proposal of the old fragment.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cases import case
from tests.local import SMALL, contents, gather_outcomes, read_all, read_values, turns
from tests.named import is_there
from walstore import (
    CorruptionError,
    DiskFullError,
    OffsetMismatchError,
    OutcomeUnknownError,
    RegisterMismatchError,
    StorageUnavailableError,
    StreamClosedError,
    Wal,
    WalClosedError,
    WalError,
)
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock


class Case(NamedTuple):
    """One of Gazette's tests, or a row of one."""

    rule: str
    """What holds here, or why the case has no meaning."""
    tests: tuple[str, ...] = ()
    """Tests that show it; a bare name is one of this module."""


NO_REPLICAS = "not applicable: one log has no replicas, routes or assignments"
TRANSACTION = "walstore/log/test_transaction.py"
CHANNEL = "walstore/core/append/test_channel.py"
CASES = {
    # append_fsm_test.go
    "append_fsm: Resolve": Case(NO_REPLICAS),
    "append_fsm: AcquirePipeline, cancelled": Case(
        "cancelled while it waits for room, an append leaves nothing and others move up",
        (
            "walstore/log/test_wal_cancellation.py::test_L14_cancelled_while_waiting_for_room_nothing_is_written",
            "test_cancelled_while_waiting_its_conditions_are_never_looked_at",
        ),
    ),
    "append_fsm: AcquirePipeline, invalidated": Case(NO_REPLICAS),
    "append_fsm: StartAndSync": Case(NO_REPLICAS),
    "append_fsm: UpdateAssignments, suspend": Case(NO_REPLICAS),
    "append_fsm: ValidatePreconditions, index not refreshed": Case(
        "a log is recovered before anybody can append; opening can be cancelled",
        (
            "walstore/log/test_wal_unopened.py::test_L14_an_open_that_is_cancelled_leaves_the_log_free",
        ),
    ),
    "append_fsm: ValidatePreconditions, unhealthy then healthy": Case(
        "appends are refused while the disk is nearly full and work again without reopening",
        (
            "scenarios/test_09_local_disk_space.py::test_appends_stop_and_come_back_without_reopening",
        ),
    ),
    "append_fsm: ValidatePreconditions, offset agrees": Case(
        "expect_offset is the tail at the moment of the commit",
        ("test_an_offset_that_agrees", "test_an_offset_is_compared_when_the_append_is_accepted"),
    ),
    "append_fsm: ValidatePreconditions, wrong offset": Case(
        "OffsetMismatchError carries both offsets; nothing was written",
        ("test_an_offset_that_does_not_agree",),
    ),
    "append_fsm: ValidatePreconditions, any offset": Case(
        "None is any offset; 0 is an offset that no record ever has",
        ("test_no_offset_is_magic",),
    ),
    "append_fsm: ValidatePreconditions, no registers match any selector": Case(
        "registers are never lost with the records here, so absent ones match only None",
        ("test_absent_registers_match_none_and_nothing_else",),
    ),
    "append_fsm: ValidatePreconditions, registers match or not": Case(
        "RegisterMismatchError carries all registers; the offset is compared first",
        ("test_registers_that_do_not_match", "test_the_offset_is_compared_before_registers"),
    ),
    "append_fsm: ValidatePreconditions, index has greater offset": Case(
        "a log that ends before its cloud tier is refused when it is opened",
        ("walstore/log/test_opening.py::test_a_log_that_ends_before_its_tier_is_refused",),
    ),
    "append_fsm: ValidatePreconditions, right offset rolls": Case(
        "not applicable: offsets count records and never jump",
    ),
    "append_fsm: StreamAndReadAcks, registers": Case(
        "one update sets and removes; it changes with the records or not at all",
        ("test_one_update_sets_replaces_and_removes",),
    ),
    "append_fsm: StreamAndReadAcks, register update on an empty append": Case(
        "allowed here: a commit that changes only registers is durable like any other",
        ("test_registers_alone_can_be_committed",),
    ),
    "append_fsm: StreamAndReadAcks, invalid request": Case(
        "a bad record is refused and leaves the transaction as it was",
        ("walstore/log/test_transaction.py::test_bad_records_leave_it_as_it_was",),
    ),
    "append_fsm: StreamAndReadAcks, end without commit": Case(
        "a transaction that is left by an exception, or never left, is not in the log",
        ("test_a_transaction_that_never_commits_is_nowhere",),
    ),
    "append_fsm: StreamAndReadAcks, client error": Case(
        "an exception in the block rolls back and is passed on as it is",
        ("walstore/log/test_transaction.py::test_an_exception_rolls_back",),
    ),
    "append_fsm: StreamAndReadAcks, content after commit": Case(
        "a transaction takes nothing after its commit, which stands",
        ("test_content_after_the_commit_is_refused_and_the_commit_stands",),
    ),
    "append_fsm: StreamAndReadAcks, broken peer": Case(
        "a disk that fails: every waiter is told what became of its records, and nobody appends",
        (
            "test_when_the_disk_fails_all_that_are_under_way_are_told",
            "walstore/core/append/test_writer.py::test_W3_every_waiter_is_told_what_became_of_its_record",
        ),
    ),
    "append_fsm: RunBasicCases, slow client": Case(
        "a slow client is not ended: it holds nothing that others need",
        ("test_a_slow_client_holds_nobody",),
    ),
    "append_fsm: PipelineRace": Case(
        "appends under way at one time commit in the order of their offsets",
        ("test_pipelined_appends_commit_in_order",),
    ),
    "append_fsm: OffsetResetFlow": Case(
        "not applicable: a local log is the authority on its own offsets",
    ),
    # append_flow_control_test.go
    "append_flow_control": Case(
        "no minimal rate: a slow client holds nothing. Budgets bound what waits for the disk",
        (
            "walstore/log/test_wal.py::test_a_full_channel_makes_append_wait_in_turn_and_nowait_raise",
        ),
    ),
    # append_api_test.go
    "append_api: single append": Case(
        "an append returns its offset once it is durable",
        ("walstore/core/append/test_writer.py::test_W1_an_append_returns_only_after_its_sync_has",),
    ),
    "append_api: register sequence": Case(
        "the sequence of Gazette's test, with the results of our rules",
        ("test_a_sequence_of_register_appends",),
    ),
    "append_api: badly behaved clients": Case(
        "clients that vanish in the middle leave nothing; those behind them go on",
        ("test_clients_that_vanish_leave_nothing",),
    ),
    "append_api: proxy": Case(NO_REPLICAS),
    # the zero-byte append
    "append: zero bytes": Case(
        "a barrier: returns the tail once all that was accepted before is durable",
        (
            "test_an_empty_append_is_a_barrier_that_returns_head_and_registers",
            "walstore/log/test_transaction.py::test_without_records_it_is_a_barrier",
        ),
    ),
    "append: first write is rolled at once": Case(
        "not applicable: a new log has an identity and a checkpoint before its first record",
        ("test_a_log_that_lost_its_files_is_not_taken_for_a_new_one",),
    ),
    # spool_test.go
    "spool: Next": Case(
        "an empty commit has an empty span at the tail and takes no offset",
        ("test_spool_table",),
    ),
    "spool: commit, rollback, mismatch": Case(
        "what is in a transaction is there after the commit and only then, spooled or not",
        ("test_spool_table", "test_a_spool_raises_the_times_of_a_batch_together"),
    ),
    "spool: codecs": Case(
        "compressed and plain batches may follow each other in one log",
        ("test_codecs_may_change_between_openings",),
    ),
    "spool: roll before the end, begin differs": Case(
        "an expected offset below the tail is refused, as is one above it",
        ("test_an_offset_that_does_not_agree",),
    ),
    "spool: bad end or sum": Case(
        "every byte of a batch is under its CRC",
        ("scenarios/test_03_local_recovery.py::test_L12_L13_a_flipped_bit_in_every_byte_is_found",),
    ),
    "spool: delta mismatch": Case(
        "transactions have no offset before they commit, so none can write into another",
        ("test_transactions_at_the_same_time_do_not_mix",),
    ),
    "spool: disk errors are retried": Case(
        "not here: the transaction's own file fails it alone, the log's file fails the log",
        (
            "test_disk_errors_of_a_spool",
            f"{TRANSACTION}::test_a_disk_that_refuses_its_file_rolls_back_and_does_not_fail_the_log",
        ),
    ),
    # pipeline_test.go, replica_test.go, replicate_api_test.go
    "pipeline: life cycle, gatherSync": Case(NO_REPLICAS),
    "pipeline: one peer fails, all fail": Case(
        "as a broken peer",
        ("test_when_the_disk_fails_all_that_are_under_way_are_told",),
    ),
    "replica: NextProposal": Case(
        "segments are sealed by size, by age and when asked",
        (
            "scenarios/test_02_local_restart.py::test_L3_each_file_holds_exactly_its_interval",
            "walstore/core/append/test_writer.py::test_a_small_segment_is_sealed_at_its_age",
        ),
    ),
    "replicate_api": Case(NO_REPLICAS),
    # e2e_test.go
    "e2e: append and read": Case(
        "what is acknowledged can be read at once",
        ("walstore/log/test_wal.py::test_a_record_comes_back_as_it_was_given",),
    ),
    "e2e: shutdown with appends under way, which win": Case(
        "what was accepted before the close is written and acknowledged",
        ("test_closing_while_appends_are_under_way",),
    ),
    "e2e: shutdown with appends under way, which lose": Case(
        "what had no room yet, or was not committed, is refused as not written",
        ("test_closing_while_appends_wait_or_gather",),
    ),
    "e2e: reassignment, proxy": Case(NO_REPLICAS),
    # client/append_service_test.go
    "append_service: retry": Case(
        "a producer's append may be repeated and is there once",
        ("walstore/log/test_producer.py::test_an_unknown_outcome_is_settled_by_repeating",),
    ),
    "append_service: pipeline with aborts": Case(
        "of transactions at the same time some roll back; the others do not notice",
        ("test_transactions_at_the_same_time_do_not_mix",),
    ),
    "append_service: size cutoff": Case(
        "a batch is closed at its size; a group is never split",
        (f"{CHANNEL}::test_a_draft_ends_at_the_size_of_a_batch_and_a_group_is_never_split",),
    ),
    "append_service: ordering cycle, dependency error": Case(
        "not applicable: appends do not wait for other logs",
    ),
}


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem, clock: ManualClock):
    """An open log on a file system that can be held and can fail."""
    settings = SMALL.replace(transaction_memory_bytes=4 * KIB)
    opened = await Wal.open(log_directory, settings=settings, fs=faulty, clock=clock)
    yield opened
    faulty.heal()
    try:
        await opened.aclose()
    except WalError:
        assert opened._engine.writer.failure is not None


SIZES = {"none": [], "small": [b"a", b"b", b"c"], "large": [b"%04d" % n * 250 for n in range(40)]}


@pytest.fixture(params=SIZES)
def values(request) -> list[bytes]:
    """Contents of a transaction: nothing, what fits its memory, what goes to a file."""
    return SIZES[request.param]


async def commit(wal: Wal, values: list[bytes], **terms) -> range:
    """Append values in one transaction and return their offsets."""
    async with wal.transaction(**terms) as transaction:
        for value in values:
            await transaction.append(value)
    assert transaction.span is not None
    return transaction.span


def test_the_tests_of_a_case_are_there() -> None:
    for name, (rule, tests) in CASES.items():
        with case(name):
            assert tests or rule.startswith("not applicable: ")
            for test in tests:
                assert is_there(
                    test if "::" in test else f"scenarios/{Path(__file__).name}::{test}"
                ), test


# -- offsets -------------------------------------------------------------------------------------


async def test_an_offset_that_agrees(wal, values) -> None:
    assert await commit(wal, values, expect_offset=1) == range(1, 1 + len(values))
    assert await commit(wal, values, expect_offset=wal.tail) == range(
        1 + len(values), 1 + 2 * len(values)
    )


@pytest.mark.parametrize("wrong", [0, 1, 2, 4, 1000, -1])
async def test_an_offset_that_does_not_agree(wal, values, wrong: int) -> None:
    await wal.append_many([b"1", b"2"])
    with pytest.raises(OffsetMismatchError) as caught:
        await commit(wal, values, expect_offset=wrong, update={"a": "1"})
    assert (caught.value.expected, caught.value.actual) == (wrong, 3)
    assert caught.value.outcome == "not_written"
    assert (wal.tail, dict(wal.registers)) == (3, {})
    assert await read_values(wal) == [b"1", b"2"]


async def test_no_offset_is_magic(wal) -> None:
    """Gazette: 0 is "any", so that nobody can say "only if the log is empty"."""
    with pytest.raises(OffsetMismatchError):
        await wal.append_many([b"x"], expect_offset=0)
    assert await wal.append_many([b"only if empty"], expect_offset=1) == range(1, 2)
    with pytest.raises(OffsetMismatchError):
        await wal.append_many([b"only if empty"], expect_offset=1)
    assert await wal.append_many([b"any"], expect_offset=None) == range(2, 3)


async def test_an_offset_is_compared_when_the_append_is_accepted(wal) -> None:
    """Of many that expect the same offset one wins; the transaction began long before."""
    async with asyncio.timeout(60):
        outcomes = await gather_outcomes(
            commit(wal, [b"%d" % n], expect_offset=1) for n in range(10)
        )
    assert outcomes.count(range(1, 2)) == 1
    assert sum(isinstance(found, OffsetMismatchError) for found in outcomes) == 9
    assert wal.tail == 2


# -- registers -----------------------------------------------------------------------------------


async def test_absent_registers_match_none_and_nothing_else(wal, values) -> None:
    """Gazette: without any registers every selector matches, for a journal that lost all replicas."""
    with pytest.raises(RegisterMismatchError) as caught:
        await commit(wal, values, expect={"author": "me"})
    assert caught.value.actual == {}
    assert await commit(wal, values, expect={"author": None}) == range(1, 1 + len(values))


async def test_registers_that_do_not_match(wal, values) -> None:
    await commit(wal, [], update={"author": "me", "other": "x"})
    for expect in ({"author": "you"}, {"author": None}, {"author": "me", "missing": "x"}):
        with pytest.raises(RegisterMismatchError) as caught:
            await commit(wal, values, expect=expect, update={"author": "thief"})
        assert caught.value.expected == expect
        assert caught.value.actual == {"author": "me", "other": "x"}
        assert caught.value.outcome == "not_written"
    assert wal.tail == 1
    assert await commit(wal, values, expect={"author": "me"}) == range(1, 1 + len(values))


async def test_the_offset_is_compared_before_registers(wal) -> None:
    with pytest.raises(OffsetMismatchError):
        await commit(wal, [b"x"], expect_offset=7, expect={"author": "nobody"})


async def test_one_update_sets_replaces_and_removes(wal, values, log_directory) -> None:
    await commit(wal, values, update={"a": "1", "b": "1"})
    await commit(wal, values, update={"a": None, "b": "2", "c": "1", "never there": None})
    assert wal.registers == {"b": "2", "c": "1"}
    await wal.aclose()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"b": "2", "c": "1"}


async def test_registers_alone_can_be_committed(wal, log_directory) -> None:
    """Gazette: an error, since registers live only with the bytes of a fragment."""
    assert await commit(wal, [], update={"author": "me"}) == range(1, 1)
    assert wal.registers == {"author": "me"}
    assert wal.tail == 1
    await wal.aclose()
    (log_directory / "CHECKPOINT").unlink()
    async with Wal.open(log_directory) as again:
        assert again.registers == {"author": "me"}
        assert await again.append(b"x") == 1


async def test_a_sequence_of_register_appends(wal) -> None:
    """Gazette's sequence: set, match and extend, mismatch, match and remove."""
    assert await commit(wal, [b"1"], expect={"b": None}, update={"a": "1", "b": "2"}) == range(1, 2)
    assert await commit(wal, [b"2"], expect={"b": "2"}, update={"b": "3", "c": "4"}) == range(2, 3)
    with pytest.raises(RegisterMismatchError) as caught:
        await commit(wal, [b"no"], expect={"b": "2"}, update={"d": "5"})
    assert caught.value.actual == {"a": "1", "b": "3", "c": "4"}
    assert await commit(wal, [b"3"], expect={"c": "4"}, update={"c": None}) == range(3, 4)
    assert wal.registers == {"a": "1", "b": "3"}
    assert await read_values(wal) == [b"1", b"2", b"3"]


async def test_an_empty_append_is_a_barrier_that_returns_head_and_registers(wal, faulty) -> None:
    await commit(wal, [b"x"], update={"author": "me"})
    with faulty.hold("datasync") as hold:
        wal.append_nowait(b"accepted")
        await hold.wait_entered()
        barrier = asyncio.create_task(commit(wal, [], expect={"author": "me"}))
        late = asyncio.create_task(commit(wal, [], expect={"author": "you"}))
        await turns(30)
        assert not barrier.done()
        assert not late.done(), "nobody is told of a state that a crash may take back"
    assert await barrier == range(3, 3)
    assert wal.durable_limit == 3
    with pytest.raises(RegisterMismatchError) as caught:
        await late
    assert caught.value.actual == {"author": "me"}


# -- streaming the content -----------------------------------------------------------------------


async def test_a_transaction_that_never_commits_is_nowhere(wal, values, log_directory) -> None:
    """Gazette: the stream ends without the chunk that says "commit"."""
    transaction = wal.transaction(update={"a": "1"})
    await transaction.__aenter__()
    for value in values:
        await transaction.append(value)
    await wal.append(b"other")
    assert await read_values(wal) == [b"other"]
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [b"other"]
    assert transaction.span is None


async def test_content_after_the_commit_is_refused_and_the_commit_stands(wal, values) -> None:
    """Gazette: an error that rolls all of it back, since the commit comes with the end of the stream."""
    async with wal.transaction() as transaction:
        for value in values:
            await transaction.append(value)
    with pytest.raises(RuntimeError):
        await transaction.append(b"more")
    await transaction.rollback()
    assert transaction.span == range(1, 1 + len(values))
    assert await read_values(wal) == values


async def test_a_slow_client_holds_nobody(wal, values) -> None:
    """Gazette: it is ended, since it holds the journal's pipeline."""
    async with wal.transaction(update={"slow": "1"}) as slow:
        for value in values:
            await slow.append(value)
        async with asyncio.timeout(60):
            for n in range(20):
                await wal.append(b"%d" % n)
            assert await commit(wal, values) == range(21, 21 + len(values))
            await wal.rotate()
            await wal.trim(5)
        assert wal.registers == {}
    assert slow.span == range(21 + len(values), 21 + 2 * len(values))
    assert (await read_values(wal, slow.span.start)) == values


async def test_pipelined_appends_commit_in_order(wal, faulty) -> None:
    finished: list[int] = []

    async def append(n: int) -> None:
        span = await commit(wal, [b"%d" % n] * (n % 3 + 1))
        finished.append(span.start)

    with faulty.hold("datasync") as hold:
        tasks = [asyncio.create_task(append(n)) for n in range(12)]
        await hold.wait_entered()
        await turns(30)
        assert not finished
        assert wal.durable_limit == 1
        assert wal.tail == 25, "all are under way"
    await asyncio.gather(*tasks)
    assert finished == sorted(finished)
    assert await read_values(wal) == [b"%d" % n for n in range(12) for _ in range(n % 3 + 1)]


async def test_cancelled_while_waiting_its_conditions_are_never_looked_at(wal, faulty) -> None:
    with faulty.hold("datasync") as hold:
        filling = asyncio.create_task(wal.append(bytes(60 * KIB)))
        await hold.wait_entered()
        others = [asyncio.create_task(wal.append(bytes(60 * KIB))) for _ in range(4)]
        await turns()
        assert wal._channel.blocked, "the last one waits for room"
        waiting = asyncio.create_task(
            wal.append_many([b"x"], expect={"a": "never"}, update={"a": "1"})
        )
        behind = asyncio.create_task(wal.append_many([b"behind"], expect={"a": None}))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.gather(filling, *others)
    assert await behind == range(6, 7)
    assert wal.registers == {}


async def test_clients_that_vanish_leave_nothing(wal, values) -> None:
    async def vanish(after: int) -> None:
        async with wal.transaction(update={"vanished": "1"}) as transaction:
            for value in values[:after]:
                await transaction.append(value)
            raise ConnectionResetError

    clients = [vanish(after) for after in range(0, len(values) + 1, 5)]
    outcomes = await gather_outcomes([*clients, commit(wal, values, update={"stayed": "1"})])
    assert all(isinstance(found, ConnectionResetError) for found in outcomes[:-1])
    assert outcomes[-1] == range(1, 1 + len(values))
    assert wal.registers == {"stayed": "1"}
    assert await read_values(wal) == values


async def test_when_the_disk_fails_all_that_are_under_way_are_told(
    wal, faulty, log_directory
) -> None:
    await wal.append(b"safe")
    faulty.fail("datasync", error=errno.EIO)
    with faulty.hold("datasync") as hold:
        first = asyncio.create_task(commit(wal, [b"first"]))
        await hold.wait_entered()
        second = asyncio.create_task(commit(wal, [b"second"], update={"a": "1"}))
        barrier = asyncio.create_task(commit(wal, []))
        await turns(20)
    outcomes = await gather_outcomes([first, second, barrier])
    assert isinstance(outcomes[0], OutcomeUnknownError | StorageUnavailableError)
    assert outcomes[0].outcome == "unknown"
    assert [found.outcome for found in outcomes[1:]] != ["durable", "durable"]
    assert outcomes[1].outcome == "not_written"
    with pytest.raises(WalClosedError):
        await commit(wal, [b"more"])
    with pytest.raises(WalClosedError):
        await wal.aclose()
    found = [record.value for record in await contents(log_directory)]
    assert found in ([b"safe"], [b"safe", b"first"])


# -- the spool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["none", "small", "large"])
@pytest.mark.parametrize("end", ["commit", "rollback", "mismatch", "commit after a rollback"])
async def test_spool_table(wal, values, before: str, end: str, log_directory) -> None:
    """Whatever the log and the transaction hold: a commit adds all of it, all else changes nothing."""
    held = SIZES[before]
    await commit(wal, held, update={"r": "before"})
    tail = wal.tail
    if end != "commit":
        transaction = wal.transaction(
            update={"r": "after"}, expect={"r": "other" if end == "mismatch" else "before"}
        )
        try:
            async with transaction:
                for value in values:
                    await transaction.append(value)
                if end != "mismatch":
                    await transaction.rollback()
        except RegisterMismatchError:
            assert end == "mismatch"
        assert transaction.span is None
        assert (wal.tail, wal.durable_limit) == (tail, tail)
        assert wal.registers == {"r": "before"}
    expected = list(held)
    if end.startswith("commit"):
        assert await commit(wal, values, update={"r": "after"}) == range(tail, tail + len(values))
        assert wal.registers == {"r": "after"}
        expected += values
    assert await read_values(wal) == expected
    assert await wal.append(b"next") == len(expected) + 1
    await wal.aclose()
    assert [record.value for record in await contents(log_directory)] == [*expected, b"next"]
    assert list(log_directory.glob("transaction-*")) == []


async def test_codecs_may_change_between_openings(log_directory: Path, values) -> None:
    pytest.importorskip("zstandard")
    settings = SMALL.replace(transaction_memory_bytes=4 * KIB)
    for compression in (None, "zstd", None, "zstd"):
        chosen = settings.replace(compression=compression)
        async with Wal.open(log_directory, settings=chosen) as wal:
            await commit(wal, values)
            await wal.append(b"." * 3000)
    found = [record.value for record in await contents(log_directory)]
    assert found == [*values, b"." * 3000] * 4


async def test_transactions_at_the_same_time_do_not_mix(wal, values) -> None:
    async def run(n: int) -> range | None:
        transaction = wal.transaction()
        async with transaction:
            for value in values:
                await transaction.append(b"%d " % n + value)
                await asyncio.sleep(0)
            if n % 3 == 0:
                await transaction.rollback()
        return transaction.span

    spans = await asyncio.gather(*map(run, range(9)))
    found = await read_values(wal)
    for n, span in enumerate(spans):
        assert (span is None) == (n % 3 == 0)
        if span is not None:
            assert found[span.start - 1 : span.stop - 1] == [b"%d " % n + v for v in values]
    assert len(found) == 6 * len(values)


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "replace", "sync_directory"])
async def test_disk_errors_of_a_spool(wal, faulty, kind: str, log_directory) -> None:
    """In its own file: only the transaction fails. In the commit, which moves the log: the log fails."""
    await wal.append(b"before")
    large = SIZES["large"]
    transaction = wal.transaction(update={"a": "1"})
    with pytest.raises(WalError) as caught:
        async with transaction:
            for value in large:
                await transaction.append(value)
            faulty.fail(kind, error=errno.ENOSPC)
    failed_alone = kind in ("pwrite", "datasync")
    assert isinstance(caught.value, DiskFullError | OutcomeUnknownError)
    if failed_alone:
        assert caught.value.outcome == "not_written"
        assert await wal.append(b"after") == 2
        assert wal.registers == {}
        await wal.aclose()
    else:
        with pytest.raises(WalClosedError):
            await wal.append(b"after")
        with pytest.raises(WalClosedError):
            await wal.aclose()
    async with Wal.open(log_directory) as again:
        found = [record.value for record in await read_all(again)]
        is_whole = found == [b"before", *large]
        assert is_whole or found == [b"before", b"after"][: 1 + failed_alone]
        assert dict(again.registers) == ({"a": "1"} if is_whole else {})
        assert not (is_whole and caught.value.outcome == "not_written")
    assert list(log_directory.glob("transaction-*")) == []


async def test_a_log_that_lost_its_files_is_not_taken_for_a_new_one(wal, log_directory) -> None:
    """Gazette: the first write is shipped at once, lest offsets be used twice after a total loss."""
    await wal.append(b"first")
    await wal.aclose()
    for path in log_directory.glob("*.wal"):
        path.unlink()
    with pytest.raises(CorruptionError):
        await Wal.open(log_directory)


async def test_a_spool_raises_the_times_of_a_batch_together(wal, clock) -> None:
    """In memory a time older than the log's last record is raised to that record's, others are kept.
    In a file those behind it in the same batch move with it, as docs/transactions.md says."""
    now_us = clock.now_us()
    found: list[list[int]] = []
    for size in (20, 200):  # 30 records: in memory, and in a file
        async with wal.transaction() as transaction:
            for asked in (-100, *[-50] * 30):
                await transaction.append(bytes(size), timestamp_us=now_us + asked)
            last = await wal.append(b"meanwhile", timestamp_us=now_us - 70)
        records = await read_all(wal, last)
        found.append([record.timestamp_us - now_us for record in records])
        now_us += 1000
        clock.advance(0.001)
    assert found[0] == [-70, -70, *[-50] * 30]
    assert found[1] == [-70, -70, *[-20] * 30]


async def test_nobody_hears_of_a_closed_stream_before_that_is_durable(wal, faulty) -> None:
    """A refusal must not rest on a state that a crash may take back."""
    await wal.open_stream("eu")
    with faulty.hold("datasync") as hold:
        closing = asyncio.create_task(wal.close_stream("eu"))
        await hold.wait_entered()
        calls = [
            asyncio.create_task(commit_to(wal, "eu")),
            asyncio.create_task(wal.append_many([b"x"], stream="eu")),
            asyncio.create_task(wal.append(b"x", stream="eu")),
        ]
        await turns(30)
        told = [call.done() for call in calls]
    outcomes = await gather_outcomes(calls)
    await closing
    assert all(isinstance(found, StreamClosedError) for found in outcomes)
    assert told == [False, False, False]


async def commit_to(wal: Wal, stream: str) -> None:
    async with wal.transaction() as transaction:
        await transaction.append(b"x", stream=stream)


# -- closing -------------------------------------------------------------------------------------


async def test_closing_while_appends_are_under_way(wal, faulty, log_directory) -> None:
    with faulty.hold("datasync") as hold:
        first = asyncio.create_task(wal.append(b"first"))
        await hold.wait_entered()
        second = asyncio.create_task(commit(wal, [b"second", b"third"], update={"a": "1"}))
        large = asyncio.create_task(commit(wal, [b"large"] * 1))
        await turns(20)
        closing = asyncio.create_task(wal.aclose())
        await turns(20)
        with pytest.raises(WalClosedError) as caught:
            await wal.append(b"too late")
        assert caught.value.outcome == "not_written"
        assert not closing.done()
    assert await first == 1
    assert await second == range(2, 4)
    assert await large == range(4, 5)
    await closing
    found = [record.value for record in await contents(log_directory)]
    assert found == [b"first", b"second", b"third", b"large"]


async def test_closing_while_appends_wait_or_gather(wal, faulty, values, log_directory) -> None:
    async with asyncio.timeout(60):
        with faulty.hold("datasync") as hold:
            filling = [asyncio.create_task(wal.append(bytes(60 * KIB))) for _ in range(5)]
            await hold.wait_entered()
            await turns()
            refused = asyncio.create_task(wal.append_many([b"no room"], update={"a": "1"}))
            await turns()
            closing = asyncio.create_task(wal.aclose())
            await turns(20)
            gathering = wal.transaction()
            with pytest.raises(WalClosedError):
                await gathering.__aenter__()
        outcomes = await gather_outcomes([*filling, refused])
        await closing
    accepted = [found for found in outcomes if isinstance(found, int)]
    assert accepted == list(range(1, 1 + len(accepted)))
    for found in outcomes[len(accepted) :]:
        assert isinstance(found, WalClosedError)
        assert found.outcome == "not_written"
    assert len(await contents(log_directory)) == len(accepted)
    async with Wal.open(log_directory) as again:
        assert again.registers == {}
