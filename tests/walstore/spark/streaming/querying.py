"""A streaming query as Spark runs it, without Spark: its calls, their order, its checkpoint, its crashes.

What Spark sends between processes goes through JSON or pickle here, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from tests.walstore.spark.reading import copied
from tests.walstore.spark.versions import NO_LIMITS
from uploader import open_store
from uploader.stores.port import ObjectStore
from walstore.spark.features import HAS_LIMITS, ReadAllAvailable, ReadLimit
from walstore.spark.options import StreamOptions, parse_stream_options
from walstore.spark.rows import column_names, spark_schema
from walstore.spark.streaming.reader import StreamReader
from walstore.testing import ManualClock

Row = dict[str, Any]

_LIMITS = {"maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"}

READERS: list[StreamReader] = []
"""All that were made; the tests' ``conftest.py`` releases what they hold, as the end of a process would."""


class Query:
    """One query with one checkpoint. It calls its source as Spark 4.2 and 4.3 do, or as 4.0 and 4.1 do.

    By default as the Spark that is installed. A test that limits micro-batches is skipped where that one
    cannot.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        clock: ManualClock | None = None,
        open_store: Callable[[str], ObjectStore] = open_store,
        is_told: bool = HAS_LIMITS,
        **options: object,
    ) -> None:
        """``is_told`` says whether the source hears where a micro-batch begins, since Spark 4.2."""
        if not HAS_LIMITS and _LIMITS & options.keys():
            pytest.skip(NO_LIMITS)
        self._is_told = is_told
        self.clock = clock or ManualClock()
        self._open_store = open_store
        self._options = CaseInsensitiveDict(
            {"path": str(location)} | {name: str(value) for name, value in options.items()}
        )
        self.planned: list[str] = []
        """Ends of the micro-batches that were begun: Spark's ``offsets`` directory."""
        self.done = 0
        """How many were finished: its ``commits``."""
        self.reader = self._make()

    def restart(self) -> None:
        """Die and come back: nothing is left but the checkpoint. The source is not told."""
        self.reader = self._make()
        if not self._is_told and self.planned:
            seen = json.loads(self.planned[-1])
            assert self.reader.partitions(seen, seen) == []

    @property
    def start(self) -> dict[str, dict[str, int]]:
        """Where the next micro-batch begins."""
        if not self.done:
            return json.loads(json.dumps(self.reader.initialOffset()))
        return json.loads(self.planned[self.done - 1])

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Begin a micro-batch, unless there is nothing new; the end is written down before it is read."""
        if len(self.planned) > self.done:
            return True
        if self._is_told:
            start = self.start
            end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        else:  # the end comes before the start, and need not differ from it the first time
            end = self.reader.latestOffset()
            start = self.start if self.done else None
        text = json.dumps(end)
        if text == json.dumps(start):
            return False
        if self.done:
            self.reader.commit(json.loads(self.planned[self.done - 1]))
        self.planned.append(text)
        return True

    def read(self) -> list[Row]:
        """Read the micro-batch that was begun, each task in a process of its own."""
        end = json.loads(self.planned[self.done])
        partitions = self.reader.partitions(self.start, end)
        assert isinstance(partitions, list)
        return [
            row
            for partition in partitions
            for batch in self._fresh().read(copied(partition))
            for row in batch.to_pylist()
        ]

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """Run one micro-batch to its end; no rows if there is nothing new."""
        if not self.plan(limit):
            return []
        rows = self.read()
        self.done += 1
        return rows

    def drain(self, limit: ReadLimit | None = None) -> list[Row]:
        """Run micro-batches until there is nothing new."""
        found: list[Row] = []
        while self.plan(limit):
            found += self.read()
            self.done += 1
        return found

    def once(self) -> list[Row]:
        """Run as with ``availableNow``."""
        if self._is_told:
            self.reader.prepareForTriggerAvailableNow()
        return self.drain()

    def everything(self) -> list[Row]:
        """Run one micro-batch over all there is, as ``once`` does."""
        return self.trigger(ReadAllAvailable())

    def later(self, seconds: float = 60) -> None:
        """Let time pass, so that logs are asked again."""
        self.clock.advance(seconds)

    def _make(self) -> StreamReader:
        """Spark makes the source anew wherever it needs it."""
        reader = StreamReader(*self._given(), clock=self.clock, open_store=self._open_store)
        READERS.append(reader)
        return reader

    def _fresh(self) -> StreamReader:
        """Return what a task has: a copy of a reader that was never asked for offsets."""
        return copied(StreamReader(*self._given()))

    def _given(self) -> tuple[StreamOptions, Sequence[str]]:
        options = parse_stream_options(self._options)
        return options, column_names(spark_schema(include_headers=options.include_headers))


def offsets(rows: list[Row], topic: str | None = None, partition: int = 0) -> list[int]:
    """Return the offsets of the rows, of one log if it is named."""
    return [
        row["offset"]
        for row in rows
        if topic is None or (row["topic"], row["partition"]) == (topic, partition)
    ]
