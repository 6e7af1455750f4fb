"""What a task tells the driver: which fragments it staged. Small, however many rows there were; picklable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from uploader.partitioned import Staged, WriteId
from walstore.errors import WalError


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The result of one task."""

    write: WriteId
    task: int
    """Number of the task among those of the job; its rows come in this order."""
    staged: Staged


def merge(messages: Iterable[WriterCommitMessage | None]) -> tuple[WriteId | None, Staged]:
    """Return whose rows all messages speak of, and what was staged, in the order of the tasks.

    WalError if a task is missing, or they are not of one write.
    """
    found = [one for one in messages if isinstance(one, StagedMessage)]
    if not found:
        return None, {}
    writes = {one.write for one in found}
    if len(writes) > 1:
        raise WalError(f"the tasks of one job staged rows of {len(writes)} writes")
    staged: Staged = {}
    for one in sorted(found, key=lambda message: message.task):
        for partition, fragments in one.staged.items():
            staged[partition] = (*staged.get(partition, ()), *fragments)
    return found[0].write, staged
