"""Appends wait on this disk while a server, or a cluster, is away, and are in its log once when it is back.

    python examples/store_and_forward.py

A program appends to a log of its own, its outbox: that works without any network. Another task appends the
records to the served log, with the offset in the outbox as the sequence number of a producer. So a record
that is sent again, after a crash of this program or of the server, is in the log once. For a cluster pass
the addresses of its machines, and the name of the log.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from walstore import OutcomeUnknownError, Record, Settings, StorageUnavailableError, Wal, connect
from walstore.serve import Server

BATCH = 50
"""Records sent before the outbox notes it; the server remembers at least 64 appends of a producer."""


async def forward(outbox: Wal, address: str | Sequence[str], log: str | None = None) -> None:
    """Append what is in the outbox, and what comes, to the served log; for ever."""
    cursor = await outbox.cursor("forwarded")
    reader = outbox.follow(cursor.position)
    while True:
        batch = await reader.fetch(max_records=BATCH)
        while not await try_to_send(outbox, address, log, batch.records()):
            pass  # connecting has waited a while
        await cursor.commit(batch.limit)  # retention may remove them from here on


async def try_to_send(
    outbox: Wal, address: str | Sequence[str], name: str | None, records: Sequence[Record]
) -> bool:
    """Append records in their order; return whether the server has them."""
    try:
        async with connect(address, log=name, connect_seconds=2, reconnect_seconds=5) as log:
            producer = log.producer(f"outbox {outbox.log_id}")
            await asyncio.gather(
                *(producer.append(one.value, key=one.key, sequence=one.offset) for one in records)
            )
    except (StorageUnavailableError, OutcomeUnknownError):
        return False  # what the server has already is not appended again: the offset is its number
    return True


async def serve_until(directory: Path, socket: Path, count: int) -> None:
    """Be the server until its log has so many records, and look at them."""
    async with Wal.open(directory) as log, Server.open(log, unix=socket):
        values = [record.value async for record in log.follow(stop=count + 1)]
        print(len(values), "in the log,", len(values) - len(set(values)), "of them twice")


async def main() -> None:
    """Append to the outbox, and start the server now and then."""
    with tempfile.TemporaryDirectory() as name:
        directory, socket = Path(name), Path(name) / "served.sock"
        settings = Settings(retention_bytes=0)  # what is forwarded need not stay
        async with (
            Wal.open(directory / "outbox", settings=settings) as outbox,
            asyncio.TaskGroup() as group,
        ):
            forwarding = group.create_task(forward(outbox, f"unix://{socket}"))
            for number in range(100):
                await outbox.append(b"reading %d" % number)
            print("100 in the outbox, and no server")
            await serve_until(directory / "served", socket, 100)
            for number in range(100, 200):
                await outbox.append(b"reading %d" % number)
            print("200 in the outbox, and the server is gone")
            await serve_until(directory / "served", socket, 200)
            forwarding.cancel()


if __name__ == "__main__":
    asyncio.run(main())
