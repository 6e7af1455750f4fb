"""Gazette's cases for the append state machine and the spool, for one log on one disk.

The table says for each of Gazette's tests which rule of ours answers it and which tests show that, or why it
has no meaning here: replication, routing and leases of a cluster. Our append corresponds to Gazette's
``Append`` RPC, a transaction to its stream of chunks, a rollback to a proposal of the old fragment.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.cases import case
from tests.named import is_there


class Case(NamedTuple):
    """One of Gazette's tests, or a row of one."""

    rule: str
    """What holds here, or why the case has no meaning."""
    tests: tuple[str, ...] = ()
    """Tests that show it."""


NO_REPLICAS = "not applicable: one log has no replicas, routes or assignments"
TRANSACTION = "walstore/log/test_transaction.py"
CHANNEL = "walstore/core/append/test_channel.py"
APPENDS = "scenarios/test_34_gazette_appends.py"
SPOOL = "scenarios/test_34_gazette_spool.py"
CASES = {
    # append_fsm_test.go
    "append_fsm: Resolve": Case(NO_REPLICAS),
    "append_fsm: AcquirePipeline, cancelled": Case(
        "cancelled while it waits for room, an append leaves nothing and others move up",
        (
            "walstore/log/test_wal_cancellation.py::test_L14_cancelled_while_waiting_for_room_nothing_is_written",
            f"{APPENDS}::test_cancelled_while_waiting_its_conditions_are_never_looked_at",
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
        (
            f"{APPENDS}::test_an_offset_that_agrees",
            f"{APPENDS}::test_an_offset_is_compared_when_the_append_is_accepted",
        ),
    ),
    "append_fsm: ValidatePreconditions, wrong offset": Case(
        "OffsetMismatchError carries both offsets; nothing was written",
        (f"{APPENDS}::test_an_offset_that_does_not_agree",),
    ),
    "append_fsm: ValidatePreconditions, any offset": Case(
        "None is any offset; 0 is an offset that no record ever has",
        (f"{APPENDS}::test_no_offset_is_magic",),
    ),
    "append_fsm: ValidatePreconditions, no registers match any selector": Case(
        "registers are never lost with the records here, so absent ones match only None",
        (f"{APPENDS}::test_absent_registers_match_none_and_nothing_else",),
    ),
    "append_fsm: ValidatePreconditions, registers match or not": Case(
        "RegisterMismatchError carries all registers; the offset is compared first",
        (
            f"{APPENDS}::test_registers_that_do_not_match",
            f"{APPENDS}::test_the_offset_is_compared_before_registers",
        ),
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
        (f"{APPENDS}::test_one_update_sets_replaces_and_removes",),
    ),
    "append_fsm: StreamAndReadAcks, register update on an empty append": Case(
        "allowed here: a commit that changes only registers is durable like any other",
        (f"{APPENDS}::test_registers_alone_can_be_committed",),
    ),
    "append_fsm: StreamAndReadAcks, invalid request": Case(
        "a bad record is refused and leaves the transaction as it was",
        ("walstore/log/test_transaction.py::test_bad_records_leave_it_as_it_was",),
    ),
    "append_fsm: StreamAndReadAcks, end without commit": Case(
        "a transaction that is left by an exception, or never left, is not in the log",
        (f"{APPENDS}::test_a_transaction_that_never_commits_is_nowhere",),
    ),
    "append_fsm: StreamAndReadAcks, client error": Case(
        "an exception in the block rolls back and is passed on as it is",
        ("walstore/log/test_transaction.py::test_an_exception_rolls_back",),
    ),
    "append_fsm: StreamAndReadAcks, content after commit": Case(
        "a transaction takes nothing after its commit, which stands",
        (f"{APPENDS}::test_content_after_the_commit_is_refused_and_the_commit_stands",),
    ),
    "append_fsm: StreamAndReadAcks, broken peer": Case(
        "a disk that fails: every waiter is told what became of its records, and nobody appends",
        (
            f"{APPENDS}::test_when_the_disk_fails_all_that_are_under_way_are_told",
            "walstore/core/append/test_writer.py::test_W3_every_waiter_is_told_what_became_of_its_record",
        ),
    ),
    "append_fsm: RunBasicCases, slow client": Case(
        "a slow client is not ended: it holds nothing that others need",
        (f"{APPENDS}::test_a_slow_client_holds_nobody",),
    ),
    "append_fsm: PipelineRace": Case(
        "appends under way at one time commit in the order of their offsets",
        (f"{APPENDS}::test_pipelined_appends_commit_in_order",),
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
        (f"{APPENDS}::test_a_sequence_of_register_appends",),
    ),
    "append_api: badly behaved clients": Case(
        "clients that vanish in the middle leave nothing; those behind them go on",
        (f"{APPENDS}::test_clients_that_vanish_leave_nothing",),
    ),
    "append_api: proxy": Case(NO_REPLICAS),
    # the zero-byte append
    "append: zero bytes": Case(
        "a barrier: returns the tail once all that was accepted before is durable",
        (
            f"{APPENDS}::test_an_empty_append_is_a_barrier_that_returns_head_and_registers",
            "walstore/log/test_transaction.py::test_without_records_it_is_a_barrier",
        ),
    ),
    "append: first write is rolled at once": Case(
        "not applicable: a new log has an identity and a checkpoint before its first record",
        (f"{SPOOL}::test_a_log_that_lost_its_files_is_not_taken_for_a_new_one",),
    ),
    # spool_test.go
    "spool: Next": Case(
        "an empty commit has an empty span at the tail and takes no offset",
        (f"{SPOOL}::test_spool_table",),
    ),
    "spool: commit, rollback, mismatch": Case(
        "what is in a transaction is there after the commit and only then, spooled or not",
        (
            f"{SPOOL}::test_spool_table",
            f"{SPOOL}::test_a_spool_raises_the_times_of_a_batch_together",
        ),
    ),
    "spool: codecs": Case(
        "compressed and plain batches may follow each other in one log",
        (f"{SPOOL}::test_codecs_may_change_between_openings",),
    ),
    "spool: roll before the end, begin differs": Case(
        "an expected offset below the tail is refused, as is one above it",
        (f"{APPENDS}::test_an_offset_that_does_not_agree",),
    ),
    "spool: bad end or sum": Case(
        "every byte of a batch is under its CRC",
        ("scenarios/test_03_local_recovery.py::test_L12_L13_a_flipped_bit_in_every_byte_is_found",),
    ),
    "spool: delta mismatch": Case(
        "transactions have no offset before they commit, so none can write into another",
        (f"{SPOOL}::test_transactions_at_the_same_time_do_not_mix",),
    ),
    "spool: disk errors are retried": Case(
        "not here: the transaction's own file fails it alone, the log's file fails the log",
        (
            f"{SPOOL}::test_disk_errors_of_a_spool",
            f"{TRANSACTION}::test_a_disk_that_refuses_its_file_rolls_back_and_does_not_fail_the_log",
        ),
    ),
    # pipeline_test.go, replica_test.go, replicate_api_test.go
    "pipeline: life cycle, gatherSync": Case(NO_REPLICAS),
    "pipeline: one peer fails, all fail": Case(
        "as a broken peer",
        (f"{APPENDS}::test_when_the_disk_fails_all_that_are_under_way_are_told",),
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
        (f"{SPOOL}::test_closing_while_appends_are_under_way",),
    ),
    "e2e: shutdown with appends under way, which lose": Case(
        "what had no room yet, or was not committed, is refused as not written",
        (f"{SPOOL}::test_closing_while_appends_wait_or_gather",),
    ),
    "e2e: reassignment, proxy": Case(NO_REPLICAS),
    # client/append_service_test.go
    "append_service: retry": Case(
        "a producer's append may be repeated and is there once",
        ("walstore/log/test_producer.py::test_an_unknown_outcome_is_settled_by_repeating",),
    ),
    "append_service: pipeline with aborts": Case(
        "of transactions at the same time some roll back; the others do not notice",
        (f"{SPOOL}::test_transactions_at_the_same_time_do_not_mix",),
    ),
    "append_service: size cutoff": Case(
        "a batch is closed at its size; a group is never split",
        (f"{CHANNEL}::test_a_draft_ends_at_the_size_of_a_batch_and_a_group_is_never_split",),
    ),
    "append_service: ordering cycle, dependency error": Case(
        "not applicable: appends do not wait for other logs",
    ),
}


def test_the_tests_of_a_case_are_there() -> None:
    for name, (rule, tests) in CASES.items():
        with case(name):
            assert tests or rule.startswith("not applicable: ")
            for test in tests:
                assert is_there(test), test
