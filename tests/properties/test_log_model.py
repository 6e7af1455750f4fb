"""A whole log against plain lists and dicts: what it holds, remembers and survives.

Hypothesis chooses what is done: appends of every kind, transactions that commit, fail or are cancelled,
registers, fences, producers, streams, cursors, rotation, trimming, readers of every kind, other settings at
every opening, and power cuts at any call. The model is the sequence of accepted operations
(:mod:`tests.properties.log_model`). After a crash the log must hold a first part of it that ends no earlier
than what was acknowledged, records and all that is remembered beside them alike.

tests/properties/test_wal_model.py has fewer rules and goes deeper into torn batches.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.effort import some
from tests.local import open_descriptors
from tests.properties.log_machine.appending import Appending
from tests.properties.log_machine.keeping import Keeping
from tests.properties.log_machine.reading import Readers
from tests.properties.log_machine.remembering import Remembering
from tests.properties.log_machine.strategies import BASE, records_of
from walstore import Wal
from walstore.errors import WalClosedError
from walstore.testing import FaultyFileSystem


class LogMachine(Appending, Remembering, Keeping, Readers):
    """``ops[:acked]`` is durable; the rest was accepted and may be lost by a crash."""


async def test_a_large_transaction_that_never_reached_the_disk_leaves_no_open_file(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    wal = await Wal.open(log_directory, settings=BASE, fs=faulty)
    with faulty.hold("datasync", name="next.tmp") as hold:
        wal.append_nowait(b"under way")
        await hold.wait_entered()
        async with wal.transaction(durability="memory") as transaction:
            for value, _ in records_of(1000, 5):
                await transaction.append(value)
        assert transaction.span == range(2, 7)
        faulty.fail("replace", error=errno.EIO)
    with pytest.raises(WalClosedError):
        await wal.aclose()
    assert open_descriptors(log_directory) == []
    assert list(log_directory.glob("transaction-*")) == []


@pytest.mark.slow
def test_a_log_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_log_does_what_the_model_does_for_longer() -> None:
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=some(400), stateful_step_count=60, deadline=None)
    )
