"""What every version of walstore can do: a program that runs on whichever is on the path.

    version_child.py DIRECTORY|ADDRESS TAG [TIER]

Appends, reads all, moves a cursor, takes a job; prints as JSON what it found. Any error ends it with a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from uploader import CloudTier
from walstore import Wal, WalError, connect


async def use(wal: Any, tag: str) -> dict[str, object]:
    value = tag.encode()
    async with wal.group("work", stream="jobs") as group:  # before the job: it begins at the end
        await wal.append(value, key=b"k", stream="jobs", headers={"h": b"1"})
        await wal.append_many([value + b" of a group"] * 2)
        async with wal.transaction() as transaction:
            await transaction.append(value + b" of a transaction")
        await wal.producer(f"p-{tag}").append(value + b" of a producer")
        job = await anext(aiter(group))
        await job.ack()
    async with wal.reader("earliest", follow=False) as reader:
        values = [record.value.decode() async for record in reader]
    cursor = await wal.cursor("billing", start=1)
    found = cursor.position
    await cursor.commit(wal.tail)
    return {"values": values, "cursor": found, "job": job.value.decode()}


async def main(place: str, tag: str, tier: str | None = None) -> None:
    async with AsyncExitStack() as stack:
        if "://" in place:
            wal: Any = await stack.enter_async_context(connect(place))
        else:
            shipped = CloudTier(tier) if tier else None
            wal = await stack.enter_async_context(Wal.open(place, tier=shipped))
        print(json.dumps(await use(wal, tag)))


try:
    asyncio.run(main(*sys.argv[1:]))
except WalError as error:
    sys.exit(f"{type(error).__name__}: {error}")
