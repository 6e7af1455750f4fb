"""CommitRecord: what a query has committed last, and how far that is published; and its file in the store.

Putting it is the commit of an epoch: from then on its rows will be in the logs, whatever happens; before,
none of them ever is. There is one object for each query, replaced by compare-and-swap; no two versions have
the same bytes. The record is a pure value; ``RecordFile`` makes the requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from uploader.format.document import Fields, check_u64, read_document, serialise
from uploader.partitioned.partitions import MOST_PARTITIONS
from uploader.partitioned.stager import StagedFragment
from uploader.root.stored_document import StoredDocument
from uploader.root.swapped_document import DocumentSwap, SwappedDocument
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.write.stall_guard import StallGuard
from walstore.errors import CorruptionError

VERSION: Final = 1


class PublishPlace(NamedTuple):
    """Where publishing continues: fragment ``at`` of a log's plan becomes ``seq_no``, from ``start`` on."""

    at: int
    seq_no: int
    start: int


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What goes into one log."""

    fragments: tuple[StagedFragment, ...]
    """In order."""
    base: PublishPlace
    """Everything before ``base.at`` is in the log; the rest gets the places from there on, as long as no
    other writer comes between."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The newest epoch of a query."""

    source: str
    """The stream or job that these epochs belong to."""
    generation: int
    """Goes up with each version."""
    epoch: int | None
    """None before the first commit."""
    job: str
    """The run of that epoch that staged these rows."""
    committed_us: int
    """When it was committed, by its driver's clock; microseconds since 1970 UTC."""
    is_done: bool
    """Whether all is published. Then ``logs`` is empty."""
    logs: Mapping[int, LogPlan] = field(repr=False)
    """By partition."""

    @property
    def rows(self) -> int:
        """Number of rows that are to be published."""
        return sum(one.count for plan in self.logs.values() for one in plan.fragments)

    def has(self, epoch: int) -> bool:
        """Return whether that epoch was committed, by any run of it."""
        return self.epoch is not None and self.epoch >= epoch

    def done(self) -> CommitRecord:
        """Return the record once all of it is published."""
        return dataclasses.replace(self, generation=self.generation + 1, is_done=True, logs={})

    def fenced(self) -> CommitRecord:
        """Return the same record as a new version, so that no put that was under way succeeds."""
        return dataclasses.replace(self, generation=self.generation + 1)

    def moved(self, partition: int, base: PublishPlace) -> CommitRecord:
        """Return the record with another base for one log."""
        plan = dataclasses.replace(self.logs[partition], base=base)
        logs = {**self.logs, partition: plan}
        return dataclasses.replace(self, generation=self.generation + 1, logs=logs)

    def serialise(self) -> bytes:
        """Return the object."""
        return serialise(
            {
                "version": VERSION,
                "source": self.source,
                "generation": self.generation,
                "epoch": self.epoch,
                "job": self.job,
                "committed_us": self.committed_us,
                "done": self.is_done,
                "logs": [_plan_json(at, self.logs[at]) for at in sorted(self.logs)],
            }
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> CommitRecord:
        """Read the object; CorruptionError if it is damaged, FormatVersionError for a newer version."""
        return read_document(data, cls._from_fields, path=path)

    @classmethod
    def _from_fields(cls, fields: Fields) -> CommitRecord:
        fields.check_version(VERSION, "a commit record of another version")
        return cls(
            source=fields.text("source"),
            generation=fields.number("generation"),
            epoch=fields.number("epoch") if fields.has("epoch") else None,
            job=fields.text("job"),
            committed_us=fields.number("committed_us"),
            is_done=fields.raw("done") is True,
            logs=_plans(fields),
        )


NOTHING: Final = CommitRecord("", 0, None, "", 0, is_done=True, logs={})
"""Of a query that was never run, or whose record was removed."""


class RecordFile(SwappedDocument[CommitRecord]):
    """Reads and replaces one record, and waits out faults. Belongs to one event loop.

    Without an object the record is :data:`NOTHING`.
    """

    def __init__(
        self, store: ObjectStore, key: str, *, retry: RetryPolicy, stall_guard: StallGuard
    ) -> None:
        super().__init__(
            store,
            key,
            partial(CommitRecord.parse, path=key),
            nothing=lambda: NOTHING,
            retry=retry,
        )
        self._stall_guard = stall_guard

    async def read(self) -> StoredDocument[CommitRecord]:
        """As of :class:`SwappedDocument`."""
        return await self._stall_guard.call(super().read)

    async def swap(
        self, value: CommitRecord, before: StoredDocument[CommitRecord]
    ) -> DocumentSwap[CommitRecord]:
        """As of :class:`SwappedDocument`."""
        return await self._stall_guard.call(partial(super().swap, value, before))


def _plan_json(partition: int, plan: LogPlan) -> dict[str, Any]:
    return {
        "partition": partition,
        "base": plan.base._asdict(),
        "fragments": [one.to_json() for one in plan.fragments],
    }


def _plans(fields: Fields) -> dict[int, LogPlan]:
    found = [_plan(one) for one in fields.objects("logs")]
    plans = dict(found)
    if len(plans) < len(found):
        raise CorruptionError("two plans for the same log", path=fields.path)
    return plans


def _plan(fields: Fields) -> tuple[int, LogPlan]:
    base = fields.object("base")
    place = PublishPlace(base.number("at"), base.number("seq_no"), base.number("start"))
    fragments = tuple(StagedFragment.from_fields(one) for one in fields.objects("fragments"))
    if place.at > len(fragments):
        raise CorruptionError("a plan continues behind its end", path=fields.path)
    rest = fragments[place.at :]
    check_u64(seq_no=place.seq_no + len(rest), limit=place.start + sum(one.count for one in rest))
    return fields.number("partition", maximum=MOST_PARTITIONS - 1), LogPlan(fragments, place)
