"""What the tests beside wal3 do with our half: write, read and scrub a log by its address."""

from __future__ import annotations

from typing import Final

from uploader import (
    CloudLog,
    CloudWriter,
    CollectorSettings,
    Scrubber,
    ScrubReport,
    Severity,
    WriterSettings,
    open_store,
)
from uploader.fragments.fragment_file import is_ours
from walstore import Record

AT_ONCE: Final = CollectorSettings(
    interval_seconds=0, delete_pause_seconds=0, max_drop_fraction=1, max_wait_seconds=30
)
"""A collection that waits for no reader."""
CURSOR: Final = "compaction"
"""The name of wal3's own cursor."""


async def append(url: str, *values: bytes, settings: WriterSettings | None = None) -> None:
    """Append records one after the other, each in a fragment of its own."""
    async with CloudWriter.open(url, settings=settings) as log:
        for value in values:
            await log.append(value)


async def read(url: str, start: int | None = None) -> list[Record]:
    """Return all records from an offset on, each hashed."""
    async with CloudLog.open(url) as log:
        return [record async for record in log.reader(start or "earliest", verify=True)]


async def scrub(url: str) -> ScrubReport:
    """Return what a scrub finds."""
    async with Scrubber.open(url) as scrubber:
        return await scrubber.scrub()


async def assert_sound(url: str) -> ScrubReport:
    """Assert that a scrub and a look at all sums find no fault, and nothing to warn of.

    And that the manifest takes no fragment of theirs for ours.
    """
    report = await scrub(url)
    serious = [str(found) for found in report.findings if found.severity is not Severity.NOTE]
    assert (serious, report.is_complete) == ([], True)
    async with CloudLog.open(url) as log:
        await log.verify()
        first = log.manifest.ours_from
        claimed = [] if first is None else await log.fragments(log.head)
        store = open_store(url)
        for entry in (one for one in claimed if one.seq_no >= (first or 0)):
            assert is_ours((await store.get(entry.path)).data, path=entry.path)
        await store.aclose()
    return report
