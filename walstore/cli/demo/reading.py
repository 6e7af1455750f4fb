"""Reading the log back: from disk, and from the cloud alone, and comparing the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from uploader.read.cloud_log import CloudLog
from walstore.batches.batch import Batch
from walstore.batches.concat import ConcatBatch
from walstore.cli.demo.checks import ProducerClaim, ReadTally, compare_batches
from walstore.errors import CorruptionError
from walstore.files.log_snapshot import LogSnapshot
from walstore.verify.verifying import verify_directory


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was found on disk and in the cloud."""

    ledger: ReadTally
    """Of all records, as read from the cloud; its complaints include those about the disk."""
    head: int
    limit: int
    disk_head: int
    """First offset that is still on local disk."""
    disk_limit: int
    fragments: int
    stored_bytes: int
    setsum: str


async def read_back(
    path: Path, url: str, claims: dict[int, ProducerClaim], on_progress: Callable[[int], None]
) -> ReadBack:
    """Read everything and compare; what does not agree is in the ledger's complaints.

    ``on_progress`` is told up to which offset all was read. Raises the errors of the log and the store.
    """
    ledger = ReadTally(claims)
    report = await asyncio.to_thread(verify_directory, path)
    for problem in report.problems:
        ledger.complain(f"on disk: {problem}")
    view = await asyncio.to_thread(LogSnapshot.open, path)
    async with CloudLog.open(url) as log:
        verified = await log.verify()
        async with log.reader(start="earliest") as reader:
            async for batch in reader.batches():
                await asyncio.to_thread(_take, ledger, batch, view)
                on_progress(batch.limit)
        if verified.records != log.tail - log.head or ledger.records != verified.records:
            ledger.complain(f"read {ledger.records} of {verified.records} records in the cloud")
        if log.tail != view.durable_limit:
            ledger.complain(f"the cloud ends at {log.tail}, the disk at {view.durable_limit}")
        if log.head != 1:
            ledger.complain(f"the cloud begins at {log.head}")
        return ReadBack(
            ledger,
            log.head,
            log.tail,
            view.head,
            view.durable_limit,
            verified.fragments,
            verified.fragment_bytes,
            verified.setsum,
        )


def _take(ledger: ReadTally, batch: Batch, view: LogSnapshot) -> None:
    """Note a batch from the cloud, and compare it with the disk as far as the disk still has it."""
    ledger.take(batch)
    start = max(batch.start, view.head)
    if start >= batch.limit:
        return
    try:
        pieces = list(view.batches(start, batch.limit))
    except CorruptionError as error:
        ledger.complain(f"on disk: {error}")
        return
    if not pieces or pieces[-1].limit != batch.limit:
        ledger.complain(f"[{start}, {batch.limit}) is in the cloud, but not on disk")
        return
    difference = compare_batches(batch.slice(start, batch.limit), ConcatBatch(pieces))
    if difference:
        ledger.complain(f"cloud and disk: {difference}")
