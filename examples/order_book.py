"""Keep an order book from a log of changes, and read it as it was at any offset of that log.

The log has change events as Debezium makes them. A materializer turns each into an update of a versioned
collection at the time that is its offset, so the book at an offset is what the first records up to there say,
and what is in the book may be trimmed from the log. Needs no Spark.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pyarrow as pa

from uploader import Collection, CollectionReader, Materializer
from walstore import Wal

Level = dict[str, object]
SCHEMA = pa.schema(
    [pa.field("side", pa.string(), nullable=False), ("price", pa.int64()), ("size", pa.int64())]
)


def event(op: str, before: Level | None, after: Level | None) -> bytes:
    """Return a change event: c created, u updated, d deleted."""
    return json.dumps({"op": op, "before": before, "after": after}).encode()


def level(side: str, price: int, size: int) -> Level:
    """Return a row of the book: so much is wanted, or offered, at a price."""
    return {"side": side, "price": price, "size": size}


EVENTS = [
    event("c", None, level("bid", 99, 5)),
    event("c", None, level("ask", 101, 4)),
    event("c", None, level("bid", 100, 2)),
    event("u", level("bid", 99, 5), level("bid", 99, 8)),
    event("d", level("bid", 100, 2), None),
    event("c", None, level("ask", 100, 1)),
]


async def show(reader: CollectionReader, offset: int) -> None:
    """Print the best prices as they were once the record at ``offset`` was applied."""
    book = (await reader.snapshot(as_of=offset)).to_pylist()
    bids = [(row["price"], row["size"]) for row in book if row["side"] == "bid"]
    asks = [(row["price"], row["size"]) for row in book if row["side"] == "ask"]
    best = [f"{price} x {size}" for price, size in (max(bids), min(asks))]
    print(f"offset {offset}: best bid {best[0]}, best ask {best[1]}")


async def main(directory: Path) -> None:
    """Write changes, apply them, look back, and go on."""
    url = (directory / "book").as_uri()
    async with (
        Wal.open(directory / "changes") as log,
        Collection.open(
            url, create=True, schema=SCHEMA, key=("side", "price"), kind="upsert"
        ) as book,
    ):
        cursor = await log.cursor("book")
        materializer = Materializer(log, book, envelope="debezium", commit=cursor.commit)
        async with await book.reader("trader") as reader:
            await log.append_many(EVENTS[:4])
            print(await materializer.catch_up(), "changes applied")
            await log.append_many(EVENTS[4:])
            print(await materializer.catch_up(), "changes applied")
            for offset in (2, 3, 5, 6):
                await show(reader, offset)
            async for changes, limit in reader.listen(after=4):
                for row in changes.to_pylist():
                    what = "gone" if row["_deleted"] else f"size {row['size']}"
                    print(f"change at {row['_t']}: {row['side']} {row['price']}, {what}")
                if limit == log.tail:
                    break
        print("the log could begin at", await log.trim(log.durable_limit))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
