"""Times without a zone are in UTC, also where clocks change: in Berlin, 2025-10-26 has 02:30 twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local import stored_batches
from tests.walstore.cli.conftest import Cli

TIMES = ("2025-10-26T00:30:00", "2025-10-26T01:30:00", "2025-10-26T02:30:00", "2025-10-26T03:30:00")
IN_SPRING = ("2025-03-30T01:30:00", "2025-03-30T02:30:00", "2025-03-30T03:30:00")
"""In Berlin there is no 02:30 on that day."""
HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True, params=["Europe/Berlin", "America/Los_Angeles", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def _lines(times: tuple[str, ...]) -> bytes:
    return "".join(f"{moment} {moment}\n" for moment in times).encode()


@pytest.mark.parametrize("times", [TIMES, IN_SPRING])
def test_records_get_the_times_of_their_lines(
    cli: Cli, log_directory: Path, times: tuple[str, ...]
) -> None:
    done = cli("append", log_directory, "--time-delimiter", " ", stdin=_lines(times))
    assert done.code == 0, done.error
    found = [record for batch in stored_batches(log_directory) for record in batch]
    assert [one.value.decode() for one in found] == list(times)
    assert [one.timestamp.isoformat() for one in found] == [f"{moment}+00:00" for moment in times]
    first, *rest = [one.timestamp_us for one in found]
    assert rest == [first + HOUR_US * (at + 1) for at in range(len(rest))]


def test_reading_begins_at_a_time(cli: Cli, log_directory: Path) -> None:
    cli("append", log_directory, "--time-delimiter", " ", stdin=_lines(TIMES))
    for at, moment in enumerate(TIMES):
        assert cli("tail", log_directory, "--from", moment).lines == list(TIMES[at:])
    assert cli("tail", log_directory, "--from", "2025-10-26T02:30:00+02:00").lines == list(TIMES)
    assert cli("tail", log_directory, "--from", "2025-10-26T02:30:00+01:00").lines == list(
        TIMES[1:]
    )
