"""A versioned collection next to Delta Lake (deltalake) and Iceberg (pyiceberg): upsert, as-of read, changes.

Run from the root of the repository; ten million rows take some minutes and 6 GB of memory::

    python -m bench.collection_peers [--rows 10000000] [--changes 100000] [--rounds 3]

All three begin with the same rows on the same disk, and take the same upserts in interleaved rounds. Each
time is the median. What a library cannot do, or is not installed, is named. A collection defers work to
compaction, which is measured as well; Delta and Iceberg rewrite files as they merge. The
``append`` of its first rows ends when they are durable and readers have them; its ``load`` when they are
compacted, too.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from uploader import Collection, CollectionReader, Controller

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("amount", pa.int64()),
        pa.field("place", pa.string()),
    ]
)


def rows(ids: pa.Array, chance: random.Random) -> pa.Table:
    """Return rows with these keys."""
    amounts = pc.add(ids, chance.randrange(1000))
    places = pc.binary_join_element_wise("place ", pc.cast(pc.bit_wise_and(ids, 127), "string"), "")
    return pa.Table.from_arrays([ids, amounts, places], schema=SCHEMA)


class Peer(Protocol):
    """One library with one table."""

    name: str

    def load(self, table: pa.Table) -> None: ...
    def upsert(self, table: pa.Table) -> None: ...
    def as_of(self, number: int) -> int:
        """Read the table as it was after ``number`` upserts; return how many rows it had."""
        ...

    def changes(self, number: int) -> int | None:
        """Read what the last upserts changed, after ``number`` of them; return how many changes."""
        ...


class Ours:
    """A collection; time 0 is the load, each upsert takes the next."""

    name = "walstore"

    def __init__(self, path: Path) -> None:
        self.url = f"file://{path}"
        self.loop = asyncio.new_event_loop()
        self.at = 0
        self.appending = 0.0
        """Seconds of the last load until its rows are durable and readers have them."""
        self.collection: Collection
        self.reader: CollectionReader

    def load(self, table: pa.Table) -> None:
        self.loop.run_until_complete(self._load(table))

    async def _load(self, table: pa.Table) -> None:
        began = time.perf_counter()
        self.collection = await Collection.open(
            self.url, create=True, schema=SCHEMA, key=("id",), kind="upsert"
        )
        self.reader = await self.collection.reader("bench")
        await self._append(table)
        self.appending = time.perf_counter() - began
        await self._compact()

    async def _append(self, table: pa.Table) -> None:
        await self.collection.writer().append(table, lower=self.at, upper=self.at + 1)
        self.at += 1

    def upsert(self, table: pa.Table) -> None:
        self.loop.run_until_complete(self._append(table))

    def as_of(self, number: int) -> int:
        found: pa.Table = self.loop.run_until_complete(self.reader.snapshot(as_of=number))
        return found.num_rows

    def changes(self, number: int) -> int:
        return self.loop.run_until_complete(self._changes(number))

    async def _changes(self, number: int) -> int:
        async with aclosing(self.reader.listen(after=number)) as steps:
            found = 0
            async for table, frontier in steps:
                found += table.num_rows
                if frontier >= self.at:
                    break
        return found

    def compact(self) -> None:
        self.loop.run_until_complete(self._compact())

    async def _compact(self) -> None:
        async with Controller.open(self.url) as controller:
            await controller.compact()

    def close(self) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()

    async def _close(self) -> None:
        await self.reader.aclose()
        await self.collection.aclose()


class Delta:
    """A Delta table with its change data feed, by deltalake (Rust)."""

    name = "deltalake"

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def load(self, table: pa.Table) -> None:
        import deltalake

        deltalake.write_deltalake(
            self.path, table, configuration={"delta.enableChangeDataFeed": "true"}
        )

    def _table(self, version: int | None = None) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.path, version=version)

    def upsert(self, table: pa.Table) -> None:
        merging = self._table().merge(
            source=table, predicate="t.id = s.id", source_alias="s", target_alias="t"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def as_of(self, number: int) -> int:
        found: int = self._table(number).to_pyarrow_table().num_rows
        return found

    def changes(self, number: int) -> int:
        found = pa.table(self._table().load_cdf(starting_version=number + 1).read_all())
        return sum(kind != "update_preimage" for kind in found.column("_change_type").to_pylist())


class Iceberg:
    """An Iceberg table in an SQLite catalog, by pyiceberg."""

    name = "pyiceberg"

    def __init__(self, path: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        path.mkdir()
        self.catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}"
        )
        self.catalog.create_namespace("bench")
        self.snapshots: list[int] = []

    def load(self, table: pa.Table) -> None:
        self.table = self.catalog.create_table("bench.rows", table.schema)
        with self.table.update_schema() as change:
            change.set_identifier_fields("id")
        self.table.append(table)
        self._note()

    def _note(self) -> None:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.snapshots.append(snapshot.snapshot_id)

    def upsert(self, table: pa.Table) -> None:
        self.table.upsert(table)
        self._note()

    def as_of(self, number: int) -> int:
        return self.table.scan(snapshot_id=self.snapshots[number]).to_arrow().num_rows

    def changes(self, number: int) -> None:
        return None


def peers(path: Path) -> list[Peer]:
    """Return what is installed."""
    path.mkdir(exist_ok=True)
    found: list[Peer] = [Ours(path / "ours")]
    for name, make in (("deltalake", Delta), ("pyiceberg", Iceberg)):
        try:
            __import__(name)
            found.append(make(path / name))
        except ImportError:
            print(f"{name} is not installed")
    return found


def timed(call: Callable[..., Any], *given: object) -> tuple[float, Any]:
    """Return how long a call takes, and its answer."""
    began = time.perf_counter()
    answer = call(*given)
    return time.perf_counter() - began, answer


def load(peer: Peer, base: pa.Table, seconds: dict[tuple[str, str], list[float]]) -> None:
    """Load the rows into a new table, and note how long it took."""
    taken = timed(peer.load, base)[0]
    seconds[peer.name, "load"].append(taken)
    seconds[peer.name, "append"].append(peer.appending if isinstance(peer, Ours) else taken)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", type=int, default=1, help="loads into new tables, interleaved")
    parser.add_argument("--skip", default="", help="libraries to leave out, with commas")
    return parser.parse_args()


def main() -> None:
    """Measure and print everything."""
    options = arguments()
    chance = random.Random(1)
    base = rows(pa.array(range(options.rows), pa.int64()), chance)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    skipped = set(options.skip.split(","))
    place = Path(tempfile.mkdtemp(prefix="walstore-peers-"))
    try:
        found = [peer for peer in peers(place) if peer.name not in skipped]
        for peer in found:
            load(peer, base, seconds)
        for number in range(1, options.loads):
            for peer in peers(place / f"again-{number}"):
                if peer.name not in skipped:
                    load(peer, base, seconds)
                    if isinstance(peer, Ours):
                        peer.close()
        for number in range(options.rounds):
            step = options.rows // options.changes
            ids = pa.array(range(number, options.rows, step), pa.int64())
            changed = rows(ids, chance)
            for peer in found:
                seconds[peer.name, "upsert"].append(timed(peer.upsert, changed)[0])
                taken, changes = timed(peer.changes, number)
                if changes is not None:
                    assert changes == len(ids), (peer.name, changes)
                    seconds[peer.name, "changes"].append(taken)
                taken, count = timed(peer.as_of, number)
                assert count == options.rows, (peer.name, count)
                seconds[peer.name, "as of"].append(taken)
            ours = found[0]
            if isinstance(ours, Ours):
                seconds[ours.name, "compact"].append(timed(ours.compact)[0])
        if isinstance(found[0], Ours):
            found[0].close()
    finally:
        shutil.rmtree(place)
    columns = ("append", "load", "upsert", "changes", "as of", "compact")
    print(f"seconds; {options.rows} rows, upserts of {options.changes}, {options.rounds} rounds")
    print(f"{'':12}" + "".join(f"{column:>10}" for column in columns))
    for peer in found:
        times = [seconds.get((peer.name, column)) for column in columns]
        shown = [f"{statistics.median(one):10.3f}" if one else f"{'-':>10}" for one in times]
        print(f"{peer.name:12}" + "".join(shown))


if __name__ == "__main__":
    main()
