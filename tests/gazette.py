"""A log, and what is appended to it, for the tests of Gazette's cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local import SMALL
from walstore import (
    Wal,
    WalError,
)
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem, ManualClock


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
