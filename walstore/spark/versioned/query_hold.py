"""QueryHold: the critical reader of a query, which keeps what the query has not read. Blocking I/O.

Its token is where a query without a checkpoint began, so that Spark gets the same answer after a crash.
"""

from __future__ import annotations

import json
from contextlib import ExitStack

from uploader import Collection, CollectionReader, CollectionScan
from walstore import InvalidSettingsError, SinceViolationError
from walstore.spark.blocking import SyncRunner
from walstore.spark.streaming.admission import StoredTimes
from walstore.spark.versioned.options import ChangeOptions


class QueryHold:
    """The collection of a query, and the critical reader that holds what it has not read."""

    def __init__(
        self, runner: SyncRunner, collection: Collection, reader: CollectionReader
    ) -> None:
        """Made by :meth:`open`."""
        self._runner = runner
        self._collection = collection
        self._reader = reader
        self.first, self.since = 0, reader.frontier
        """Where the query began, and the first time that was held then."""
        self.has_begun = False
        """Whether the reader has the answer."""
        if reader.token:
            self.first, self.since = _parse_token(reader)
            self.has_begun = True

    @classmethod
    def open(cls, options: ChangeOptions) -> QueryHold:
        """Open the collection and register the reader, or continue it; another query with it loses it."""
        with ExitStack() as stack:
            runner = SyncRunner()
            stack.callback(runner.close)
            collection = runner.run(_opened(options.location.text))
            stack.callback(lambda: runner.run(collection.aclose()))
            reader = runner.run(collection.critical(options.reader))
            found = cls(runner, collection, reader)
            stack.pop_all()
            return found

    def begin(self, starting: int | None) -> int:
        """Return where a query without a checkpoint begins, and keep the answer.

        SinceViolationError if the reader no longer holds that, or never did.
        """
        reader = self._reader
        if not self.has_begun:
            first = self.upper() if starting is None else starting
            since = max(reader.frontier, first - 1)
            if first and first - 1 < reader.frontier:
                raise SinceViolationError(
                    "the stream cannot begin at this time: earlier ones were compacted; begin with earliest",
                    as_of=first - 1,
                    since=reader.frontier,
                )
            token = json.dumps({"first": first, "since": since})
            self._runner.run(reader.compare_and_downgrade("", token, since))
            self.first, self.since, self.has_begun = first, since, True
        elif reader.frontier > self.since:
            raise SinceViolationError(
                f"a query has read further with the reader {reader.name}, and its checkpoint is another one: "
                "go on with that checkpointLocation, or begin again with another reader",
                as_of=self.first,
                since=reader.frontier,
            )
        return self.first

    def upper(self) -> int:
        """Return where the collection ends."""
        return self._runner.run(self._reader.upper())

    def planned_scan(
        self, options: ChangeOptions, *, as_of: int, after: int | None
    ) -> CollectionScan:
        """Return the objects of a micro-batch, which stay readable for a while."""
        try:
            return self._runner.run(
                self._collection.planned_scan(
                    hold_seconds=options.lease_seconds, as_of=as_of, after=after
                )
            )
        except SinceViolationError as error:
            error.add_note(
                f"the reader {options.reader} does not hold what the query's checkpoint needs: it was "
                "released, or another query used it; begin again with another checkpointLocation"
            )
            raise

    def stretches(self, start: int, end: int) -> list[StoredTimes]:
        """Return how much is stored of ``[start, end)``."""
        return self._runner.run(self._stretches(start, end))

    def give_up(self, frontier: int) -> None:
        """Let compaction have the times before a frontier."""
        if frontier > 1:
            self._runner.run(self._reader.downgrade_since(frontier - 1))

    def close(self) -> None:
        """Release the connections; the reader keeps its hold."""
        try:
            self._runner.run(self._collection.aclose())
        finally:
            self._runner.close()

    async def _stretches(self, start: int, end: int) -> list[StoredTimes]:
        status = await self._collection.status()
        found = [
            StoredTimes(batch.lower, batch.upper, batch.rows, batch.size_bytes)
            for batch in status.batches
            if batch.upper > start and batch.lower < end
        ]
        async with self._reader.scan(after=start - 1, as_of=end - 1) as scan:
            found += [
                StoredTimes(file.start, file.limit, file.rows, file.size_bytes)
                for file in scan.files
                if file.limit > status.merged_upper and file.start >= status.merged_upper
            ]
        return found


async def _opened(url: str) -> Collection:
    return await Collection.open(url)


def _parse_token(reader: CollectionReader) -> tuple[int, int]:
    try:
        found = json.loads(reader.token)
        first, since = found["first"], found["since"]
        if type(first) is not int or type(since) is not int or first < 0 or since < 0:
            raise ValueError("no frontiers")
    except (ValueError, KeyError, TypeError):
        raise InvalidSettingsError(
            f"the critical reader {reader.name} belongs to another program; name another one"
        ) from None
    return first, since
